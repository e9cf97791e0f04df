"""The report as data, page, Markdown and CSV: exact contents, escaping, refusals."""

import base64
import csv
import hashlib
import io
import json
import os
import re
import shlex

import pytest

from hushbit.errors import DamagedFile, HushbitError, InvalidInput, MissingExtra
from hushbit.fl.settings import FIELDS, Settings, kind_of
from hushbit.lab.report import write_report
from hushbit.lab.report.blocks import Plot, Table, Value, number
from hushbit.lab.report.document import make_document
from hushbit.lab.report.markdown import quoted, write_markdown
from hushbit.lab.report.page import plotting_library, write_page
from hushbit.lab.report.run_folder import read_run
from hushbit.lab.report.series import LIGHT, thinned
from hushbit.lab.report.sources import Sources, read_sources
from hushbit.lab.report.spreadsheet import safe, write_csv
from hushbit.lab.report.tables import places_for, side_by_side
from hushbit.lab.results import Check, PrivacyLine
from lab.report_samples import NASTY, cell, lines_result, make, run_folder, table_result
from lab.report_tree import parse


@pytest.fixture
def small_library(monkeypatch):
    """Most tests look at the page around the plotting library, which is long to read."""
    monkeypatch.setattr("hushbit.lab.report.page.plotting_library", lambda: "var Plotly;")


@pytest.fixture
def sources(tmp_path):
    runs = tmp_path / "runs"
    run_folder(runs / "cpa")
    run_folder(runs / "fedavg", mechanism="fedavg")
    run_folder(runs / "stopped", mechanism="laplace", finished=False)
    table_result().save(tmp_path / "results")
    lines_result(quick=True).save(tmp_path / "results")
    return read_sources([tmp_path / "results", runs])


def blocks(document, kind):
    return [b for s in document.sections for p in s.parts for b in p.blocks if isinstance(b, kind)]


def text_of(row):
    return [str(part) for part in row]


# What stands where


def test_published_recreated_and_corrected_stand_side_by_side():
    result = table_result()
    accuracy, ratio = (side_by_side(result, metric) for metric in result.axes.y)
    assert accuracy.columns == ("users", "scheme", "published", "re-created (authors)", "corrected")
    assert [text_of(row)[:3] for row in accuracy.rows] == [
        ["10", "CPA", "49"], ["10", "CPA without noise", "60"], ["100", "CPA", "81"],
        ["100", "CPA without noise", "84"], ["1,000", "CPA", "85"],
        ["1,000", "CPA without noise", "87"],
    ]  # fmt: skip
    assert text_of(accuracy.rows[4])[3:] == ["84.2 [83.6, 84.8]", "86.2 [85.8, 86.7]"]
    assert "model linear" in accuracy.caption
    assert "3 seeds" in accuracy.caption
    assert ratio.columns[2:] == ("published", "corrected")


def test_a_missing_cell_is_an_empty_one_and_x_is_a_column():
    given = lines_result()
    cells = tuple(c for c in given.cells if (c.scheme, c.variant) != ("Laplace", "published"))
    table = side_by_side(lines_result(cells=cells), given.axes.y[1])
    assert table.columns[:3] == ("users", "epsilon per bit", "scheme")
    rows = {tuple(text_of(row)[:3]): text_of(row)[3:] for row in table.rows}
    assert rows["100", "0.5", "Laplace"][0] == ""
    assert rows["100", "0.5", "CPA"][0] == "4"
    assert len(rows) == len(table.rows) == 2 * 5 * 3


def test_a_long_line_is_told_by_its_end():
    result = lines_result(points=30)
    table = side_by_side(result, result.axes.y[1])
    assert len(table.rows) == 2 * 3
    assert "at the last epsilon per bit" in table.caption
    assert text_of(table.rows[0])[2] == "91"


def test_the_quick_form_says_so_everywhere(small_library):
    sources = Sources((table_result(quick=True),))
    document = make_document(sources, "T")
    for table in blocks(document, Table):
        if "interval" in table.caption:
            assert "quick form" in table.caption
    assert "quick form" in write_markdown(document)
    assert "quick" in write_csv(sources)
    assert write_page(document).count('class="badge"') == 2
    assert "quick" not in write_markdown(make_document(Sources((table_result(),)), "T"))


def test_privacy_choices_and_command_are_there(sources):
    text = write_markdown(make_document(sources, "Report"))
    for words in (
        "epsilon 3,925",
        "per message",
        "per run",
        "The paper is silent",
        "Seeds 1, 2, 3",
    ):
        assert words in text
    assert "```\nhushbit reproduce nested --out results\n```" in text


def test_runs_stand_side_by_side_with_three_units(sources):
    document = make_document(sources, "Report")
    compared = next(t for t in blocks(document, Table) if t.columns[0] == "run")
    rows = {row[0]: dict(zip(compared.columns, row, strict=True)) for row in compared.rows}
    assert rows["cpa"]["epsilon per bit"] == "0.5"
    assert rows["cpa"]["epsilon per message"] == "325"
    assert rows["cpa"]["epsilon per run"] == "3,900"
    assert rows["cpa"]["sent up"] == "73.2 kB"
    assert rows["fedavg"]["epsilon per run"] == "∞"
    assert rows["stopped"]["rounds"] == "6 of 12"
    assert rows["stopped"]["time"] == "not finished"
    units = [t for t in blocks(document, Table) if t.columns[0] == "unit"]
    assert [row[0] for row in units[0].rows] == ["per bit", "per message", "per run of 12 rounds"]
    plots = {plot.title: plot for plot in blocks(document, Plot) if "round" in plot.says}
    assert set(plots) >= {"Test accuracy (%)", "SNR of the mean update (dB)", "Training loss"}
    assert len(plots["Training loss"].figure["data"]) == 3
    # An infinite ratio cannot be drawn, so the run without noise has no line.
    assert len(plots["SNR of the mean update (dB)"].figure["data"]) == 2


def test_the_command_of_a_run_gives_its_settings_again(tmp_path):
    folder = run_folder(
        tmp_path / "run", mechanism="cpa", rotate=True, dataset="mnist", seed=7, radius=0.01,
        attack="flip", attackers=0.25,
    )  # fmt: skip
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
    from hushbit.lab.runs import run

    run(Settings(mechanism="cpa", epsilon_per_bit=1.0, users=8, rounds=2), tmp_path / "run")
    sources = read_sources([tmp_path / "run"])
    assert sources.runs[0].summary["epsilon_per_bit"] == 1.0
    assert "per run of 2 rounds" in write_markdown(make_document(sources, "R"))


# Formats


def test_csv_holds_every_cell_and_every_round(sources):
    rows = list(csv.DictReader(io.StringIO(write_csv(sources))))
    cells = [c for result in sources.results for c in result.cells]
    for row, c in zip(rows, cells, strict=False):
        assert (row["scheme"], row["variant"], row["metric"]) == (c.scheme, c.variant, c.metric)
        assert (float(row["mean"]), float(row["low"]), float(row["high"])) == (
            c.mean,
            c.low,
            c.high,
        )
    rounds = rows[len(cells) :]
    losses = [r for r in rounds if (r["source"], r["metric"]) == ("cpa", "training_loss")]
    assert [float(r["x"]) for r in losses] == list(range(1, 13))


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\tx"])
def test_a_spreadsheet_meets_no_formula(text):
    assert safe(text) == "'" + text
    assert safe("CPA") == "CPA"


def test_plots_are_valid_and_carry_their_data(sources):
    import plotly.graph_objects as go

    found = blocks(make_document(sources, "Report"), Plot)
    assert len(found) == 2 + 2 + 4
    for plot in found:
        go.Figure(plot.figure)
        assert plot.says.endswith(".")
        assert plot.data.rows
        for trace in plot.figure["data"]:
            assert len(trace["x"]) == len(trace["meta"].get("band", "")) or trace["x"]
            assert trace["meta"]["keys"]


def test_many_points_get_a_band_that_hides_with_its_line():
    document = make_document(Sources((lines_result(points=30),)), "T")
    traces = blocks(document, Plot)[0].figure["data"]
    bands = [t for t in traces if t["meta"].get("band")]
    assert len(bands) == 6  # published lines have no interval
    lines = [t["meta"]["keys"] for t in traces if not t["meta"].get("band")]
    assert all(band["meta"]["keys"] in lines for band in bands)
    assert bands[0]["y"][0] > bands[0]["y"][-1]


def test_schemes_of_one_variant_each_stand_beside_each_other():
    variants = {"measured": "corrected", "bound as published": "published", "code": "authors"}
    cells = [
        cell(scheme, variant, {"users": users}, "accuracy", 50.0 + users / step, 1.0, float(step))
        for scheme, variant in variants.items() for users in (10, 100) for step in range(1, 41)
    ]  # fmt: skip
    result = make("t", "T", "", "lines", [c for c in cells if c.x < 4])
    table = side_by_side(result, result.axes.y[0])
    names = ("measured", "bound as published", "code (authors)")
    assert table.columns == ("users", "epsilon per bit", *names)
    assert text_of(table.rows[1]) == ["10", "2", *["55.0 [54.0, 56.0]"] * 3]
    assert len(table.rows) == 2 * 3
    traces = blocks(make_document(Sources((result,)), "T"), Plot)[0].figure["data"]
    assert [trace["meta"]["keys"] for trace in traces] == [[name] for name in names]


def test_a_band_ends_above_the_zero_that_a_logarithmic_axis_lacks():
    cells = [cell("CPA", "corrected", {}, "accuracy", 1000 / x**2, 3.0, float(x))
             for x in range(1, 31)]  # fmt: skip
    plot = blocks(make_document(Sources((make("t", "T", "", "lines", cells),)), "T"), Plot)[0]
    assert plot.figure["layout"]["yaxis"]["type"] == "log"
    band = plot.figure["data"][0]
    assert min(band["y"]) == pytest.approx(1000 / 30**2 / 10)
    assert max(band["y"]) == 1003


def test_a_line_of_many_points_is_thinned_to_its_end():
    assert thinned(tuple(range(1000))) == tuple(range(1000))
    short = thinned(tuple(range(10_001)))
    assert len(short) <= 1001
    assert short[0] == 0
    assert short[-1] == 10_000


@pytest.mark.parametrize(
    ("value", "places", "text"),
    [(-17.574, None, "−17.57"), (85.0, None, "85"), (85.04, 1, "85.0"), (12345.6, None, "12,346"),
     (1.234e-5, None, "1.234e−05"), (float("-inf"), None, "−∞"), (float("nan"), None, "–"),
     (2.5e9, None, "2.500e+09")],
)  # fmt: skip
def test_numbers_are_easy_to_read(value, places, text):
    assert number(value, places) == text


def test_decimals_follow_the_intervals():
    def cells(*figures):
        return [cell("CPA", "corrected", {}, "m", mean, width) for mean, width in figures]

    assert places_for(cells((85.0, 0.4), (84.0, 0.9))) == 1
    assert places_for(cells((85.0, 0.04), (84.0, 0.03))) == 2
    assert places_for(cells((85.0, 7.0))) == 1
    assert places_for(cells((85.0, 0.0))) is None
    assert places_for(cells((0.02, 0.001))) is None
    # Over decades no number of decimals suits all.
    assert places_for(cells((10.0, 1.0), (1.0, 0.1), (0.001, 0.0001))) is None


def test_a_value_without_width_has_no_interval():
    assert str(Value(85.0, 85.0, 85.0, 2)) == "85"
    assert str(Value(85.0, 84.5, 85.5, 1)) == "85.0 [84.5, 85.5]"


# Strange texts


def nasty_result():
    where = {NASTY: NASTY}
    cells = [
        cell(NASTY, v, where, "accuracy", 50.0 + w, w)
        for v, w in (("published", 0.0), ("corrected", 1.0))
    ]
    cells.append(cell("=1|2`*_", "authors", {"a": "|"}, "accuracy", 1.0, 0.5))
    return make(
        NASTY, NASTY, NASTY, "table", cells,
        about=NASTY, command=NASTY, choices=(NASTY,), notes=(NASTY,), environment={NASTY: NASTY},
        privacy=(PrivacyLine(NASTY, NASTY, NASTY, NASTY),), checks=(Check(NASTY, False, NASTY),),
    )  # fmt: skip


def test_no_text_becomes_code(small_library, tmp_path):
    run_folder(tmp_path / "<script>alert(1)<")
    lines = make("l", NASTY, "", "lines", [cell(NASTY, "exact", {}, "accuracy", 1.0, 0.5, 1.0)])
    sources = Sources((nasty_result(), lines), read_sources([tmp_path]).runs)
    document = make_document(sources, NASTY)
    tree = parse(write_page(document))
    assert not tree.named("img")
    assert not [n for n in tree if any(name.startswith("on") for name in n.attributes)]
    scripts = tree.named("script")
    plots = len(blocks(document, Plot))
    assert len(scripts) == 3 + plots
    data = [s for s in scripts if s.attributes.get("type") == "application/json"]
    assert len(data) == plots
    assert all(isinstance(json.loads(s.text), dict) for s in data)
    for plot in blocks(document, Plot):  # the plotting library reads some HTML in these
        drawn = [[t["name"], t["y"]] for t in plot.figure["data"]]
        axes = [plot.figure["layout"][name]["title"] for name in ("xaxis", "yaxis")]
        assert "<" not in json.dumps([drawn, axes])
    assert tree.named("title")[0].text == NASTY
    markdown = write_markdown(document)
    prose = re.sub(r"^(`{3,})\n.*?\n\1$", "", markdown, flags=re.S | re.M)
    assert "<" not in prose
    rows = [line for line in markdown.splitlines() if "=1\\|2" in line and line[0] == "|"]
    assert rows
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 7 for row in rows)


@pytest.mark.parametrize("text", ["a | b", "`x`", "**b**", "[a](b)", "a\nb", "# h", "<i>"])
def test_markdown_shows_text_as_it_is(text):
    made = quoted(text)
    assert "\n" not in made
    assert re.sub(r"\\(.)", r"\1", made).replace("&lt;", "<") == " ".join(text.split())
    assert not re.search(r"(?<!\\)[`*_|\[\]#<]", made)


def test_only_the_pages_own_scripts_may_run():
    page = write_page(make_document(Sources((table_result(),)), "T"))
    tree = parse(page)
    policy = next(
        m.attributes["content"] for m in tree.named("meta") if "http-equiv" in m.attributes
    )
    scripts = [s.text for s in tree.named("script") if "type" not in s.attributes]
    marks = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    assert [f"'sha256-{mark}'" in policy for mark in marks] == [True] * 3
    assert "default-src 'none'" in policy
    assert "http" not in policy
    # What ends a script element early ends the page's script too.
    assert "</script" not in plotting_library()
    assert page.count("plotly.js v") == 1


# Files


def test_a_report_is_three_files_and_the_same_every_time(tmp_path, small_library):
    table_result().save(tmp_path / "results")
    first = write_report([tmp_path / "results"], tmp_path / "new" / "r.html")
    assert (first.experiments, first.runs, first.holds, first.fails) == (1, 0, 1, 1)
    before = {path: path.read_bytes() for path in (first.html, first.markdown, first.csv)}
    assert [path.name for path in before] == ["r.html", "r.md", "r.csv"]
    write_report([tmp_path / "results"], tmp_path / "new" / "r.html")
    assert all(path.read_bytes() == data for path, data in before.items())
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == ["r.csv", "r.html", "r.md"]


def test_sources_are_found_in_files_folders_and_folders_of_folders(tmp_path):
    file = table_result().save(tmp_path / "deep" / "results")
    run_folder(tmp_path / "deep" / "runs" / "one")
    run_folder(tmp_path / "other" / "one")
    run_folder(tmp_path / "deep" / ".hidden" / "two")
    everything = read_sources([tmp_path / "deep", tmp_path / "other", file, file.parent])
    assert [r.name for r in everything.results] == ["nested"]
    assert [r.name for r in everything.runs] == ["runs/one", "other/one"]
    assert make_document(everything, "T").sections[-1].anchor == "other-one"


def test_a_failed_write_keeps_the_old_report(tmp_path, small_library, monkeypatch):
    table_result().save(tmp_path / "results")
    (tmp_path / "r.html").write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(HushbitError, match="No space left"):
        write_report([tmp_path / "results"], tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text() == "old"
    assert not list(tmp_path.glob(".*"))


def test_a_missing_plotting_library_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "plotly.offline", None)
    with pytest.raises(MissingExtra, match="pip install"):
        plotting_library()


BREAKS = {
    "summary.json": ["", "[]", "{}", '{"test_accuracy": "high"}'],
    "metrics.jsonl": ['{"round": 1, "mse": "much"}\n', '{"round": 1, "mse": [1]}\n'],
    "environment.json": ["", "[1]", "[" * 100_000],
    "config.toml": ["", "= 1", "colour = 3\n", "rounds = -1\n", "rounds = true\n"],
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_damaged_run_is_refused(tmp_path, name):
    folder = run_folder(tmp_path / "run")
    for text in BREAKS[name]:
        (folder / name).write_text(text)
        if (name, text) == ("config.toml", ""):
            continue  # an empty file means defaults, which is a run
        with pytest.raises(DamagedFile, match="run"):
            read_sources([folder])


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 2}', "\x00"])
def test_a_damaged_result_is_refused(tmp_path, text):
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(DamagedFile, match=r"result\.json is no result file"):
        read_sources([tmp_path])


@pytest.mark.parametrize("target", ["report.txt", "report", ".html", "folder.html"])
def test_a_target_that_is_no_page_is_refused(tmp_path, target):
    table_result().save(tmp_path / "results")
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(InvalidInput):
        write_report([tmp_path / "results"], tmp_path / target)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder.html", "results"]


def test_an_empty_title_and_no_place_are_refused(tmp_path):
    with pytest.raises(InvalidInput, match="title"):
        write_report([tmp_path], tmp_path / "r.html", " ")
    with pytest.raises(InvalidInput, match="nothing to report on"):
        write_report([], tmp_path / "r.html")


def test_colours_of_plots_are_those_of_the_style_sheet():
    from importlib import resources

    css = (resources.files("hushbit.lab.report") / "style.css").read_text()
    assert tuple(re.findall(r"--series-\d: light-dark\((#\w+),", css)) == LIGHT
