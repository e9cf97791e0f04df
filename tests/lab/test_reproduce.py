"""Experiments: all of the paper's by name, and from outcomes to a valid result file."""

import hashlib

import pytest

from hushbit.errors import InvalidInput
from hushbit.lab.cells import Outcome, cell_key
from hushbit.lab.experiments import EXPERIMENTS, Lab, base
from hushbit.lab.experiments.base import interval
from hushbit.lab.experiments.checks import higher_snr, within_points
from hushbit.lab.pages import page_text, write_page
from hushbit.lab.reproduce import command_line, named, reproduce, seeds_for
from hushbit.lab.results import Cell, read_result

PAPER = (
    "snr-epsilon", "accuracy-epsilon", "users", "epsilon", "architectures", "convergence",
    "convergence-cnn2", "resnet", "nested", "malicious", "theorem1", "theorem2",
)  # fmt: skip
TRAINED = [
    name for name in (*PAPER, "architectures-cifar", "malicious-cifar") if "theorem" not in name
]


def _made_up(settings) -> Outcome:
    """An outcome that depends on the settings alone."""
    number = int(hashlib.sha256(cell_key(settings).encode()).hexdigest()[:6], 16) / 2**24
    noiseless = settings.mechanism == "fedavg"
    ratio = None if noiseless else 10 * number - 5
    return Outcome(
        60 + 30 * number, 60 + 30 * number, ratio, ratio, ratio, 0.001 + number,
        tuple((n, 50 + number, 50.0) for n in (1, 2)), ("bit", "message", "run"), 1.0,
    )  # fmt: skip


@pytest.fixture
def instant(monkeypatch):
    """Cells without training."""

    def run_cells(wanted, folder, *, watch, **_):
        for settings in wanted:
            watch(settings, False)
        return [_made_up(settings) for settings in wanted]

    monkeypatch.setattr(base, "run_cells", run_cells)


def test_every_experiment_of_the_paper_has_a_name():
    assert set(PAPER) <= set(EXPERIMENTS)
    assert all(name == one.name for name, one in EXPERIMENTS.items())


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", TRAINED)
def test_results_are_whole(instant, tmp_path, name, quick):
    experiment, heard = EXPERIMENTS[name], []
    seeds = seeds_for(experiment, quick, None)
    lab = Lab(tmp_path, seeds, quick, watch=lambda *told: heard.append(told))
    made = reproduce(experiment, lab, f"hushbit reproduce {name}")
    assert read_result(tmp_path / name) == made
    assert made.cells
    assert {cell.metric for cell in made.cells} <= {m.metric for m in made.axes.y}
    assert heard
    assert made.seconds >= len(seeds)
    assert len(made.seeds) >= 3 or quick or experiment.seeds == 1
    assert made.quick == quick
    assert any("quick form" in note for note in made.notes) == quick
    limited = [cell for cell in made.cells if cell.variant in ("authors", "corrected")]
    assert all(1 <= len(cell.seeds) <= len(seeds) for cell in limited)
    if made.axes.kind == "lines":
        assert all(cell.x is not None for cell in made.cells)
    assert page_text([made])


def test_page_and_figures(instant, tmp_path):
    for name in ("nested", "convergence"):
        reproduce(EXPERIMENTS[name], Lab(tmp_path / "results", (1, 2, 3)), "hushbit reproduce")
    written = write_page(tmp_path / "results", tmp_path / "docs" / "page.md")
    names = [path.name for path in written]
    assert names == ["convergence.svg", "nested.svg", "page.md"]
    text = written[-1].read_text()
    assert "| CPA | users 1000 | 85.00 |" in text
    again = [path.read_bytes() for path in written]
    write_page(tmp_path / "results", tmp_path / "docs" / "page.md")
    assert again == [path.read_bytes() for path in written]


def test_page_of_nothing(tmp_path):
    with pytest.raises(InvalidInput, match="no results"):
        write_page(tmp_path, tmp_path / "page.md")


def test_groups_and_names():
    every = [one.name for one in named(["all"])]
    assert set(PAPER) <= set(every)
    mnist = [one.name for one in named(["mnist"])]
    assert {"nested", "theorem1"} <= set(mnist)
    assert not {"resnet", "convergence-cnn2"} & set(mnist)
    assert [one.name for one in named(["nested", "nested"])] == ["nested"]
    with pytest.raises(InvalidInput, match="unknown experiment 'magic'"):
        named(["magic"])


def test_seeds_and_command():
    nested = EXPERIMENTS["nested"]
    assert seeds_for(nested, False, None) == (1, 2, 3)
    assert seeds_for(nested, True, None) == (1, 2)
    assert seeds_for(nested, True, 5) == (1, 2, 3, 4, 5)
    with pytest.raises(InvalidInput):
        seeds_for(nested, False, 0)
    line = command_line("nested", {"quick": True, "seeds": None, "rounds": 5, "out": "here"})
    assert line == "hushbit reproduce nested --quick --rounds 5 --out here"


def test_interval_is_students():
    assert interval([3.0]) == (3.0, 3.0, 3.0)
    mean, low, high = interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert high - mean == pytest.approx(mean - low)
    assert high - mean == pytest.approx(4.302653 / 3**0.5, rel=1e-6)


def _cell(scheme, variant, metric, mean):
    return Cell(scheme, variant, {"users": 1000}, metric, mean, mean, mean, ())


def test_claims_can_fail():
    where = {"users": 1000}
    near = [_cell("CPA", "published", "accuracy", 85), _cell("CPA", "authors", "accuracy", 87.9)]
    far = [near[0], _cell("CPA", "authors", "accuracy", 88.1)]
    assert within_points(near, where).holds
    assert not within_points(far, where).holds
    assert "(no)" in within_points(far, where).figure
    assert not within_points([], where).holds
    spread = [
        Cell(
            "CPA", "authors", {"users": 1000, "rate": rate}, "accuracy_tried", mean, mean, mean, ()
        )
        for rate, mean in ((0.1, 70.0), (1.0, 88.1))
    ]
    assert "by the unknown setting 70.0 to 88.1 (no)" in within_points(far + spread, where).figure
    old, step = _cell("CPA", "authors", "snr_db", 0.0), _cell("CPA", "corrected", "snr_db", 1.2)
    enough, short = (_cell("CPA", "corrected", "snr_wiener_db", ratio) for ratio in (3.1, 2.9))
    assert higher_snr([old, step, enough], where).holds
    assert "3.10 (as trained on 1.20) against 0.00" in higher_snr([old, step, enough], where).figure
    assert not higher_snr([old, step, short], where).holds
    assert not higher_snr([old, step], where).holds
