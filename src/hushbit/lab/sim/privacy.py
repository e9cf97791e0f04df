"""The privacy of a simulated run: who is honest, and what is released beside sums of votes."""

from hushbit.budget import Budget
from hushbit.errors import InvalidInput
from hushbit.lab.attacks import CRAFTED
from hushbit.lab.sim.settings import Settings


def taking_part(settings: Settings) -> int:
    """The number of users that take part in a round."""
    return max(1, round(settings.participation * settings.users))


def honest_in_round(settings: Settings) -> int:
    """The number of honest voters in every round, by default all but the attackers.

    All attackers may be drawn for the same round.
    """
    present, attackers = taking_part(settings), round(settings.attackers * settings.users)
    most = present - attackers
    if settings.honest is None:
        wanted = most
    elif settings.honest <= 1:
        wanted = int(settings.honest * present + 1e-9)
    else:
        wanted = int(settings.honest)
    if not 1 <= wanted <= most:
        raise InvalidInput(
            f"of {present} users in a round up to {attackers} are attackers, so from 1 to {most} "
            f"may count as honest; got {wanted}: change --honest, --users or --attackers"
        )
    return wanted


def not_a_sum(settings: Settings, ballots_stored: bool = False) -> str:
    """Why what the run releases is no function of sums of votes; empty if it is one."""
    if settings.defence != "none":
        return f"the defence {settings.defence} reads single ballots"
    if settings.attack in CRAFTED:
        return f"attackers of the attack {settings.attack} read the updates of honest users"
    return "ballots are stored" if ballots_stored else ""


def check_model_budget(budget: Budget | None, reason: str) -> None:
    """Refuse a budget against the model if what is released is no function of sums of votes."""
    if budget is not None and budget.against == "model" and reason:
        raise InvalidInput(
            f"a budget against the model covers sums of votes only, and {reason}: leave that out, "
            "or take a budget against the server"
        )
