"""hushbit report: its output, --docs, and one line with exit code 2 for unreadable input."""

import json

import pytest

from lab.report.report_samples import run_folder, table_result


def test_a_report_prints_its_headline_and_files(hushbit, tmp_path):
    table_result().save(tmp_path / "results")
    run_folder(tmp_path / "run")
    target = tmp_path / "page" / "r.html"
    answer = hushbit("report", tmp_path / "results", tmp_path / "run", "--out", target)
    assert answer.code == 0
    claims, *card = answer.out.split("\n")[:-4]
    assert claims == "1 of 2 claims hold; 1 does not."
    assert card[0] == "Run: run"
    assert "users for epsilon 1 (model)" in answer.out
    assert all(str(target.with_suffix(s)) in answer.out for s in (".html", ".md", ".csv"))
    assert "<title>Experiment results</title>" in target.read_text()
    answer = hushbit("report", tmp_path / "run", "--out", target, "--title", "Mine", "--json")
    assert json.loads(answer.out) == {
        "html": str(target),
        "markdown": str(target.with_suffix(".md")),
        "csv": str(target.with_suffix(".csv")),
        "headline": "\n".join(card),
        "experiments": 0,
        "runs": 1,
        "holds": 0,
        "fails": 0,
        "unjudged": 0,
    }
    assert "<title>Mine</title>" in target.read_text()


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("missing", "does not exist"),
        ("empty", "holds no run"),
        ("broken", "not a valid result file"),
        ("folder/file.txt", "not a valid result file"),
    ],
)
def test_unreadable_input_gives_one_line(hushbit, tmp_path, place, words):
    for name in ("empty", "broken", "folder"):
        (tmp_path / name).mkdir()
    (tmp_path / "broken" / "result.json").write_text("{")
    (tmp_path / "folder" / "file.txt").write_text("hello")
    answer = hushbit("report", tmp_path / place, "--out", tmp_path / "r.html")
    assert (answer.code, answer.out, len(answer.lines)) == (2, "", 1)
    assert words in answer.err
    assert not (tmp_path / "r.html").exists()


def test_a_folder_is_required(hushbit):
    answer = hushbit("report")
    assert (answer.code, len(answer.lines)) == (2, 1)


def test_docs_are_rewritten_from_results(hushbit, tmp_path):
    table_result().save(tmp_path / "results")
    docs = tmp_path / "docs"
    answer = hushbit("report", tmp_path / "results", "--docs", docs, "--json")
    files = [docs / "figures" / "nested.svg", docs / "reproduction.md"]
    assert json.loads(answer.out) == {"files": [str(path) for path in files]}
    assert all(path.exists() for path in files)
    assert not (tmp_path / "report.html").exists()
