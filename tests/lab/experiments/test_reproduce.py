"""Experiments by name, and from outcomes to a valid result file."""

import hashlib

import pytest

from hushbit.errors import InvalidInput
from hushbit.lab.experiments import experiment as base
from hushbit.lab.experiments.cells import Outcome, cell_key
from hushbit.lab.experiments.claims import claims, verdict
from hushbit.lab.experiments.experiment import ExperimentRunner
from hushbit.lab.experiments.reproduce import (
    EXPERIMENTS,
    command_line,
    reproduce,
    seeds_for,
    select_experiments,
)
from hushbit.lab.experiments.results import RULE, read_result
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
    "nested-trade-off",
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
        tuple(
            (n, 50 + number, 50.0)
            for n in range(settings.evaluate_every, settings.rounds + 1, settings.evaluate_every)
        ),
        ("bit", "message", "run"),
        1.0,
        snr_wiener_db=ratio,
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
    assert {one.rule for one in EXPERIMENTS.values()} == {"", RULE}


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", TRAINED)
def test_every_experiment_writes_a_complete_result(instant, tmp_path, name, quick):
    experiment, calls = EXPERIMENTS[name], []
    seeds = seeds_for(experiment, quick, None)
    lab = ExperimentRunner(tmp_path, seeds, quick, watch=lambda *step: calls.append(step))
    made = reproduce(experiment, lab, f"hushbit reproduce {name}")
    assert read_result(tmp_path / name) == made
    assert made.cells
    if not quick:
        own = [one for one in claims() if one.experiment == name and one.forms]
        judged = {verdict(one, {name: made}).state for one in own if "cnn3" not in one.text}
        assert judged <= {"reproduced", "not reproduced"}
    assert {cell.metric for cell in made.cells} <= {m.metric for m in made.axes.y}
    assert calls
    assert made.seconds >= len(seeds)
    assert len(made.seeds) >= 3 or quick or experiment.seeds == 1
    assert made.quick == quick
    assert made.rule == ("" if quick else RULE)
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
            ExperimentRunner(tmp_path / "results", (201, 202, 203)),
            "hushbit reproduce",
        )
    written = write_docs([tmp_path / "results"], tmp_path / "docs")
    names = [path.name for path in written]
    assert names == ["convergence.svg", "nested.svg", "reproduction.md"]
    text = written[-1].read_text()
    assert "| Table V: " in text
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
    assert seeds_for(nested, False, None) == tuple(range(201, 211))
    assert seeds_for(nested, True, None) == (201, 202)
    assert seeds_for(nested, True, 3) == (201, 202, 203)
    assert seeds_for(EXPERIMENTS["robustness"], False, None) == tuple(range(331, 341))
    assert seeds_for(EXPERIMENTS["central"], False, None) == (1, 2, 3, 4, 5)
    with pytest.raises(InvalidInput):
        seeds_for(nested, False, 0)
    line = command_line("nested", {"quick": True, "seeds": None, "rounds": 5, "out": "here"})
    assert line == "hushbit reproduce nested --quick --rounds 5 --out here"
