"""Tallies: integer counters of one round, whose size does not depend on the number of users.

Adding and merging are exact, so order, grouping and threads do not change the result.
A tally also has the set of users who have voted, at eight bytes each. Its file is an archive of
integer arrays, without the key, and is written atomically.
"""

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hushbit.errors import DamagedFile, HushbitError, InvalidInput, RefusedBallot
from hushbit.wire.ballot import Ballot, Ballots, PayloadRule, valid_macs
from hushbit.wire.files import write_atomic
from hushbit.wire.keys import RoundKey, UserKeys

FORMAT = 1
Arrays = dict[str, NDArray[Any]]
Counters = dict[str, NDArray[np.int64]]
Users = NDArray[np.uint64]


class CountingRule(PayloadRule, Protocol):
    """The part of a mechanism that a tally uses."""

    def add_payload(self, counters: Counters, payload: NDArray[np.uint8], keys: UserKeys) -> None:
        """Add checked payloads to the counters."""


class VoterSet:
    """A growing set of user ids, stored as a few sorted runs of doubling size."""

    def __init__(self) -> None:
        self._runs: list[Users] = []

    def __len__(self) -> int:
        return sum(run.size for run in self._runs)

    def find(self, users: Users) -> NDArray[np.bool_]:
        """Which of these users are in the set."""
        known = np.zeros(users.size, dtype=np.bool_)
        for run in self._runs:
            place = np.searchsorted(run, users)
            known |= run[np.minimum(place, run.size - 1)] == users
        return known

    def refuse_known(self, users: Users) -> None:
        """Refuse users who are in the set."""
        known = self.find(users)
        if known.any():
            first = int(users[int(np.argmax(known))])
            raise RefusedBallot("duplicate", f"user {first} has already voted in this round")

    def add(self, users: Users) -> None:
        """Add users who are not in the set."""
        if users.size == 0:
            return
        self._runs.append(ascending(users).copy())
        # Only runs of similar size are merged, so that the total work is n log n.
        while len(self._runs) > 1 and self._runs[-2].size <= 2 * self._runs[-1].size:
            merged = np.concatenate([self._runs.pop(), self._runs.pop()])
            # Sorting in place limits the peak to sixteen bytes for each user.
            merged.sort()
            self._runs.append(merged)

    def users(self) -> Users:
        """All users, ascending."""
        if not self._runs:
            return np.empty(0, dtype=np.uint64)
        return np.sort(np.concatenate(self._runs))


def ascending(users: Users) -> Users:
    """The users in ascending order; a sorted batch is returned without a copy."""
    return users if (users[1:] > users[:-1]).all() else np.sort(users)


class Tally:
    """The state of a round at the server: counters, and the set of voters.

    A wrong MAC is always refused; with `require_mac` a ballot without a MAC is refused too.
    Several threads may add to one tally; their batches are counted one after the other.
    """

    def __init__(
        self,
        mechanism: CountingRule,
        round_key: RoundKey,
        counters: Counters,
        require_mac: bool = False,
    ) -> None:
        if not isinstance(round_key, RoundKey):
            raise InvalidInput(
                f"a tally needs the RoundKey of its round; got {type(round_key).__name__}"
            )
        self.mechanism: Any = mechanism  # a Mechanism, whose module imports this one
        self.round_key = round_key
        self.counters = counters
        self.require_mac = require_mac
        self.voters = VoterSet()
        self._consistent = True
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.RLock())

    def __repr__(self) -> str:
        return f"Tally({self.count} ballots of round {self.round_key.round}, {self.mechanism!r})"

    def empty_like(self) -> "Tally":
        """An empty tally of the same mechanism, round and counters."""
        empty = {name: np.zeros_like(counter) for name, counter in self.counters.items()}
        return Tally(self.mechanism, self.round_key, empty, self.require_mac)

    @property
    def count(self) -> int:
        """Ballots accepted so far."""
        return len(self.voters)

    def add(self, ballot: Ballot) -> None:
        """Count one ballot, or refuse it and change nothing."""
        if not isinstance(ballot, Ballot):
            raise InvalidInput(
                f"add takes a Ballot (see Ballot.from_bytes); got {type(ballot).__name__}"
            )
        self.add_many([ballot])

    def add_many(self, ballots: Ballots | Sequence[Ballot]) -> None:
        """Count many ballots: all of them, or none if one is refused."""
        if not isinstance(ballots, Sequence) or isinstance(ballots, str | bytes):
            raise InvalidInput(f"add_many takes ballots; got {type(ballots).__name__}")
        if len(ballots) == 0:
            return
        if not isinstance(ballots, Ballots):
            for ballot in ballots:
                if not isinstance(ballot, Ballot):
                    raise InvalidInput(f"add_many takes ballots; got {type(ballot).__name__}")
                self._check_header(ballot)
                self._check_mac(ballot.mac)
                self._check_size(ballot)
            ballots = Ballots.stack(ballots)
        self.check_ballots(ballots)
        with self._lock:
            self.check_voters(ballots.users)
            with self._updating():
                keys = self.round_key.users(ballots.users)
                self.mechanism.add_payload(self.counters, ballots.payload, keys)
                self.voters.add(ballots.users)

    def merge(self, other: "Tally") -> None:
        """Add a tally of the same mechanism and round, with other users."""
        with self._lock:
            voters = self.check_mergeable(other)
            with self._updating():
                for name, counter in self.counters.items():
                    counter += other.counters[name]
                self.voters.add(voters)

    def check_ballots(self, ballots: Ballots) -> None:
        """Refuse ballots of another mechanism, round, run or size, and wrong MACs or payloads."""
        self._check_header(ballots)
        self._check_mac(ballots.macs)
        shape = (len(ballots), (ballots.bits + 7) // 8)
        payload = ballots.payload
        if payload.dtype != np.uint8 or payload.shape != shape or ballots.users.ndim != 1:
            raise RefusedBallot(
                "length", f"the payloads must be bytes of shape {shape}; got {payload.shape}"
            )
        if ballots.macs is not None:
            valid = valid_macs(ballots, self.round_key.users(ballots.users))
            if not valid.all():
                user = int(ballots.users[int(np.argmin(valid))])
                raise RefusedBallot(
                    "forged",
                    f"the MAC of the ballot of user {user} is not made with that user's key",
                )
        self.mechanism.check_payload(payload)

    def check_mergeable(self, other: "Tally") -> Users:
        """The voters of the other tally; refuses a tally that cannot be merged into this one."""
        if not isinstance(other, Tally) or other.mechanism.fingerprint != (
            self.mechanism.fingerprint
        ):
            raise InvalidInput("only a tally of the same mechanism can be merged into this one")
        if other.round_key != self.round_key:
            raise InvalidInput(
                f"tallies of rounds {self.round_key.round} and {other.round_key.round}, or of "
                "different secrets, cannot be merged"
            )
        if {k: v.shape for k, v in self.counters.items()} != {
            k: v.shape for k, v in other.counters.items()
        }:
            raise InvalidInput(
                "one of the tallies has a histogram and the other has not: make both with the same "
                "value of histogram"
            )
        self.check_consistent()
        other.check_consistent()
        voters = other.voters.users()
        self.check_voters(voters)
        return voters

    def check_consistent(self) -> None:
        """Refuse counters that an interrupt may have left partly updated."""
        if not self._consistent:
            raise HushbitError(
                "an update of this tally was interrupted, so its counters may be wrong: "
                "make a new tally, or load the last saved file"
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything but the key to a file, atomically."""
        write_arrays(path, to_arrays(self))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Fill this empty tally from a file that `save` wrote for the same mechanism and key."""
        data = read_arrays(path)
        check_arrays(self, data, as_path(path))
        with self._updating():
            from_arrays(self, data)

    def _check_header(self, ballot: Ballot | Ballots) -> None:
        if ballot.fingerprint != self.mechanism.fingerprint:
            raise RefusedBallot(
                "mechanism",
                f"the ballot was encoded with mechanism {ballot.fingerprint.hex()}, this tally "
                f"counts {self.mechanism.fingerprint.hex()}: use the same parameters on both sides",
            )
        if ballot.round != self.round_key.round:
            raise RefusedBallot(
                "round",
                f"the ballot belongs to round {ballot.round}; this is round {self.round_key.round}",
            )
        if ballot.run not in (None, self.round_key.run):
            raise RefusedBallot("run", "the ballot was encoded with a key of another run")
        if ballot.bits != self.mechanism.payload_bits:
            raise RefusedBallot(
                "length",
                f"a ballot of this mechanism has {self.mechanism.payload_bits} bits; "
                f"got {ballot.bits}",
            )

    def _check_mac(self, mac: Any) -> None:
        if self.require_mac and mac is None:
            raise RefusedBallot(
                "unauthenticated",
                "the ballot has no MAC and this tally requires one: send ballot.to_bytes(key)",
            )

    def _check_size(self, ballot: Ballot) -> None:
        if not isinstance(ballot.payload, bytes) or len(ballot.payload) != (ballot.bits + 7) // 8:
            raise RefusedBallot("length", f"the payload must have {(ballot.bits + 7) // 8} bytes")

    def check_voters(self, users: Users) -> None:
        """Refuse users who have already voted, or who appear twice."""
        self.voters.refuse_known(users)
        ordered = ascending(users)
        repeated = ordered[1:] == ordered[:-1]
        if repeated.any():
            user = int(ordered[int(np.argmax(repeated))])
            raise RefusedBallot("duplicate", f"user {user} appears twice in these ballots")

    @contextlib.contextmanager
    def _updating(self) -> Iterator[None]:
        """Mark the tally as inconsistent if an exception interrupts an update."""
        self.check_consistent()
        self._consistent = False
        yield
        self._consistent = True


def to_arrays(tally: Tally) -> Arrays:
    """The content of a tally file: mechanism and key, the voters, the counters."""
    tally.check_consistent()
    head = (
        FORMAT.to_bytes(8, "little")
        + tally.mechanism.fingerprint
        + tally.round_key.key_id
        + tally.round_key.round.to_bytes(8, "little")
    )
    counters = {f"counter {name}": array for name, array in tally.counters.items()}
    return {"head": np.frombuffer(head, dtype=np.uint8), "users": tally.voters.users(), **counters}


def check_arrays(tally: Tally, data: Arrays, path: Path) -> None:
    """Refuse arrays that do not belong to this empty tally."""
    if tally.count:
        raise InvalidInput("load needs an empty tally: load into a new one, then merge it")
    head = data.get("head", np.empty(0)).tobytes()
    if len(head) != 32 or int.from_bytes(head[:8], "little") != FORMAT:
        raise DamagedFile(f"{path} is not a tally of format {FORMAT}")
    if head[8:16] != tally.mechanism.fingerprint:
        raise InvalidInput(f"{path} belongs to another mechanism than {tally.mechanism!r}")
    if head[16:24] != tally.round_key.key_id:
        number = int.from_bytes(head[24:], "little")
        raise InvalidInput(f"{path} belongs to round {number} of another key")
    wanted = {name: (array.shape, array.dtype) for name, array in to_arrays(tally).items()}
    found = {name: (array.shape, array.dtype) for name, array in data.items()}
    users = data.get("users", np.empty(0))
    wanted["users"] = (users.shape, np.dtype(np.uint64))
    if wanted != found or users.ndim != 1:
        raise DamagedFile(f"{path} does not contain the counters of this tally")
    if np.unique(users).size != users.size:
        raise DamagedFile(f"{path} contains a user twice")


def from_arrays(tally: Tally, data: Arrays) -> None:
    """Fill a tally with checked arrays."""
    for name, array in tally.counters.items():
        array[...] = data[f"counter {name}"]
    tally.voters.add(data["users"])


def write_arrays(path: str | os.PathLike[str], arrays: Arrays) -> None:
    """Write an archive atomically; an existing file is replaced."""
    write_atomic(as_path(path), lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]


def read_arrays(path: str | os.PathLike[str]) -> Arrays:
    """Read an archive; any other file is refused."""
    source = as_path(path)
    try:
        with np.load(source, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except Exception as error:  # NumPy and zipfile raise many types for a damaged archive
        raise DamagedFile(f"{path} is not a readable tally: {error}") from error


def as_path(path: str | os.PathLike[str]) -> Path:
    """A Path, from text or a Path."""
    try:
        return Path(path)
    except TypeError:
        raise InvalidInput(f"a path must be text or a Path; got {type(path).__name__}") from None
