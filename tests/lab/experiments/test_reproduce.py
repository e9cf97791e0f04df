"""Experiments by name, and from outcomes to a valid result file."""

import hashlib

import pytest

from hushbit.errors import InvalidInput
from hushbit.lab.experiments import experiment as base
from hushbit.lab.experiments.cells import Outcome, cell_key
from hushbit.lab.experiments.comparison import WITHIN_POINTS, higher_snr
from hushbit.lab.experiments.experiment import ExperimentRunner
from hushbit.lab.experiments.reproduce import (
    EXPERIMENTS,
    command_line,
    reproduce,
    seeds_for,
    select_experiments,
)
from hushbit.lab.experiments.results import Cell, read_result
from hushbit.lab.report.docs_pages import reproduction_document, write_docs
from hushbit.lab.report.markdown import write_markdown

PAPER = (
    "snr-epsilon",
    "accuracy-epsilon",
    "users",
    "epsilon",
    "architectures",
    "convergence",
    "convergence-cnn2",
    "resnet",
    "nested",
    "malicious",
    "theorem1",
    "theorem2",
)
TRAINED = [
    name for name in (*PAPER, "architectures-cifar", "malicious-cifar") if "theorem" not in name
]


def _made_up(settings) -> Outcome:
    """An outcome that depends on the settings alone."""
    number = int(hashlib.sha256(cell_key(settings).encode()).hexdigest()[:6], 16) / 2**24
    noiseless = settings.mechanism == "fedavg"
    ratio = None if noiseless else 10 * number - 5
    return Outcome(
        60 + 30 * number,
        60 + 30 * number,
        ratio,
        ratio,
        ratio,
        0.001 + number,
        tuple((n, 50 + number, 50.0) for n in (1, 2)),
        ("bit", "message", "run"),
        1.0,
    )


@pytest.fixture
def instant(monkeypatch):
    """Cells without training."""

    def run_cells(wanted, folder, *, watch, **_):
        for number, _ in enumerate(wanted, 1):
            watch(number, len(wanted))
        return [_made_up(settings) for settings in wanted]

    monkeypatch.setattr(base, "run_cells", run_cells)


def test_every_experiment_of_the_paper_has_a_name():
    assert set(PAPER) <= set(EXPERIMENTS)
    assert all(name == one.name for name, one in EXPERIMENTS.items())


def test_texts_of_the_catalogue_are_single_lines_with_their_values():
    for one in EXPERIMENTS.values():
        texts = (one.title, one.about, *one.choices, *one.notes, *one.quick_notes)
        assert not [text for text in texts if not text or "\n" in text or "{" in text]
    assert f"accuracy of {base.TUNING_SEEDS} seeds" in EXPERIMENTS["nested"].choices[2]


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", TRAINED)
def test_every_experiment_writes_a_complete_result(instant, tmp_path, name, quick):
    experiment, calls = EXPERIMENTS[name], []
    seeds = seeds_for(experiment, quick, None)
    lab = ExperimentRunner(tmp_path, seeds, quick, watch=lambda *step: calls.append(step))
    made = reproduce(experiment, lab, f"hushbit reproduce {name}")
    assert read_result(tmp_path / name) == made
    assert made.cells
    assert {cell.metric for cell in made.cells} <= {m.metric for m in made.axes.y}
    assert calls
    assert made.seconds >= len(seeds)
    assert len(made.seeds) >= 3 or quick or experiment.seeds == 1
    assert made.quick == quick
    assert made.choices[: len(experiment.choices)] == experiment.choices
    assert set(experiment.notes) | set(experiment.quick_notes if quick else ()) <= set(made.notes)
    assert any("quick form" in note for note in made.notes) == quick
    limited = [cell for cell in made.cells if cell.variant in ("authors", "corrected")]
    assert all(1 <= len(cell.seeds) <= len(seeds) for cell in limited)
    if made.axes.kind == "lines":
        assert all(cell.x is not None for cell in made.cells)
    assert write_markdown(reproduction_document([made]))


def test_docs_are_the_same_every_time(instant, tmp_path):
    for name in ("nested", "convergence"):
        reproduce(
            EXPERIMENTS[name],
            ExperimentRunner(tmp_path / "results", (1, 2, 3)),
            "hushbit reproduce",
        )
    written = write_docs([tmp_path / "results"], tmp_path / "docs")
    names = [path.name for path in written]
    assert names == ["convergence.svg", "nested.svg", "reproduction.md"]
    text = written[-1].read_text()
    assert "| CPA | users 1000 | 85.00 |" in text
    again = [path.read_bytes() for path in written]
    write_docs([tmp_path / "results"], tmp_path / "docs")
    assert again == [path.read_bytes() for path in written]


def test_experiments_are_selected_by_name_and_group():
    assert [one.name for one in select_experiments(["all"])] == list(EXPERIMENTS)
    assert [one.name for one in select_experiments(["scale"])] == ["whole-message", "central"]
    mnist = [one.name for one in select_experiments(["mnist"])]
    assert {"nested", "theorem1"} <= set(mnist)
    assert not {"resnet", "convergence-cnn2"} & set(mnist)
    assert [one.name for one in select_experiments(["nested", "nested"])] == ["nested"]
    with pytest.raises(InvalidInput, match="unknown experiment 'magic'"):
        select_experiments(["magic"])


def test_default_seeds_and_the_command_line():
    nested = EXPERIMENTS["nested"]
    assert seeds_for(nested, False, None) == (1, 2, 3)
    assert seeds_for(nested, True, None) == (1, 2)
    assert seeds_for(nested, True, 5) == (1, 2, 3, 4, 5)
    with pytest.raises(InvalidInput):
        seeds_for(nested, False, 0)
    line = command_line("nested", {"quick": True, "seeds": None, "rounds": 5, "out": "here"})
    assert line == "hushbit reproduce nested --quick --rounds 5 --out here"


def _cell(scheme, variant, metric, mean):
    return Cell(scheme, variant, {"users": 1000}, metric, mean, mean, mean, ())


def test_claims_can_fail():
    where = {"users": 1000}
    near = [_cell("CPA", "published", "accuracy", 85), _cell("CPA", "authors", "accuracy", 87.9)]
    far = [near[0], _cell("CPA", "authors", "accuracy", 88.1)]
    assert WITHIN_POINTS.check(near, where).holds
    assert not WITHIN_POINTS.check(far, where).holds
    assert "(no)" in WITHIN_POINTS.check(far, where).figure
    assert not WITHIN_POINTS.check([], where).holds
    spread = [
        Cell(
            "CPA", "authors", {"users": 1000, "rate": rate}, "accuracy_tried", mean, mean, mean, ()
        )
        for rate, mean in ((0.1, 70.0), (1.0, 88.1))
    ]
    assert (
        "by the unknown setting 70.0 to 88.1 (no)"
        in WITHIN_POINTS.check(far + spread, where).figure
    )
    old, step = _cell("CPA", "authors", "snr_db", 0.0), _cell("CPA", "corrected", "snr_db", 1.2)
    enough, short = (_cell("CPA", "corrected", "snr_wiener_db", ratio) for ratio in (3.1, 2.9))
    assert higher_snr([old, step, enough], where).holds
    assert "3.10 (as trained on 1.20) against 0.00" in higher_snr([old, step, enough], where).figure
    assert not higher_snr([old, step, short], where).holds
    assert not higher_snr([old, step], where).holds
