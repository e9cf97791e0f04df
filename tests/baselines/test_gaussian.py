"""The Gaussian mechanism: law of the noise, private coins, clip, guarantee and calibration."""

import math

import numpy as np
import pytest

import hushbit as hb
from hushbit.baselines import FedAvg, Gaussian
from hushbit.baselines.gaussian import (
    LOG_ERROR,
    STEPS_PER_DEVIATION,
    normal_noise,
    normal_of_words,
)
from hushbit.errors import InvalidInput, RefusedBallot
from hushbit.privacy.gaussian import delta_of_gaussian, epsilon_of_gaussian
from hushbit.tuning.calibrate import calibrate_gaussian
from hushbit.wire.ballot import Ballot
from hushbit.wrappers import NormVote

DIM, USERS = 301, 40
KEY = hb.RoundKey(bytes(range(32)), 5)
COIN = np.arange(8, dtype=np.uint32)


def counted(mechanism, updates) -> hb.Tally:
    tally = mechanism.tally(KEY)
    tally.add_many(mechanism.encode_many(updates, KEY.users(range(len(updates)))))
    return tally


def updates(scale: float = 0.02) -> np.ndarray:
    return np.random.default_rng(1).normal(scale=scale, size=(USERS, DIM))


def test_the_noise_is_standard_normal() -> None:
    size = 400_001
    drawn = normal_noise(COIN, size)
    assert drawn.shape == (size,)
    for power, moment in ((1, 0.0), (2, 1.0), (3, 0.0), (4, 3.0)):
        spread = math.sqrt(math.prod(range(1, 2 * power, 2)) / size)
        assert abs((drawn**power).mean() - moment) < 4 * spread
    for edge in (0.01, 0.5, 1.0, 2.0, 3.0, 4.0):
        tail = math.erfc(edge / math.sqrt(2)) / 2
        for side in (drawn > edge, drawn < -edge):
            assert abs(side.mean() - tail) < 5 * math.sqrt(tail / size)
    half = (size + 1) // 2
    assert abs((drawn[: half - 1] * drawn[half:]).mean()) < 4 / math.sqrt(half)


def test_the_noise_is_exact_up_to_the_error_that_is_counted() -> None:
    """Compared with 50 digits; the first words give the shortest and nearly the longest vectors."""
    mpmath = pytest.importorskip("mpmath")
    words = np.random.default_rng(1).integers(0, 2**64, (3, 120), dtype=np.uint64)
    words[0, :40] = np.uint64(1) << np.arange(0, 40, dtype=np.uint64)
    words[0, 40:60] = 0
    words[1, 40:60] = np.uint64(2**64 - 1) >> np.arange(0, 10, 0.5).astype(np.uint64)
    drawn = normal_of_words(words.reshape(-1)).reshape(2, -1)
    with mpmath.workdps(60):
        for column, (high, low, turn) in enumerate(words.T.tolist()):
            uniform = (mpmath.mpf((high << 64) + low) + 0.5) / mpmath.mpf(2) ** 129
            angle = 2 * mpmath.pi * (turn >> 1) / mpmath.mpf(2) ** 63
            length = mpmath.sqrt(-2 * mpmath.log(uniform if turn & 1 else 1 - uniform))
            exact = length * mpmath.cos(angle), length * mpmath.sin(angle)
            assert max(abs(drawn[:, column] - exact)) < 2.0**-44.6


def test_the_mean_has_the_stated_variance_and_no_bias() -> None:
    mechanism, given = Gaussian(DIM, 3.0, 1.0), updates()
    tally = counted(mechanism, given)
    runs = np.array([mechanism.estimate(tally).mean for _ in range(400)])
    estimate = mechanism.estimate(tally)
    expected = given.mean(axis=0)
    error = runs.mean(axis=0) - expected
    assert estimate.unbiased
    assert estimate.noise == estimate.variance[0] >= (3.0 / USERS) ** 2
    assert (error**2).mean() == pytest.approx(estimate.variance.mean() / len(runs), rel=0.3)
    assert runs.var(axis=0).mean() == pytest.approx(estimate.variance.mean(), rel=0.02)
    assert np.linalg.norm(given, axis=1).max() < 1


def test_the_released_sum_lies_on_a_public_grid() -> None:
    for multiplier, clip in ((3.0, 1.0), (0.37, 0.02), (1e-6, 1.0), (1e6, 1e4)):
        mechanism = Gaussian(DIM, multiplier, clip)
        ratio = mechanism.deviation / mechanism.step
        assert STEPS_PER_DEVIATION <= ratio < 2 * STEPS_PER_DEVIATION
        assert math.frexp(mechanism.step)[0] == 0.5
        released = mechanism.estimate(counted(mechanism, updates()[:1])).mean
        assert np.array_equal(released / mechanism.step, np.rint(released / mechanism.step))


def test_noise_comes_from_private_coins_and_not_from_the_key() -> None:
    mechanism, tally = Gaussian(DIM, 1.0, 1.0), counted(Gaussian(DIM, 1.0, 1.0), updates())
    first, second = (mechanism.estimate(tally).mean for _ in range(2))
    assert not np.array_equal(first, second)
    again = [mechanism.estimate(tally, coins=hb.SimulationCoins(3)).mean for _ in range(2)]
    assert np.array_equal(*again)
    assert not np.array_equal(again[0], mechanism.estimate(tally, coins=hb.SimulationCoins(4)).mean)
    other = Gaussian(DIM, 1.0, 1.0).tally(hb.RoundKey(bytes(range(32)), 6))
    other.add_many(mechanism.encode_many(updates(), other.round_key.users(range(USERS))))
    assert not np.array_equal(again[0], mechanism.estimate(other, coins=hb.SimulationCoins(3)).mean)
    for wrong in (7, KEY, KEY.user(0), bytes(32)):
        with pytest.raises(InvalidInput, match="coins must be"):
            mechanism.estimate(tally, coins=wrong)


def test_updates_are_clipped_by_users_and_larger_ones_refused_by_the_server() -> None:
    mechanism = Gaussian(DIM, 1.0, 0.5)
    ballots = mechanism.encode_many(updates(1.0), KEY.users(range(USERS)))
    norms = np.linalg.norm(ballots.payload.view("<f4").astype(float), axis=1)
    assert (norms <= 0.5).all()
    assert (norms > 0.4999).all()
    assert (ballots.overloaded == DIM).all()
    small = mechanism.encode_many(updates(0.001), KEY.users(range(USERS)))
    assert not small.overloaded.any()
    large = np.zeros(DIM, "<f4")
    large[0] = np.nextafter(np.float32(0.5), np.float32(1))
    ballot = Ballot(mechanism.fingerprint, 5, 1, mechanism.payload_bits, large.tobytes())
    with pytest.raises(RefusedBallot, match="norm"):
        mechanism.tally(KEY).add(ballot)


def test_the_guarantee() -> None:
    guarantee = Gaussian(DIM, 20.0, 0.5).guarantee
    assert guarantee.bits_per_entry == 32
    assert guarantee.epsilon_per_run(60, 1e-5) == math.inf
    for relation, reach in (("replace", 2), ("zero-out", 1)):
        found = guarantee.of_tally(1, 60, delta=1e-5, relation=relation)
        exact = epsilon_of_gaussian(reach * math.sqrt(60) / 20, 1e-5)
        assert exact < found.epsilon < exact + 3 * 60 * DIM * LOG_ERROR
        assert found.delta == 1e-5


def test_two_neighbouring_sums_are_as_far_apart_as_the_guarantee_says() -> None:
    """A threshold test on the released sum attains the delta of the exact formula, and no more."""
    mechanism, dim, epsilon = Gaussian(1, 2.0, 1.0), 1, 0.5
    tallies = [counted(mechanism, np.full((1, dim), value)) for value in (-1.0, 1.0)]
    runs = [np.array([mechanism.estimate(t).mean[0] for _ in range(6000)]) for t in tallies]
    threshold = 2.0 * epsilon / 1.0  # where the likelihood ratio is e^epsilon, for mu = 1
    power = float((runs[1] > threshold).mean()) - math.exp(epsilon) * float(
        (runs[0] > threshold).mean()
    )
    assert power == pytest.approx(delta_of_gaussian(1.0, epsilon), abs=0.04)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0, 30.0])
@pytest.mark.parametrize(("per", "rounds"), [("message", None), ("run", 60)])
def test_a_calibrated_mechanism_spends_its_budget(
    epsilon: float, per: str, rounds: int | None
) -> None:
    budget = hb.Budget(epsilon, 1e-5, per=per, against="model")
    mechanism = calibrate_gaussian(7850, budget, clip=0.5, rounds=rounds)
    spent = mechanism.guarantee.of_tally(1, rounds or 1, delta=1e-5).epsilon
    assert epsilon * (1 - 1e-6) < spent <= epsilon
    assert mechanism.clip == 0.5


def test_calibration_refuses_what_the_mechanism_cannot_keep() -> None:
    for per in ("message", "run"):
        with pytest.raises(InvalidInput, match="no guarantee against the server"):
            calibrate_gaussian(
                10,
                hb.Budget(4, 1e-5, per=per, against="server"),
                clip=1.0,
                rounds=None if per == "message" else 3,
            )
    run = hb.Budget(4, 1e-5, per="run", against="model")
    with pytest.raises(InvalidInput, match="rounds"):
        calibrate_gaussian(10, run, clip=1.0)
    tiny = hb.Budget(1e-9, 1e-12, per="run", against="model")
    with pytest.raises(InvalidInput, match="too small"):
        calibrate_gaussian(10, tiny, clip=1.0, rounds=1000)
    with pytest.raises(InvalidInput, match="Budget"):
        calibrate_gaussian(10, 4.0, clip=1.0)  # type: ignore[arg-type]


def test_wrappers_refuse_noise_of_the_server() -> None:
    mechanism = Gaussian(DIM, 1.0, 1.0)
    for wrap in (
        lambda: hb.Rotated(mechanism),
        lambda: hb.Subset(mechanism, 3),
        lambda: NormVote(mechanism, level=1.0, epsilon=0.5),
    ):
        with pytest.raises(InvalidInput):
            wrap()


@pytest.mark.parametrize(
    "wrong",
    [
        {"noise_multiplier": 1.0},
        {"noise_multiplier": 1.0, "clip": 1e-9},
        {"noise_multiplier": 1.0, "clip": 1e9},
        {"noise_multiplier": 0.0, "clip": 1.0},
        {"noise_multiplier": math.inf, "clip": 1.0},
        {"noise_multiplier": 1e7, "clip": 1.0},
        {"noise_multiplier": -1.0, "clip": 1.0},
    ],
)
def test_wrong_parameters_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInput):
        Gaussian(DIM, **wrong)


def test_without_noise_it_would_be_fedavg() -> None:
    given = updates()
    tally = counted(Gaussian(DIM, 1e-6, 1.0), given)
    plain = FedAvg(DIM).estimate(counted(FedAvg(DIM), given)).mean
    assert np.allclose(Gaussian(DIM, 1e-6, 1.0).estimate(tally).mean, plain, atol=1e-6)
