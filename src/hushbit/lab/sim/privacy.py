"""The privacy statement of a simulated run, and the number of honest voters it assumes."""

import math

from hushbit.errors import InvalidInput
from hushbit.lab.attacks import CRAFTED
from hushbit.lab.sim.settings import Settings
from hushbit.privacy.guarantee import Guarantee
from hushbit.statement import PrivacyStatement, privacy_statement

SIMULATION_ONLY = ("snr_db", "mse")
"""Figures of a summary that are computed from the exact updates of users."""

SIMULATION_NOTE = (
    "SNR and mean square error come from the users' exact updates, which only a simulation has; so "
    "do the training loss and the overload rate of each round. A deployment must not release them: "
    "no guarantee covers them."
)


def users_in_round(settings: Settings) -> int:
    """The number of users that take part in a round."""
    return max(1, round(settings.participation * settings.users))


def honest_in_round(settings: Settings) -> int:
    """The number of honest voters in every round, by default all but the attackers.

    All attackers may be drawn for the same round, which may leave no honest voter.
    """
    present, attackers = users_in_round(settings), round(settings.attackers * settings.users)
    most = max(0, present - attackers)
    if settings.honest is None:
        return most
    share = isinstance(settings.honest, float)
    wanted = math.floor(settings.honest * present + 1e-9) if share else int(settings.honest)
    if not 1 <= wanted <= most:
        raise InvalidInput(
            f"of {present} users in a round up to {attackers} are attackers, so from 1 to {most} "
            f"may count as honest; got {wanted}: change --honest, --users or --attackers"
        )
    return wanted


def no_model_guarantee(settings: Settings, ballots_stored: bool = False) -> str:
    """Why the run has no guarantee against those who see only the model; empty if it has one."""
    if settings.defence != "none":
        return f"the defence {settings.defence} reads single ballots"
    if settings.attack in CRAFTED:
        return f"attackers of the attack {settings.attack} read the updates of honest users"
    if honest_in_round(settings) == 0:
        return "all users of a round may be attackers"
    return "ballots are stored" if ballots_stored else ""


def check_model_budget(settings: Settings, ballots_stored: bool = False) -> None:
    """Refuse a budget against the model in a run without a guarantee against the model."""
    reason = no_model_guarantee(settings, ballots_stored)
    if settings.against == "model" and reason:
        raise InvalidInput(
            f"a budget against the model covers only tallies of honest votes, but {reason}: change "
            "that, or take a budget against the server"
        )


def spent_text(settings: Settings, guarantee: Guarantee, rounds: int) -> str:
    """What a user has spent after `rounds` rounds, as text: in the unit of the budget, if any.

    Without a budget it is the epsilon per bit or, if that is infinite, per run against the model.
    """
    budget, honest = settings.budget, honest_in_round(settings) or None
    if budget is not None:
        spent = budget.spent(guarantee, rounds=rounds, honest=honest).epsilon
        return f"epsilon {spent:.3g} per {budget.per} ({budget.against})"
    if math.isfinite(guarantee.epsilon_per_bit):
        return f"epsilon {guarantee.epsilon_per_bit:.3g} per {guarantee.unit} (server)"
    spent = statement_of(settings, guarantee, rounds).epsilon_run_model
    return "no privacy" if math.isinf(spent) else f"epsilon {spent:.3g} per run (model)"


def statement_of(
    settings: Settings, guarantee: Guarantee, rounds: int, ballots_stored: bool = False
) -> PrivacyStatement:
    """The statement of the deployment that a run simulates, for users in all of its rounds."""
    return privacy_statement(
        guarantee,
        rounds=rounds,
        delta=settings.shown_delta,
        honest=honest_in_round(settings) or None,
        users=settings.users,
        budget=settings.budget,
        not_a_sum=no_model_guarantee(settings, ballots_stored),
        simulated=True,
    )
