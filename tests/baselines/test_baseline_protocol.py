"""Properties of the mechanism protocol, tested for every baseline."""

import json
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hushbit.baselines.fedavg import FedAvg
from hushbit.baselines.gaussian import Gaussian
from hushbit.baselines.jopeq import JoPEQ
from hushbit.baselines.laplace import Laplace, WholeLaplace
from hushbit.baselines.mvu import MVU
from hushbit.baselines.signsgd import SignRR
from hushbit.errors import InvalidInput, RefusedBallot
from hushbit.kernels.threads import set_threads
from hushbit.registry import BY_NAME
from hushbit.wire.ballot import Ballot, Ballots
from hushbit.wire.coins import SimulationCoins
from hushbit.wire.keys import RoundKey

DIM = 77
KEY = RoundKey(secret=bytes(range(32)), round=5)
COINS = SimulationCoins(7)
MECHANISMS = [
    FedAvg(DIM),
    Laplace(DIM, 0.5, 0.1),
    Laplace(DIM, math.inf, 0.1),
    Laplace(DIM, 0.5, preset="authors", layers=(70, 7)),
    WholeLaplace(DIM, 4.0, 1.0),
    SignRR(DIM, 0.5, 0.01),
    SignRR(DIM, 0.5, 0.01, vote="majority"),
    SignRR(DIM, 0.5, 0.1, stochastic=True),
    SignRR(DIM, 0.5, preset="authors"),
    MVU(DIM, 0.5, 0.1),
    JoPEQ(DIM, 0.5, 0.1),
    JoPEQ(DIM, 0.5, 0.1, preset="authors"),
    Gaussian(DIM, 1.0, 0.5),
]
NAMES = [f"{i}-{m.description['mechanism']}" for i, m in enumerate(MECHANISMS)]
every = pytest.mark.parametrize("mechanism", MECHANISMS, ids=NAMES)


def updates(users: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(scale=0.08, size=(users, DIM))


def counted(mechanism, ballots):
    tally = mechanism.tally(KEY)
    tally.add_many(ballots)
    return tally


def same(first, second) -> bool:
    return all(np.array_equal(first.counters[k], second.counters[k]) for k in first.counters)


@every
def test_encode_many_equals_encode(mechanism):
    data, keys = updates(5), KEY.users([3, 9, 4, 100, 2**63])
    together = mechanism.encode_many(data, keys, COINS)
    for row, key, ballot in zip(data, keys, together, strict=True):
        assert mechanism.encode(row, key, COINS) == ballot
        assert Ballot.from_bytes(ballot.to_bytes()) == ballot
        assert ballot.bits == mechanism.payload_bits == mechanism.guarantee.message_bits


@every
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(order=st.permutations(range(7)), cut=st.integers(0, 7))
def test_order_and_grouping_change_nothing(mechanism, order, cut):
    ballots = mechanism.encode_many(updates(7), KEY.users(range(7)), COINS)
    whole = counted(mechanism, ballots)
    parts = mechanism.tally(KEY), mechanism.tally(KEY)
    for place, user in enumerate(order):
        parts[place >= cut].add(ballots[user])
    parts[0].merge(parts[1])
    assert same(parts[0], whole)
    coins = {"coins": COINS} if mechanism.server_noise else {}
    means = [mechanism.estimate(tally, **coins).mean for tally in (parts[0], whole)]
    assert np.array_equal(*means, equal_nan=True)


@every
def test_threads_change_nothing(mechanism):
    data, keys = updates(6), KEY.users(range(6))
    results = []
    for threads in (1, 3):
        set_threads(threads)
        try:
            ballots = mechanism.encode_many(data, keys, COINS)
            results.append((ballots.payload, counted(mechanism, ballots)))
        finally:
            set_threads(0)
    assert np.array_equal(results[0][0], results[1][0])
    assert same(results[0][1], results[1][1])


@every
def test_saved_tallies_are_loaded(mechanism, tmp_path):
    tally = counted(mechanism, mechanism.encode_many(updates(3), KEY.users(range(3)), COINS))
    tally.save(tmp_path / "tally")
    again = mechanism.tally(KEY)
    again.load(tmp_path / "tally")
    assert same(tally, again)


@every
def test_description_and_guarantee(mechanism):
    json.dumps(mechanism.description, allow_nan=False)
    assert repr(mechanism).startswith(f"{type(mechanism).__name__}(dim=")
    guarantee = mechanism.guarantee
    assert guarantee.epsilon_per_message() >= guarantee.epsilon_per_bit
    assert guarantee.epsilon_per_run(3) >= guarantee.epsilon_per_message()
    assert guarantee.dim == DIM


@every
def test_ballots_depend_on_private_coins(mechanism):
    """Ballots of one update and key differ, unless epsilon is infinite."""
    row, key = updates(1)[0], KEY.user(1)
    ballots = {mechanism.encode(row, key).payload for _ in range(3)}
    assert len(ballots) == 3 or math.isinf(mechanism.guarantee.epsilon_per_bit)


@every
def test_bad_updates_are_refused(mechanism):
    for bad in (
        np.full(DIM, np.nan),
        np.full(DIM, np.inf),
        np.zeros(DIM - 1),
        "x" * DIM,
        np.zeros(0),
        np.zeros((2, DIM)),
        np.zeros(DIM, bool),
    ):
        with pytest.raises(InvalidInput):
            mechanism.encode(bad, KEY.user(1), COINS)


@every
def test_extreme_updates_are_clipped_or_refused(mechanism):
    for size in (1e300, 5e-324, 0.0):
        try:
            ballot = mechanism.encode(np.full(DIM, size), KEY.user(1), COINS)
        except InvalidInput:
            assert size > 1  # 32-bit floats have a limit
            continue
        mean = mechanism.estimate(counted(mechanism, [ballot])).mean
        assert np.isfinite(mean).all()


@every
def test_damaged_ballots_do_not_change_the_tally(mechanism):
    ballots = mechanism.encode_many(updates(2), KEY.users([0, 1]), COINS)
    tally = counted(mechanism, ballots[:1])
    before = {name: array.copy() for name, array in tally.counters.items()}
    good = ballots[1]
    bad = [
        Ballot(good.fingerprint, good.round, 1, good.bits - 1, good.payload),
        Ballot(good.fingerprint, good.round, 1, good.bits, good.payload[:-1]),
        Ballot(good.fingerprint, good.round + 1, 1, good.bits, good.payload),
        Ballot(bytes(8), good.round, 1, good.bits, good.payload),
        Ballot(good.fingerprint, good.round, 0, good.bits, good.payload),
    ]
    if good.bits % 8:
        spoiled = good.payload[:-1] + bytes([good.payload[-1] | 0x80])
        bad.append(Ballot(good.fingerprint, good.round, 1, good.bits, spoiled))
    for ballot in bad:
        with pytest.raises(RefusedBallot):
            tally.add(ballot)
    assert tally.count == 1
    assert all(np.array_equal(before[name], tally.counters[name]) for name in before)


@pytest.mark.parametrize(
    ("mechanism", "payload"),
    [
        (MECHANISMS[0], np.full(DIM, np.nan, "<f4").tobytes()),
        (MECHANISMS[0], np.full(DIM, -np.inf, "<f4").tobytes()),
        (MECHANISMS[0], np.full(DIM, 2.0**15, "<f4").tobytes()),
        (MECHANISMS[3], np.full(DIM, np.inf, "<f4").tobytes()),
        (MECHANISMS[1], np.full(DIM, -(2**31), "<i4").tobytes()),
        (MECHANISMS[11], b"\xff" * 15 + b"\x07"),
        (MECHANISMS[12], np.full(DIM, 0.1, "<f4").tobytes()),
    ],
)
def test_values_that_no_encoder_writes_are_refused(mechanism, payload):
    payload = payload[: (mechanism.payload_bits + 7) // 8]
    ballot = Ballot(mechanism.fingerprint, 5, 1, mechanism.payload_bits, payload)
    with pytest.raises(RefusedBallot) as refused:
        mechanism.tally(KEY).add(ballot)
    assert refused.value.reason in ("value", "padding")


@every
def test_an_empty_tally_has_no_estimate(mechanism):
    with pytest.raises(InvalidInput):
        mechanism.estimate(mechanism.tally(KEY))
    other = SignRR(DIM, 0.25, 0.3)
    with pytest.raises(InvalidInput):
        mechanism.estimate(counted(other, other.encode_many(updates(1), KEY.users([0]), COINS)))


def test_mechanisms_with_equal_parameters_are_equal():
    assert len({m.fingerprint for m in MECHANISMS}) == len(MECHANISMS)
    assert Laplace(DIM, 0.5, 0.1) == MECHANISMS[1]
    assert {"fedavg", "gaussian", "laplace", "signsgd", "jopeq", "mvu"} < set(BY_NAME)


@pytest.mark.parametrize(
    "make",
    [
        lambda: FedAvg(0),
        lambda: FedAvg(True),
        lambda: FedAvg(2.0),
        lambda: Laplace(5, 0.5),
        lambda: Laplace(5, 0.0, 1.0),
        lambda: Laplace(5, math.nan, 1.0),
        lambda: Laplace(5, 1e-9, 1.0),
        lambda: Laplace(5, 1e9, 1.0),
        lambda: Laplace(5, "1", 1.0),
        lambda: Laplace(5, 0.5, 1.0, preset="authors"),
        lambda: Laplace(5, 0.5, 1.0, layers=(5,)),
        lambda: Laplace(5, 0.5, preset="authors", layers=(2, 2)),
        lambda: Laplace(5, 0.5, -1.0),
        lambda: WholeLaplace(5, 0.5, 0.0),
        lambda: WholeLaplace(5, 1e-9, 1.0),
        lambda: SignRR(5, 0.5),
        lambda: SignRR(5, 0.5, 0.1, vote="x"),
        lambda: SignRR(5, -1, 0.1),
        lambda: SignRR(5, 0.5, 0.1, preset="authors"),
        lambda: SignRR(5, 0.5, 0.1, stochastic=1),
        lambda: SignRR(5, 0.5, 0.1, stochastic=True, vote="majority"),
        lambda: MVU(5, 0.5, math.inf),
        lambda: JoPEQ(5, math.inf, 1.0),
        lambda: JoPEQ(5, 1e-5, 1.0),
        lambda: JoPEQ(5, 101.0, 1.0),
        lambda: JoPEQ(5, 0.5, 1.0, levels=1),
        lambda: JoPEQ(5, 0.5, 1.0, lattice="E8"),
        lambda: JoPEQ(5, 0.5, 1.0, gamma=3.0, overload=0.1),
        lambda: JoPEQ(5, 0.5, 1.0, overload=1),
        lambda: JoPEQ(5, 8.0, 1.0, mode="moment", levels=2, gamma=5.0),
        lambda: JoPEQ(5, 0.5, 1.0, preset="authors", mode="honest"),
    ],
)
def test_bad_parameters_are_refused(make):
    with pytest.raises(InvalidInput):
        make()


def test_privacy_parameters_have_no_default():
    for kind in (Gaussian, Laplace, WholeLaplace, SignRR, MVU, JoPEQ):
        with pytest.raises(TypeError):
            kind(5)


@every
def test_a_batch_and_a_list_of_ballots_are_counted_alike(mechanism):
    ballots = mechanism.encode_many(updates(4), KEY.users(range(4)), COINS)
    assert isinstance(ballots, Ballots)
    assert same(counted(mechanism, ballots), counted(mechanism, list(ballots)))
