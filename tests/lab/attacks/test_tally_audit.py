"""The audit of tallies lets right mechanisms pass and catches broken ones."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

import hushbit as hb
from hushbit.errors import InvalidInput
from hushbit.lab.attacks.audit import Encoder
from hushbit.lab.attacks.tally_audit import (
    MEASURABLE_CLAIM,
    audit_tally,
    hits_of_best_level,
    measurable_clip,
    tally_target,
)
from hushbit.wire.ballot import Ballots
from hushbit.wire.keys import RoundKey, UserKeys

K, DELTA = 20, 1e-5


def clipped(entries: int, epsilon: float, dim: int | None = None) -> hb.CPA:
    """A mechanism whose clip is exhausted by so many entries at the points."""
    return hb.CPA(dim or entries, epsilon, 1.0, clip=math.sqrt(entries))


def seeded(mechanism: hb.Mechanism, seed: int = 5) -> Encoder:
    coins = hb.SeededCoins(seed)
    return lambda updates, keys: mechanism.encode_many(updates, keys, coins)


def law_by_enumeration(chances: list[float]) -> NDArray[np.float64]:
    """Probabilities of 0, 1, … + votes, summed over all combinations of votes."""
    law = np.zeros(len(chances) + 1)
    for votes in itertools.product((0, 1), repeat=len(chances)):
        law[sum(votes)] += math.prod(
            c if vote else 1 - c for c, vote in zip(chances, votes, strict=True)
        )
    return law


@pytest.mark.parametrize("honest", [1, 2, 3])
@pytest.mark.parametrize("clip", [None, 0.6, 1.5])
def test_the_log_ratio_is_that_of_all_votes(honest: int, clip: float | None) -> None:
    target = tally_target(hb.CPA(4, 0.7, 1.0, clip=clip), honest)
    assert target.entries == {None: 4, 0.6: 1, 1.5: 3}[clip]
    size = {None: 1.0, 0.6: 0.6, 1.5: 1.5 / math.sqrt(3)}[clip]
    chance = (1 + math.tanh(0.35) * size) / 2
    others = [chance] * (honest - 1)
    first, second = (law_by_enumeration([c, *others]) for c in (chance, 1 - chance))
    np.testing.assert_allclose(target.log_ratio, np.log(first / second), atol=1e-6)


@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize("which", [0, 1])
def test_counted_votes_follow_the_law(which: int, rotated: bool) -> None:
    inner = clipped(2, 1.0, dim=5)
    mechanism = hb.Rotated(inner) if rotated else inner
    target = tally_target(mechanism, 3)
    counts = target.plus_votes(np.arange(3 * 6000), 0, which, seeded(mechanism))
    chance = 1 / (1 + math.exp(-1))
    law = law_by_enumeration([(chance, 1 - chance)[which], chance, chance])
    for entry in range(2):
        found = np.bincount(counts[:, entry], minlength=4)
        statistic = ((found - 6000 * law) ** 2 / (6000 * law)).sum()
        assert statistic < 21.1  # 0.9999 quantile of chi-square with 3 degrees of freedom


def test_counted_votes_are_those_of_tallies() -> None:
    mechanism = clipped(4, 0.5)
    target = tally_target(mechanism, 3)
    counts = target.plus_votes(np.arange(6), 7, 1, seeded(mechanism))
    key = RoundKey(secret=bytes(32), round=7)
    updates = np.tile(target.update(key), (6, 1)) * np.array([-1, 1, 1, -1, 1, 1])[:, None]
    ballots = seeded(mechanism)(updates, key.users(np.arange(6)))
    for row, voters in enumerate((slice(0, 3), slice(3, 6))):
        tally = mechanism.tally(key)
        tally.add_many(ballots[voters])
        mean = mechanism.estimate(tally).mean * math.tanh(0.25)
        np.testing.assert_allclose(counts[row], (1 + mean) / 2 * 3, atol=1e-6)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("mechanism", "rounds"),
    [
        (clipped(40, 0.5), 1),
        (clipped(9, 1.0), 1),
        (clipped(2, 2.0), 1),
        (clipped(2, 1.0, dim=8), 3),
        (hb.Rotated(clipped(4, 0.5, dim=16)), 2),
    ],
    ids=str,
)
def test_right_mechanisms_pass(mechanism: hb.Mechanism, rounds: int, seed: int) -> None:
    encoder = seeded(mechanism, seed)
    found = audit_tally(mechanism, K, 1500, delta=DELTA, rounds=rounds, encoder=encoder)
    assert found.passed
    assert found.claim == mechanism.guarantee.of_tally(K, rounds, delta=DELTA).epsilon


@pytest.mark.slow
@pytest.mark.parametrize(("entries", "epsilon"), [(40, 0.5), (9, 1.0), (2, 2.0)])
def test_the_bound_reaches_half_of_the_claim(entries: int, epsilon: float) -> None:
    mechanism = clipped(entries, epsilon)
    found = audit_tally(mechanism, K, 200_000, delta=DELTA, encoder=seeded(mechanism))
    assert 0.5 * found.claim <= found.lower_bound <= found.claim


def test_a_large_loss_is_measured_quickly() -> None:
    mechanism = clipped(2, 2.0)
    found = audit_tally(mechanism, 2, 8000, delta=DELTA, encoder=seeded(mechanism))
    assert 0.5 * found.claim <= found.lower_bound <= found.claim


def test_coins_reused_in_each_round_are_caught() -> None:
    mechanism = clipped(4, 0.5)
    root = hb.SimulationCoins(3)

    def encode(updates: NDArray[np.float64], keys: UserKeys) -> Ballots:
        coins = root.keys(RoundKey(secret=bytes(32), round=0).users(keys.users))
        payload, overloaded = mechanism.encode_payload(updates, keys, coins)
        head = (mechanism.fingerprint, keys.round, mechanism.payload_bits)
        return Ballots(*head, keys.users, payload, overloaded)

    found = audit_tally(mechanism, K, 2000, delta=DELTA, rounds=2, encoder=encode)
    assert not found.passed
    found = audit_tally(mechanism, K, 2000, delta=DELTA, rounds=2, encoder=seeded(mechanism))
    assert found.passed


def test_coins_shared_by_all_users_are_caught() -> None:
    mechanism = clipped(4, 1.0)

    def encode(updates: NDArray[np.float64], keys: UserKeys) -> Ballots:
        coins = np.repeat(hb.SimulationCoins(3).keys(keys)[::K], K, axis=0)
        payload, overloaded = mechanism.encode_payload(updates, keys, coins)
        head = (mechanism.fingerprint, keys.round, mechanism.payload_bits)
        return Ballots(*head, keys.users, payload, overloaded)

    assert not audit_tally(mechanism, K, 8000, delta=DELTA, encoder=encode).passed


def without_clip(mechanism: hb.CPA) -> Encoder:
    return seeded(hb.CPA(mechanism.dim, mechanism.guarantee.epsilon_per_bit, 1.0))


@pytest.mark.parametrize("broken", [seeded, without_clip])
def test_a_missing_clip_is_caught(broken: Callable[[hb.CPA], Encoder]) -> None:
    mechanism = clipped(1, 1.0, dim=64)
    found = audit_tally(mechanism, K, 2000, delta=DELTA, entries=64, encoder=broken(mechanism))
    assert found.passed == (broken is seeded)


@pytest.mark.parametrize("honest", [20, 2])
def test_honest_users_counted_too_high_are_caught(honest: int) -> None:
    """Whoever knows the votes of 18 of 20 users subtracts them: a tally of two remains."""
    mechanism = clipped(16, 0.5)
    claim = mechanism.guarantee.of_tally(K, delta=DELTA)
    found = audit_tally(
        mechanism, honest, 4000, delta=DELTA, claim=claim, encoder=seeded(mechanism)
    )
    assert found.passed == (honest == K)


def test_the_level_is_chosen_on_other_runs() -> None:
    """Scores that separate only the runs that choose the level prove nothing."""
    scores = np.zeros(4000)
    first = np.where(np.arange(4000) % 4 == 0, 1.0, 0.0)
    hits, others = hits_of_best_level(first, scores, DELTA)
    assert hits[1] == others[1] == 3000
    assert hits[0] == others[0]


def test_a_guess_of_the_second_update_counts() -> None:
    """Only low scores tell the updates apart."""
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 5, 4000) + 1.0, rng.integers(0, 5, 4000) * 1.0
    hits, others = hits_of_best_level(np.minimum(first, 3.0), np.minimum(second, 3.0), DELTA)
    assert others[0] == 0
    assert hits[0] > 400


@pytest.mark.parametrize(
    "mechanism",
    [
        hb.CPA(4, 0.5, 1.0, points=4),
        hb.CPA(4, 0.5, 1.0, rounding="dithered"),
        hb.CPA(4, math.inf, 1.0),
        hb.Subset(hb.CPA(4, 0.5, 1.0), 2),
    ],
    ids=repr,
)
def test_mechanisms_without_this_claim_are_refused(mechanism: hb.Mechanism) -> None:
    with pytest.raises(InvalidInput, match=r"audit"):
        audit_tally(mechanism, K, 1000, delta=DELTA)


def test_too_few_tallies_are_refused() -> None:
    with pytest.raises(InvalidInput, match="tallies"):
        audit_tally(clipped(4, 0.5), K, 79, delta=DELTA, rounds=2)
    with pytest.raises(InvalidInput, match="confidence"):
        audit_tally(clipped(4, 0.5), K, 80, delta=DELTA, rounds=2, confidence=1.0)


def test_the_default_clip_has_the_largest_claim_that_can_be_measured() -> None:
    for epsilon in (0.5, 1.0, 2.0):
        entries = round(measurable_clip(epsilon, K, 1, DELTA) ** 2)
        smaller, larger = (
            clipped(count, epsilon).guarantee.of_tally(K, delta=DELTA).epsilon
            for count in (entries, entries + 1)
        )
        assert smaller <= MEASURABLE_CLAIM < larger
    assert measurable_clip(8.0, 1, 1, DELTA) == 1.0
