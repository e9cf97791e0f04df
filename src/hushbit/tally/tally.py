"""Tallies: integer counters of one round, whose size does not depend on the number of users.

Adding and merging are exact, so order, grouping and threads do not change the result. A tally also
contains the set of users who have voted, with eight bytes for each. A tally file is written
atomically and does not contain the key. Sizes in bytes are in brackets:

    "HBTALLY" | format [1] | key id [8] | round [8] | number of tallies [8]
    for each tally (several only for tiers): fingerprint [8] | layout [8] | number of voters [8]
    for each tally: voters in ascending order [8 each] | counters [8 for each entry]
    HMAC-SHA256 of all bytes before it, under the tally key of the round [32]

Nothing is compressed, so the size follows from the mechanism and the number of voters.
"""

import contextlib
import hashlib
import hmac
import itertools
import json
import os
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hushbit.errors import DamagedFile, HushbitError, InvalidInput, RefusedBallot
from hushbit.wire.ballot import Ballot, Ballots, PayloadFormat, valid_macs
from hushbit.wire.files import atomic_file
from hushbit.wire.keys import RoundKey, UserKeys

MAGIC, FORMAT = b"HBTALLY", 2
HEAD = struct.Struct("<7sB8sQQ")
PART_HEAD = struct.Struct("<8s8sQ")
MAC_BYTES = hashlib.sha256().digest_size
Counters = dict[str, NDArray[np.int64]]
Users = NDArray[np.uint64]
LargestVotes = Mapping[str, int | NDArray[np.int64]]  # by counter; arrays are broadcast to it


class CountingMechanism(PayloadFormat, Protocol):
    """The part of a mechanism that a tally uses."""

    def add_payload(self, counters: Counters, payload: NDArray[np.uint8], keys: UserKeys) -> None:
        """Add checked payloads to the counters."""

    def largest_votes(self, counters: Counters) -> LargestVotes:
        """The largest magnitude that one ballot adds to an entry of each counter."""


class VoterSet:
    """A growing set of user ids, stored as a few sorted runs of doubling size."""

    def __init__(self) -> None:
        self._runs: list[Users] = []

    def __len__(self) -> int:
        return sum(run.size for run in self._runs)

    def find(self, users: Users) -> NDArray[np.bool_]:
        """For each of these users, whether it is in the set."""
        known = np.zeros(users.size, dtype=np.bool_)
        for run in self._runs:
            place = np.searchsorted(run, users)
            known |= run[np.minimum(place, run.size - 1)] == users
        return known

    def refuse_known(self, users: Users) -> None:
        """Raise RefusedBallot if one of these users is in the set."""
        known = self.find(users)
        if known.any():
            first = int(users[int(np.argmax(known))])
            raise RefusedBallot("duplicate", f"user {first} has already voted in this round")

    def add(self, users: Users) -> None:
        """Add users; none of them may be in the set."""
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
        mechanism: CountingMechanism,
        round_key: RoundKey,
        counters: Counters,
        require_mac: bool,
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
        if ballots.macs is not None:
            valid = valid_macs(ballots, self.round_key.users(ballots.users))
            if not valid.all():
                user = int(ballots.users[int(np.argmin(valid))])
                raise RefusedBallot(
                    "forged",
                    f"the MAC of user {user}'s ballot was not computed with that user's key",
                )
        self.mechanism.check_payload(ballots.payload)

    def check_mergeable(self, other: "Tally") -> Users:
        """The voters of the other tally; refuses a tally that cannot be merged into this one."""
        if not isinstance(other, Tally) or other.mechanism.fingerprint != (
            self.mechanism.fingerprint
        ):
            raise InvalidInput("only a tally of the same mechanism can be merged into this one")
        if other.round_key != self.round_key:
            raise InvalidInput(
                f"tallies of rounds {self.round_key.round} and {other.round_key.round}, or of "
                "different secrets or runs, cannot be merged"
            )
        if self.require_mac and not other.require_mac:
            raise InvalidInput(
                "this tally requires MACs and the other does not: make both with require_mac=True"
            )
        if {k: v.shape for k, v in self.counters.items()} != {
            k: v.shape for k, v in other.counters.items()
        }:
            raise InvalidInput(
                "one of the tallies has a histogram and the other does not: make both with the "
                "same value of histogram"
            )
        self.check_consistent()
        other.check_consistent()
        voters = other.voters.users()
        self.check_voters(voters)
        return voters

    def check_consistent(self) -> None:
        """Raise an error if an exception interrupted an update, so that counters may be wrong."""
        if not self._consistent:
            raise HushbitError(
                "an update of this tally was interrupted, so its counters may be wrong: "
                "make a new tally, or load the last saved file"
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything but the key to a file, atomically."""
        save_tallies(path, [self])

    def load(self, path: str | os.PathLike[str]) -> None:
        """Fill this empty tally from a file that `save` wrote for the same mechanism and key."""
        (content,) = read_tallies(path, [self])
        self.set_content(content)

    def set_content(self, content: "TallyContent") -> None:
        """Set counters and voters of this empty tally to the checked content of a file."""
        with self._updating():
            for name, array in self.counters.items():
                array[...] = content.counters[name]
            self.voters.add(content.voters)

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
        if len(ballot.payload) != (ballot.bits + 7) // 8:
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


class TallyContent(NamedTuple):
    """The voters and counters in a file, after all checks."""

    voters: Users
    counters: Counters


def save_tallies(path: str | os.PathLike[str], tallies: Sequence[Tally]) -> None:
    """Write tallies of one round to one file, atomically; an existing file is replaced."""
    target, key = as_path(path), tallies[0].round_key
    for tally in tallies:
        tally.check_consistent()
    head = HEAD.pack(MAGIC, FORMAT, key.key_id, key.round, len(tallies))
    for tally in tallies:
        layout = _layout(tally, require_mac=tally.require_mac)
        head += PART_HEAD.pack(tally.mechanism.fingerprint, layout, tally.count)
    with atomic_file(target) as file:
        mac = hmac.new(key.tally_key, digestmod="sha256")
        for part in itertools.chain([head], *map(_body, tallies)):
            file.write(part)
            mac.update(part)
        file.write(mac.digest())


def read_tallies(path: str | os.PathLike[str], tallies: Sequence[Tally]) -> list[TallyContent]:
    """Read the file of these empty tallies of one round; any other file is refused.

    The size that follows from the mechanisms and the stated number of voters is checked first.
    """
    source, key = as_path(path), tallies[0].round_key
    if any(tally.count for tally in tallies):
        raise InvalidInput("load needs an empty tally: load into a new one, then merge it")
    try:
        with source.open("rb") as file:
            head = file.read(HEAD.size + PART_HEAD.size * len(tallies))
            voters = _check_head(head, tallies, source)
            sizes = [
                8 * count + _counter_bytes(t) for count, t in zip(voters, tallies, strict=True)
            ]
            wanted = sum(sizes) + MAC_BYTES
            found = os.fstat(file.fileno()).st_size - len(head)
            body = file.read(wanted) if found == wanted else b""
    except OSError as error:
        raise DamagedFile(f"{source} is not a readable tally: {error}") from error
    if len(body) != wanted:
        raise DamagedFile(
            f"{source} has {len(head) + found} bytes; a tally of its voters has "
            f"{len(head) + wanted}"
        )
    mac = hmac.new(key.tally_key, head, "sha256")
    mac.update(memoryview(body)[:-MAC_BYTES])
    if not hmac.compare_digest(mac.digest(), body[-MAC_BYTES:]):
        raise DamagedFile(f"{source} was changed after it was saved: its MAC is wrong")
    contents, at = [], 0
    for tally, count, size in zip(tallies, voters, sizes, strict=True):
        contents.append(_content(tally, count, body[at : at + size], source))
        at += size
    return contents


def _check_head(head: bytes, tallies: Sequence[Tally], source: Path) -> list[int]:
    """The number of voters of each tally in a file; refuses a file of other tallies."""
    key = tallies[0].round_key
    if len(head) < HEAD.size or head[: len(MAGIC) + 1] != MAGIC + bytes([FORMAT]):
        raise DamagedFile(f"{source} is not a readable tally: it is not of format {FORMAT}")
    _, _, key_id, number, parts = HEAD.unpack_from(head)
    if key_id != key.key_id:
        raise InvalidInput(f"{source} belongs to round {number} of another key")
    if parts != len(tallies) or len(head) != HEAD.size + PART_HEAD.size * parts:
        raise DamagedFile(f"{source} is a file of {parts} tallies; {len(tallies)} were expected")
    voters = []
    for tally, found in zip(tallies, PART_HEAD.iter_unpack(head[HEAD.size :]), strict=True):
        if found[0] != tally.mechanism.fingerprint:
            raise InvalidInput(f"{source} belongs to another mechanism than {tally.mechanism!r}")
        if tally.require_mac and found[1] == _layout(tally, require_mac=False):
            raise InvalidInput(
                f"{source} may count ballots without a MAC and this tally requires MACs: load it "
                "into a tally that does not"
            )
        if found[1] not in {_layout(tally, require_mac=mac) for mac in (True, False)}:
            raise DamagedFile(f"{source} does not contain the counters of this tally")
        voters.append(found[2])
    return voters


def _content(tally: Tally, count: int, data: bytes, source: Path) -> TallyContent:
    """The voters and counters of one tally; refuses counters that no ballots can produce."""
    voters = np.frombuffer(data, dtype="<u8", count=count).astype(np.uint64)
    if not (voters[1:] > voters[:-1]).all():
        raise DamagedFile(f"{source} contains a user twice, or its users are not ascending")
    at, counters = 8 * count, {}
    largest = tally.mechanism.largest_votes(tally.counters)
    for name, counter in tally.counters.items():
        flat = np.frombuffer(data, dtype="<i8", count=counter.size, offset=at)
        counters[name] = flat.reshape(counter.shape).astype(np.int64)
        at += counter.nbytes
        limit = count * largest[name]
        if ((counters[name] > limit) | (counters[name] < -limit)).any():
            raise DamagedFile(f"{source} has a counter beyond what {count} ballots can add up to")
    return TallyContent(voters, counters)


def _layout(tally: Tally, *, require_mac: bool) -> bytes:
    """Eight bytes that identify names and shapes of the counters, and whether MACs are required."""
    shapes: list[Any] = [[name, counter.shape] for name, counter in tally.counters.items()]
    text = json.dumps([*shapes, "require_mac"] if require_mac else shapes)
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def _counter_bytes(tally: Tally) -> int:
    return sum(counter.nbytes for counter in tally.counters.values())


def _body(tally: Tally) -> Iterator[bytes]:
    """The voters and the counters, as bytes."""
    yield tally.voters.users().astype("<u8", copy=False).tobytes()
    for counter in tally.counters.values():
        yield counter.astype("<i8", copy=False).tobytes()


def as_path(path: str | os.PathLike[str]) -> Path:
    """A Path, from text or a Path."""
    try:
        return Path(path)
    except TypeError:
        raise InvalidInput(f"a path must be text or a Path; got {type(path).__name__}") from None
