"""The search for settings, and what the runs of the paper's tables state."""

import dataclasses

import pytest

from hushbit.lab.experiments.cells import Outcome
from hushbit.lab.experiments.claims import claims
from hushbit.lab.experiments.experiment import ExperimentRunner
from hushbit.lab.experiments.paper import STATED, scheme_settings
from hushbit.lab.experiments.paper_runs import (
    TABLES,
    TUNING_SEED,
    numbers_at,
    published_cells,
    score_of,
    targets,
)
from hushbit.lab.experiments.reproduce import EXPERIMENTS, CostRunner, cpu_hours, seeds_for
from hushbit.lab.experiments.search import climb, ladder
from hushbit.lab.sim.settings import Settings

OUTCOME = Outcome(85.0, 80.0, 0.0, 0.0, 3.0, 0.01, (), ("", "", ""), 1.0)


@pytest.mark.parametrize("best", [(0, 0), (3, -5), (-4, 2)])
def test_a_climb_ends_where_all_neighbours_are_worse(best):
    scored = []

    def score(points):
        scored.extend(points)
        return [-sum(abs(a - b) for a, b in zip(point, best, strict=True)) for point in points]

    assert climb(score, [(0, 0)]) == best
    assert len(scored) == len(set(scored))
    around = {(best[0] + 1, best[1]), (best[0] - 1, best[1])}
    assert around | {(best[0], best[1] + 1), (best[0], best[1] - 1)} <= set(scored)


def test_a_climb_begins_at_the_best_start_and_stays_on_a_plain():
    assert climb(lambda points: [0] * len(points), [(1,), (5,)]) == (1,)
    assert climb(lambda points: [p[0] == 5 for p in points], [(1,), (5,)]) == (5,)
    assert climb(lambda points: [0] * len(points), [()]) == ()


def test_numbers_of_the_ladder():
    assert [ladder(step) for step in (-6, -5, -4, 3)] == [0.01, 0.02, 0.05, 10.0]
    assert numbers_at(("rate", "reach"), (-3, -2)) == {"rate": 0.1, "radius": 0.02}
    assert numbers_at((), ()) == {}


def test_every_option_of_a_run_is_stated():
    assert set(STATED) == {field.name for field in dataclasses.fields(Settings)}
    made = scheme_settings("CPA", "corrected", radius=0.1)
    assert (made.rounding, made.points, made.server) == ("stochastic", 2, "plain")


def test_scores_count_published_figures_that_are_met_then_their_distance():
    wanted = targets("nested", "CPA")
    place = ((("users", 1000),), None)  # published 85 % and 0.09 dB
    near = dataclasses.replace(OUTCOME, snr_authors_db=0.5)
    assert score_of([(place, [near])], wanted) == (2.0, pytest.approx(-0.41 / 2))
    assert score_of([(place, [OUTCOME])], wanted)[0] == 1.0
    outside = dataclasses.replace(OUTCOME, snr_authors_db=1.2)
    assert score_of([(place, [outside])], wanted)[0] == 1.0
    diverged = dataclasses.replace(OUTCOME, snr_authors_db=None)
    assert score_of([(place, [diverged])], wanted) == (1.0, -5.0)
    assert score_of([(place, [OUTCOME])], {}) == (0.0, 80.0)


def test_published_cells_are_those_of_the_claims():
    found = published_cells("users")
    assert len(found) == 30
    assert {cell.variant for cell in found} == {"published"}
    assert len([one for one in claims() if one.published is not None]) == 168


@pytest.mark.parametrize("name", ["nested", "malicious-cifar", "users", "nested-trade-off"])
def test_one_setting_for_a_table_and_seeds_that_were_not_tuned_on(name):
    experiment = EXPERIMENTS[name]
    runner = CostRunner(None, seeds_for(experiment, False, None))
    experiment.find(runner)
    reported = {one.seed for one in runner.asked if one.seed >= 201}
    assert len(reported) == experiment.seeds
    assert min(one.seed for one in runner.asked) == TUNING_SEED
    assert all(TUNING_SEED <= one.seed < TUNING_SEED + 3 or one.seed >= 201 for one in runner.asked)
    for preset in ("authors", None):
        own = [one for one in runner.asked if one.seed >= 201 and one.preset == preset]
        by_scheme = {}
        for one in own:
            key = (
                one.mechanism,
                one.stages,
                one.rounding,
                one.partition,
                one.epsilon_per_bit is None,
            )
            by_scheme.setdefault(key, set()).add((one.rate, one.radius, one.sign_step))
        assert all(len(numbers) == 1 for numbers in by_scheme.values())


def test_cnn3_is_trained_by_a_subsample_whose_noise_is_sampled():
    runner = CostRunner(None, (201,))
    EXPERIMENTS["architectures-cifar"].find(runner)
    cnn3 = [one for one in runner.asked if one.model == "cnn3"]
    assert {(one.users, one.copies) for one in cnn3} == {(100, 10)}
    assert {one.mechanism for one in cnn3 if one.preset is None} == {"fedavg", "laplace", "jopeq"}


def test_estimates_exist_for_the_experiments_of_the_rule():
    assert 1 < cpu_hours(EXPERIMENTS["malicious-cifar"]) < 20
    assert cpu_hours(EXPERIMENTS["theorem2"]) == pytest.approx(1 / 3)
    assert cpu_hours(EXPERIMENTS["central"]) is None
    assert set(TABLES) <= set(EXPERIMENTS)


def test_quick_forms_search_for_nothing(tmp_path):
    runner = CostRunner(tmp_path, (201,), quick=True)
    TABLES["nested"].find(runner)
    assert {one.seed for one in runner.asked} == {201}
    assert isinstance(runner, ExperimentRunner)
