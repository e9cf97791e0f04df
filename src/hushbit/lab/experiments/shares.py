"""Accuracy against the share of attackers: each attack with and without defence and privacy."""

from collections.abc import Sequence

from hushbit.fl.settings import Settings
from hushbit.lab.cells import Outcome
from hushbit.lab.experiments.base import (
    Experiment,
    Findings,
    Lab,
    Series,
    cells_of,
    privacy_lines,
)
from hushbit.lab.experiments.robustness import (
    ADAPTIVE_LOSS,
    ADAPTIVE_SHARE,
    ATTACKS,
    LOSS,
    QUICK_ATTACKS,
    ROUNDS,
    SHARE,
    open_settings,
    private,
    scheme_of,
)
from hushbit.lab.results import Axes, Cell, Check, Metric

SHARES, QUICK_SHARES = (0.0, 0.1, 0.2, 0.3, 0.4), (0.0, 0.15, 0.3)
OPEN = ("none", "multi-krum")
FILTERED = scheme_of("CPA", "spectral")
AXES = Axes(
    "lines", "share", "attackers (% of users)", False, (Metric("accuracy", "test accuracy (%)"),)
)


def settings_of(rounds: int, attack: str, share: float) -> dict[str, Settings]:
    """The runs under an attack by scheme, with ballots and with plain updates."""
    more = {"attack": attack, "attackers": share} if share else {}
    made = {
        scheme_of("CPA", defence): private("linear", rounds, defence=defence, **more)
        for defence in ("none", "spectral")
    }
    for defence in OPEN:
        plain = open_settings(rounds, defence=defence, **more)
        made[f"{scheme_of('FedAvg', defence)}, no privacy"] = plain
    return made


def series_of(rounds: int, attacks: Sequence[str], shares: Sequence[float]) -> list[Series]:
    """Every attack at every share; without attackers it is the same run for all."""
    return [
        Series(scheme, "corrected", settings, {"attack": attack}, 100 * share, at_most=1)
        for attack in attacks
        for share in shares
        for scheme, settings in settings_of(rounds, attack, share).items()
    ]


def find(lab: Lab) -> Findings:
    """Ten attacks and `adaptive` at four shares; the quick form has three at two."""
    attacks, shares = (QUICK_ATTACKS, QUICK_SHARES) if lab.quick else (ATTACKS, SHARES)
    attacks = attacks if lab.quick else (*attacks, "adaptive")
    series = series_of(lab.rounds_of(ROUNDS["linear"]), attacks, shares)
    return findings(series, lab.measure(series))


def findings(series: Sequence[Series], found: Sequence[Sequence[Outcome]]) -> Findings:
    """Lines and claims from the outcomes."""
    cells = [
        cell
        for one, outcomes in zip(series, found, strict=True)
        for cell in cells_of(one, outcomes, ["accuracy"])
    ]
    return Findings(
        AXES, tuple(cells), _checks(cells), CHOICES, privacy_lines(series, found), NOTES
    )


def _checks(cells: Sequence[Cell]) -> tuple[Check, ...]:
    """Smaller coalitions cost no more than those that the other claims are about."""
    lines: dict[str, dict[float, float]] = {}
    for cell in cells:
        if cell.scheme == FILTERED and cell.x is not None:
            lines.setdefault(str(cell.where["attack"]), {})[cell.x] = cell.mean
    made = []
    for attack, line in lines.items():
        share, most = (ADAPTIVE_SHARE, ADAPTIVE_LOSS) if attack == "adaptive" else (SHARE, LOSS)
        lost = {x: line[0.0] - value for x, value in line.items() if 0 < x <= 100 * share}
        told = ", ".join(f"{points:.1f} at {x:g} %" for x, points in lost.items())
        claim = f"{attack}: up to {share:.0%} cost at most {most:g} points with the filter"
        made.append(Check(claim, max(lost.values()) <= most, f"lost {told}"))
    return tuple(made)


CHOICES = (
    "Linear model, 1000 users with 5 samples each, 100 rounds, one seed; settings as in the "
    "robustness experiment, whose runs with ballots at 30 % these are.",
    "Multi-Krum is told the number of attackers and sees plain updates; the filter is told "
    "nothing and sees one private bit an entry.",
    "Plain updates have no clip: without a defence, who sends enough decides. With ballots nobody "
    "has more than a bit an entry.",
)
NOTES = ("No claim is made above 30 % (`adaptive`: 20 %).",)
SHARES_OF_ATTACKERS = Experiment(
    "robustness-shares", "Accuracy against the share of attackers", "beyond the paper",
    "Test accuracy over the share of colluding users, attack by attack: ballots with and without "
    "the spectral filter, plain updates with and without multi-Krum.",
    "robust", find, 1, by_cells=True,
)  # fmt: skip
