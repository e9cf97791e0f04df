"""Every code block of the landing page, the tutorials and the how-to guides runs."""

import copy
import importlib.util
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hushbit.lab.cli import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "docs" / "index.md", *sorted((ROOT / "docs" / "how-to").glob("*.md"))]


def blocks(page: Path) -> list[tuple[str, str]]:
    """The language and the text of each fenced block."""
    return re.findall(r"^```(.*)\n((?:.*\n)*?)```$", page.read_text("utf-8"), re.M)


def run_python(page: Path) -> dict[str, Any]:
    """Run the Python blocks in one namespace, as a reader would; returns the namespace."""
    names: dict[str, Any] = {"__name__": page.stem}
    for language, code in blocks(page):
        if language == "python":
            exec(compile(code, str(page), "exec"), names)
    return names


def run_command(line: str) -> None:
    """Run a line of a shell block: a hushbit command, or an installation with known extras."""
    program, *words = shlex.split(line, comments=True)
    if program == "hushbit":
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0, line
        return
    assert (program, words[0]) == ("pip", "install"), line
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for extra in re.findall(r"\[(.*)\]", words[-1]):
        assert extra in project["optional-dependencies"], line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": page.stem}
    for language, text in blocks(page):  # in the order of a reader
        if language == "python":
            exec(compile(text, str(page), "exec"), names)
            continue
        assert language == "sh"
        for line in text.splitlines():
            run_command(line)


def test_the_mechanism_of_the_guide_is_unbiased_and_states_its_error() -> None:
    names = run_python(ROOT / "docs" / "how-to" / "add-a-mechanism.md")
    # Errors of 100 entries in units of their stated deviation. The mean has a deviation of 0.1; the
    # mean square one of 0.14, and it lies below 1 because the stated variance is an upper estimate.
    scaled = names["error"] / np.sqrt(names["estimate"].variance)
    assert abs(scaled.mean()) < 0.5
    assert 0.4 < np.mean(scaled**2) < 1.6


@pytest.mark.slow
def test_the_steps_in_numpy_train_and_state_their_guarantees() -> None:
    page = ROOT / "docs" / "step-by-step.md"
    assert {language for language, _ in blocks(page)} == {"python"}
    names = run_python(page)
    assert names["plain"] > 0.8
    assert names["plain"] + 0.1 > names["private"] > 0.6
    assert 30 < names["server"] < 40
    assert names["model"].epsilon < 1


def notebook() -> Any:
    spec = importlib.util.spec_from_file_location(
        "docs_notebook", ROOT / "tools" / "docs_notebook.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_notebook_is_run_and_converted() -> None:
    tool = notebook()
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "Text."]},
        {"cell_type": "code", "source": ["a = 2\n", "print('printed')"]},
        {"cell_type": "code", "source": ["a * 3"]},
        {"cell_type": "code", "source": ["type('T', (), {'_repr_html_': lambda _: '<b>x</b>'})()"]},
        {"cell_type": "code", "source": ["b = a"]},
    ]
    made = {"cells": cells}
    assert tool.execute(made)["b"] == 2
    assert [len(cell.get("outputs", ())) for cell in cells] == [0, 1, 1, 1, 0]
    text = tool.to_markdown(made)
    assert text.startswith("# Title\nText.\n\n```python\na = 2\n")
    assert "```text\nprinted\n```" in text
    assert "```text\n6\n```" in text
    assert "\n\n<b>x</b>\n\n" in text


@pytest.mark.slow
def test_the_tutorial_runs_and_shows_what_it_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tool = notebook()
    stored = tool.read(ROOT / "docs" / "tutorial.ipynb")
    made = copy.deepcopy(stored)
    names = tool.execute(made)
    assert names["plain"].metrics["accuracy"] > 0.8
    assert names["plain"].metrics["accuracy"] - 0.06 < names["private"].metrics["accuracy"]
    assert names["private"].statement.within_budget
    assert names["result"].best == "cpa"
    state = names["private"].state_dict()
    assert all(
        np.array_equal(value, state[name]) for name, value in names["model"].state_dict().items()
    )
    # Rounding on another machine may change a digit; the same kinds of outputs must be stored.
    for old, new in zip(stored["cells"], made["cells"], strict=True):
        kinds = [
            [list(one.get("data", one)) for one in cell.get("outputs", ())] for cell in (old, new)
        ]
        assert kinds[0] == kinds[1], "".join(old["source"])
