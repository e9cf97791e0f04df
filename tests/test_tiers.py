"""Tiers: users with different budgets in one round, each counted once and without bias."""

import itertools
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import hushbit as hb
from enumeration import rounding, stage_outcomes
from hushbit.tally.tally import save_tallies
from hushbit.wrappers import TierTally

KEY = hb.RoundKey(bytes(32), 3)
LOW = hb.CPA(dim=6, epsilon_per_bit=0.5, radius=1.0)
HIGH = hb.CPA(dim=6, epsilon_per_bit=2.0, radius=1.0, points=4)
TIERS = hb.Tiers(LOW, HIGH)


def ballots(tier: int, first: int, last: int) -> hb.Ballots:
    updates = np.linspace(-0.9, 0.9, 6) * np.ones((last - first, 1))
    return TIERS[tier].encode_many(updates, KEY.users(range(first, last)), hb.SimulationCoins(1))


def filled() -> TierTally:
    tally = TIERS.tally(KEY)
    tally.add_many(ballots(0, 0, 5))
    tally.add_many(ballots(1, 5, 8))
    return tally


def state(tally: TierTally) -> list[object]:
    parts = [(part.counters["stage 0"].tobytes(), part.count) for part in tally.parts]
    return [*parts, tally.voters.users().tolist()]


def outcomes(mechanism: hb.CPA, x: Fraction) -> list[tuple[float, np.ndarray]]:
    """Chances of every vote of a user at x (in coordinates), and what it adds to the counter."""
    stage, chances = mechanism.stage_encoders[0], Counter[tuple[int, ...]]()
    for level, chance in rounding(mechanism, x):
        for outcome in stage_outcomes(stage, level):
            chances[outcome.votes[: stage.kept_points]] += chance * outcome.chance  # type: ignore[assignment]
    return [(float(chance), np.array(votes)) for votes, chance in chances.items() if chance]


def enumerated(tiers: hb.Tiers, places: list[list[Fraction]], weighting: str) -> np.ndarray:
    """E[estimate] over all votes of all users of all tiers, computed by the library."""
    ways = [
        [(tier, way) for way in outcomes(tiers[tier], x)]
        for tier, users in enumerate(places)
        for x in users
    ]
    total, mass = np.zeros(1), 0.0
    for way in itertools.product(*ways):
        tally = tiers.tally(KEY)
        chance = 1.0
        for user, (tier, (share, votes)) in enumerate(way):
            chance *= share
            part = tally.parts[tier]
            part.counters["stage 0"][:, 0] += votes
            for voters in (part.voters, tally.voters):
                voters.add(np.array([user], dtype=np.uint64))
        total += chance * tiers.estimate(tally, weighting).mean
        mass += chance
    assert mass == pytest.approx(1.0, rel=1e-12)
    return total


def test_the_users_mean_is_unbiased_by_enumeration() -> None:
    tiers = hb.Tiers(hb.CPA(1, 0.5, 1.0), hb.CPA(1, 2.0, 1.0), hb.CPA(1, 1.0, 1.0, points=3))
    places = [[Fraction(1, 3), Fraction(-1)], [Fraction(1, 2)], [Fraction(1)]]
    # One unit of coordinates is the radius for two points and three points alike.
    expected = (1 / 3 - 1 + 1 / 2 + 1 / int(tiers[2].stage_encoders[0].points.coords[-1, 0])) / 4
    assert enumerated(tiers, places, "users")[0] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("x", [Fraction(1, 3), Fraction(-1), Fraction(9, 10)])
def test_precision_weights_are_unbiased_for_a_common_value(x: Fraction) -> None:
    """Weights that depend on ballots would bias the mean; these do not depend on them."""
    tiers = hb.Tiers(hb.CPA(1, 0.5, 1.0), hb.CPA(1, 2.0, 1.0))
    got = enumerated(tiers, [[x, x, x], [x, x]], "precision")
    assert got[0] == pytest.approx(float(x), abs=1e-12)


def test_precision_weighting_has_less_noise() -> None:
    tiers = hb.Tiers(hb.CPA(4000, 0.2, 1.0), hb.CPA(4000, 3.0, 1.0))
    tally, truth = tiers.tally(KEY), np.full((20, 4000), 0.3)
    for tier in range(2):
        keys = KEY.users(range(20 * tier, 20 * tier + 20))
        tally.add_many(tiers[tier].encode_many(truth, keys, hb.SeededCoins(tier)))
    errors = {}
    for weighting in ("users", "precision"):
        estimate = tiers.estimate(tally, weighting)
        errors[weighting] = ((estimate.mean - 0.3) ** 2).mean()
        # 4000 squares of nearly normal errors: 15 % is more than six standard deviations.
        assert errors[weighting] == pytest.approx(estimate.variance.mean(), rel=0.15)
        assert estimate.unbiased
        assert estimate.count == 40
    assert errors["precision"] < 0.1 * errors["users"]


def test_estimates_use_the_stated_weights() -> None:
    tally = filled()
    low, high = LOW.estimate(tally.parts[0]), HIGH.estimate(tally.parts[1])
    users = TIERS.estimate(tally)
    assert np.allclose(users.mean, (5 * low.mean + 3 * high.mean) / 8)
    assert np.allclose(users.variance, (25 * low.variance + 9 * high.variance) / 64)
    a, b = 1 / low.noise, 1 / high.noise
    precise = TIERS.estimate(tally, weighting="precision")
    assert np.allclose(precise.mean, (a * low.mean + b * high.mean) / (a + b))
    only = TIERS.tally(KEY)
    only.add_many(ballots(1, 0, 3))
    assert np.allclose(TIERS.estimate(only).mean, HIGH.estimate(only.parts[1]).mean)


def test_a_user_votes_once_over_all_tiers() -> None:
    tally = filled()
    before = state(tally)
    for tier, user in ((0, 6), (1, 2), (0, 0), (1, 7)):
        with pytest.raises(hb.RefusedBallot, match="already voted"):
            tally.add(ballots(tier, user, user + 1)[0])
        with pytest.raises(hb.RefusedBallot, match="already voted"):
            tally.add_many(ballots(tier, user, user + 1))
    assert state(tally) == before
    tally.add(ballots(1, 30, 31)[0])
    assert tally.count == 9


def test_merge_commutes_and_refuses_repeated_users() -> None:
    one, two = TIERS.tally(KEY), TIERS.tally(KEY)
    one.add_many(list(ballots(0, 0, 5)))
    two.add_many(ballots(1, 5, 8))
    other = TIERS.tally(KEY)
    other.merge(two)
    other.merge(one)
    one.merge(two)
    assert state(one) == state(other) == state(filled())
    with pytest.raises(hb.RefusedBallot):
        one.merge(two)
    assert state(one) == state(other)


def test_a_refused_merge_changes_no_tier() -> None:
    """The first tier could be merged, the second cannot: nothing may change."""
    strange = hb.Tiers(LOW, hb.CPA(dim=6, epsilon_per_bit=3.0, radius=1.0)).tally(KEY)
    strange.add_many(ballots(0, 50, 55))
    without = TIERS.tally(KEY, histogram=False)
    without.add_many(ballots(0, 50, 55))
    tally = filled()
    before = state(tally)
    for other in (strange, without, hb.Tiers(LOW).tally(KEY), LOW.tally(KEY), None):
        with pytest.raises(hb.InvalidInput):
            tally.merge(other)  # type: ignore[arg-type]
        assert state(tally) == before


def test_wrong_ballots_and_tallies() -> None:
    tally = filled()
    before = state(tally)
    stranger = hb.CPA(dim=6, epsilon_per_bit=1.0, radius=1.0).encode(np.zeros(6), KEY.user(90))
    with pytest.raises(hb.RefusedBallot, match="no tier"):
        tally.add(stranger)
    for wrong in (None, b"HB", [None], 5):
        for add in (tally.add, tally.add_many):
            with pytest.raises(hb.InvalidInput):
                add(wrong)  # type: ignore[arg-type]
    with pytest.raises(hb.InvalidInput, match="share mechanism"):
        tally.add_many([ballots(0, 90, 91)[0], ballots(1, 91, 92)[0]])
    tally.add_many([])
    assert state(tally) == before
    for other in (None, LOW.tally(KEY), hb.Tiers(HIGH, LOW).tally(KEY)):
        with pytest.raises(hb.InvalidInput):
            TIERS.estimate(other)  # type: ignore[arg-type]
    with pytest.raises(hb.InvalidInput, match="no ballots"):
        TIERS.estimate(TIERS.tally(KEY))
    with pytest.raises(hb.InvalidInput, match="weighting"):
        TIERS.estimate(tally, weighting="luck")


def test_wrong_tiers() -> None:
    assert len(TIERS) == 2
    other_dim = hb.CPA(dim=7, epsilon_per_bit=0.5, radius=1.0)
    for wrong in ((), (None,), (LOW, other_dim), (LOW, hb.CPA(6, 0.5, 1.0)), (LOW, TIERS)):
        with pytest.raises(hb.InvalidInput):
            hb.Tiers(*wrong)


def test_save_and_load_of_all_tiers(tmp_path: Path) -> None:
    key = hb.RoundKey(secret=bytes(32), round=2)
    tiers = hb.Tiers(hb.CPA(20, 0.5, 1.0), hb.CPA(20, 2.0, 1.0, points=4))
    updates = np.random.default_rng(0).uniform(-1, 1, (6, 20))
    tally = tiers.tally(key)
    tally.add_many(tiers[0].encode_many(updates[:4], key.users(range(4))))
    late = tiers[1].encode_many(updates[4:], key.users([7, 9]))
    tally.add_many(late)
    tally.save(tmp_path / "tally")
    again = tiers.tally(key)
    again.load(tmp_path / "tally")
    assert again.count == 6
    assert np.array_equal(tiers.estimate(again).mean, tiers.estimate(tally).mean)
    with pytest.raises(hb.RefusedBallot):
        again.add_many(late)
    with pytest.raises(hb.InvalidInput, match="empty"):
        again.load(tmp_path / "tally")
    with pytest.raises(hb.DamagedFile):
        hb.Tiers(tiers[0]).tally(key).load(tmp_path / "tally")
    tiers[0].tally(key).save(tmp_path / "single")
    with pytest.raises(hb.DamagedFile):
        tiers.tally(key).load(tmp_path / "single")


def test_a_user_in_two_tiers_of_a_file_is_refused(tmp_path: Path) -> None:
    """Only a broken server writes such a file: its MAC is right."""
    parts = [TIERS[tier].tally(KEY) for tier in range(2)]
    for tier, part in enumerate(parts):
        part.add_many(ballots(tier, 5 * tier, 5 * tier + 6))
    save_tallies(tmp_path / "t", parts)
    again = TIERS.tally(KEY)
    with pytest.raises(hb.DamagedFile, match="a user in two tiers"):
        again.load(tmp_path / "t")
    assert again.count == 0
    assert not any(part.counters["stage 0"].any() for part in again.parts)


def test_every_flipped_bit_of_a_file_of_tiers_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    filled().save(path)
    whole = path.read_bytes()
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 1 << at % 8
        path.write_bytes(changed)
        with pytest.raises(hb.HushbitError):
            TIERS.tally(KEY).load(path)


def test_an_interrupted_tier_is_merged_neither_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second tier is the interrupted one, so a late check would change the first."""
    broken, sound = TIERS.tally(KEY), filled()

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    late = ballots(1, 20, 22)
    with monkeypatch.context() as patch:
        patch.setattr(hb.CPA, "add_payload", interrupt)
        with pytest.raises(KeyboardInterrupt):
            broken.add_many(late)
    for target, other in ((broken, sound), (sound, broken)):
        before = state(target)
        with pytest.raises(hb.HushbitError, match="interrupted"):
            target.merge(other)
        assert state(target) == before


def test_tallies_of_tiers_are_those_of_their_mechanisms() -> None:
    for options in ({}, {"histogram": False}, {"require_mac": True}):
        tally = TIERS.tally(KEY, **options)
        for mechanism, part in zip(TIERS.mechanisms, tally.parts, strict=True):
            alone = mechanism.tally(KEY, **options)
            assert part.require_mac == alone.require_mac == bool(options.get("require_mac"))
            assert part.counters["stage 0"].shape == alone.counters["stage 0"].shape
