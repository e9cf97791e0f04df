"""The policy of a node: its file, the policy of simulated users, or a refusal."""

import stat
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Context, RecordDict

import hushbit as hb
from flower.parts import LocalGrid, add, run, shifting_app, strategy
from hushbit.flower import client
from hushbit.flower import node_policy as policy_of
from hushbit.flower.client import ClientApp, HushbitMod
from hushbit.flower.refusals import RequestInvalid
from hushbit.tuning.auto import AutoCPA

module: Any = __import__("hushbit.flower.node_policy", fromlist=["in_simulation"])


def node(partition: int = 3, run_config: Any = None, **config: Any) -> Context:
    own = {"partition-id": partition, "num-partitions": 5} | config
    return Context(8, 1, own, RecordDict(), run_config or {})


@pytest.fixture
def simulated(monkeypatch: Any, tmp_path: Path) -> Path:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    for place in (module, client):
        monkeypatch.setattr(place, "in_simulation", lambda: True)
    return tmp_path


def test_this_process_is_no_worker_of_the_simulation_engine() -> None:
    assert not module.in_simulation()


def test_environment_variables_do_not_make_a_simulation(monkeypatch: Any) -> None:
    """A node of a deployment whose environment looks like that of a worker of Ray."""
    forged = {
        "RAY_ADDRESS": "ray://127.0.0.1:1",
        "RAY_ENABLE_AUTO_CONNECT": "1",
        "RAY_CLIENT_MODE": "1",
        "RAY_WORKER_MODE": "1",
        "RAY_JOB_ID": "01000000",
        "RAY_ACTOR_ID": "0" * 32,
        "FLWR_SIMULATION": "1",
    }
    for name, value in forged.items():
        monkeypatch.setenv(name, value)
    pytest.importorskip("ray")
    assert not module.in_simulation()
    with pytest.raises(RequestInvalid, match="no policy"):
        policy_of(node())


@pytest.mark.parametrize(("initialized", "actor"), [(False, "a"), (True, None), (True, "a")])
def test_only_an_actor_of_ray_is_simulated(
    monkeypatch: Any, initialized: bool, actor: str | None
) -> None:
    runtime = SimpleNamespace(get_actor_id=lambda: actor)
    ray = SimpleNamespace(is_initialized=lambda: initialized, get_runtime_context=lambda: runtime)
    monkeypatch.setitem(module.sys.modules, "ray", ray)
    assert module.in_simulation() == (initialized and actor is not None)


def test_a_run_cannot_choose_policy_or_ledger(simulated: Path, monkeypatch: Any) -> None:
    chosen = {"hushbit-policy": "/run/policy.toml", "partition-id": 4}
    made = policy_of(node(run_config=chosen))
    assert made.simulation
    assert made.ledger.name == "partition-3.db"
    monkeypatch.setattr(module, "in_simulation", lambda: False)
    with pytest.raises(RequestInvalid, match="no policy"):
        policy_of(node(run_config=chosen))


def test_every_partition_and_run_has_a_ledger_of_its_own(simulated: Path) -> None:
    first, second = policy_of(node(0)), policy_of(node(1))
    other = policy_of(Context(9, 1, {"partition-id": 0}, RecordDict(), {}))
    assert len({made.ledger for made in (first, second, other)}) == 3
    assert (first.user, second.user) == ("simulated user 0", "simulated user 1")
    [top] = simulated.iterdir()
    assert stat.S_IMODE(top.stat().st_mode) == 0o700


def test_a_folder_of_another_account_is_refused(simulated: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(module.os, "getuid", lambda: 12345678)
    with pytest.raises(RequestInvalid, match="another account"):
        policy_of(node())


def test_the_simulation_policy_allows_every_mechanism(simulated: Path) -> None:
    mine = policy_of(node())
    budgets = [
        hb.Budget(8, 1e-5, per="run", against="model"),
        hb.Budget(8, 1e-5, per="message", against="server"),
        hb.Budget(8, 0.0, per="message", against="server"),
        hb.Budget(0.5, 0.0, per="bit", against="server"),
    ]
    for budget in budgets:
        more = {"rounds": 3, "honest": 10} if budget.against == "model" else {}
        mine.check(AutoCPA(40, 10, budget=budget, **more))
    mine.check(hb.CPA(40, 0.5, 0.05, lattice="E8", points=16))
    mine.check(hb.baselines.FedAvg(40))


def test_simulated_users_vote_without_any_setting(simulated: Path) -> None:
    apps = {100 + at: shifting_app(add(0.01), [HushbitMod()]) for at in range(3)}
    budget = hb.Budget(8, 1e-5, per="run", against="model")
    made = strategy(None, budget=budget, rounds=2, honest=3, quorum=None, delta=None)
    result = run(LocalGrid(apps), made, rounds=2)
    assert result.train_metrics_clientapp[2]["accepted"] == 3
    # A simulated user sends the metrics of its app, which a deployment would not.
    assert result.train_metrics_clientapp[2]["users_loss"] == 0.25
    ledgers = sorted(simulated.glob("*/run-1/partition-*.db"))
    assert [len(hb.Ledger.open(place).entries()) for place in ledgers] == [2, 2, 2]


def test_client_app_lists_the_mod_first(simulated: Path) -> None:
    order: list[str] = []

    def outer(message: Any, context: Any, call_next: Any) -> Any:
        order.append("other mod")
        return call_next(message, context)

    app = ClientApp(mods=[outer])
    app.train()(shifting_app(add(0.01), [])._registered_funcs["train.default"])
    result = run(LocalGrid({100: app}), strategy("cpa", epsilon_per_bit=1.0, radius=0.05))
    assert result.train_metrics_clientapp[1]["accepted"] == 1
    assert order == ["other mod"]
