"""One protocol for every mechanism: encode at the user, tally and estimate at the server."""

import hashlib
import json
from abc import ABCMeta, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.ballot import Ballot, Ballots
from hushbit.checks import vectors
from hushbit.coins import coin_source
from hushbit.decode import Estimate
from hushbit.errors import InvalidInput, RefusedBallot
from hushbit.keys import RoundKey, UserKey, UserKeys
from hushbit.privacy.guarantee import Guarantee
from hushbit.tally import Counters, Tally


class _Sealed(ABCMeta):
    """Makes mechanisms read-only once they are built: their fingerprint must stay true."""

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        made = super().__call__(*arguments, **options)
        made.__dict__["_sealed"] = True
        return made


class Mechanism(metaclass=_Sealed):
    """How an update becomes a ballot and ballots become a mean. Immutable.

    A concrete mechanism says what it is (`description`), how large its messages are, and how to
    cast, check, absorb and decode them; the rest is shared.
    """

    dim: int

    @property
    @abstractmethod
    def description(self) -> dict[str, Any]:
        """Name and parameters; two mechanisms with equal descriptions understand each other."""

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee:
        """What one ballot costs its user, in every unit."""

    @property
    @abstractmethod
    def payload_bits(self) -> int:
        """Bits of one ballot's payload."""

    @abstractmethod
    def cast(
        self, updates: NDArray[np.floating], keys: UserKeys, coins: NDArray[np.uint32]
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Payloads (users, bytes) and how many blocks of each user were overloaded."""

    @abstractmethod
    def empty_counters(self, histogram: bool) -> Counters:
        """Zeroed integer counters."""

    @abstractmethod
    def absorb(self, counters: Counters, payload: NDArray[np.uint8], keys: UserKeys) -> None:
        """Add checked payloads to the counters."""

    @abstractmethod
    def estimate(self, tally: Tally) -> Estimate:
        """The mean update of the users in a tally."""

    def check_payload(self, payload: NDArray[np.uint8]) -> None:
        """Refuse payloads that no encoder writes; here: bits beyond the last must be zero."""
        rest = self.payload_bits % 8
        if rest and (payload[:, -1] >> rest).any():
            raise RefusedBallot("padding", "unused bits of the last byte must be zero")

    def check_bits(self, bits: int) -> None:
        """Refuse ballots of another length."""
        if bits != self.payload_bits:
            raise RefusedBallot(
                "length", f"a ballot of this mechanism has {self.payload_bits} bits; got {bits}"
            )

    @cached_property
    def fingerprint(self) -> bytes:
        """Eight bytes by which both sides know that they use the same mechanism."""
        text = json.dumps(self.description, sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=8, person=b"hushbit mech").digest()

    def encode(self, update: Any, key: UserKey, coins: Any = None) -> Ballot:
        """One user's ballot; coins default to the operating system's entropy."""
        if not isinstance(key, UserKey):
            raise InvalidInput(f"key must come from RoundKey.user; got {type(key).__name__}")
        ballots = self._encode(vectors("update", update, self.dim, many=False), key, coins)
        ballot: Ballot = ballots[0]
        return ballot

    def encode_many(
        self, updates: Any, keys: UserKeys | Sequence[UserKey], coins: Any = None
    ) -> Ballots:
        """Ballots of many users, the same as one at a time."""
        return self._encode(vectors("updates", updates, self.dim, many=True), keys, coins)

    def _encode(
        self, updates: NDArray[np.floating], keys: UserKey | UserKeys | Sequence[UserKey],
        coins: Any,
    ) -> Ballots:  # fmt: skip
        batch = UserKeys.gather(keys)
        if len(batch) != len(updates):
            raise InvalidInput(f"{len(updates)} updates need as many keys; got {len(batch)}")
        payload, overloaded = self.cast(updates, batch, coin_source(coins).keys(batch))
        return Ballots(
            self.fingerprint, batch.round, self.payload_bits, batch.users, payload, overloaded
        )

    def tally(self, round_key: RoundKey, histogram: bool = True) -> Tally:
        """An empty tally; histogram=False keeps only the sums that the mean needs."""
        return Tally(self, round_key, self.empty_counters(histogram))

    def __setattr__(self, name: str, value: Any) -> None:
        if self.__dict__.get("_sealed"):
            raise InvalidInput(f"a mechanism cannot be changed: build another one to set {name}")
        super().__setattr__(name, value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mechanism) and other.description == self.description

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"{_spelled(self.description)} [{self.guarantee.line()}]"


def _spelled(value: Any) -> str:
    """A description as a call: name(parameter=value, …); what is not set is left out."""
    if isinstance(value, list) and len(value) == 1:
        return _spelled(value[0])
    if not isinstance(value, dict):
        return repr(value)
    listed = (
        f"{key}={_spelled(part)}"
        for key, part in value.items()
        if key != "mechanism" and part is not None
    )
    return f"{value['mechanism']}({', '.join(listed)})"
