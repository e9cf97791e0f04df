"""How a strategy chooses its mechanism: from a budget, or as an expert names it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hushbit.budget import Budget, check_budget
from hushbit.checks import check_scale
from hushbit.errors import InvalidInput
from hushbit.mechanism import Mechanism
from hushbit.privacy.accountant import delta_text
from hushbit.registry import BY_NAME, mechanism_by_name
from hushbit.tuning.auto import AutoCPA
from hushbit.tuning.calibrate import calibrate


@dataclass(frozen=True)
class PrivacyChoice:
    """A budget with its assumptions, or a mechanism with its options.

    `mechanism` is a Mechanism, or a name with `options`; None for a budget.
    """

    mechanism: Mechanism | str | None
    options: Mapping[str, Any]
    budget: Budget | None
    rounds: int | None
    honest: int | None
    clip: float | None

    def __post_init__(self) -> None:
        if (self.mechanism is None) == (self.budget is None):
            raise InvalidInput(
                "give a budget, such as budget=Budget(8, 1e-5, per='run', against='model') with "
                "rounds and honest, or a mechanism, but not both"
            )
        if self.options and not isinstance(self.mechanism, str):
            raise InvalidInput(f"unknown options: {', '.join(sorted(self.options))}")
        if self.budget is not None:
            check_budget(self.budget).counted_rounds(self.rounds, self.honest)
            if self.clip is not None:
                check_scale("clip", self.clip)
            return
        if not isinstance(self.mechanism, Mechanism | str):
            raise InvalidInput(
                "mechanism must be a Mechanism or a name, and a budget is given as budget=...; got "
                f"{type(self.mechanism).__name__}"
            )
        if isinstance(self.mechanism, str) and self.mechanism not in BY_NAME:
            raise InvalidInput(
                f"unknown mechanism {self.mechanism!r}; choose one of {', '.join(BY_NAME)}"
            )
        if (self.rounds, self.honest) != (None, None):
            raise InvalidInput("rounds and honest belong to a budget: leave them out")
        if self.clip is not None and isinstance(self.mechanism, Mechanism):
            raise InvalidInput(
                "clip applies to a budget or to a mechanism given by name; set the clip of a "
                "Mechanism object when you build it"
            )

    def __str__(self) -> str:
        if self.budget is None:
            return str(self.mechanism)
        if self.honest is None:
            return str(self.budget)
        return f"{self.budget}, with {self.honest} honest voters in each round"

    def build(self, dim: int, users: int) -> Mechanism:
        """The mechanism for models with `dim` encoded entries, and so many users in a round."""
        if isinstance(self.mechanism, Mechanism):
            if self.mechanism.dim != dim:
                raise InvalidInput(
                    f"the mechanism encodes {self.mechanism.dim} entries; the model has {dim}"
                )
            return self.mechanism
        if self.budget is None:
            options = dict(self.options) | ({} if self.clip is None else {"clip": self.clip})
            return mechanism_by_name(str(self.mechanism), dim, **options)
        needs = {"rounds": self.rounds, "honest": self.honest}
        if self.clip is None:
            return AutoCPA(dim, users, budget=self.budget, **needs)  # type: ignore[arg-type]
        return calibrate(dim, self.budget, clip=self.clip, **needs)  # type: ignore[arg-type]

    def check_rounds(self, num_rounds: int) -> None:
        """Refuse more rounds than the budget covers."""
        if self.rounds is not None and num_rounds > self.rounds:
            raise InvalidInput(
                f"the budget covers {self.rounds} rounds; start got num_rounds={num_rounds}: set "
                "rounds to that number, which lowers the epsilon of each round"
            )

    def statement(self, mechanism: Mechanism, rounds: int, delta: float) -> str:
        """What a run of so many rounds costs a user, in one line."""
        guarantee, run = mechanism.guarantee, f"in {rounds} round{'s' * (rounds != 1)}"
        text = (
            f"epsilon {guarantee.epsilon_per_bit:.3g} per bit, "
            f"{guarantee.epsilon_per_message(delta):.3g} per message and "
            f"{guarantee.epsilon_per_run(rounds, delta):.3g} {run} against the server"
        )
        model = self.epsilon_run_model(mechanism, rounds, delta)
        if model is not None:
            text += f", {model:.3g} {run} against those who see only models"
        return f"{text} (delta {delta_text(delta)})"

    def epsilon_run_model(self, mechanism: Mechanism, rounds: int, delta: float) -> float | None:
        """Epsilon of so many rounds against the model; None without a number of honest voters."""
        if self.honest is None or self.budget is None:
            return None
        accountant = self.budget.accountant
        guarantee = mechanism.guarantee
        return guarantee.of_tally(self.honest, rounds, delta=delta, accountant=accountant).epsilon
