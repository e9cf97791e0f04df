"""CPA: construction, errors, clipping, scaling and guarantees."""

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

import hushbit as hb
from hushbit.encoding import stage
from hushbit.encoding.clip_and_rotate import cached_rotation, clip_l2
from hushbit.lattice.quantizer import SoftAssignment

KEY = hb.RoundKey(bytes(32), 3)
GOOD = {"dim": 6, "epsilon_per_bit": 0.5, "radius": 1.0}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("dim", [0, -1, 1.0, True, "6", None, 2**40]),
        ("epsilon_per_bit", [0, -1, math.nan, -math.inf, "0.5", True, None, [0.5], 1e-12]),
        ("radius", [0, -1, math.nan, math.inf, "1", True, None, 1e-200, 1e200]),
        ("points", [1, 0, -2, 2.0, True, "2", 5000, [4]]),
        (
            "lattice",
            [
                "E9",
                None,
                5,
                [[1], [2, 3]],
                [[1.0, 0.0], [0.0, math.nan]],
                [[0.0] * 2] * 2,
                [],
                "E8",
                [[1.0]],
            ],
        ),
        ("rounding", ["up", 5, True]),
        ("words", ["gold", 5]),
        ("preset", ["best", None, 5]),
        ("clip", [0, -1, math.nan, math.inf, "1", True]),
    ],
)
def test_wrong_parameters(name: str, values: list[object]) -> None:
    for value in values:
        with pytest.raises(hb.InvalidInput) as caught:
            hb.CPA(**(GOOD | {name: value}))  # type: ignore[arg-type]
        assert len(str(caught.value)) > 20


@pytest.mark.parametrize(
    "more",
    [
        {"stages": None},
        {"stages": (4,)},
        {"stages": (2, 1)},
        {"stages": "22"},
        {"stages": (2, 2.0)},
        {"stages": (2, 2), "epsilon_per_bit": (0.5,)},
        {"stages": (2, 2), "epsilon_per_bit": "ab"},
        {"stages": (2, 2), "epsilon_per_bit": (0.5, 0)},
        {"stages": (2, 3), "lattice": "A2"},
        {"stages": (2, 2, 2), "epsilon_per_bit": (1, 1)},
        {"stages": (2, 3), "words": "hadamard"},
    ],
)
def test_wrong_stages(more: dict[str, object]) -> None:
    with pytest.raises(hb.InvalidInput):
        hb.NestedCPA(**(GOOD | more))  # type: ignore[arg-type]


@pytest.mark.parametrize("epsilon_missing", [hb.CPA, hb.NestedCPA])
def test_privacy_parameters_have_no_defaults(epsilon_missing: type) -> None:
    with pytest.raises(TypeError):
        epsilon_missing(dim=6, radius=1.0)
    with pytest.raises(TypeError):
        epsilon_missing(dim=6, epsilon_per_bit=1.0)


@pytest.mark.parametrize(
    "update",
    [
        np.zeros(5),
        np.zeros(7),
        np.zeros((1, 6)),
        np.zeros((6, 1)),
        [],
        0.0,
        None,
        "text",
        ["a"] * 6,
        [None] * 6,
        np.zeros(6, dtype=complex),
        np.zeros(6, dtype=bool),
        [[1], [2, 3]],
        [0, 0, math.nan, 0, 0, 0],
        [math.inf] * 6,
        [0, 0, 0, 0, 0, -math.inf],
        {},
    ],
    ids=str,
)
def test_wrong_updates(update: object) -> None:
    for mechanism in (hb.CPA(**GOOD), hb.CPA(**GOOD, points=4), hb.Rotated(hb.CPA(**GOOD))):
        with pytest.raises(hb.InvalidInput, match="update"):
            mechanism.encode(update, KEY.user(1))


def test_wrong_batches() -> None:
    mechanism = hb.CPA(**GOOD)
    keys = KEY.users([1, 2])
    for updates in (np.zeros((3, 6)), np.zeros((1, 6)), np.zeros(6), np.zeros((2, 2, 6)), None):
        with pytest.raises(hb.InvalidInput):
            mechanism.encode_many(updates, keys)
    broken = np.zeros((2, 6))
    broken[1, 3] = math.nan
    with pytest.raises(hb.InvalidInput, match="row 1"):
        mechanism.encode_many(broken, keys)
    for wrong in (None, KEY, [], b"key", [KEY.user(1), None]):
        with pytest.raises(hb.InvalidInput, match="keys"):
            mechanism.encode_many(np.zeros((2, 6)), wrong)  # type: ignore[arg-type]
    for wrong in (None, KEY, KEY.users([1]), b"key", 5):
        with pytest.raises(hb.InvalidInput, match="key must come"):
            mechanism.encode(np.zeros(6), wrong)  # type: ignore[arg-type]
    assert len(mechanism.encode_many(np.zeros((0, 6)), KEY.users([]))) == 0


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, ">f8", np.int32, np.uint8])
@pytest.mark.parametrize("points", [2, 4])
def test_dtype_and_memory_layout_of_updates_do_not_matter(kind: str, points: int) -> None:
    mechanism = hb.CPA(dim=6, epsilon_per_bit=0.5, radius=2.0, points=points)
    values = np.array([[0, 1, 2, 0, 1, 2], [2, 1, 0, 2, 1, 0]])
    expected = mechanism.encode_many(values.astype(float), KEY.users([1, 2]), hb.SeededCoins(1))
    fortran = np.asfortranarray(values.astype(kind))
    for form in (values.astype(kind), fortran, values.astype(kind)[::-1][::-1], values.tolist()):
        ballots = mechanism.encode_many(form, KEY.users([1, 2]), hb.SeededCoins(1))
        assert list(ballots) == list(expected)


@pytest.mark.parametrize("points", [2, 3, 4])
@pytest.mark.parametrize("radius", [0.05, 1.1, 3e-5, 1e-100, 1e100])
def test_overload_is_counted_beyond_the_radius_only(points: int, radius: float) -> None:
    mechanism = hb.CPA(dim=6, epsilon_per_bit=0.5, radius=radius, points=points)
    assert mechanism.unbiased_radius == pytest.approx(radius)
    inside = np.array([radius, -radius, 0, radius / 2, -radius / 3, radius])
    assert mechanism.encode(inside, KEY.user(1)).overloaded == 0
    beyond = inside * np.array([1.001, 1.001, 1, 1, 1, -5])
    assert mechanism.encode(beyond, KEY.user(1)).overloaded == 3
    assert mechanism.encode(np.full(6, 1e308), KEY.user(1)).overloaded == 6


def test_without_flips_the_outermost_points_are_decoded_exactly() -> None:
    mechanism = hb.CPA(dim=500, epsilon_per_bit=math.inf, radius=1.0)
    update = np.where(np.arange(500) % 3, 1.0, -1.0)
    tally = mechanism.tally(KEY)
    tally.add(mechanism.encode(update, KEY.user(1)))
    assert np.allclose(mechanism.estimate(tally).mean, update, rtol=1e-12)


def test_different_mechanisms_have_different_fingerprints() -> None:
    variants = [
        hb.CPA(**GOOD),
        hb.CPA(**(GOOD | {"dim": 7})),
        hb.CPA(**(GOOD | {"radius": 2.0})),
        hb.CPA(**(GOOD | {"epsilon_per_bit": 0.6})),
        hb.CPA(**GOOD, points=4),
        hb.CPA(**GOOD, words="uniform"),
        hb.CPA(**GOOD, rounding="nearest"),
        hb.CPA(**GOOD, preset="paper"),
        hb.CPA(**GOOD, clip=1.0),
        hb.CPA(**GOOD, points=7, lattice="A2"),
        hb.NestedCPA(**GOOD, stages=(2, 2)),
        hb.Rotated(hb.CPA(**GOOD)),
        hb.Subset(hb.CPA(**GOOD), 2),
        hb.Subset(hb.CPA(**GOOD), 3),
        hb.CPA(**(GOOD | {"epsilon_per_bit": math.inf})),
    ]
    assert len({m.fingerprint for m in variants}) == len(variants)
    assert len(set(variants)) == len(variants)
    assert hb.CPA(**GOOD) == hb.CPA(**GOOD)
    assert hash(hb.CPA(**GOOD)) == hash(hb.CPA(**GOOD))
    assert hb.CPA(**GOOD) != "CPA"
    for mechanism in variants:
        json.dumps(mechanism.description, allow_nan=False)
        assert "epsilon" in repr(mechanism)


def test_scaling() -> None:
    for mechanism in (
        hb.CPA(**GOOD, points=4),
        hb.NestedCPA(**GOOD, stages=(2, 4)),
        hb.CPA(**GOOD, preset="authors"),
        hb.CPA(**GOOD, points=16, lattice="E8"),
    ):
        half = mechanism.scaled(0.5)
        assert type(half) is type(mechanism)
        assert half.radius == 0.5
        assert half.description == mechanism.description | {"radius": 0.5}
        assert half.unbiased_radius == pytest.approx(mechanism.unbiased_radius / 2)
        update = np.linspace(-0.4, 0.4, 6)
        small, large = (
            m.encode(x, KEY.user(1), hb.SeededCoins(1)).payload
            for m, x in ((half, update / 2), (mechanism, update))
        )
        assert small == large
    for factor in (0, -1, math.nan, math.inf, "1", 1e-300):
        with pytest.raises(hb.InvalidInput):
            hb.CPA(**GOOD).scaled(factor)  # type: ignore[arg-type]


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=3, max_size=3), st.floats(1e-3, 1e3))
def test_clipping_never_leaves_a_longer_vector(values: list[float], clip: float) -> None:
    for kind in (np.float32, np.float64):
        before = np.array([values], dtype=kind)
        after = clip_l2(before, clip)
        norm = math.sqrt(sum(float(x) ** 2 for x in before[0]))
        assert math.sqrt(sum(float(x) ** 2 for x in after[0])) <= clip
        assert after.dtype == kind
        if norm <= clip * (1 - 1e-6):
            assert (after == before).all()
        else:
            assert np.allclose(after / clip, before / norm, atol=1e-5)
    assert clip_l2(before, None) is before


def test_clipping_an_update_whose_square_overflows_keeps_its_direction() -> None:
    small = np.array([3.0, -4.0, 0.0])
    before = np.array([small * 4e307, small, small * 1e160])
    after = clip_l2(before, 10.0)
    assert np.allclose(after[0], [6.0, -8.0, 0.0], rtol=2e-6)
    assert np.allclose(after[2], [6.0, -8.0, 0.0], rtol=2e-6)
    assert (after[1] == before[1]).all()
    assert (np.linalg.norm(after, axis=1) <= 10.0).all()


def test_guarantees() -> None:
    plain = hb.CPA(dim=100, epsilon_per_bit=0.5, radius=1.0, points=8).guarantee
    assert plain.epsilon_per_bit == 0.5
    assert plain.epsilon_per_message() == 50.0
    assert plain.epsilon_per_message(delta=1e-5) < 50.0
    assert plain.epsilon_per_run(10) == 500.0
    assert plain.k_anonymity == 4
    assert plain.bits_per_entry == 1.0
    nested = hb.NestedCPA(dim=100, epsilon_per_bit=(0.5, 1.0), radius=1.0, stages=(2, 8)).guarantee
    assert nested.epsilon_per_message() == 150.0
    eights = hb.CPA(dim=96, epsilon_per_bit=0.5, radius=1.0, points=16, lattice="E8")
    assert eights.guarantee.epsilon_per_message() == 6.0
    assert eights.guarantee.bits_per_entry == 0.125
    clip = hb.CPA(dim=100_000, epsilon_per_bit=0.5, radius=1.0, clip=1.0).guarantee
    assert clip.epsilon_per_message(1e-5) < 5
    assert hb.CPA(**(GOOD | {"epsilon_per_bit": math.inf})).guarantee.epsilon_per_message() == (
        math.inf
    )
    assert hb.CPA(**GOOD, points=4, clip=1.0).guarantee.rho is None


def test_updates_whose_square_overflows_are_clipped() -> None:
    mechanism = hb.CPA(**GOOD, clip=1.0)
    assert mechanism.encode(np.full(6, 1e300), KEY.user(1)).overloaded == 0
    assert mechanism.encode(np.full(6, 3e38, dtype=np.float32), KEY.user(1)).overloaded == 0


def test_the_clip_is_applied_before_encoding() -> None:
    mechanism = hb.CPA(**GOOD, clip=0.5)
    unclipped = hb.CPA(**GOOD)
    update = np.full(6, 7.0)
    ballot = mechanism.encode(update, KEY.user(1), hb.SeededCoins(1))
    assert ballot.overloaded == 0
    scaled = clip_l2(update[None], 0.5)[0]
    assert ballot.payload == unclipped.encode(scaled, KEY.user(1), hb.SeededCoins(1)).payload


@pytest.mark.parametrize("lattice", [[[1.0, 0.0], [0.0, 1.0]], [[2.0, 0.0], [1.0, 1.5]]])
def test_any_generator_matrix(lattice: list[list[float]]) -> None:
    mechanism = hb.CPA(dim=5, epsilon_per_bit=math.inf, radius=1.0, points=9, lattice=lattice)
    assert mechanism.block_size == 2
    assert mechanism.blocks == 3
    tally = mechanism.tally(KEY)
    tally.add(mechanism.encode(np.zeros(5), KEY.user(1)))
    assert mechanism.estimate(tally).mean.shape == (5,)
    assert (
        hb.CPA(dim=5, epsilon_per_bit=math.inf, radius=1.0, points=9, lattice=np.array(lattice))
        == mechanism
    )


@pytest.mark.parametrize("words", ["hadamard", "uniform"])
@pytest.mark.parametrize("points", [2, 4, 8])
def test_every_family_of_words_decodes_the_updates(words: str, points: int) -> None:
    """Without flips the decoded mean is close to the updates."""
    mechanism = hb.CPA(400, math.inf, 1.0, points=points, words=words)
    key = hb.RoundKey(bytes(32), 0)
    x = np.linspace(-0.9, 0.9, 400)
    tally = mechanism.tally(key)
    tally.add_many(mechanism.encode_many(np.tile(x, (300, 1)), key.users(range(300))))
    estimate = mechanism.estimate(tally)
    error = estimate.mean - x
    assert abs(estimate.mean @ x / (x @ x) - 1) < 0.1
    assert (error**2).mean() < 2 * estimate.variance.mean()


def test_a_mechanism_cannot_be_changed() -> None:
    mechanism = hb.CPA(4, 0.5, 1.0)
    for made in (mechanism, mechanism.scaled(0.5), hb.Rotated(mechanism)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            made.radius = 9.0  # type: ignore[attr-defined]


@pytest.mark.parametrize("clip", [1.0, 1e-3, 1e-4, 1e-30])
@pytest.mark.parametrize("size", [1.423e38, 1.0, 1e-20])
def test_the_clip_holds_for_updates_of_any_size(clip: float, size: float) -> None:
    long = clip_l2(np.full((1, 10**5), size, np.float32), clip)
    norm = math.sqrt(float((long.astype(np.float64) ** 2).sum()))
    assert norm <= clip


@pytest.mark.parametrize("rotated", [False, True])
def test_the_expected_mean_of_clipped_updates(rotated: bool) -> None:
    key, radius = hb.RoundKey(bytes(32), 3), 0.5
    inner = hb.CPA(dim=8, epsilon_per_bit=1.0, radius=radius, clip=1.2)
    updates = np.random.default_rng(1).normal(0.2, 0.6, (30, 8))
    clipped = clip_l2(updates, 1.2)
    rotation = cached_rotation(8, key.rotation)
    seen = np.clip(rotation.apply(clipped) if rotated else clipped, -radius, radius)
    mean = seen.mean(axis=0)
    votes = (hb.Rotated(inner) if rotated else inner).votes
    assert votes is not None
    found = votes.expected_mean(updates, key)
    assert found is not None
    assert np.allclose(found.mean, rotation.invert(mean) if rotated else mean)
    assert found.honest_spread == pytest.approx((seen @ mean / np.linalg.norm(mean)).std())
    assert hb.CPA(8, 1.0, 1.0, lattice="E8", points=16).votes.expected_mean(updates, key) is None


@pytest.mark.parametrize("rms", [1e-9, 0.2, 0.5, 1.0])
def test_predicted_noise_of_nested_stages(rms: float) -> None:
    """The points of 2 x 2 stages are sums of +-2/3 and +-1/3.

    Twice the product of both parts is -4/9 up to 1/3, 4/9 from 1 and linear in between.
    """
    mechanism = hb.NestedCPA(dim=4, epsilon_per_bit=1.0, radius=1.0, stages=(2, 2))
    beta = math.tanh(0.5)

    def density(x: float) -> float:
        cross = np.interp(abs(x), [1 / 3, 1], [-4 / 9, 4 / 9])
        return float(cross * stats.norm.pdf(x, scale=rms))

    breaks = [-1, -1 / 3, 0, 1 / 3, 1]
    cross = integrate.quad(density, -8 * rms, 8 * rms, points=breaks if rms > 0.1 else None)[0]
    expected = (4 / 9 + 1 / 9) / beta**2 + cross - rms**2
    assert mechanism.noise_per_user(rms) == pytest.approx(expected, rel=2e-4)


def test_noise_is_not_predicted_for_other_roundings_and_nested_lattices() -> None:
    nested = hb.NestedCPA(dim=4, epsilon_per_bit=1.0, radius=1.0, lattice="A2", stages=(8, 4))
    dithered = hb.CPA(dim=4, epsilon_per_bit=1.0, radius=1.0, points=4, rounding="dithered")
    for mechanism, word in ((nested, "lattice 'Z'"), (dithered, "stochastic")):
        with pytest.raises(hb.InvalidInput, match=word):
            mechanism.noise_per_user(0.1)


VARIANTS = {
    "two": hb.CPA(**GOOD),
    "clipped": hb.CPA(**GOOD, clip=2.0),
    "four": hb.CPA(**GOOD, points=4),
    "dithered": hb.CPA(**GOOD, points=4, rounding="dithered"),
    "subtractive": hb.CPA(**GOOD, points=4, rounding="subtractive"),
    "nearest": hb.CPA(**GOOD, points=3, rounding="nearest"),
    "paper": hb.CPA(**GOOD, points=4, preset="paper"),
    "authors": hb.CPA(**GOOD, preset="authors"),
    "A2": hb.CPA(**GOOD, points=7, lattice="A2"),
    "subtractive A2": hb.CPA(**GOOD, points=7, lattice="A2", rounding="subtractive"),
    "nested": hb.NestedCPA(**GOOD, stages=(2, 4)),
    "subset": hb.Subset(hb.CPA(**GOOD, points=4), 4),
}


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("histogram", [False, True])
def test_estimates_scale_with_the_points(name: str, histogram: bool) -> None:
    """If points, clip and updates are four times as large, variances are sixteen times as large."""
    small = VARIANTS[name]
    large = small.scaled(4.0)
    large = large if small.clip is None else large.with_clip(4 * small.clip)
    updates = np.random.default_rng(1).uniform(-1, 1, (300, 6))
    found = []
    for mechanism, factor in ((small, 1), (large, 4)):
        tally = mechanism.tally(KEY, histogram)
        keys = KEY.users(range(300))
        tally.add_many(mechanism.encode_many(factor * updates, keys, hb.SeededCoins(1)))
        found.append(mechanism.estimate(tally))
    one, two = found
    assert np.allclose(two.mean, 4 * one.mean, rtol=1e-9, atol=1e-12)
    assert np.allclose(two.variance, 16 * one.variance, rtol=1e-9)
    assert two.noise == pytest.approx(16 * one.noise, rel=1e-9)
    scales = small.votes.scale, large.votes.scale
    assert scales[1].noise == pytest.approx(4 * scales[0].noise, rel=1e-9)
    assert scales[1].largest_norm == pytest.approx(4 * scales[0].largest_norm, rel=1e-9)
    assert scales[1].largest_entry == pytest.approx(scales[0].largest_entry, rel=1e-9)
    if getattr(small, "rounding", "stochastic") == "stochastic":
        predicted = [m.noise_per_user(rms) for m, rms in ((small, 0.1), (large, 0.4))]
        assert predicted[1] == pytest.approx(16 * predicted[0], rel=1e-9)


@pytest.mark.parametrize("radius", [0.3, 1.0, 7.0])
@pytest.mark.parametrize("points", [2, 3, 5])
def test_the_power_of_rounding(radius: float, points: int) -> None:
    """The largest E|q - x|^2 for points at a distance: exact, or bounded for dithers."""
    step = 2 * radius / (points - 1)
    for rounding, power in (
        ("stochastic", step**2 / 4),  # in the middle of two points
        ("subtractive", step**2 / 12),
        ("dithered", step**2 / 3),
        ("nearest", 0.0),
    ):
        mechanism = hb.CPA(4, 0.5, radius, points=points, rounding=rounding)
        assert mechanism.rounding_power == pytest.approx(power, rel=1e-9)
    blocks = hb.CPA(4, 0.5, radius, points=7, lattice="A2")
    assert blocks.rounding_power == pytest.approx(radius**2, rel=1e-9)


@pytest.mark.parametrize("radius", [0.3, 1.0, 7.0])
def test_the_scale_of_single_ballots(radius: float) -> None:
    """Two points: a decoded entry is ±radius / beta, and no honest update is longer than this."""
    beta = math.tanh(0.25)
    plain, clipped, loose = (
        hb.CPA(9, 0.5, radius, clip=clip) for clip in (None, radius, 10 * radius)
    )
    for mechanism, norm in ((plain, 3 * radius), (clipped, radius), (loose, 3 * radius)):
        scale = mechanism.votes.scale
        assert scale.noise == pytest.approx(radius / beta, rel=1e-6)
        assert scale.largest_norm == pytest.approx(norm, rel=1e-9)
        assert scale.largest_entry == pytest.approx(beta, rel=1e-6)
        assert scale.max_score == pytest.approx(norm * beta / radius, rel=1e-6)
    subset = hb.Subset(plain, 3).votes.scale
    assert subset.noise == pytest.approx(radius / beta * math.sqrt(3), rel=1e-6)


def test_the_mean_of_clipped_updates_and_the_spread_along_it() -> None:
    mechanism = hb.CPA(3, 0.5, 1.0, clip=5.0)
    updates = np.array([[2.0, 0.0, 0.5], [1.0, 0.0, -0.5], [-2.0, 0.0, 0.0], [0.5, 0.0, 0.0]])
    found = mechanism.votes.mean_of_clipped(updates)
    clipped = np.clip(updates, -1, 1)
    mean = clipped.sum(axis=0) / 4
    assert found.mean == pytest.approx(mean)
    along = clipped @ mean / math.sqrt(mean @ mean)
    assert found.honest_spread == pytest.approx(math.sqrt(((along - along.mean()) ** 2).mean()))
    nothing = mechanism.votes.mean_of_clipped(np.zeros((2, 3)))
    assert nothing.honest_spread == 0.0
    assert (
        hb.CPA(4, 0.5, 1.0, points=7, lattice="A2").votes.mean_of_clipped(np.zeros((2, 4))) is None
    )
    shortened = mechanism.votes.expected_mean(np.array([[0.0, 30.0, 40.0]]), KEY)
    assert shortened.mean == pytest.approx([0.0, 1.0, 1.0])


def test_blocks_and_bytes() -> None:
    for dim, blocks, size in ((1, 1, 1), (8, 1, 1), (9, 2, 1), (64, 8, 1), (65, 9, 2)):
        mechanism = hb.CPA(dim, 0.5, 1.0, lattice="E8", points=16)
        assert (mechanism.blocks, mechanism.stage_bytes) == (blocks, size)
        assert mechanism.payload_bits == blocks
    nested = hb.NestedCPA(9, 0.5, 1.0, stages=(2, 2, 2))
    assert nested.payload_bits == 16 + 16 + 9
    assert hb.CPA(2**31, 0.5, 1.0).blocks == 2**31
    with pytest.raises(hb.InvalidInput, match="at most 2\\^31 blocks; got 2147483649"):
        hb.CPA(2**31 + 1, 0.5, 1.0)


@pytest.mark.parametrize("name", ["epsilon_per_bit", "points", "words"])
def test_a_description_of_cpa_has_one_stage(name: str) -> None:
    description = {k: v for k, v in hb.CPA(**GOOD).description.items() if k != "mechanism"}
    assert hb.CPA.from_description(description) == hb.CPA(**GOOD)
    for wrong in (description[name] * 2, [], description[name][0]):
        with pytest.raises(hb.InvalidInput, match=f"{name} of a CPA must be a list of one value"):
            hb.CPA.from_description(description | {name: wrong})


def test_lists_of_stages_and_epsilons_are_stored_as_tuples() -> None:
    listed = hb.NestedCPA(6, [0.5, 1.0], 1.0, stages=[2, 4])
    assert (listed.stages, listed.epsilon_per_bit) == ((2, 4), (0.5, 1.0))
    assert repr(listed) == repr(hb.NestedCPA(6, (0.5, 1.0), 1.0, stages=(2, 4)))
    authors = hb.NestedCPA(6, 0.5, 1.0, preset="authors")
    assert authors.stages == (3, 3)


@pytest.mark.parametrize("rounding", ["subtractive", "nearest"])
@pytest.mark.parametrize("options", [{"points": 4}, {"points": 7, "lattice": "A2"}], ids=str)
def test_the_variance_subtracts_the_power_of_the_points(rounding: str, options: dict) -> None:
    """Users far from their mean: the histogram shows the power that noise does not have."""
    mechanism = hb.CPA(**(GOOD | {"epsilon_per_bit": 2.0}), rounding=rounding, **options)
    updates = np.random.default_rng(2).choice([-1.0, 1.0], (500, 6)) * 0.7
    tally = mechanism.tally(KEY)
    tally.add_many(mechanism.encode_many(updates, KEY.users(range(500)), hb.SeededCoins(1)))
    estimate = mechanism.estimate(tally)
    power = estimate.histograms[0].mean_point_power().mean()
    assert power > 0.1
    per_entry = mechanism.rounding_power / mechanism.block_size
    expected = (mechanism.stage_noise + per_entry - power) / 500
    assert estimate.variance.mean() == pytest.approx(expected, rel=1e-9)


def test_without_flips_and_rounding_the_mean_is_exact() -> None:
    """Users at the two points: the histogram shows that nothing is left of the noise."""
    mechanism = hb.CPA(6, math.inf, 0.5, rounding="nearest")
    updates = np.random.default_rng(4).choice([-0.5, 0.5], (40, 6))
    tally = mechanism.tally(KEY)
    tally.add_many(mechanism.encode_many(updates, KEY.users(range(40))))
    estimate = mechanism.estimate(tally)
    assert estimate.mean == pytest.approx(updates.mean(axis=0), abs=1e-12)
    assert estimate.variance == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("coin", [0, 2**32 - 1])
def test_points_of_weight_zero_are_never_drawn(coin: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest and the largest coin, for points with all of the weight or none."""
    index = np.array([[4, 5, 6]] * 3, dtype=np.int32)
    monkeypatch.setattr(stage, "keystream", lambda *arguments: arguments[-1].fill(coin))
    found = stage._draw(SoftAssignment(index, np.eye(3), 0), np.zeros(8, np.uint32))
    assert found.tolist() == [4, 5, 6]


@pytest.mark.parametrize("preset", ["corrected", "paper"])
def test_points_whose_sum_is_not_zero_are_decoded_as_by_the_histogram(preset: str) -> None:
    """The mean is the sum of share times position; without balance the shift contributes."""
    lattice = [[1.0, 0.0], [0.3, 2.0]]
    mechanism = hb.CPA(6, 2.0, 1.0, points=5, lattice=lattice, preset=preset)
    positions = mechanism.stage_encoders[0].points.positions
    assert np.abs(positions.sum(axis=0)).min() > 0.5
    updates = np.random.default_rng(1).uniform(-0.4, 0.4, (40, 6))
    ballots = mechanism.encode_many(updates, KEY.users(range(40)), hb.SeededCoins(1))
    means = []
    for histogram in (True, False):
        tally = mechanism.tally(KEY, histogram=histogram)
        tally.add_many(ballots)
        means.append(mechanism.estimate(tally).mean)
        if histogram:
            shares = mechanism.estimate(tally).histogram()
    assert np.allclose(means[0].reshape(-1, 2), shares @ positions, atol=1e-12)
    assert np.allclose(means[0], means[1], atol=1e-12)


@pytest.mark.parametrize("rounding", ["nearest", "dithered", "subtractive"])
def test_nested_rounding_by_the_key_draws_no_private_coins(rounding: str) -> None:
    """Without flips the bits then depend on update and key only; stochastic rounding is drawn."""
    updates = np.random.default_rng(1).uniform(-0.3, 0.3, (3, 40))
    keys = KEY.users(range(3))

    def bits(rounding: str, seed: int) -> bytes:
        mechanism = hb.NestedCPA(40, math.inf, 1.0, stages=(2, 2), rounding=rounding)
        return mechanism.encode_many(updates, keys, hb.SeededCoins(seed)).payload.tobytes()

    assert bits(rounding, 1) == bits(rounding, 2)
    assert bits("stochastic", 1) != bits("stochastic", 2)
