"""The policy of users in the quickstart example."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from hushbit.errors import InvalidInput
from hushbit.flower.policy import RequestRefused

pytest.importorskip("torch")
pytest.importorskip("sklearn")
EXAMPLE = Path(__file__).parents[2] / "examples" / "quickstart-hushbit"


@pytest.fixture
def my_policy(monkeypatch: Any) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.delenv("HUSHBIT_LEDGERS", raising=False)
    place = EXAMPLE / "hushbitexample" / "client_app.py"
    spec = importlib.util.spec_from_file_location("example_client_app", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module.my_policy
    for name in [name for name in sys.modules if name.startswith("hushbitexample")]:
        del sys.modules[name]


def node(run_config: dict[str, Any], **more: Any) -> Context:
    config = {"partition-id": 3, "num-partitions": 5} | more
    return Context(1, 1, config, RecordDict(), run_config)


def test_the_ledger_folder_comes_from_the_run_or_the_environment(
    my_policy: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    with pytest.raises(RequestRefused, match="no policy"):
        my_policy(node({"ledgers": ""}))
    monkeypatch.setenv("HUSHBIT_LEDGERS", str(tmp_path / "shell"))
    assert my_policy(node({"ledgers": ""})).ledger == tmp_path / "shell" / "user-3.db"
    assert my_policy(node({})).ledger == tmp_path / "shell" / "user-3.db"
    named = node({"ledgers": str(tmp_path / "run")})
    assert my_policy(named).ledger == tmp_path / "run" / "user-3.db"
    with pytest.raises(RequestRefused, match="absolute path"):
        my_policy(node({"ledgers": "ledgers"}))


def test_a_run_cannot_replace_the_policy_of_a_node(my_policy: Any, tmp_path: Path) -> None:
    absent = {"hushbit-policy": str(tmp_path / "absent.toml")}
    with pytest.raises(InvalidInput, match=r"absent\.toml"):
        my_policy(node({"ledgers": str(tmp_path / "run")}, **absent))
    assert not (tmp_path / "run").exists()
