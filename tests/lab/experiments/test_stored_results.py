"""The results in results/ belong to the experiments as they are defined now."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from hushbit.lab.experiments.cells import Outcome
from hushbit.lab.experiments.experiment import ExperimentRunner
from hushbit.lab.experiments.reproduce import EXPERIMENTS
from hushbit.lab.experiments.results import read_result

RESULTS = Path(__file__).parents[3] / "results"
MADE_OF_CELLS = [
    name
    for name, one in EXPERIMENTS.items()
    if one.by_cells
    and (RESULTS / name).is_dir()
    and read_result(RESULTS / name).rule == one.rule
    and min(read_result(RESULTS / name).seeds) >= (one.first_seed or 0)
]
"""Results that are older than the rule or the seeds of their experiment confirm no claim."""


@dataclass(frozen=True, eq=False)
class ConstantRunner(ExperimentRunner):
    """Runs nothing: every outcome has every figure."""

    def run(self, wanted, step="cells"):
        return [self.outcome(settings) for settings in wanted]

    @staticmethod
    def outcome(settings):
        every = settings.evaluate_every
        return Outcome(
            accuracy=50.0,
            validation=50.0,
            snr_db=0.0,
            snr_median_db=0.0,
            snr_authors_db=0.0,
            rmse=1.0,
            curve=tuple((n, 50.0, 50.0) for n in range(every, settings.rounds + 1, every)),
            privacy=("bit", "message", "run"),
            seconds=1.0,
            snr_wiener_db=0.0,
            removed_honest=0.0,
            removed_attackers=0.0,
            backdoor=0.0,
            worst_class=0.0,
            ever_removed_honest=0.0,
            ever_removed_attackers=0.0,
        )


def places(cells):
    """Scheme, variant, coordinates, metric, x and number of seeds of every cell."""
    return {
        (c.scheme, c.variant, tuple(sorted(c.where.items())), c.metric, c.x, len(c.seeds))
        for c in cells
    }


@pytest.mark.parametrize("name", MADE_OF_CELLS)
def test_stored_cells_and_claims_are_those_of_the_experiment(name):
    stored = read_result(RESULTS / name)
    found = EXPERIMENTS[name].find(ConstantRunner(RESULTS, stored.seeds, stored.quick))
    assert places(stored.cells) <= places(found.cells)
    if not stored.quick:  # the quick results of CIFAR-10 are older than some schemes and labels
        assert found.axes == stored.axes
        every_run = {p for p in places(found.cells) if p[3] in ("accuracy", "validation")}
        assert every_run <= places(stored.cells)
    assert [check.claim for check in stored.checks] == [check.claim for check in found.checks]
