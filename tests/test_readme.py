"""The examples of the README and of the guide on ballots run; users need only their own keys."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest

import hushbit as hb

ROOT = Path(__file__).parents[1]


def first_block(page: str) -> str:
    found = re.search(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.S)
    assert found is not None
    return found[1]


def example() -> str:
    return first_block("docs/how-to/exchange-ballots.md")


@pytest.mark.slow
def test_the_readme_trains_a_model_within_its_budget() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    exec(compile(first_block("README.md"), "README.md", "exec"), names)
    assert names["result"].metrics["accuracy"] > 0.8
    assert names["result"].statement.within_budget


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    exec(compile(example(), "exchange-ballots.md", "exec"), names)
    mean, variance, count = map(float, capsys.readouterr().out.split("\n")[0].split())
    # The mean of 7850 entries, each with this variance, within six standard deviations.
    assert abs(mean - 0.01) < 6 * (variance / 7850) ** 0.5
    assert count == names["tally"].count == 1000
    wire = names["vote"](names["round_key"].user(5000).to_bytes(), names["update"])
    assert len(wire) == 40 + 16 + 982
    assert hb.Ballot.from_bytes(wire).mac is not None


def test_the_secret_stays_at_the_server() -> None:
    """The user's function reads no name of the server's part; the server requires MACs."""
    tree = ast.parse(example())
    (vote,) = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    assert [argument.arg for argument in vote.args.args] == ["key_bytes", "update"]
    read = {node.id for node in ast.walk(vote) if isinstance(node, ast.Name)}
    assert read == {"hb", "mechanism", "key", "key_bytes", "ballot", "update"}
    assert "require_mac=True" in example()
    assert "round_key.user(n).to_bytes()" in example()
