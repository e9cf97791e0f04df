"""What `guarantee` states, compared with the exact law of the ballots of small mechanisms.

The attacker knows all shared randomness (words, dither, rotation, chosen blocks), so a law is that
of the bits under a fixed key. `chosen_coins.py` counts it over the 2^32 draws of each bit. Every
stated figure must hold for every pair of updates: the pure epsilon, the Renyi divergences that rho
bounds, and (epsilon, delta) of one message and of two.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

import hushbit as hb
from chosen_coins import (
    COINS,
    counts_by_bisection,
    counts_by_comparison,
    layers,
    leaf,
    use_definitions,
)
from hushbit.baselines import MVU, SignRR
from hushbit.cpa import StagedCPA
from hushbit.encoding.clip_and_rotate import cached_rotation
from hushbit.mechanism import Mechanism
from hushbit.privacy.guarantee import Guarantee
from hushbit.privacy.renyi import zcdp_of_two_points
from hushbit.wrappers import NormVote

KEY = hb.RoundKey(bytes(range(32)), 5)
USERS = (3, 8)
RADIUS = 0.8
ORDERS = (1.01, 1.5, 2.0, 4.0, 16.0, 64.0)
DELTAS = (1e-2, 1e-5)
EPSILONS = (0.1, 0.5, 2.0, 8.0)
MATRIX = [[1.0, 0.0, 0.0], [0.5, 0.9, 0.0], [0.3, 0.2, 0.8]]
ROUNDINGS = ("stochastic", "dithered", "subtractive", "nearest")
PRESETS = ("corrected", "paper", "authors")
TOLERANCE = 1e-9  # of the float arithmetic here

Wrap = tuple[str, ...]
WRAPS: tuple[Wrap, ...] = (
    (),
    ("rotate",),
    ("vote",),
    ("subset",),
    ("vote", "rotate"),
    ("rotate", "vote"),
    ("vote", "vote"),
    ("subset", "vote", "rotate"),
    ("vote", "rotate", "vote"),
)


def wrapped(make: Callable[[], Mechanism], wraps: Wrap, epsilon: float) -> Mechanism:
    """The mechanism in wrappers, the innermost first."""
    mechanism = make()
    for number, wrap in enumerate(wraps):
        if wrap == "rotate":
            mechanism = hb.Rotated(mechanism)
        elif wrap == "vote":
            level, answers = RADIUS / (1 + number), 1 if number == 0 else 3
            mechanism = NormVote(mechanism, level, epsilon * (1 + number) / 2, answers)
        else:
            assert isinstance(mechanism, hb.CPA)
            mechanism = hb.Subset(mechanism, max(1, mechanism.blocks - 1))
    return mechanism


# The worst updates


def updates_to_compare(mechanism: Mechanism) -> NDArray[np.float64]:
    """Updates at points, on the clip and beyond it, in opposite and in spread directions."""
    dim, cpa = mechanism.dim, leaf(mechanism)
    ones, signs = np.ones(dim) / math.sqrt(dim), (-1.0) ** np.arange(dim) / math.sqrt(dim)
    reach = cpa.radius if isinstance(cpa, StagedCPA) else RADIUS
    sizes = {reach, 30 * reach, reach / 2, reach * math.sqrt(dim), 0.03 * reach}
    if mechanism.clip is not None:
        sizes |= {mechanism.clip, 2 * mechanism.clip}
    made = [np.zeros(dim)]
    for size, direction in itertools.product(sorted(sizes), (np.eye(dim)[0], ones, signs)):
        made += [size * direction, -size * direction]
    if isinstance(cpa, StagedCPA):
        positions = cpa.quantizer.points.positions
        for point in positions[np.unique(np.linspace(0, len(positions) - 1, 5).astype(int))]:
            made.append(np.resize(point, dim))
    if any(isinstance(part, hb.Rotated) for part in layers(mechanism)):
        rotation = cached_rotation(dim, KEY.rotation)
        made += [rotation.invert(update) for update in made]
    return np.unique(np.array(made).round(12), axis=0)


def laws(mechanism: Mechanism) -> Iterator[NDArray[np.float64]]:
    """P(bit = 1) for each update and bit, under the key of each user.

    Nested stages draw a point first. A law is then a mixture over that draw, and all divergences
    compared here are largest for a fixed draw, so rows for several draws are listed instead.
    """
    updates = updates_to_compare(mechanism)
    inner = leaf(mechanism)
    cpa = isinstance(inner, StagedCPA)
    nested = cpa and len(inner.stage_encoders) > 1
    count = counts_by_comparison if cpa else counts_by_bisection
    for user in USERS:
        keys = KEY.users([user] * len(updates))
        parts = [
            count(mechanism, updates, keys, rounding)
            for rounding in ((0, COINS // 2, COINS - 1) if nested else (0,))
        ]
        yield np.unique(np.concatenate(parts), axis=0) / COINS


# What holds for a pair of laws


def loss_bounds(law: NDArray[np.float64]) -> NDArray[np.float64]:
    """The largest log-likelihood ratio of a message, for each pair of rows."""
    yes, no = np.log(law), np.log1p(-law)
    return np.maximum(yes[:, None] - yes, no[:, None] - no).sum(axis=2)


def renyi(law: NDArray[np.float64], order: float) -> NDArray[np.float64]:
    """The Renyi divergence of a message, for each pair of rows."""
    yes, no = np.log(law), np.log1p(-law)
    sums = np.logaddexp(
        order * yes[:, None] + (1 - order) * yes, order * no[:, None] + (1 - order) * no
    )
    return sums.sum(axis=2) / (order - 1)


def message_law(chances: NDArray[np.float64]) -> NDArray[np.float64]:
    """The probability of each message of independent bits."""
    law = np.ones(1)
    for chance in chances:
        law = np.concatenate([law * (1 - chance), law * chance])
    return law


def delta_at(epsilon: float, law: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """The smallest delta with which a pair of laws is within epsilon."""
    return float(np.maximum(law - math.exp(min(epsilon, 700.0)) * other, 0.0).sum())


def violations(mechanism: Mechanism, guarantee: Guarantee | None = None) -> list[str]:
    """The statements of the guarantee that the exact laws contradict."""
    stated = mechanism.guarantee if guarantee is None else guarantee
    found = []
    for law in laws(mechanism):
        losses = loss_bounds(law)
        if losses.max() > stated.epsilon_per_message() + TOLERANCE:
            found.append(f"pure epsilon {losses.max()} > {stated.epsilon_per_message()}")
        per_bit = np.log(law[:, None] / law).max()
        if per_bit > stated.epsilon_per_bit + TOLERANCE:
            found.append(f"epsilon {per_bit} of a bit > {stated.epsilon_per_bit}")
        divergences = [renyi(law, order) for order in ORDERS]
        if stated.rho is not None:
            worst = max(d.max() / order for d, order in zip(divergences, ORDERS, strict=True))
            if worst > stated.rho * (1 + TOLERANCE):
                found.append(f"rho {worst} > {stated.rho}")
        # The joint law is computed for the pairs that differ most.
        pairs = {np.unravel_index(d.argmax(), d.shape) for d in (losses, *divergences)}
        for first, second in pairs:
            one, other = message_law(law[first]), message_law(law[second])
            for times, delta in itertools.product((1, 2), DELTAS):
                if times == 2 and one.size > 2**6:
                    continue  # 2^13 messages or more; one message of this size is compared
                epsilon = stated.epsilon_per_run(times, delta)
                both = (np.outer(one, one), np.outer(other, other)) if times == 2 else (one, other)
                least = delta_at(epsilon, *both)
                if least > delta * (1 + TOLERANCE):
                    found.append(f"delta {least} > {delta} of {times} at epsilon {epsilon}")
    return found


# The mechanisms

Case = Callable[[], Mechanism]


def clipped_two_points() -> Iterator[Case]:
    """All mechanisms that state a rho."""
    for preset, words, clip, dim, epsilon, wraps in itertools.product(
        PRESETS, ("hadamard", "uniform"), (0.3, 1.0, 2.5), (1, 2, 3), EPSILONS, WRAPS
    ):
        if words == "uniform" and (dim == 1 or len(wraps) > 1):
            continue  # words of two points are equal in law
        options = {"points": 2, "preset": preset, "words": words, "rounding": "stochastic"}
        make = partial(hb.CPA, dim, epsilon, RADIUS, clip=clip * RADIUS, **options)
        yield partial(wrapped, make, wraps, epsilon)


def one_stage() -> Iterator[Case]:
    """Every preset, rounding, lattice and number of points."""
    sets = [("Z", 2, 1), ("Z", 2, 3), ("Z", 3, 1), ("Z", 3, 3), ("Z", 4, 3), ("Z", 8, 2)]
    sets += [("A2", 4, 3), ("A2", 7, 2), (MATRIX, 8, 3), ("D4", 8, 3), ("E8", 16, 3)]
    for preset, rounding, (lattice, points, dim), epsilon, wraps in itertools.product(
        PRESETS, ROUNDINGS, sets, EPSILONS, WRAPS
    ):
        if "subset" in wraps and rounding in ("dithered", "subtractive"):
            continue  # cannot be built
        if lattice != "Z" and (preset == "paper" or epsilon not in (0.5, 2.0) or len(wraps) > 2):
            continue  # "paper" encodes lattices as "corrected" does
        options = {"points": points, "lattice": lattice, "preset": preset, "rounding": rounding}
        make = partial(hb.CPA, dim, epsilon, RADIUS, clip=RADIUS, **options)
        yield partial(wrapped, make, wraps, epsilon)


def nested() -> Iterator[Case]:
    """Stages, also with different epsilons."""
    sets = [("Z", (2, 2), 3), ("Z", (3, 3), 1), ("Z", (2, 2, 2), 1), ("A2", (7, 4), 2)]
    for preset, rounding, (lattice, stages, dim), epsilon, wraps in itertools.product(
        PRESETS, ROUNDINGS, sets, (0.5, (0.1, 2.0, 0.7)), WRAPS
    ):
        if "subset" in wraps or (lattice != "Z" and preset == "paper"):
            continue  # cannot be built, or equals another
        per_bit = epsilon if isinstance(epsilon, float) else epsilon[: len(stages)]
        options = {"stages": stages, "lattice": lattice, "preset": preset, "rounding": rounding}
        make = partial(hb.NestedCPA, dim, per_bit, RADIUS, clip=RADIUS, **options)
        yield partial(wrapped, make, wraps, 0.4)


def one_bit_baselines() -> Iterator[Case]:
    """Baselines of one bit for each entry."""
    for epsilon, dim, wraps in itertools.product(EPSILONS, (1, 3), WRAPS):
        if "subset" in wraps:
            continue  # cannot be built
        for make in (
            partial(SignRR, dim, epsilon, step=RADIUS),
            partial(SignRR, dim, epsilon, step=RADIUS, stochastic=True),
            partial(SignRR, dim, epsilon, preset="authors"),
            partial(MVU, dim, epsilon, RADIUS),
        ):
            yield partial(wrapped, make, wraps, epsilon)


FAMILIES = {
    "clipped two points": (clipped_two_points, 23),
    "one stage": (one_stage, 71),
    "nested": (nested, 29),
    "one-bit baselines": (one_bit_baselines, 17),
}
"""The mechanisms of each family, and the step with which the quick test goes through them."""


def check(mechanism: Mechanism) -> None:
    assert same_bits_as_compiled(mechanism), repr(mechanism)
    assert violations(mechanism) == [], repr(mechanism)


def same_bits_as_compiled(mechanism: Mechanism) -> bool:
    """Whether the definitions, whose law is computed here, give the bits of the kernels."""
    updates = updates_to_compare(mechanism)[:5]
    keys = KEY.users(range(len(updates)))
    coins = hb.SeededCoins(len(updates)).keys(keys)
    compiled, _ = mechanism.encode_payload(updates, keys, coins)
    with pytest.MonkeyPatch.context() as patch:
        use_definitions(patch)
        defined, _ = mechanism.encode_payload(updates, keys, coins)
    return np.array_equal(compiled, defined)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_part_of_all_mechanisms(family: str) -> None:
    cases, step = FAMILIES[family]
    for case in itertools.islice(cases(), 0, None, step):
        check(case())


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_all_mechanisms(family: str) -> None:
    for case in FAMILIES[family][0]():
        check(case())


@pytest.mark.parametrize("family", ["clipped two points", "one stage", "nested"])
def test_both_ways_to_count_agree(family: str) -> None:
    """The comparison that the encoder makes has the effect on the bit that is counted."""
    cases, step = FAMILIES[family]
    for case in itertools.islice(cases(), 5, None, 12 * step):
        mechanism = case()
        updates = updates_to_compare(mechanism)[::5]
        keys = KEY.users([USERS[0]] * len(updates))
        for rounding in (0, 123_456_789):
            by_bits = counts_by_bisection(mechanism, updates, keys, rounding)
            compared = counts_by_comparison(mechanism, updates, keys, rounding)
            assert np.array_equal(by_bits, compared), repr(mechanism)


def test_points_inside_the_radius_cost_more() -> None:
    """Preset "paper" has its points at ±radius / 2: a rho for ±radius would be four times less."""
    made = hb.CPA(7850, 0.5, 0.05, clip=0.05, preset="paper", rounding="stochastic")
    assert made.quantizer.points.positions.ravel().tolist() == [-0.025, 0.025]
    assert made.guarantee.rho == pytest.approx(0.5, rel=1e-12)
    assert made.guarantee.epsilon_per_message(1e-5) > 4.27


@pytest.mark.parametrize("preset", ["paper", "authors"])
def test_a_rho_from_the_radius_is_detected(preset: str) -> None:
    options = {"points": 2, "preset": preset, "rounding": "stochastic", "clip": RADIUS}
    mechanism = hb.CPA(3, 0.5, RADIUS, **options)
    by_radius = zcdp_of_two_points(0.5, RADIUS, RADIUS)
    stated = dataclasses.replace(mechanism.guarantee, rho=by_radius)
    assert any("rho" in line for line in violations(mechanism, stated))
    assert violations(mechanism) == []


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_pure_epsilon_is_attained(epsilon: float) -> None:
    """Otherwise the updates that are compared would not be the worst ones."""
    for mechanism in (hb.CPA(3, epsilon, RADIUS), hb.Rotated(hb.CPA(3, epsilon, RADIUS))):
        stated = mechanism.guarantee.epsilon_per_message()
        measured = max(loss_bounds(law).max() for law in laws(mechanism))
        assert stated * (1 - 1e-5) < measured <= stated + TOLERANCE


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 2.0])
def test_half_the_stated_figures_are_detected(epsilon: float) -> None:
    """Every kind of statement can fail."""
    mechanism = hb.CPA(3, epsilon, RADIUS, clip=3 * RADIUS)
    stated = mechanism.guarantee
    groups = tuple((per_bit / 2, count) for per_bit, count in stated.groups)
    found = violations(mechanism, dataclasses.replace(stated, groups=groups, rho=stated.rho / 9))
    for kind in ("pure epsilon", "of a bit", "rho", "of 1 at", "of 2 at"):
        assert any(kind in line for line in found), kind


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_automatic_mechanisms(epsilon: float) -> None:
    for options in (
        {"epsilon_per_bit": epsilon},
        {"epsilon_per_bit": epsilon, "k": 2},
        {"budget": hb.Budget(epsilon, 0.0, per="message", against="server")},
        {"budget": hb.Budget(epsilon, 1e-5, per="message", against="server")},
    ):
        mechanism = hb.AutoCPA(3, 1000, **options)
        check(mechanism)
        check(NormVote(mechanism, 1.0, epsilon))
        assert all(np.ptp(law, axis=0).min() > 0 for law in laws(mechanism))  # every bit differs


def test_no_rho_without_private_rounding() -> None:
    for rounding, points, wraps in itertools.product(ROUNDINGS, (2, 3), WRAPS[:3]):
        made = partial(hb.CPA, 3, 0.5, RADIUS, points=points, rounding=rounding, clip=RADIUS)
        proven = rounding == "stochastic" and points == 2
        assert (wrapped(made, wraps, 0.5).guarantee.rho is not None) == proven
    assert hb.CPA(3, 0.5, RADIUS).guarantee.rho is None  # without a clip
    assert hb.NestedCPA(3, 0.5, RADIUS, stages=(2, 2), clip=RADIUS).guarantee.rho is None


def test_tiers_state_the_guarantee_of_each_tier() -> None:
    mechanisms = [case() for case in itertools.islice(clipped_two_points(), 700, 1000, 37)]
    mechanisms = [m for m in mechanisms if m.dim == mechanisms[0].dim]
    tiers = hb.Tiers(*mechanisms)
    assert len(tiers) > 3
    for tier, mechanism in enumerate(mechanisms):
        update, user, coins = np.full(tiers.dim, 0.1), KEY.user(2), hb.SimulationCoins(1)
        assert tiers.guarantees[tier] == mechanism.guarantee
        ballot = tiers.encode(update, user, coins, tier=tier)
        assert ballot == mechanism.encode(update, user, coins)
        assert violations(mechanism) == []
