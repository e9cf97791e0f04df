"""The audit lets a right encoder pass and catches broken ones."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

import hushbit as hb
from hushbit.encoding.randomized_response import RandomizedResponse
from hushbit.errors import InvalidInput
from hushbit.kernels.words import draw_words
from hushbit.lab.attacks.audit import AuditFinding, Encoder, audit, audit_finding
from hushbit.privacy.accountant import Bound
from hushbit.privacy.binomial import lower_rate, upper_rate
from hushbit.tuning.calibrate import calibrate_message
from hushbit.wire.ballot import Ballots
from hushbit.wire.keys import UserKeys

BALLOTS = 20_000
RIGHT = [
    hb.CPA(8, 0.5, 1.0),
]
SLOWER = [
    calibrate_message(30, 4.0, 0.0, radius=1.0),
    hb.CPA(3, 1.0, 1.0, points=4),
    hb.CPA(3, 1.0, 1.0, points=3),
    hb.NestedCPA(2, (0.5, 1.0), 1.0, stages=(2, 4)),
    hb.CPA(8, 1.0, 1.0, lattice="D4", points=8),
]


def from_payload(mechanism: hb.Mechanism, payload: NDArray[np.uint8], keys: UserKeys) -> Ballots:
    return Ballots(
        mechanism.fingerprint,
        keys.round,
        mechanism.payload_bits,
        keys.users,
        payload,
        np.zeros(len(keys), np.int64),
    )


def seeded(mechanism: hb.Mechanism) -> Encoder:
    coins = hb.SeededCoins(11)
    return lambda updates, keys: mechanism.encode_many(updates, keys, coins)


def caught(findings: list[AuditFinding]) -> list[str]:
    return [finding.attack for finding in findings if not finding.passed]


@pytest.mark.parametrize("mechanism", RIGHT, ids=lambda m: m.description["mechanism"])
def test_a_right_encoder_passes(mechanism: hb.Mechanism) -> None:
    findings = audit(mechanism, BALLOTS, encoder=seeded(mechanism))
    assert caught(findings) == []
    assert findings[0].lower_bound >= 0.9 * findings[0].claim


@pytest.mark.parametrize("mechanism", SLOWER, ids=lambda m: m.description["mechanism"])
def test_right_encoders_of_more_points_pass(mechanism: hb.Mechanism) -> None:
    findings = audit(mechanism, 4000, encoder=seeded(mechanism), confidence=0.99)
    assert caught(findings) == []
    for finding in findings:
        if not finding.attack.endswith("known"):
            assert finding.lower_bound >= 0.7 * finding.claim


@pytest.mark.parametrize(("epsilon", "dim"), [(0.5, 6), (1.0, 4), (2.0, 2)])
def test_bounds_come_close_to_the_claims(epsilon: float, dim: int) -> None:
    mechanism = hb.CPA(dim, epsilon, 1.0)
    findings = audit(mechanism, 300_000, encoder=seeded(mechanism))
    for finding in findings:
        assert 0.9 * finding.claim <= finding.lower_bound <= finding.claim


def test_the_operating_systems_coins_are_the_default() -> None:
    assert len(audit(hb.CPA(2, 1.0, 1.0), 1000)) == 6


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_a_threshold_off_by_five_percent_is_caught(epsilon: float) -> None:
    leaning = hb.CPA(8, 2 * math.atanh(1.05 * math.tanh(epsilon / 2)), 1.0)
    findings = audit(hb.CPA(8, epsilon, 1.0), BALLOTS, encoder=seeded(leaning))
    assert "one bit" in caught(findings)


@pytest.mark.parametrize("epsilon", [0.5, 1.0])
def test_one_place_off_by_a_tenth_is_caught(epsilon: float) -> None:
    mechanism = hb.CPA(8, epsilon, 1.0)
    leaning = hb.CPA(8, 2 * math.atanh(1.1 * math.tanh(epsilon / 2)), 1.0)

    def encode(updates: NDArray[np.float64], keys: UserKeys) -> Ballots:
        payload = seeded(mechanism)(updates, keys).payload.copy()
        payload[:, 0] &= 0b1111_0111
        payload[:, 0] |= seeded(leaning)(updates, keys).payload[:, 0] & 0b0000_1000
        return from_payload(mechanism, payload, keys)

    assert "one bit, worst place" in caught(audit(mechanism, 4 * BALLOTS, encoder=encode))


def test_one_coin_for_all_bits_of_a_message_is_caught() -> None:
    """Pairs of updates that differ everywhere cannot see it; a neighbour's coin does."""
    mechanism = hb.CPA(7, 0.5, 1.0)
    half, rng = RandomizedResponse(0.5).threshold_offset, np.random.default_rng(0)

    def encode(updates: NDArray[np.float64], keys: UserKeys) -> Ballots:
        coin = rng.integers(-(2**31), 2**31, (len(keys), 1))
        words = np.stack([draw_words(key, 0, 7, 2, "hadamard")[:, 0] for key in keys.keys])
        bits = coin < np.clip(updates, -1, 1) * -words * half
        return from_payload(mechanism, np.packbits(bits, axis=1, bitorder="little"), keys)

    assert "one bit, neighbour's coin known" in caught(audit(mechanism, 3000, encoder=encode))


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_coins_reused_across_ballots_are_caught(epsilon: float) -> None:
    mechanism = hb.CPA(64, epsilon, 1.0)
    coin = np.arange(8, dtype=np.uint32)

    def encode(updates: NDArray[np.float64], keys: UserKeys) -> Ballots:
        payload, _ = mechanism.encode_payload(updates, keys, np.tile(coin, (len(keys), 1)))
        return from_payload(mechanism, payload, keys)

    assert "one bit, last coins known" in caught(audit(mechanism, BALLOTS, encoder=encode))


def test_a_missing_clip_is_caught() -> None:
    claimed, sent = hb.CPA(64, 1.0, 1.0, clip=1.0), hb.CPA(64, 1.0, 1.0)
    assert caught(audit(claimed, BALLOTS, delta=1e-5, encoder=seeded(claimed))) == []
    assert caught(audit(claimed, BALLOTS, delta=1e-5, encoder=seeded(sent))) == ["whole message"]


def test_a_missing_cut_at_the_radius_is_caught() -> None:
    mechanism, beta = hb.CPA(8, 0.5, 1.0), math.tanh(0.25)

    def encode(updates: NDArray[np.float64], keys: UserKeys) -> Ballots:
        lean = min(0.999, beta * float(np.abs(updates).max()))
        uncut = hb.CPA(8, 2 * math.atanh(lean), 1.0)
        return uncut.encode_many(updates, keys, hb.SeededCoins(3))

    assert "one bit" in caught(audit(mechanism, BALLOTS, encoder=encode))


def test_a_stage_that_tells_too_much_is_named() -> None:
    claimed, sent = (hb.NestedCPA(2, (0.5, e), 1.0, stages=(2, 2)) for e in (1.0, 3.0))
    found = caught(audit(claimed, 1000, encoder=seeded(sent)))
    assert "one bit of stage 2" in found
    assert "one bit of stage 1" not in found


def test_memory_and_progress_go_chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hushbit.lab.attacks.audit.CHUNK_CELLS", 24 * 100)
    mechanism, seen, sizes = hb.CPA(8, 0.5, 1.0), list[float](), set[int]()

    def encode(updates: NDArray[np.float64], keys: UserKeys) -> Ballots:
        sizes.add(len(updates))
        return mechanism.encode_many(updates, keys, hb.SeededCoins(len(seen)))

    audit(mechanism, 950, encoder=encode, progress=seen.append)
    assert sizes == {100, 50}
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


@pytest.mark.parametrize(
    "mechanism",
    [
        hb.Rotated(hb.CPA(4, 1.0, 1.0)),
        hb.Subset(hb.CPA(4, 1.0, 1.0, points=4), 2),
        "CPA",
        None,
        hb.CPA(4, 1.0, 1.0, points=4, clip=1.0),
        hb.CPA(4, 1.0, 1.0, points=4, rounding="dithered"),
        hb.CPA(9, 1.0, 1.0, lattice="D4", points=8),
    ],
    ids=str,
)
def test_what_it_cannot_attack_is_refused(mechanism: hb.Mechanism) -> None:
    with pytest.raises(InvalidInput):
        audit(mechanism, 1000)


@pytest.mark.parametrize(
    "wrong",
    [
        {"ballots": 99},
        {"ballots": 1e6},
        {"confidence": 1.0},
        {"confidence": 0.0},
        {"confidence": math.nan},
        {"delta": 1.0},
        {"delta": -1.0},
    ],
)
def test_wrong_arguments_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInput):
        audit(hb.CPA(2, 1.0, 1.0), **({"ballots": 1000} | wrong))  # type: ignore[arg-type]


def test_the_bound_is_the_ratio_of_the_least_and_the_largest_rate_beyond_delta() -> None:
    """Joint confidence: each rate gets half of the risk."""
    counts = [np.array([900, 1000]), np.array([100, 1000])]
    low, high = lower_rate(900, 1000, 0.995), upper_rate(100, 1000, 0.995)
    for delta in (0.0, 0.1):
        found = audit_finding(Bound(5.0, delta, "x"), counts, 0.99)
        assert found.lower_bound == pytest.approx(math.log((low - delta) / high))
    assert audit_finding(Bound(5.0, 0.9, "x"), counts, 0.99).lower_bound == 0.0
    assert audit_finding(Bound(5.0, 0.0, "x"), counts[::-1], 0.99).lower_bound == 0.0
