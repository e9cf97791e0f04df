"""The protocol of every mechanism: encode at the user, tally and estimate at the server.

A concrete mechanism is a frozen dataclass whose fields are its parameters. It implements

    guarantee        what one ballot costs its user
    payload_bits     the size of a ballot
    encode_payload   updates to payloads, the only randomized step
    empty_counters   zeroed integer counters
    add_payload      add payloads to the counters
    largest_votes    what one ballot adds to a counter at most
    decode           counters to an estimate

and inherits the rest. The defence, the attacks and the audit access single ballots through
`mechanism.votes`.
"""

import dataclasses
import hashlib
import inspect
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import Floats, Ints, check_updates
from hushbit.errors import InvalidInput, RefusedBallot
from hushbit.kernels import Flags
from hushbit.privacy.guarantee import Guarantee
from hushbit.tally.decoded_ballots import SingleBallots
from hushbit.tally.estimate import Estimate
from hushbit.tally.tally import Counters, LargestVotes, Tally
from hushbit.wire.ballot import Ballot, Ballots
from hushbit.wire.coins import coin_source
from hushbit.wire.keys import RoundKey, UserKey, UserKeys

Bytes = NDArray[np.uint8]
Updates = NDArray[np.floating]  # (users, dim), or (dim,) for one user
Words = NDArray[np.uint32]  # ChaCha20 keys, coins and keystreams
Payloads = tuple[Bytes, Ints]  # payloads, and the number of overloaded blocks of each user
Groups = tuple[Flags, Flags]  # two disjoint groups of users
State = dict[str, Floats]


class Mechanism(ABC):
    """How an update is encoded as a ballot, and the mean is decoded from ballots. Immutable."""

    name: ClassVar[str | None] = None  # on the command line; None for wrappers
    sends_updates: ClassVar[bool] = False  # whether ballots contain the updates in clear
    server_noise: ClassVar[bool] = False  # whether `estimate` adds noise from its option `coins`
    dim: int

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee:
        """What one ballot costs its user: per bit, per message and per run."""

    @property
    @abstractmethod
    def payload_bits(self) -> int:
        """Bits in the payload of one ballot."""

    @abstractmethod
    def encode_payload(self, updates: Updates, keys: UserKeys, coins: Words) -> Payloads:
        """Payloads (users, bytes), and the number of overloaded blocks of each user."""

    @abstractmethod
    def empty_counters(self, histogram: bool) -> Counters:
        """Zeroed integer counters."""

    @abstractmethod
    def add_payload(self, counters: Counters, payload: Bytes, keys: UserKeys) -> None:
        """Add checked payloads to the counters."""

    @abstractmethod
    def largest_votes(self, counters: Counters) -> LargestVotes:
        """The largest magnitude that one ballot adds to an entry of each counter."""

    @abstractmethod
    def decode(self, counters: Counters, count: int, round_key: RoundKey) -> Estimate:
        """The estimate from the counters of `count` ballots, which `estimate` has checked."""

    def check_payload(self, payload: Bytes) -> None:
        """Refuse payloads that no encoder writes; by default, unused bits must be zero."""
        used = self.payload_bits % 8
        if used and (payload[:, -1] >> used).any():
            raise RefusedBallot("padding", "unused bits of the last byte must be zero")

    # Description and identity

    @property
    def description(self) -> dict[str, Any]:
        """Name and parameters as JSON values; mechanisms with equal descriptions are equal."""
        values = {name: _to_json(getattr(self, name)) for name in self.parameters()}
        return {"mechanism": type(self).__name__, **values}

    @classmethod
    def from_description(cls, fields: Mapping[str, Any]) -> Self:
        """The mechanism with the parameters of a description; `inner` is already a mechanism."""
        return cls(**{name: from_json(value) for name, value in fields.items()})

    @cached_property
    def fingerprint(self) -> bytes:
        """Eight bytes, equal at client and server if both use the same mechanism."""
        text = json.dumps(self.description, sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=8, person=b"hushbit mech").digest()

    @classmethod
    def parameters(cls) -> tuple[str, ...]:
        """Names of the constructor parameters."""
        fields: Any = cls
        return tuple(field.name for field in dataclasses.fields(fields) if field.init)

    def _set(self, **values: Any) -> None:
        """Set fields while the frozen dataclass is being built."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mechanism) and other.description == self.description

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        """The call that builds the mechanism, without parameters that have their default value."""
        fields: Any = self
        at_default = self.__dict__.get("_at_default", ())
        shown = [
            f"{field.name}={_source(getattr(self, field.name))}"
            for field in dataclasses.fields(fields)
            if field.init
            and field.name not in at_default
            and (field.default is dataclasses.MISSING or getattr(self, field.name) != field.default)
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    # User

    def encode(self, update: Any, key: UserKey, coins: Any = None) -> Ballot:
        """The ballot of one user; coins default to the entropy of the operating system."""
        if not isinstance(key, UserKey):
            raise InvalidInput(f"key must come from RoundKey.user; got {type(key).__name__}")
        ballots = self._encode(check_updates("update", update, self.dim, many=False), key, coins)
        ballot: Ballot = ballots[0]
        return ballot

    def encode_many(
        self, updates: Any, keys: UserKeys | Sequence[UserKey], coins: Any = None
    ) -> Ballots:
        """The ballots of many users, with the same bits as `encode` for each of them."""
        return self._encode(check_updates("updates", updates, self.dim, many=True), keys, coins)

    def _encode(
        self,
        updates: Updates,
        keys: UserKey | UserKeys | Sequence[UserKey],
        coins: Any,
    ) -> Ballots:
        batch = UserKeys.stack(keys)
        if len(batch) != len(updates):
            raise InvalidInput(f"{len(updates)} updates need {len(updates)} keys; got {len(batch)}")
        payload, overloaded = self.encode_payload(updates, batch, coin_source(coins).keys(batch))
        head = (self.fingerprint, batch.round, self.payload_bits)
        return Ballots(*head, batch.users, payload, overloaded, run=batch.run)

    # Server

    def tally(
        self, round_key: RoundKey, histogram: bool = True, require_mac: bool = False
    ) -> Tally:
        """An empty tally; with histogram=False it keeps only the sums that the mean needs.

        With require_mac=True it refuses ballots without a MAC (version 1).
        """
        return Tally(self, round_key, self.empty_counters(histogram), require_mac)

    def estimate(self, tally: Tally, **options: Any) -> Estimate:
        """The mean update of the users in a tally; `options` are those of `decode`."""
        if not isinstance(tally, Tally) or tally.mechanism.fingerprint != self.fingerprint:
            other = f" of {tally.mechanism!r}" if isinstance(tally, Tally) else ""
            raise InvalidInput(
                f"estimate needs a tally made by {self!r}; got a {type(tally).__name__}{other}"
            )
        tally.check_consistent()
        if tally.count == 0:
            raise InvalidInput("the tally has no ballots yet: add some before estimating")
        if options and (unknown := options.keys() - inspect.signature(self.decode).parameters):
            raise InvalidInput(f"{type(self).__name__} has no option {', '.join(sorted(unknown))}")
        return self.decode(tally.counters, tally.count, tally.round_key, **options)

    # Properties that some mechanisms override

    @property
    def clip(self) -> float | None:
        """The l2 norm to which updates are scaled down, or None."""
        return None

    @property
    def unbiased_radius(self) -> float:
        """Blocks of the update up to this norm are decoded without bias."""
        return math.inf

    @property
    def keeps_histogram(self) -> bool:
        """Whether an estimate can have a histogram of the points of users."""
        return False

    @property
    def votes(self) -> "Votes | None":
        """Access to single ballots; None where the payload does not consist of votes."""
        return None

    def readable_votes(self) -> "Votes":
        """The votes; refuses a mechanism whose ballots cannot be decoded one by one."""
        if self.votes is None or not self.votes.readable:
            raise InvalidInput(
                "the defence reads ballots of bits (cpa, nested, signsgd, mvu); "
                f"got {self.description['mechanism']}"
            )
        return self.votes

    def plain_updates(self, ballots: Ballots) -> Updates | None:
        """The updates, where ballots contain them in clear; otherwise None."""
        return None

    # Other mechanisms made from this one

    def scaled(self, factor: float) -> "Mechanism":
        """The same mechanism with its points scaled by `factor`."""
        raise InvalidInput(f"only CPA and its wrappers have points to scale; got {self!r}")

    def with_clip(self, clip: float | None) -> "Mechanism":
        """The same encoder with another l2 clip, or none; unchanged if it never has a clip."""
        return self

    def noise_per_user(self, user_rms: float) -> float:
        """Predicted variance that a user, whose entries have this rms, adds to an entry."""
        raise InvalidInput(f"noise is predicted for CPA with stochastic rounding; got {self!r}")

    # State between rounds; only AutoCPA has any

    @property
    def state(self) -> State:
        """The state that changes from round to round, as arrays for a checkpoint."""
        return {}

    def with_state(self, state: State) -> "Mechanism":
        """The mechanism with the state of an earlier `state` call."""
        return self

    def next_round(self, tally: Tally) -> "Mechanism":
        """The mechanism of the next round, given the tally of this round."""
        return self


def _to_json(value: Any) -> Any:
    if isinstance(value, Mechanism):
        return value.description
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    return list(value) if isinstance(value, tuple) else value


def from_json(value: Any) -> Any:
    """A parameter from its JSON form: lists become tuples, "inf" becomes math.inf."""
    if isinstance(value, list):
        return tuple(from_json(part) for part in value)
    return math.inf if isinstance(value, str) and value == "inf" else value


def _source(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_source, value))}{',' * (len(value) == 1)})"
    return "math.inf" if isinstance(value, float) and math.isinf(value) else repr(value)


def check_width(ballots: Ballots, bits: int) -> None:
    """Refuse ballots of another size; the kernels do not check the width of a row."""
    if ballots.bits != bits:
        raise RefusedBallot("length", f"a ballot of this mechanism has {bits} bits")


@dataclass(frozen=True, eq=False)
class HonestMean:
    """The mean of decoded honest ballots, and the standard deviation of users along it."""

    mean: Floats
    honest_spread: float


@dataclass(frozen=True)
class BallotScale:
    """The noise of one decoded ballot, and bounds of an honest update.

    noise          sigma, root mean square of the noise in an entry
    largest_norm   largest l2 norm of an honest update
    largest_entry  largest entry of E y
    """

    noise: float
    largest_norm: float
    largest_entry: float

    @property
    def max_score(self) -> float:
        """Largest |E y|."""
        return self.largest_norm / self.noise


class Votes(ABC):
    """Access to single ballots of a mechanism whose payload consists of votes.

    A vote is one bit. The defence decodes ballots one by one, an attack chooses their bits, and an
    audit compares them. Vectors are in the coordinates of the update unless stated otherwise; the
    coordinates of the votes are those of the rotated update.
    """

    scale: BallotScale | None = None  # None where no clip or radius bounds an honest update
    fair_bits: int = 0  # votes that are unbiased coin flips for every update

    @property
    def readable(self) -> bool:
        """Whether `decode_each` works."""
        return True

    @abstractmethod
    def mask(self) -> Bytes:
        """A payload in which every vote is 1 and the padding is 0."""

    @abstractmethod
    def decode_each(
        self, ballots: Ballots, round_key: RoundKey, groups: Groups | None = None
    ) -> SingleBallots:
        """Checked ballots, decoded one by one.

        `groups` are two disjoint groups of users whose sums the caller will need.
        """

    @abstractmethod
    def payload_towards(self, target: Floats, ballots: Ballots, keys: UserKeys) -> Bytes:
        """Payloads in which every vote moves the estimate in the direction of `target`."""

    def count_decoded(
        self, decoded: SingleBallots, ballots: Ballots, chosen: Flags, counters: Counters
    ) -> bool:
        """Add the chosen decoded ballots to the counters; returns False if that is impossible."""
        return False

    def to_vote_space(self, vector: Floats, round_key: RoundKey) -> Floats:
        """A vector in the coordinates of the votes."""
        return vector

    def expected_mean(self, updates: Updates, round_key: RoundKey) -> HonestMean | None:
        """The mean to which the ballots of these updates decode; None where it is not known."""
        return None

    def mean_of_clipped(self, updates: Updates) -> HonestMean | None:
        """`expected_mean` of clipped updates in the coordinates of the votes."""
        return None
