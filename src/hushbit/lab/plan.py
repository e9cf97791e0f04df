"""Which cells experiments will ask for, found by going through them without running any.

Tuning and fitting choose among settings that take equally long, so the plan of a choice not yet
made is as good as any.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from hushbit.fl.settings import Settings
from hushbit.lab.cells import Outcome, cell_key, read_cell
from hushbit.lab.experiments import Experiment, Lab

NOBODY_KNOWS = Outcome(
    50.0, 50.0, 0.0, 0.0, 0.0, 1.0, ((1, 50.0, 50.0),), ("", "", ""), 0.0, snr_wiener_db=0.0
)


@dataclass(frozen=True, eq=False)
class Planner(Lab):
    """A laboratory that takes note of what it should run, and answers what is kept."""

    missing: dict[str, Settings] = field(default_factory=dict)

    def run(self, wanted: Sequence[Settings], step: str = "cells") -> list[Outcome]:
        """Kept outcomes; where there is none, one that says nothing."""
        made = []
        for settings in wanted:
            kept = read_cell(self.folder / "cells", settings)
            if kept is None:
                self.missing[cell_key(settings)] = settings
            made.append(kept or NOBODY_KNOWS)
        return made


def planned(work: Sequence[tuple[Experiment, Lab]]) -> list[Settings]:
    """The cells that these experiments lack, each once; only of those made of cells."""
    missing: dict[str, Settings] = {}
    for experiment, lab in work:
        if experiment.by_cells:
            found = Planner(lab.folder, lab.seeds, lab.quick, lab.rounds)
            experiment.find(found)
            missing |= found.missing
    return list(missing.values())
