"""hushbit report: what it prints, and one line with exit code 2 for what it cannot read."""

import json

import pytest

from lab.report_samples import run_folder, table_result


def test_a_report_names_its_files_and_counts_claims(hushbit, tmp_path):
    table_result().save(tmp_path / "results")
    run_folder(tmp_path / "run")
    target = tmp_path / "page" / "r.html"
    answer = hushbit("report", tmp_path / "results", tmp_path / "run", "--out", target)
    assert answer.code == 0
    assert answer.out.split("\n")[0] == "1 of 2 claims hold"
    assert all(str(target.with_suffix(s)) in answer.out for s in (".html", ".md", ".csv"))
    assert "<title>What holds, and what does not</title>" in target.read_text()
    answer = hushbit("report", tmp_path / "run", "--out", target, "--title", "Mine", "--json")
    assert json.loads(answer.out) == {
        "html": str(target), "markdown": str(target.with_suffix(".md")),
        "csv": str(target.with_suffix(".csv")), "experiments": 0, "runs": 1, "holds": 0, "fails": 0,
    }  # fmt: skip
    assert "<title>Mine</title>" in target.read_text()


@pytest.mark.parametrize(
    ("place", "words"),
    [("missing", "does not exist"), ("empty", "holds no run"), ("broken", "no result file"),
     ("folder/file.txt", "no result file")],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_in_one_line(hushbit, tmp_path, place, words):
    for name in ("empty", "broken", "folder"):
        (tmp_path / name).mkdir()
    (tmp_path / "broken" / "result.json").write_text("{")
    (tmp_path / "folder" / "file.txt").write_text("hello")
    answer = hushbit("report", tmp_path / place, "--out", tmp_path / "r.html")
    assert (answer.code, answer.out, len(answer.lines)) == (2, "", 1)
    assert words in answer.err
    assert not (tmp_path / "r.html").exists()


def test_a_place_must_be_named(hushbit):
    answer = hushbit("report")
    assert (answer.code, len(answer.lines)) == (2, 1)
