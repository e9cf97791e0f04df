"""The files of a report: escaping, content security policy, damaged input."""

import base64
import hashlib
import json
import os
import re

import pytest

from hushbit.errors import DamagedFile, HushbitError, InvalidInput, MissingExtra
from hushbit.lab.experiments.results import Check, PrivacyLine
from hushbit.lab.report import write_report
from hushbit.lab.report.document import Plot
from hushbit.lab.report.html import plotting_library, write_page
from hushbit.lab.report.markdown import escape, write_markdown
from hushbit.lab.report.plots import COLOURS, to_plotly
from hushbit.lab.report.sections import report_document
from hushbit.lab.report.sources import Sources, read_sources
from lab.report.report_samples import (
    NASTY,
    blocks,
    cell,
    make,
    run_folder,
    table_result,
)
from lab.report.report_tree import parse


def nasty_result():
    where = {NASTY: NASTY}
    cells = [
        cell(NASTY, v, where, "accuracy", 50.0 + w, w)
        for v, w in (("published", 0.0), ("corrected", 1.0))
    ]
    cells.append(cell("=1|2`*_", "authors", {"a": "|"}, "accuracy", 1.0, 0.5))
    return make(
        NASTY,
        NASTY,
        NASTY,
        "table",
        cells,
        about=NASTY,
        command=NASTY,
        choices=(NASTY,),
        notes=(NASTY,),
        environment={NASTY: NASTY},
        privacy=(PrivacyLine(NASTY, NASTY, NASTY, NASTY),),
        checks=(Check(NASTY, False, NASTY),),
    )


def test_text_from_files_is_escaped(small_library, tmp_path):
    run_folder(tmp_path / "<script>alert(1)<")
    lines = make("l", NASTY, "", "lines", [cell(NASTY, "exact", {}, "accuracy", 1.0, 0.5, 1.0)])
    sources = Sources((nasty_result(), lines), read_sources([tmp_path]).runs)
    document = report_document(sources, NASTY)
    tree = parse(write_page(document))
    assert not tree.named("img")
    assert not [n for n in tree if any(name.startswith("on") for name in n.attributes)]
    scripts = tree.named("script")
    in_summary = [block for block in document.introduction if isinstance(block, Plot)]
    plots = len(blocks(document, Plot)) + len(in_summary)
    assert len(scripts) == 3 + plots
    data = [s for s in scripts if s.attributes.get("type") == "application/json"]
    assert len(data) == plots
    assert all(isinstance(json.loads(s.text), dict) for s in data)
    for plot in (
        *in_summary,
        *blocks(document, Plot),
    ):  # the plotting library reads some HTML in these
        figure = to_plotly(plot)
        drawn = [[t["name"], t["y"]] for t in figure["data"]]
        axes = [figure["layout"][name]["title"] for name in ("xaxis", "yaxis")]
        assert "<" not in json.dumps([drawn, axes])
    assert tree.named("title")[0].text == NASTY
    markdown = write_markdown(document)
    prose = re.sub(r"^(`{3,})\n.*?\n\1$", "", markdown, flags=re.S | re.M)
    assert "<" not in re.sub("</?details>|</?summary>", "", prose)
    rows = [line for line in markdown.splitlines() if "=1\\|2" in line and line[0] == "|"]
    assert rows
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 7 for row in rows)


@pytest.mark.parametrize("text", ["a | b", "`x`", "**b**", "[a](b)", "a\nb", "# h", "<i>", "_e_"])
def test_markdown_shows_text_as_it_is(text):
    made = escape(text)
    assert "\n" not in made
    assert re.sub(r"\\(.)", r"\1", made).replace("&lt;", "<") == " ".join(text.split())
    assert not re.search(r"(?<!\\)[`*_|\[\]#<]", made)


def test_content_security_policy_allows_only_the_own_scripts():
    page = write_page(report_document(Sources((table_result(),)), "T"))
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


def test_a_report_is_three_files_with_the_same_bytes_every_time(tmp_path, small_library):
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
    assert report_document(everything, "T").sections[-1].anchor == "other-one"


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


def test_missing_plotly_names_the_extra_to_install(monkeypatch):
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
def test_a_damaged_run_raises(tmp_path, name):
    folder = run_folder(tmp_path / "run")
    for text in BREAKS[name]:
        (folder / name).write_text(text)
        if (name, text) == ("config.toml", ""):
            continue  # an empty file means defaults, which is a run
        with pytest.raises(DamagedFile, match="run"):
            read_sources([folder])


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 2}', "\x00"])
def test_a_damaged_result_raises(tmp_path, text):
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(DamagedFile, match=r"result\.json is not a valid result file"):
        read_sources([tmp_path])


@pytest.mark.parametrize("target", ["report.txt", "report", ".html", "folder.html"])
def test_a_target_that_is_not_an_html_file_raises(tmp_path, target):
    table_result().save(tmp_path / "results")
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(InvalidInput):
        write_report([tmp_path / "results"], tmp_path / target)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder.html", "results"]


def test_an_empty_title_or_no_folder_raises(tmp_path):
    with pytest.raises(InvalidInput, match="title"):
        write_report([tmp_path], tmp_path / "r.html", " ")
    with pytest.raises(InvalidInput, match="nothing to report on"):
        write_report([], tmp_path / "r.html")


def test_plot_colours_equal_those_of_the_style_sheet():
    from importlib import resources

    css = (resources.files("hushbit.lab.report") / "style.css").read_text()
    assert tuple(re.findall(r"--series-\d: light-dark\((#\w+),", css)) == COLOURS
