"""The limits of a client: set on the machine of the client, never by a message of the server."""

import math
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from flwr.app import Context

from hushbit.checks import check_delta, check_positive
from hushbit.errors import BudgetSpent, HushbitError, InvalidInput
from hushbit.mechanism import Mechanism
from hushbit.privacy.accountant import Cost, Limit, within_limit
from hushbit.privacy.ledger import Ledger
from hushbit.registry import MECHANISMS, WRAPPERS

POLICY_KEY = "hushbit-policy"
ALLOWED_MECHANISMS = tuple(kind.__name__ for kind in MECHANISMS if kind.name is not None)


class RequestRefused(HushbitError):
    """The policy of the client does not allow a request; nothing was sent or charged."""


@dataclass(frozen=True)
class Policy:
    """The limits that a client sets.

    epsilon_per_bit      largest epsilon of one bit (per weight for laplace, jopeq, mvu)
    epsilon_per_message  largest epsilon of a whole ballot, at `delta`
    budget               largest epsilon of all ballots together, at `delta`
    delta                0 for pure epsilon
    l2_clip              l2 norm to which updates are scaled down first; math.inf for no clip
    mechanisms           names that a server may request, outermost first, as in "Rotated/CPA"
    ledger               file of all charges; it is kept between runs and restarts
    metrics              names of metrics that may be sent; the guarantee does not cover them
    user                 name of the user in the ledger
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
            limit = check_positive(name, getattr(self, name), infinite=True)
            object.__setattr__(self, name, limit)
        object.__setattr__(self, "delta", check_delta(self.delta))
        for name in ("mechanisms", "metrics"):
            object.__setattr__(self, name, list_of_names(name, getattr(self, name)))
        if not self.mechanisms:
            raise InvalidInput("mechanisms is empty: list at least one, such as 'CPA'")
        for name in self.mechanisms:
            *outer, inner = name.split("/")
            if inner not in ALLOWED_MECHANISMS or not set(outer) <= set(WRAPPERS):
                raise InvalidInput(
                    f"mechanisms lists {name!r}; allowed are {', '.join(ALLOWED_MECHANISMS)}, "
                    f"also inside {', '.join(WRAPPERS)} as in 'Rotated/CPA'"
                )
        if not isinstance(self.ledger, str | Path) or not str(self.ledger):
            raise InvalidInput(f"ledger must be the path of a file; got {self.ledger!r}")
        object.__setattr__(self, "ledger", Path(self.ledger))
        if not isinstance(self.user, str) or not self.user.isprintable() or not self.user:
            raise InvalidInput(f"user must be a printable name; got {self.user!r}")

    @classmethod
    def load(cls, path: str | Path) -> "Policy":
        """A policy from a TOML file; the path of the ledger is relative to that file."""
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
            raise InvalidInput(f"the policy {path} is incomplete: {error}") from None
        object.__setattr__(made, "ledger", Path(path).absolute().parent / made.ledger)
        return made

    def check_name(self, description: Mapping[str, Any]) -> None:
        """Refuse a mechanism that is not listed, before it is built."""
        name = nested_name(description)
        if name not in self.mechanisms:
            allowed = ", ".join(self.mechanisms)
            raise RequestRefused(f"the server requested {name}; the policy allows {allowed}")

    def check(self, mechanism: Mechanism) -> None:
        """Refuse a mechanism that is not listed, or whose epsilon exceeds a limit."""
        self.check_name(mechanism.description)
        guarantee = mechanism.guarantee
        if not guarantee.epsilon_per_bit <= self.epsilon_per_bit:
            raise RequestRefused(
                f"the server requested epsilon {guarantee.epsilon_per_bit:g} per {guarantee.unit}; "
                f"the policy allows {self.epsilon_per_bit:g}"
            )
        if math.isinf(self.epsilon_per_message):
            return
        message = guarantee.epsilon_per_message(self.delta)
        if not message <= self.epsilon_per_message:
            raise RequestRefused(
                f"the server requested a ballot of epsilon {message:g} at delta {self.delta:g}; "
                f"the policy allows {self.epsilon_per_message:g}"
            )

    def check_budget(self, mechanism: Mechanism) -> None:
        """Raise BudgetSpent if one more ballot would exceed the budget; writes nothing."""
        if math.isinf(self.budget):
            return
        ballots: Counter[str] = Counter()
        if Path(self.ledger).exists():
            for entry in Ledger.open(self.ledger, create=False).entries(self.user):
                ballots[entry.cost.to_text()] += entry.cost.ballots
        spent = [Cost.from_text(text, number) for text, number in ballots.items()]
        if not within_limit([*spent, mechanism.guarantee.cost], Limit(self.budget, self.delta)):
            raise BudgetSpent(
                f"one more ballot would exceed the budget of epsilon {self.budget:g} at delta "
                f"{self.delta:g}; nothing was trained, sent or charged"
            )

    def charge(self, mechanism: Mechanism, round: int) -> None:
        """Write the cost of the ballot to the ledger, or raise BudgetSpent and write nothing."""
        ledger = Ledger.open(self.ledger)
        limit = ledger.limit(self.user)
        if limit is None or (limit.epsilon, limit.delta) != (self.budget, self.delta):
            try:
                ledger.set_limit(self.user, epsilon=self.budget, delta=self.delta)
            except InvalidInput as error:
                raise BudgetSpent(str(error)) from error
        name = nested_name(mechanism.description)
        ledger.charge(self.user, round, mechanism.guarantee.cost, mechanism=name)


def nested_name(description: Any) -> str:
    """The names of a mechanism and its inner mechanisms, as in Rotated/CPA."""
    names: list[str] = []
    while isinstance(description, Mapping) and len(names) < 8:
        names.append(str(description.get("mechanism"))[:40])
        description = description.get("inner")
    return "/".join(names)


def node_policy(context: Context) -> Policy:
    """The policy from the file that the operator of the node set: hushbit-policy="PATH".

    The configuration of the run is not used, because it comes from the person who starts the run.
    """
    path = context.node_config.get(POLICY_KEY)
    if not isinstance(path, str):
        raise RequestRefused(
            f"this node has no policy: start it with --node-config '{POLICY_KEY}=\"PATH\"'"
        )
    return Policy.load(path)


def list_of_names(name: str, value: Any) -> tuple[str, ...]:
    """The names in a list; a single string, whose items are letters, is refused."""
    if not isinstance(value, tuple | list) or not all(isinstance(item, str) for item in value):
        raise InvalidInput(f"{name} must be a list of names; got {value!r}")
    return tuple(value)
