"""What to know before a run with the ballot filter: where it sees little, or nothing."""

from hushbit.fl.settings import Settings
from hushbit.robust.filter import FEWEST_USERS


def advice(settings: Settings) -> list[str]:
    """A line for each reason why the filter of these settings protects less than one may think."""
    if settings.defence != "spectral":
        return []
    lines = []
    present = max(1, round(settings.participation * settings.users))
    if present < FEWEST_USERS:
        lines.append(
            f"the filter compares users with each other, and does not among fewer than "
            f"{FEWEST_USERS}; {present} take part in a round"
        )
    if settings.attackers >= 0.5:
        lines.append(
            "the majority says which way is forward: against half of the users nothing is promised"
        )
    if settings.mechanism in ("cpa", "nested") and settings.clip is None:
        lines.append(
            "without --clip whoever stays within the points counts as honest, and wide points "
            "drown what users have in common: take --mechanism cpa-auto, which finds its points, "
            "or cpa of two points with --rotate --clip C --radius C/(2 sqrt(dim)), C about as long "
            "as an update"
        )
    return lines
