"""The document of a report: headline, tables, runs, summary."""

import dataclasses
import shlex

import pytest

from hushbit.lab.decision_card import DecisionCard
from hushbit.lab.experiments.results import Check
from hushbit.lab.report.csv_table import write_csv
from hushbit.lab.report.document import Document, Part, Plot, ReportTable, Section, Text
from hushbit.lab.report.html import write_page
from hushbit.lab.report.markdown import write_markdown
from hushbit.lab.report.plots import to_plotly
from hushbit.lab.report.sections import report_document
from hushbit.lab.report.sources import Sources, read_run, read_sources
from hushbit.lab.report.tables import side_by_side
from hushbit.lab.sim.settings import FIELDS, Settings, kind_of
from lab.report.report_samples import (
    blocks,
    lines_result,
    run_folder,
    table_result,
    text_of,
)
from lab.report.report_tree import parse


def test_published_recreated_and_corrected_values_are_columns():
    result = table_result()
    accuracy, ratio = (side_by_side(result, metric) for metric in result.axes.y)
    assert accuracy.columns == ("users", "scheme", "published", "re-created (authors)", "corrected")
    assert [text_of(row)[:3] for row in accuracy.rows] == [
        ["10", "CPA", "49"],
        ["10", "CPA without noise", "60"],
        ["100", "CPA", "81"],
        ["100", "CPA without noise", "84"],
        ["1,000", "CPA", "85"],
        ["1,000", "CPA without noise", "87"],
    ]
    assert text_of(accuracy.rows[4])[3:] == ["84.2 [83.6, 84.8]", "86.2 [85.8, 86.7]"]
    assert "model linear" in accuracy.caption
    assert "3 seeds" in accuracy.caption
    assert ratio.columns[2:] == ("published", "corrected")


def test_a_missing_cell_is_empty_and_x_is_a_column():
    given = lines_result()
    cells = tuple(c for c in given.cells if (c.scheme, c.variant) != ("Laplace", "published"))
    table = side_by_side(lines_result(cells=cells), given.axes.y[1])
    assert table.columns[:3] == ("users", "epsilon per bit", "scheme")
    rows = {tuple(text_of(row)[:3]): text_of(row)[3:] for row in table.rows}
    assert rows["100", "0.5", "Laplace"][0] == ""
    assert rows["100", "0.5", "CPA"][0] == "4"
    assert len(rows) == len(table.rows) == 2 * 5 * 3


def test_the_table_of_a_long_line_shows_its_last_value():
    result = lines_result(points=30)
    table = side_by_side(result, result.axes.y[1])
    assert len(table.rows) == 2 * 3
    assert "at the last epsilon per bit" in table.caption
    assert text_of(table.rows[0])[2] == "91"


def test_every_format_marks_the_quick_form(small_library):
    sources = Sources((table_result(quick=True),))
    document = report_document(sources, "T")
    for table in blocks(document, ReportTable):
        if "interval" in table.caption:
            assert "Quick form" in table.caption
    assert "Quick form" in write_markdown(document)
    assert "quick" in write_csv(sources)
    assert write_page(document).count('class="badge"') == 1
    assert "quick" not in write_markdown(report_document(Sources((table_result(),)), "T"))


def test_privacy_choices_and_command_are_included(sources):
    text = write_markdown(report_document(sources, "Report"))
    for words in (
        "epsilon 3,925",
        "per message",
        "per run",
        "The paper is silent",
        "Seeds 1, 2, 3",
    ):
        assert words in text
    assert "```\nhushbit reproduce nested --out results\n```" in text


def test_runs_are_compared_in_the_requested_unit_and_per_run(sources):
    document = report_document(sources, "Report")
    compared = next(t for t in blocks(document, ReportTable) if t.columns[0] == "run")
    rows = {row[0]: dict(zip(compared.columns, row, strict=True)) for row in compared.rows}
    assert rows["cpa"]["epsilon requested"] == "0.5 per bit, server"
    assert rows["cpa"]["epsilon per run, server"] == "3,900"
    assert rows["cpa"]["epsilon per run, model"] == "1.25"
    assert rows["fedavg"]["epsilon requested"] == "no privacy"
    assert rows["cpa"]["sent up"] == "73.2 kB"
    assert rows["fedavg"]["epsilon per run, server"] == "∞"
    assert rows["stopped"]["rounds"] == "6 of 12"
    assert rows["stopped"]["time"] == "not finished"
    units = [t for t in blocks(document, ReportTable) if t.columns[0] == "against"]
    assert [row[:2] for row in units[0].rows] == [
        ("server", "per bit"),
        ("server", "per message"),
        ("server", "per run of 12 rounds"),
        ("model", "per run of 12 rounds"),
    ]
    plots = {plot.title: plot for plot in blocks(document, Plot) if "round" in plot.caption}
    assert set(plots) >= {"Test accuracy (%)", "SNR of the mean update (dB)", "Training loss"}
    assert len(plots["Training loss"].lines) == 3
    # The SNR of FedAvg is infinite, so it has no line.
    assert len(plots["SNR of the mean update (dB)"].lines) == 2


def test_the_command_of_a_run_restores_its_settings(tmp_path):
    folder = run_folder(
        tmp_path / "run",
        mechanism="cpa",
        rotate=True,
        dataset="mnist",
        seed=7,
        radius=0.01,
        attack="flip",
        attackers=0.25,
    )
    found = read_run(folder, "run")
    words = shlex.split(found.command)
    assert words[:2] == ["hushbit", "run"]
    assert words[-2:] == ["--out", "NEW"]
    given, rest = {}, words[2:-2]
    while rest:
        name = rest.pop(0)[2:].replace("-", "_")
        given[name] = True if kind_of(name) is bool else kind_of(name)(rest.pop(0))
    assert Settings(**given) == found.settings
    assert {"seed", "rotate"} <= set(given) <= set(FIELDS)


def test_a_real_run_can_be_reported(tmp_path):
    from hushbit.lab.sim.run import run

    run(Settings(mechanism="cpa", epsilon_per_bit=1.0, users=8, rounds=2), tmp_path / "run")
    sources = read_sources([tmp_path / "run"])
    assert sources.runs[0].summary["epsilon_bit"] == 1.0
    assert "per run of 2 rounds" in write_markdown(report_document(sources, "R"))


def test_a_cell_without_a_name_is_no_header(tmp_path):
    """A screen reader would announce an empty header."""
    table = ReportTable("t", ("place", "scheme", "value"), (("", "cpa", "1"),), heads=2)
    part = Part("", (table,))
    page = write_page(Document("R", "", (Section("a", "A", "", (part,)),)))
    assert '<td></td><th scope="row">cpa</th>' in "".join(page.split("\n"))
    assert '<th scope="row"></th>' not in page


@pytest.mark.parametrize("rotate", [None, True, False])
@pytest.mark.parametrize("budget", [True, False])
def test_the_command_states_a_rotation_that_is_not_the_default(tmp_path, rotate, budget):
    run_folder(tmp_path / "run")
    parts = {"epsilon": 4.0, "delta": 1e-5, "per": "run", "against": "model", "honest": 1}
    given = Settings(rotate=rotate, **parts if budget else {"epsilon_per_bit": 0.5}).resolved()
    found = dataclasses.replace(read_run(tmp_path / "run", "run"), settings=given).command
    stated = [word for word in shlex.split(found) if "rotate" in word]
    changes = rotate is not None and rotate != budget
    assert stated == ([f"--{'' if rotate else 'no-'}rotate"] if changes else [])
    assert ("--honest 1 " in found) == budget


def test_the_requested_unit_of_a_run_comes_first(tmp_path):
    from hushbit.lab.sim.run import run

    budget = {"epsilon": 6.0, "delta": 1e-6, "per": "run", "against": "model"}
    run(Settings(users=8, rounds=2, clip=0.5, **budget), tmp_path / "cpa")
    run(Settings(mechanism="fedavg", users=8, rounds=2), tmp_path / "fedavg")
    run(Settings(mechanism="laplace", epsilon_per_bit=1.0, users=8, rounds=2), tmp_path / "laplace")
    document = report_document(read_sources([tmp_path]), "R")
    compared = next(t for t in blocks(document, ReportTable) if t.columns[0] == "run")
    rows = {row[0]: dict(zip(compared.columns, row, strict=True)) for row in compared.rows}
    spent = rows["cpa"]["epsilon per run, model"]
    assert rows["cpa"]["epsilon requested"] == f"{spent} of 6 per run, model"
    assert rows["fedavg"]["epsilon requested"] == "no privacy"
    assert rows["laplace"]["epsilon per run, model"] == "as server"
    text = write_markdown(document)
    assert f"Requested: {spent} of 6 per run, model." in text
    assert "8 voters in every round whose coins stay secret" in text


def test_the_summary_shows_the_figures_that_fail(small_library):
    """Of a claim over several schemes only the failing ones."""
    check = Check("near", False, "A 1.00 against 1.00; B 9.00 against 1.00 (no)")
    full = dataclasses.replace(table_result(), checks=(check,))
    page = parse(write_page(report_document(Sources((full,)), "T")))
    summary = next(node for node in page if node.attributes.get("id") == "summary").text
    assert "B 9.00 against 1.00" in summary
    assert "A 1.00" not in summary


def test_the_quick_form_judges_no_claim(small_library, tmp_path):
    document = report_document(Sources((table_result(quick=True),)), "T")
    assert [document.count(holds) for holds in (True, False, None)] == [0, 0, 2]
    assert document.headline.endswith("too short to judge 2 claims.")
    page = parse(write_page(document))
    shown = [n.text for n in page if n.attributes.get("class", "").startswith("verdict")]
    assert shown == ["too short to judge"] * 2
    assert "2.1 dB" not in write_markdown(document)
    table_result(quick=True).save(tmp_path)
    assert '"holds": true' not in (tmp_path / "nested" / "result.json").read_text()


def test_experiments_without_a_result_are_named():
    document = report_document(Sources((table_result(),)), "T")
    assert "theorem1" in document.not_run
    assert "nested" not in document.not_run
    assert "Not run: snr-epsilon, " in write_markdown(document)


def cards(document):
    return [block for block in document.introduction if isinstance(block, DecisionCard)]


def test_the_report_opens_with_the_best_private_run(tmp_path):
    run_folder(tmp_path / "weak", level=0.5, radius=0.02)
    run_folder(tmp_path / "cpa", level=0.8)
    run_folder(tmp_path / "fedavg", mechanism="fedavg", level=0.9)
    run_folder(tmp_path / "stopped", level=0.99, finished=False)
    document = report_document(read_sources([tmp_path]), "T")
    (card,) = cards(document)
    assert card.facts()[:2] == [
        ("test accuracy", "76.0 %", "FedAvg 85.5 %"),
        ("epsilon against the model", "1.25", "per run, delta 1e-5"),
    ]
    assert [run.name for run in card.runs] == ["fedavg", "cpa", "weak"]
    assert document.headline == ""
    assert card.lines()[0] in write_markdown(document)
    plots = [block for block in document.introduction if isinstance(block, Plot)]
    assert [plot.title.removeprefix("Test accuracy (%) ") for plot in plots] == [
        "by round",
        "against epsilon of the run",
        "against bytes sent per user and round",
    ]
    name, height = plots[1].reference
    assert name == "FedAvg 85.5 %"
    assert height == pytest.approx(85.5, abs=0.05)
    assert to_plotly(plots[1])["layout"]["shapes"][0]["y0"] == height
    assert [line.keys for line in plots[1].lines] == [
        ("cpa", "against the model"),
        ("cpa", "against the server"),
    ]


@pytest.mark.parametrize("seeds", [2, 3])
def test_seeds_form_one_line_with_a_band_from_three_on(tmp_path, seeds):
    for seed in range(1, seeds + 1):
        run_folder(tmp_path / "cpa" / str(seed), seed=seed, level=0.7 + 0.02 * seed, rounds=40)
    document = report_document(read_sources([tmp_path]), "T")
    (card,) = cards(document)
    assert [(run.name, run.seeds) for run in card.runs] == [("cpa", seeds)]
    by_round = next(block for block in document.introduction if isinstance(block, Plot))
    bands = [trace["meta"].get("band", False) for trace in to_plotly(by_round)["data"]]
    assert bands == ([True, False] if seeds == 3 else [False])


def test_a_report_without_a_finished_run(tmp_path):
    run_folder(tmp_path / "stopped", finished=False)
    document = report_document(read_sources([tmp_path]), "T")
    assert document.headline == "No run is finished and tested yet."
    assert document.introduction == ()


def test_each_task_has_a_card(tmp_path):
    run_folder(tmp_path / "one")
    run_folder(tmp_path / "two", dataset="mnist")
    document = report_document(read_sources([tmp_path]), "T")
    assert [card.best.name for card in cards(document)] == ["one", "two"]
    assert Text("digits, linear:") in document.introduction


def test_the_headline_counts_the_claims(sources):
    headline = report_document(sources, "T").headline
    assert headline.startswith("1 of 2 claims hold; 1 does not. 1 of 2 experiments ran in")
