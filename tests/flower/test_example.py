"""The quickstart example: the policy of its users, and a simulated run."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

import hushbit as hb
from flower.test_simulation import QUIET, without_network
from hushbit.errors import InvalidInput
from hushbit.flower.description_limits import RequestRefused

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


def test_a_run_cannot_choose_policy_or_ledger(
    my_policy: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    chosen = {"ledgers": str(tmp_path / "run"), "hushbit-policy": str(tmp_path / "policy.toml")}
    with pytest.raises(RequestRefused, match="no policy"):
        my_policy(node(chosen))
    monkeypatch.setenv("HUSHBIT_LEDGERS", str(tmp_path / "machine"))
    simulated = my_policy(node(chosen))
    assert simulated.ledger == tmp_path / "machine" / "user-3.db"
    assert simulated.simulation
    absent = {"hushbit-policy": str(tmp_path / "absent.toml")}
    with pytest.raises(InvalidInput, match=r"absent\.toml"):
        my_policy(node(chosen, **absent))
    assert not (tmp_path / "run").exists()


@pytest.mark.flower
def test_the_example_runs_in_a_simulation(tmp_path: Path) -> None:
    program = Path(__file__).with_name("simulated_example.py")
    own = {"FLWR_HOME": str(tmp_path), "HUSHBIT_LEDGERS": str(tmp_path / "ledgers")}
    paths = os.pathsep.join(
        [str(EXAMPLE), str(program.parents[1]), os.environ.get("PYTHONPATH", "")]
    )
    done = subprocess.run(
        without_network([sys.executable, program, tmp_path, "5"]),
        env={**os.environ, **QUIET, **own, "PYTHONPATH": paths},
        timeout=500,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    assert [(row["accepted"], row["refused"]) for row in rows] == [(5, 0)] * 3
    assert len(hb.Ledger.open(tmp_path / "ledgers" / "user-4.db").entries()) == 3
