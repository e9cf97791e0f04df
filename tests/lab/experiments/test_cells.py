"""Cells: read back by their settings, written atomically, equal for any number of workers."""

import dataclasses
import json

import pytest

from hushbit.errors import DamagedFile, InvalidInput
from hushbit.lab.experiments import cells as store
from hushbit.lab.experiments.cells import (
    Outcome,
    cell_key,
    keep_cell,
    read_cell,
    run_cells,
    run_outcome,
)
from hushbit.lab.experiments.experiment import (
    TUNING_SEED,
    ExperimentRunner,
    best_settings,
    candidates,
)
from hushbit.lab.sim.settings import PAPER_TRAINING, Settings

SMALL = Settings(
    **PAPER_TRAINING, users=8, rounds=2, validation=100, mechanism="cpa", epsilon_per_bit=1.0
)
OUTCOME = Outcome(
    50.0, 49.0, 1.0, 0.5, 2.0, 0.01, ((1, 48.0, 47.0), (2, 49.0, 50.0)), ("a", "b", "c"), 0.1
)


def test_keys_follow_what_decides_a_run():
    key = cell_key(SMALL)
    assert key == cell_key(dataclasses.replace(SMALL, memory_mb=1.0))
    assert key == cell_key(dataclasses.replace(SMALL, rate=SMALL.local_rate))
    changes = (
        {"seed": 1},
        {"rate": 0.2},
        {"rounds": 3},
        {"rotate": True},
        {"users": 9},
        {"pixels": "unit"},
        {"batch_size": None},
    )
    assert len({key, *(cell_key(dataclasses.replace(SMALL, **one)) for one in changes)}) == 8


def test_keys_of_stored_cells_do_not_change():
    assert cell_key(SMALL) == "b69c2f7dabd5c66a79afb033"


def test_round_trip(tmp_path):
    assert read_cell(tmp_path, SMALL) is None
    keep_cell(tmp_path, SMALL, OUTCOME)
    assert read_cell(tmp_path, SMALL) == OUTCOME


@pytest.mark.parametrize("text", ["", "{}", '{"outcome": 3}', '{"outcome": {"curve": []}}'])
def test_a_damaged_cell_is_refused_by_name(tmp_path, text):
    (tmp_path / f"{cell_key(SMALL)}.json").write_text(text)
    with pytest.raises(DamagedFile, match="delete it"):
        run_cells([SMALL], tmp_path)


def test_an_interrupted_reproduction_continues(tmp_path, monkeypatch):
    wanted = [dataclasses.replace(SMALL, seed=seed) for seed in range(4)]
    done = []

    def compute(settings, folder, data):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(settings.seed)
        keep_cell(folder, settings, OUTCOME)
        return OUTCOME

    monkeypatch.setattr(store, "compute", compute)
    with pytest.raises(KeyboardInterrupt):
        run_cells(wanted, tmp_path)
    first = list(done)
    done.clear()
    watched = []
    assert (
        run_cells(wanted[:3], tmp_path, watch=lambda *done: watched.append(done)) == [OUTCOME] * 3
    )
    assert set(first) | set(done) == {0, 1, 2}
    assert watched == [(1, 3), (2, 3), (3, 3)]
    assert done == [2]


@pytest.mark.slow
def test_workers_change_nothing(tmp_path):
    wanted = [dataclasses.replace(SMALL, seed=seed) for seed in (1, 2)]
    one = run_cells(wanted, tmp_path / "one")
    two = run_cells(wanted, tmp_path / "two", workers=2)
    timeless = [dataclasses.replace(made, seconds=0) for made in one]
    assert timeless == [dataclasses.replace(made, seconds=0) for made in two]
    assert one[0].accuracy != one[1].accuracy


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"rate": 1e30}, "sampled mean"),
        ({"rate": 1e30, "participation": 0.5}, "ballot"),
        ({"rate": 1e38, "steps": 3}, "local training"),
        ({"rate": 1.0, "server_rate": 1e45}, "model"),
    ],
)
def test_a_run_that_diverges_is_an_outcome(options, place):
    plain = dataclasses.replace(SMALL, mechanism="fedavg", epsilon_per_bit=None)
    made = run_outcome(dataclasses.replace(plain, **options))
    assert made.diverged
    assert made.accuracy == 10.0


def test_other_errors_of_a_run_are_raised():
    with pytest.raises(InvalidInput):
        run_outcome(dataclasses.replace(SMALL, users=10**6))


def test_a_folder_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="cannot hold cells"):
        run_cells([SMALL], tmp_path / "file" / "cells")


def test_candidates_scale_the_radius_with_the_rate():
    grid = {"rate": (0.1, 0.2), "reach": (0.5, 1.0)}
    tried = candidates(SMALL, grid)
    assert [(s.rate, s.radius) for s in tried] == [(0.1, 0.05), (0.1, 0.1), (0.2, 0.1), (0.2, 0.2)]
    assert {s.seed for s in tried} == {TUNING_SEED}


def test_best_takes_accuracy_first_and_the_less_noisy_of_equals():
    tried = candidates(SMALL, {"rate": (0.1, 0.2, 0.3)})

    def choose(*scores):
        made = [dataclasses.replace(OUTCOME, validation=v, snr_db=s) for v, s in scores]
        return best_settings({one: [found] for one, found in zip(tried, made, strict=True)}).rate

    assert choose((80, 9), (85, 1), (70, 99)) == 0.2
    assert choose((84.8, 9), (85, 1), (70, 99)) == 0.1
    assert choose((84.4, 9), (85, 1), (70, 99)) == 0.2
    assert choose((85, None), (85, None), (85, None)) == 0.1


def test_tuning_takes_the_mean_of_its_seeds(tmp_path, monkeypatch):
    """A rate that is best on the first seed and fails on another is not chosen."""
    found = {(0.3, 0): 90.0, (0.3, 1): 40.0, (0.1, 0): 80.0, (0.1, 1): 81.0}

    def compute(settings, folder, data):
        validation = found[settings.local_rate, settings.seed - TUNING_SEED]
        return dataclasses.replace(OUTCOME, validation=validation)

    monkeypatch.setattr(store, "compute", compute)
    grid = {"rate": (0.1, 0.3)}
    lab = ExperimentRunner(tmp_path, (1,))
    assert lab.tune([(SMALL, grid)])[0].local_rate == 0.3
    assert lab.tune([(SMALL, grid)], seeds=2)[0].local_rate == 0.1


def test_denoising_raises_the_snr_and_is_reported_apart():
    noisy = dataclasses.replace(SMALL, users=60, rounds=3, rotate=True, radius=0.1)
    found = run_outcome(noisy)
    assert found.snr_db < 0 < found.snr_wiener_db
    # Without noise there is nothing to shrink by.
    plain = dataclasses.replace(SMALL, mechanism="fedavg", epsilon_per_bit=None)
    assert run_outcome(plain).snr_wiener_db is None


def test_a_cell_that_is_older_than_some_figures_is_read(tmp_path):
    keep_cell(tmp_path, SMALL, OUTCOME)
    (path,) = tmp_path.iterdir()
    stored = json.loads(path.read_text())
    for name in ("worst_class", "ever_removed_honest", "ever_removed_attackers"):
        assert stored["outcome"].pop(name) is None
    path.write_text(json.dumps(stored))
    assert read_cell(tmp_path, SMALL) == OUTCOME


def test_users_removed_in_some_round_are_more_than_those_removed_in_a_round():
    attacked = dataclasses.replace(
        SMALL, users=80, rounds=9, epsilon_per_bit=3.0, attack="directed", attackers=0.3
    )
    found = run_outcome(dataclasses.replace(attacked, defence="scores"))
    assert 0 < found.removed_attackers < found.ever_removed_attackers <= 100
    assert found.removed_honest <= found.ever_removed_honest < 100
    assert found.worst_class < found.accuracy
    plain = run_outcome(attacked)
    assert (plain.ever_removed_honest, plain.ever_removed_attackers) == (None, None)
    clean = dataclasses.replace(attacked, attack="none", attackers=0.0, defence="scores")
    assert run_outcome(clean).ever_removed_attackers is None
