"""Tiers whose members differ: users in two tiers, and estimates that are biased in one tier."""

from pathlib import Path

import numpy as np
import pytest

import hushbit as hb
from hushbit.baselines import Laplace
from hushbit.errors import HushbitError
from hushbit.wrappers import TierTally

KEY = hb.RoundKey(bytes(32), 3)
FAIR = hb.CPA(6, 0.5, 1.0)
FINE = hb.CPA(6, 2.0, 1.0, points=4)
BIASED = hb.CPA(6, 1.0, 1.0, rounding="nearest")
LAPLACE = Laplace(6, 0.5, 1.0)


def ballot(mechanism: hb.Mechanism, user: int) -> hb.Ballot:
    return mechanism.encode(np.zeros(6), KEY.user(user))


def state(tally: TierTally) -> list[object]:
    return [(part.count, part.counters["stage 0"].tobytes()) for part in tally.parts]


@pytest.mark.parametrize("order", [1, -1])
def test_a_batch_cannot_hold_a_user_in_two_tiers(order: int) -> None:
    tally = hb.Tiers(FAIR, FINE).tally(KEY)
    before = state(tally)
    with pytest.raises(HushbitError):
        tally.add_many([ballot(FAIR, 1), ballot(FINE, 1)][::order])
    with pytest.raises(HushbitError):
        tally.add_many([ballot(FAIR, 1), ballot(FAIR, 1)])
    assert state(tally) == before
    assert tally.count == 0


def test_a_batch_of_one_tier_is_refused_if_one_user_has_voted_in_another() -> None:
    tally = hb.Tiers(FAIR, FINE).tally(KEY)
    tally.add(ballot(FAIR, 1))
    before = state(tally)
    with pytest.raises(hb.RefusedBallot, match="already voted"):
        tally.add_many([ballot(FINE, 0), ballot(FINE, 1), ballot(FINE, 2)])
    assert state(tally) == before
    tally.add_many([ballot(FINE, 0), ballot(FINE, 2)])
    assert tally.count == 3


def test_merged_tallies_cannot_hold_a_user_in_two_tiers() -> None:
    tiers = hb.Tiers(FAIR, FINE)
    one, two = tiers.tally(KEY), tiers.tally(KEY)
    one.add(ballot(FAIR, 1))
    two.add(ballot(FINE, 1))
    with pytest.raises(hb.RefusedBallot):
        one.merge(two)
    assert (one.count, two.count) == (1, 1)


def test_a_file_with_a_user_in_two_tiers_is_refused(tmp_path: Path) -> None:
    tiers = hb.Tiers(FAIR, FINE)
    forged = tiers.tally(KEY)
    forged.parts[0].add(ballot(FAIR, 1))
    forged.parts[0].add(ballot(FAIR, 2))
    forged.parts[1].add(ballot(FINE, 2))
    forged.save(tmp_path / "tally")
    empty = tiers.tally(KEY)
    with pytest.raises(hb.DamagedFile, match="two tiers"):
        empty.load(tmp_path / "tally")
    assert empty.count == 0
    assert state(empty) == state(tiers.tally(KEY))


@pytest.mark.parametrize("weighting", ["users", "precision"])
@pytest.mark.parametrize(
    ("mechanisms", "unbiased"),
    [
        ((FAIR, FINE), True),
        ((FAIR, BIASED), False),
        ((BIASED, FAIR), False),
        ((BIASED,), False),
    ],
)
def test_an_estimate_is_unbiased_if_every_tier_is(
    mechanisms: tuple[hb.Mechanism, ...], unbiased: bool, weighting: str
) -> None:
    tiers = hb.Tiers(*mechanisms)
    tally = tiers.tally(KEY)
    for user, mechanism in enumerate(mechanisms):
        tally.add(ballot(mechanism, user))
    assert tiers.estimate(tally, weighting).unbiased is unbiased


def test_a_biased_tier_without_ballots_does_not_bias_the_estimate() -> None:
    tiers = hb.Tiers(FAIR, BIASED)
    tally = tiers.tally(KEY)
    tally.add(ballot(FAIR, 1))
    assert tiers.estimate(tally).unbiased


def test_weights_from_ballots_bias_the_estimate() -> None:
    """Laplace does not imply its noise, so its precision is estimated from the ballots."""
    tiers = hb.Tiers(FAIR, LAPLACE)
    tally = tiers.tally(KEY)
    for user, mechanism in enumerate(tiers.mechanisms):
        tally.add(ballot(mechanism, user))
    assert tiers.estimate(tally, "users").unbiased
    assert not tiers.estimate(tally, "precision").unbiased
