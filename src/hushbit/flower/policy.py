"""The limits of a client, from a file on its own machine, never from a message of the server."""

import math
import tomllib
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from hushbit.checks import check_delta, check_int, check_positive
from hushbit.errors import BudgetSpent, InvalidInput
from hushbit.flower.description_limits import (
    MIN_LENGTH,
    DescriptionLimits,
    nested_name,
)
from hushbit.flower.refusals import RequestRefused
from hushbit.lattice.quantizer import ROUNDINGS
from hushbit.mechanism import Mechanism
from hushbit.privacy.accountant import delta_text
from hushbit.privacy.guarantee import Guarantee
from hushbit.privacy.ledger import Ledger
from hushbit.registry import MECHANISMS, WRAPPERS
from hushbit.wire.keys import UserKey

POLICY_KEY = "hushbit-policy"
ALLOWED_MECHANISMS = tuple(kind.__name__ for kind in MECHANISMS if kind.name is not None)
DEFAULT_MECHANISMS = ("CPA", "Rotated/CPA", "NormVote/CPA", "NormVote/Rotated/CPA")
LATTICES = ("Z", "A2", "D4", "E8")
PROVEN_PRESETS = ("corrected", "honest")
PRESETS = (*PROVEN_PRESETS, "paper", "authors")


@dataclass(frozen=True)
class Policy:
    """The limits that a client sets. Privacy limits have no default.

    epsilon_per_bit         largest epsilon of one bit (per weight for laplace, jopeq, mvu)
    epsilon_per_message     largest epsilon of a whole ballot, at `delta`
    budget                  largest epsilon of all ballots together, at `delta`
    delta                   delta of these two limits; 0 for pure epsilon
    l2_clip                 largest l2 norm of an update; longer updates are scaled down, which
                            lowers the cost of a ballot; math.inf for no clip
    ledger                  path of the ledger of all charges; keep it between runs and restarts

    What a server may request (see `DescriptionLimits`):

    mechanisms              names, outermost first, as in "Rotated/CPA"
    presets                 "corrected" (CPA) and "honest" (baselines), "paper", "authors"
    roundings               "stochastic", "dithered", "subtractive", "nearest"
    lattices                "Z", "A2", "D4", "E8"
    max_points              largest number of points, levels or symbols of a block
    max_dim                 largest number of encoded entries
    allow_unproven          allow presets "paper" and "authors", and an infinite epsilon
    requests_per_day        largest number of charges in 24 hours

    What a reply contains, and when it is sent:

    metrics                 names of metrics that may be sent; the guarantee does not cover them
    metric_replies_per_day  largest number of replies with metrics in 24 hours
    answer_after_seconds    time from the arrival of a request to its reply; training that takes
                            longer is abandoned. None: reply when training ends
    simulation              a simulated user without private data: failures of the app are sent, and
                            all metrics; refused outside of Flower's simulation engine
    user                    name of the user in the ledger
    """

    epsilon_per_bit: float
    epsilon_per_message: float
    budget: float
    delta: float
    l2_clip: float
    ledger: str | Path
    mechanisms: tuple[str, ...] = DEFAULT_MECHANISMS
    presets: tuple[str, ...] = PROVEN_PRESETS
    roundings: tuple[str, ...] = ("stochastic",)
    lattices: tuple[str, ...] = ("Z",)
    max_points: int = 2
    max_dim: int = 10**8
    allow_unproven: bool = False
    requests_per_day: int = 1000
    metrics: tuple[str, ...] = ()
    metric_replies_per_day: int = 0
    answer_after_seconds: float | None = None
    simulation: bool = False
    user: str = "me"

    def __post_init__(self) -> None:
        for name in ("epsilon_per_bit", "epsilon_per_message", "budget", "l2_clip"):
            limit = check_positive(name, getattr(self, name), infinite=True)
            object.__setattr__(self, name, limit)
        if self.l2_clip < MIN_LENGTH:
            raise InvalidInput(f"l2_clip must be at least {MIN_LENGTH:g}; got {self.l2_clip!r}")
        object.__setattr__(self, "delta", check_delta(self.delta))
        for name in ("mechanisms", "presets", "roundings", "lattices", "metrics"):
            object.__setattr__(self, name, list_of_names(name, getattr(self, name)))
        for name, known in (("presets", PRESETS), ("roundings", ROUNDINGS), ("lattices", LATTICES)):
            if not set(getattr(self, name)) <= set(known):
                raise InvalidInput(
                    f"{name} lists {getattr(self, name)!r}; allowed are {', '.join(known)}"
                )
        if not self.mechanisms:
            raise InvalidInput("mechanisms is empty: list at least one, such as 'CPA'")
        for name in self.mechanisms:
            *outer, inner = name.split("/")
            if inner not in ALLOWED_MECHANISMS or not set(outer) <= set(WRAPPERS):
                raise InvalidInput(
                    f"mechanisms lists {name!r}; allowed are {', '.join(ALLOWED_MECHANISMS)}, "
                    f"also inside {', '.join(WRAPPERS)} as in 'Rotated/CPA'"
                )
        for name, low in (("max_points", 2), ("max_dim", 1), ("requests_per_day", 1)):
            object.__setattr__(self, name, check_int(name, getattr(self, name), low))
        for name in ("allow_unproven", "simulation"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidInput(f"{name} must be true or false; got {getattr(self, name)!r}")
        if not self.allow_unproven and not set(self.presets) <= set(PROVEN_PRESETS):
            raise InvalidInput(
                f"presets lists {self.presets!r}; presets other than {', '.join(PROVEN_PRESETS)} "
                "need allow_unproven = true"
            )
        check_int("metric_replies_per_day", self.metric_replies_per_day, 1 if self.metrics else 0)
        if self.answer_after_seconds is not None:
            seconds = check_positive("answer_after_seconds", self.answer_after_seconds)
            object.__setattr__(self, "answer_after_seconds", seconds)
        if not isinstance(self.ledger, str | Path) or not str(self.ledger):
            raise InvalidInput(f"ledger must be the path of a file; got {self.ledger!r}")
        # Absolute, so that an app that changes the working directory does not get a new ledger.
        object.__setattr__(self, "ledger", Path(self.ledger).absolute())
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
        if isinstance(given.get("ledger"), str) and given["ledger"]:
            given["ledger"] = Path(path).absolute().parent / given["ledger"]
        missing = [f.name for f in fields(cls) if f.default is MISSING and f.name not in given]
        if missing:
            raise InvalidInput(
                f"the policy {path} lacks {', '.join(missing)}: limits have no defaults"
            )
        return cls(**given)

    def check_description(self, description: Any) -> None:
        """Refuse a description beyond the limits, before a mechanism is built from it."""
        limits = {field.name: getattr(self, field.name) for field in fields(DescriptionLimits)}
        DescriptionLimits(**limits).check(description)

    def clip_of(self, mechanism: Mechanism) -> float | None:
        """The l2 norm to which updates are scaled down: the smaller of both clips."""
        clip = min(self.l2_clip, math.inf if mechanism.clip is None else mechanism.clip)
        return None if math.isinf(clip) else clip

    def guarantee(self, mechanism: Mechanism) -> Guarantee:
        """The guarantee of a ballot of this client; it is compared with the limits and charged.

        The client scales updates down to `clip_of(mechanism)` before it encodes them, so the
        guarantee of the mechanism with this clip holds. The clip changes the guarantee only where
        an l2 clip has a zCDP bound.
        """
        clip = self.clip_of(mechanism)
        return (mechanism if clip == mechanism.clip else mechanism.with_clip(clip)).guarantee

    def check(self, mechanism: Mechanism) -> None:
        """Refuse a mechanism whose description or epsilon exceeds a limit."""
        self.check_description(mechanism.description)
        guarantee = self.guarantee(mechanism)
        if math.isinf(guarantee.epsilon_per_bit) and not self.allow_unproven:
            raise RequestRefused(
                "the server requested a mechanism without a finite epsilon; the policy does not "
                "set allow_unproven"
            )
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
                f"the server requested a ballot of epsilon {message:g} at delta "
                f"{delta_text(self.delta)}; the policy allows {self.epsilon_per_message:g}"
            )

    def charge(self, mechanism: Mechanism, key: UserKey) -> None:
        """Write the cost of the ballot to the ledger, or raise an error and charge nothing.

        The errors are BudgetSpent, AlreadyCharged (this round of this run was answered before) and
        TooManyRequests (`requests_per_day`).
        """
        ledger = Ledger.open(self.ledger)
        limit = ledger.limit(self.user)
        if limit is None or (limit.epsilon, limit.delta) != (self.budget, self.delta):
            try:
                ledger.set_limit(self.user, epsilon=self.budget, delta=self.delta)
            except InvalidInput as error:
                raise BudgetSpent(str(error)) from error
        ledger.charge(
            self.user,
            key.round,
            self.guarantee(mechanism).cost,
            mechanism=nested_name(mechanism.description),
            run=key.run.hex(),
            once=True,
            per_day=self.requests_per_day,
        )


def list_of_names(name: str, value: Any) -> tuple[str, ...]:
    """A list of strings as a tuple; refuses a single string, which is a sequence of letters."""
    if not isinstance(value, tuple | list) or not all(isinstance(item, str) for item in value):
        raise InvalidInput(f"{name} must be a list of names; got {value!r}")
    return tuple(value)
