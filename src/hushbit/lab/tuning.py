"""One tuning rule for every scheme: the best validation accuracy on seeds that are not reported.

Each scheme gets a small grid over its local rate and over whatever sets the size of its steps
(the radius of its points, the step of its signs). Vanilla training gets the same rates.
"""

import dataclasses
import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from hushbit.errors import InvalidInput
from hushbit.fl.settings import Settings
from hushbit.lab.cells import Outcome

TUNING_SEED = 9_001  # the first of them; others follow
EQUAL = 0.5  # points of accuracy that 10 000 validation samples cannot tell apart
Grid = Mapping[str, Sequence[Any]]


def candidates(settings: Settings, grid: Grid) -> list[Settings]:
    """The settings with every combination of the grid, on the tuning seed.

    `reach` is a radius in units of the local rate: an update grows with the rate, and so must
    the points.
    """
    names = list(grid)
    made = []
    for values in itertools.product(*grid.values()):
        chosen = dict(zip(names, values, strict=True))
        if "reach" in chosen:
            rate = chosen.get("rate", settings.local_rate)
            chosen["radius"] = round(float(rate * chosen.pop("reach")), 6)
        made.append(dataclasses.replace(settings, seed=TUNING_SEED, **chosen))
    return made


def best(tried: Sequence[Settings], outcomes: Sequence[Outcome]) -> Settings:
    """The settings with the highest validation accuracy; of equals the least noisy, then the first.

    Accuracies within half a point count as equal: that is the error of 10 000 samples.
    """
    if not tried or len(tried) != len(outcomes):
        raise InvalidInput(f"{len(tried)} settings with {len(outcomes)} outcomes; give one each")
    top = max(outcome.validation for outcome in outcomes)
    equal = [n for n, outcome in enumerate(outcomes) if outcome.validation >= top - EQUAL]
    return tried[max(equal, key=lambda n: _signal(outcomes[n]))]


def averaged(outcomes: Sequence[Outcome]) -> Outcome:
    """One outcome for those of several seeds, as far as tuning looks: the means."""
    ratios = [one.snr_db for one in outcomes if one.snr_db is not None]
    return dataclasses.replace(
        outcomes[0],
        validation=statistics.fmean(one.validation for one in outcomes),
        snr_db=statistics.fmean(ratios) if len(ratios) == len(outcomes) else None,
    )


def _signal(outcome: Outcome) -> float:
    return outcome.validation if outcome.snr_db is None else outcome.snr_db
