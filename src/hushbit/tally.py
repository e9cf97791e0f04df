"""Tallies: integer counters of one round, whose size does not depend on the number of users.

Adding and merging are exact, so neither order nor grouping nor threads change a single bit.
"""

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hushbit.ballot import Ballot, Ballots
from hushbit.errors import HushbitError, InvalidInput, RefusedBallot
from hushbit.keys import RoundKey
from hushbit.roll import Roll, ascending
from hushbit.tally_file import (
    arrays_of,
    as_path,
    check_arrays,
    fill,
    read_arrays,
    write_arrays,
)

if TYPE_CHECKING:
    from hushbit.mechanism import Mechanism

Counters = dict[str, NDArray[np.int64]]


class Tally:
    """What a server keeps of a round: counters, how many voted, and who.

    Threads may share one; their ballots are counted one batch after the other.
    """

    def __init__(self, mechanism: "Mechanism", round_key: RoundKey, counters: Counters) -> None:
        if not isinstance(round_key, RoundKey):
            raise InvalidInput(f"a tally needs the RoundKey of its round; got {round_key!r}")
        self.mechanism = mechanism
        self.round_key = round_key
        self.counters = counters
        self.roll = Roll()
        self._whole = True
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.RLock())

    def __repr__(self) -> str:
        return f"Tally({self.count} ballots of round {self.round_key.round}, {self.mechanism!r})"

    def like(self) -> "Tally":
        """An empty tally of the same mechanism, round and counters."""
        empty = {name: np.zeros_like(counter) for name, counter in self.counters.items()}
        return Tally(self.mechanism, self.round_key, empty)

    @property
    def count(self) -> int:
        """Ballots accepted so far."""
        return len(self.roll)

    def add(self, ballot: Ballot) -> None:
        """Count one ballot, or refuse it and change nothing."""
        if not isinstance(ballot, Ballot):
            raise InvalidInput(f"add takes a Ballot (see Ballot.from_bytes); got {ballot!r}")
        self.add_many([ballot])

    def add_many(self, ballots: Ballots | Sequence[Ballot]) -> None:
        """Count many ballots, all of them or, if one is refused, none."""
        if not isinstance(ballots, Sequence) or isinstance(ballots, str | bytes):
            raise InvalidInput(f"add_many takes ballots; got {type(ballots).__name__}")
        if len(ballots) == 0:
            return
        if not isinstance(ballots, Ballots):
            for ballot in ballots:
                if not isinstance(ballot, Ballot):
                    raise InvalidInput(f"add_many takes ballots; got {ballot!r}")
                self._check_header(ballot)
                self._check_size(ballot)
            ballots = Ballots.gather(ballots)
        self._check_header(ballots)
        self._check_shape(ballots)
        self.mechanism.check_payload(ballots.payload)
        with self._lock:
            self._count(ballots)

    def _count(self, ballots: Ballots) -> None:
        self._check_voters(ballots.users)
        with self._changing():
            keys = self.round_key.users(ballots.users)
            self.mechanism.absorb(self.counters, ballots.payload, keys)
            self.roll.add(ballots.users)

    def merge(self, other: "Tally") -> None:
        """Add another tally of the same mechanism and round, of other users."""
        with self._lock:
            voters = self.check_mergeable(other)
            with self._changing():
                for name, counter in self.counters.items():
                    counter += other.counters[name]
                self.roll.add(voters)

    def check_mergeable(self, other: "Tally") -> NDArray[np.uint64]:
        """The other tally's voters; refuses what cannot be merged into this one."""
        if not isinstance(other, Tally) or other.mechanism.fingerprint != (
            self.mechanism.fingerprint
        ):
            raise InvalidInput("only tallies of the same mechanism can be merged")
        if other.round_key != self.round_key:
            raise InvalidInput(
                f"tallies of rounds {self.round_key.round} and {other.round_key.round}, or of "
                "different secrets, cannot be merged"
            )
        if {k: v.shape for k, v in self.counters.items()} != {
            k: v.shape for k, v in other.counters.items()
        }:
            raise InvalidInput("a tally with and one without the histogram cannot be merged")
        self.check_whole()
        other.check_whole()
        voters = other.roll.users()
        self._check_voters(voters)
        return voters

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything but the key to a file, all of it or nothing."""
        write_arrays(path, arrays_of(self))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Fill this empty tally from a file that `save` wrote for the same mechanism and key."""
        data = read_arrays(path)
        check_arrays(self, data, as_path(path))
        with self._changing():
            fill(self, data)

    def _check_header(self, ballot: Ballot | Ballots) -> None:
        if ballot.fingerprint != self.mechanism.fingerprint:
            raise RefusedBallot(
                "mechanism",
                f"the ballot was cast with mechanism {ballot.fingerprint.hex()}, this tally "
                f"counts {self.mechanism.fingerprint.hex()}: use the same parameters on both sides",
            )
        if ballot.round != self.round_key.round:
            raise RefusedBallot(
                "round", f"the ballot is of round {ballot.round}, not {self.round_key.round}"
            )
        self.mechanism.check_bits(ballot.bits)

    def _check_size(self, ballot: Ballot) -> None:
        if not isinstance(ballot.payload, bytes) or len(ballot.payload) != (ballot.bits + 7) // 8:
            raise RefusedBallot("length", f"the payload is not {(ballot.bits + 7) // 8} bytes long")

    def _check_shape(self, ballots: Ballots) -> None:
        shape = (len(ballots), (ballots.bits + 7) // 8)
        payload = ballots.payload
        if payload.dtype != np.uint8 or payload.shape != shape or ballots.users.ndim != 1:
            raise RefusedBallot(
                "length", f"the payloads must be bytes of shape {shape}; got {payload.shape}"
            )

    def _check_voters(self, users: NDArray[np.uint64]) -> None:
        again = self.roll.find(users)
        if again.any():
            first = int(users[int(np.argmax(again))])
            raise RefusedBallot("duplicate", f"user {first} has already voted in this round")
        ordered = ascending(users)
        twice = ordered[1:] == ordered[:-1]
        if twice.any():
            user = int(ordered[int(np.argmax(twice))])
            raise RefusedBallot("duplicate", f"user {user} appears twice in these ballots")

    def check_whole(self) -> None:
        """Refuse to go on with counters that an interrupt may have left half changed."""
        if not self._whole:
            raise HushbitError(
                "this tally was interrupted in the middle of a change and may be wrong: "
                "make a new one, or load the last saved file"
            )

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Mark the tally as unusable should an interrupt strike between two counters."""
        self.check_whole()
        self._whole = False
        yield
        self._whole = True
