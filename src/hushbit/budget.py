"""Budget: epsilon and delta, the unit that they count, and the observer that they hold against.

per="bit"      one bit of a message, in pure local differential privacy
per="message"  the whole message of one user in one round
per="run"      all messages of one user in a run

against="server"  everyone who sees ballots; needs no trust
against="model"   those who see only tallies, estimates or models: `Guarantee.of_tally` has the
                  assumptions
"""

import math
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from hushbit.checks import check_choice, check_delta, check_int, check_positive
from hushbit.errors import InvalidInput
from hushbit.privacy.accountant import ACCOUNTANTS, Bound, delta_text

if TYPE_CHECKING:  # a budget can be checked without loading Numba
    from hushbit.privacy.guarantee import Guarantee

UNITS = ("bit", "message", "run")
OBSERVERS = ("server", "model")


@dataclass(frozen=True)
class Budget:
    """The most that one user may reveal.

    epsilon, delta  delta is 0 for pure epsilon; a budget per bit is pure
    per             "bit", "message" (one round) or "run"
    against         "server" (sees ballots), or "model" (sees only tallies, estimates or models)
    accountant      how epsilon against the model is computed, see `Guarantee.of_tally`: "renyi", or
                    "tightest", the smaller of two proved bounds

    >>> print(Budget(4, 1e-5, per="run", against="model"))
    epsilon 4 at delta 1e-5 per run, against those who see only models
    """

    epsilon: float
    delta: float
    _: KW_ONLY
    per: str
    against: str
    accountant: str = "renyi"

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_positive("epsilon", self.epsilon))
        object.__setattr__(self, "delta", check_delta(self.delta))
        check_choice("per", self.per, UNITS)
        check_choice("against", self.against, OBSERVERS)
        if self.per == "bit" and (self.delta > 0 or self.against == "model"):
            raise InvalidInput(
                "a budget per bit is pure and against the server: set delta=0 and against='server'"
            )
        if self.against == "model" and self.delta == 0:
            raise InvalidInput("a budget against the model needs a delta above 0, such as 1e-5")
        check_choice("accountant", self.accountant, ACCOUNTANTS)
        if self.against == "server" and self.accountant != "renyi":
            raise InvalidInput("accountant applies only to budgets against the model: leave it out")

    def __str__(self) -> str:
        delta = f" at delta {delta_text(self.delta)}" if self.delta else ""
        observer = {"server": "the server", "model": "those who see only models"}[self.against]
        how = " (tightest accountant)" if self.accountant == "tightest" else ""
        return f"epsilon {self.epsilon:g}{delta} per {self.per}, against {observer}{how}"

    def spent(
        self, guarantee: "Guarantee", *, rounds: int | None = None, honest: int | None = None
    ) -> Bound:
        """The cost of a guarantee in the unit of the budget and against its observer.

        `rounds` is required for a budget per run, `honest` (voters in each tally whose coins stay
        secret) for one against the model.
        """
        times = self._times(rounds, honest)
        if self.per == "bit":
            return Bound(guarantee.epsilon_per_bit, 0.0, "randomized response")
        if self.against == "server":
            return guarantee.bound(times, self.delta)
        voters = check_int("honest", honest, 1)
        return guarantee.of_tally(voters, times, delta=self.delta, accountant=self.accountant)

    def counted_rounds(self, rounds: int | None, honest: int | None) -> int:
        """The rounds that the budget counts: `rounds` for a run, else 1.

        Rounds and honest voters are refused if the budget does not depend on them. A run has at
        least one round: without rounds, every mechanism would be within the budget.
        """
        if rounds is not None and self.per != "run":
            raise InvalidInput(
                f"a budget per {self.per} does not depend on rounds: leave out rounds"
            )
        if honest is not None and self.against == "server":
            raise InvalidInput(
                "a budget against the server does not depend on honest voters: leave out honest"
            )
        return self._times(rounds, honest)

    def _times(self, rounds: int | None, honest: int | None) -> int:
        """The rounds that the budget counts; raises if `rounds` or `honest` is missing."""
        if self.per == "run" and rounds is None:
            raise InvalidInput("a budget per run needs the number of rounds: pass rounds=...")
        if self.against == "model" and honest is None:
            raise InvalidInput(
                "a budget against the model needs the number of honest voters: pass honest=..."
            )
        return check_int("rounds", rounds, 1) if self.per == "run" else 1


def check_budget(budget: object) -> Budget:
    """Return `budget`; raise InvalidInput if it is not a Budget."""
    if not isinstance(budget, Budget):
        raise InvalidInput(
            "budget must be a Budget, such as Budget(4, 1e-5, per='run', against='model'); "
            f"got {type(budget).__name__}"
        )
    return budget


def honest_voters(honest: float | None, users: int | None) -> int | None:
    """The number of honest voters, given as a number or, as a float, as a share of the users.

    The type decides: 1 is one voter, 1.0 is all users.

    >>> honest_voters(1, users=1000), honest_voters(1.0, users=1000), honest_voters(0.9, users=1000)
    (1, 1000, 900)
    """
    if honest is None or not isinstance(honest, float):
        most = None if users is None else check_int("users", users, 1)
        return None if honest is None else check_int("honest", honest, 1, most)
    if not 0 < honest <= 1 or users is None:
        raise InvalidInput(
            "honest is a number of users, or a share above 0 and at most 1 as a float together "
            f"with users=...; got honest={honest!r}, users={users!r}"
        )
    found = math.floor(honest * check_int("users", users, 1) + 1e-9)
    if found < 1:
        raise InvalidInput(f"a share of {honest:g} of {users} users leaves no honest voter")
    return found
