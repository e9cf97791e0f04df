"""Users with different budgets in one round: one mechanism for each tier, counted apart."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.ballot import Ballot, Ballots
from hushbit.checks import choice
from hushbit.decode import Estimate
from hushbit.errors import DamagedFile, InvalidInput, RefusedBallot
from hushbit.keys import RoundKey
from hushbit.mechanism import Mechanism
from hushbit.roll import Roll
from hushbit.tally import Tally
from hushbit.tally_file import Arrays, arrays_of, as_path, check_arrays, read_arrays, write_arrays
from hushbit.tally_file import fill as fill_tally


class Tiers:
    """Several mechanisms of one dim; a user encodes with its own tier, `tiers[n].encode(...)`."""

    def __init__(self, *mechanisms: Mechanism) -> None:
        if not mechanisms or not all(isinstance(m, Mechanism) for m in mechanisms):
            raise InvalidInput("Tiers takes one mechanism for each tier")
        if len({m.dim for m in mechanisms}) > 1:
            raise InvalidInput(f"tiers must share one dim; got {[m.dim for m in mechanisms]}")
        if len({m.fingerprint for m in mechanisms}) < len(mechanisms):
            raise InvalidInput("two tiers are the same mechanism; leave one out")
        self.mechanisms = mechanisms

    def __len__(self) -> int:
        return len(self.mechanisms)

    def __getitem__(self, tier: int) -> Mechanism:
        return self.mechanisms[tier]

    def tally(self, round_key: RoundKey, histogram: bool = True) -> "TierTally":
        """An empty tally for all tiers of a round."""
        return TierTally([m.tally(round_key, histogram) for m in self.mechanisms])

    def estimate(self, tally: "TierTally", weighting: str = "users") -> Estimate:
        """The mean over all users, from the tiers that have ballots.

        weighting="users"      every user counts the same: unbiased for the mean of these users
        weighting="precision"  tiers weigh by 1 / noise of their own mean, which no ballot moves:
                               unbiased for the mean of the population that all tiers are drawn
                               from, with the least noise
        """
        choice("weighting", weighting, ("users", "precision"))
        if not isinstance(tally, TierTally) or [p.mechanism for p in tally.parts] != list(
            self.mechanisms
        ):
            raise InvalidInput("estimate needs a tally made by these tiers")
        estimates = [part.mechanism.estimate(part) for part in tally.parts if part.count]
        if not estimates:
            raise InvalidInput("the tally has no ballots yet: add some before estimating")
        if weighting == "users":
            weights = np.array([float(e.count) for e in estimates])
        else:
            weights = np.array([1 / max(_noise(e), 1e-300) for e in estimates])
        weights /= weights.sum()
        return Estimate(
            mean=_weighted(weights, [e.mean for e in estimates]),
            variance=_weighted(weights**2, [e.variance for e in estimates]),
            count=tally.count,
            unbiased=all(
                e.unbiased and (weighting == "users" or e.noise is not None) for e in estimates
            ),
        )


class TierTally:
    """One tally for each tier and one roll for all: a user votes once, in one tier."""

    def __init__(self, parts: list[Tally]) -> None:
        self.parts = parts
        self.roll = Roll()
        for part in parts:
            part.roll = Roll()

    @property
    def count(self) -> int:
        """Ballots accepted so far, over all tiers."""
        return len(self.roll)

    def add(self, ballot: Ballot) -> None:
        """Count one ballot in the tier that it was cast for, or refuse it."""
        if not isinstance(ballot, Ballot):
            raise InvalidInput(f"add takes a Ballot (see Ballot.from_bytes); got {ballot!r}")
        self.add_many(Ballots.gather([ballot]))

    def add_many(self, ballots: Ballots | Sequence[Ballot]) -> None:
        """Count many ballots of one tier, all or none."""
        if not isinstance(ballots, Ballots):
            if not isinstance(ballots, Sequence) or not all(isinstance(b, Ballot) for b in ballots):
                raise InvalidInput(f"add_many takes ballots; got {type(ballots).__name__}")
            if not ballots:
                return
            ballots = Ballots.gather(ballots)
        part = self._part(ballots.fingerprint)
        self._refuse_known(ballots.users)
        part.add_many(ballots)
        self.roll.add(ballots.users)

    def merge(self, other: "TierTally") -> None:
        """Add a tally of the same tiers and round, of other users."""
        if not isinstance(other, TierTally) or len(self.parts) != len(other.parts):
            raise InvalidInput("only tallies of the same tiers can be merged")
        self._refuse_known(other.roll.users())
        pairs = list(zip(self.parts, other.parts, strict=True))
        # Every part is checked before any is changed, so that a refusal leaves all as they were.
        for mine, theirs in pairs:
            mine.check_mergeable(theirs)
        for mine, theirs in pairs:
            mine.merge(theirs)
        self.roll.add(other.roll.users())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all tiers to one file, all of it or nothing."""
        write_arrays(path, {
            f"tier {tier} {name}": array
            for tier, part in enumerate(self.parts)
            for name, array in arrays_of(part).items()
        })  # fmt: skip

    def load(self, path: str | os.PathLike[str]) -> None:
        """Fill this empty tally from a file that `save` wrote for the same tiers and key."""
        found: list[Arrays] = [{} for _ in self.parts]
        for name, array in read_arrays(path).items():
            head, _, rest = name.removeprefix("tier ").partition(" ")
            if not name.startswith("tier ") or head not in map(str, range(len(found))):
                raise DamagedFile(f"{path} is not a tally of {len(found)} tiers")
            found[int(head)][rest] = array
        for part, data in zip(self.parts, found, strict=True):
            check_arrays(part, data, as_path(path))
        users = np.concatenate([data["users"] for data in found])
        if np.unique(users).size != users.size:
            raise DamagedFile(f"{path} names a user in two tiers")
        for part, data in zip(self.parts, found, strict=True):
            fill_tally(part, data)
        self.roll.add(users)

    def _part(self, fingerprint: bytes) -> Tally:
        for part in self.parts:
            if part.mechanism.fingerprint == fingerprint:
                return part
        raise RefusedBallot("mechanism", f"no tier has mechanism {fingerprint.hex()}")

    def _refuse_known(self, users: NDArray[np.uint64]) -> None:
        again = self.roll.find(users)
        if again.any():
            first = int(users[int(np.argmax(again))])
            raise RefusedBallot("duplicate", f"user {first} has already voted in this round")


def _weighted(weights: NDArray[np.float64], parts: list[Any]) -> NDArray[np.float64]:
    return np.asarray(sum(w * part for w, part in zip(weights, parts, strict=True)))


def _noise(estimate: Estimate) -> float:
    """What the mechanism says; a variance read from the ballots would bias the weights."""
    return float(estimate.variance.mean()) if estimate.noise is None else estimate.noise
