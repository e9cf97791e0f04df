"""The code and the commands of docs/how-to/bring-your-own-model.md run and do what it says."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "bring-your-own-model.md"


@pytest.mark.slow
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hushbit: Any) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text("utf-8")
    blocks = re.findall(r"^```python\n((?:.*\n)*?)```$", text, re.M)
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert names["plain"].metrics["accuracy"] > 0.9
    assert names["private"]["epsilon_spent"] <= 8
    assert names["private"].metrics["accuracy"] > 0.75
    assert set(names["result"].runs) == {"fedavg", "cpa"}
    assert Path("study.html").exists()
    stored = load_file("model.safetensors")
    for name, value in names["model"].state_dict().items():
        assert torch.equal(stored[name], value)
    assert len(set(names["skewed"].user_rows.counts)) > 3

    Path("my_task.py").write_text(blocks[0])
    commands = re.findall(r"^    (hushbit .*)$", text, re.M)
    assert len(commands) == 2
    for command in commands:
        answer = hushbit(*shlex.split(command)[1:])
        assert answer.code == 0, answer.err
    stored_by_command = load_file("RUN/model.safetensors")
    assert all(torch.equal(stored[name], value) for name, value in stored_by_command.items())
