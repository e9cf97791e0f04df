"""What a client allows, whatever a server asks: set on the client's machine, never by a message."""

import math
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from flwr.app import Context

from hushbit.checks import positive
from hushbit.describe import NAMED
from hushbit.errors import BudgetSpent, HushbitError, InvalidInput
from hushbit.mechanism import Mechanism
from hushbit.privacy.arguments import failure_probability
from hushbit.privacy.cost import Cost, Limit, fits
from hushbit.privacy.ledger import Ledger

POLICY_KEY = "hushbit-policy"
MECHANISMS = tuple(made.__name__ for made in NAMED.values())
WRAPPERS = ("Rotated", "NormVote", "Subset")


class RequestRefused(HushbitError):
    """A server asked for more than the client's policy allows; nothing was sent or charged."""


@dataclass(frozen=True)
class Policy:
    """The client's own limits.

    epsilon_per_bit      largest epsilon of one bit (of one entry for mechanisms of entries)
    epsilon_per_message  largest epsilon of a whole ballot, at `delta`
    budget               largest epsilon of all ballots together, at `delta`
    delta                0 counts pure epsilon
    l2_clip              updates are scaled down to this norm first; math.inf leaves them
    mechanisms           names that a server may ask for, outermost first, as in "Rotated/CPA"
    ledger               file that keeps what was spent; it outlives runs and restarts
    metrics              names of metrics that may leave; they are outside the guarantee
    user                 the user's name in the ledger
    """

    epsilon_per_bit: float
    epsilon_per_message: float
    budget: float
    delta: float
    l2_clip: float
    mechanisms: tuple[str, ...]
    ledger: str | Path
    metrics: tuple[str, ...] = ()
    user: str = "me"

    def __post_init__(self) -> None:
        for name in ("epsilon_per_bit", "epsilon_per_message", "budget", "l2_clip"):
            limit = positive(name, getattr(self, name), infinite=True)
            object.__setattr__(self, name, limit)
        object.__setattr__(self, "delta", failure_probability(self.delta))
        for name in ("mechanisms", "metrics"):
            object.__setattr__(self, name, list_of_names(name, getattr(self, name)))
        if not self.mechanisms:
            raise InvalidInput("mechanisms is empty; name at least one, such as 'CPA'")
        for name in self.mechanisms:
            *outer, inner = name.split("/")
            if inner not in MECHANISMS or not set(outer) <= set(WRAPPERS):
                raise InvalidInput(
                    f"mechanisms names {name!r}; known are {', '.join(MECHANISMS)}, each also "
                    f"behind {', '.join(WRAPPERS)} as in 'Rotated/CPA'"
                )
        if not isinstance(self.ledger, str | Path) or not str(self.ledger):
            raise InvalidInput(f"ledger is {self.ledger!r}; give the path of the ledger's file")
        object.__setattr__(self, "ledger", Path(self.ledger))
        if not isinstance(self.user, str) or not self.user.isprintable() or not self.user:
            raise InvalidInput(f"user is {self.user!r}; give a printable name")

    @classmethod
    def load(cls, path: str | Path) -> "Policy":
        """A policy from a TOML file; a relative ledger lies beside that file."""
        try:
            given = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, TypeError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise InvalidInput(f"the policy {path} cannot be read: {error}") from error
        known = {field.name for field in fields(cls)}
        if not set(given) <= known:
            raise InvalidInput(f"the policy {path} has unknown names: {sorted(set(given) - known)}")
        try:
            made = cls(**given)
        except TypeError as error:
            raise InvalidInput(f"the policy {path} is not complete: {error}") from None
        object.__setattr__(made, "ledger", Path(path).absolute().parent / made.ledger)
        return made

    def check_name(self, description: Mapping[str, Any]) -> None:
        """Refuse a mechanism that is not listed, before it is even built."""
        name = nested_name(description)
        if name not in self.mechanisms:
            allowed = ", ".join(self.mechanisms)
            raise RequestRefused(f"the server asked for {name}; my policy allows {allowed}")

    def check(self, mechanism: Mechanism) -> None:
        """Refuse a mechanism that is not listed or reveals more than allowed."""
        self.check_name(mechanism.description)
        asked = mechanism.guarantee
        if not asked.epsilon_per_bit <= self.epsilon_per_bit:
            raise RequestRefused(
                f"the server asked for epsilon {asked.epsilon_per_bit:g} per {asked.unit}; my "
                f"policy allows {self.epsilon_per_bit:g}"
            )
        if math.isinf(self.epsilon_per_message):
            return
        message = asked.epsilon_per_message(self.delta)
        if not message <= self.epsilon_per_message:
            raise RequestRefused(
                f"the server asked for a ballot of epsilon {message:g} at delta {self.delta:g}; "
                f"my policy allows {self.epsilon_per_message:g}"
            )

    def check_budget(self, mechanism: Mechanism) -> None:
        """Raise BudgetSpent if the ledger has no room for one more ballot; writes nothing."""
        if math.isinf(self.budget):
            return
        copies: Counter[str] = Counter()
        if Path(self.ledger).exists():
            for entry in Ledger.open(self.ledger, create=False).entries(self.user):
                copies[entry.cost.to_text()] += entry.cost.copies
        spent = [Cost.from_text(text, number) for text, number in copies.items()]
        if not fits([*spent, mechanism.guarantee.cost], Limit(self.budget, self.delta)):
            raise BudgetSpent(
                f"one more ballot would pass my budget of epsilon {self.budget:g} at delta "
                f"{self.delta:g}; nothing was trained, sent or charged"
            )

    def charge(self, mechanism: Mechanism, round: int) -> None:
        """Write the ballot's cost to the ledger, or raise BudgetSpent and write nothing."""
        ledger = Ledger.open(self.ledger)
        limit = ledger.limit(self.user)
        if limit is None or (limit.epsilon, limit.delta) != (self.budget, self.delta):
            try:
                ledger.set_limit(self.user, epsilon=self.budget, delta=self.delta)
            except InvalidInput as error:
                raise BudgetSpent(str(error)) from error
        asked = mechanism.guarantee
        name = nested_name(mechanism.description)
        ledger.charge(self.user, round, asked.cost, mechanism=name)


def nested_name(description: Any) -> str:
    """The names of a mechanism and of what it wraps, as in Rotated/CPA."""
    names: list[str] = []
    while isinstance(description, Mapping) and len(names) < 8:
        names.append(str(description.get("mechanism"))[:40])
        description = description.get("inner")
    return "/".join(names)


def node_policy(context: Context) -> Policy:
    """The policy file that this node's operator named: --node-config 'hushbit-policy="…"'.

    The run's own configuration is never looked at: it comes from whoever started the run.
    """
    path = context.node_config.get(POLICY_KEY)
    if not isinstance(path, str):
        raise RequestRefused(
            f"this node has no policy: start it with --node-config '{POLICY_KEY}=\"PATH\"'"
        )
    return Policy.load(path)


def list_of_names(name: str, value: Any) -> tuple[str, ...]:
    """The names in a list; a single text is refused, for it would be read letter by letter."""
    if not isinstance(value, tuple | list) or not all(isinstance(one, str) for one in value):
        raise InvalidInput(f"{name} must be a list of names; got {value!r}")
    return tuple(value)
