"""A strategy from a budget: what it chooses, its limits, its state and its accuracy."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hushbit as hb
from flower.parts import (
    MODEL,
    OPEN,
    SECRET,
    LocalGrid,
    add,
    federation,
    record,
    run,
    run_unchanged,
    strategy,
    values,
)
from hushbit.errors import InvalidInput
from hushbit.flower import client
from hushbit.flower.strategy import CONFIG_FILE, HushbitStrategy
from hushbit.store.run_folder import RunFolder
from hushbit.tuning.auto import AutoCPA
from hushbit.wire.coins import SimulationCoins

MODEL_BUDGET = hb.Budget(8, 1e-5, per="run", against="model")
ALLOWED = {"epsilon_per_bit": 64.0, "mechanisms": ("NormVote/Rotated/CPA", "Rotated/CPA")}


def budgeted(**changes: Any) -> HushbitStrategy:
    options = {"budget": MODEL_BUDGET, "rounds": 4, "honest": 5, "secret": SECRET}
    return HushbitStrategy(**(options | changes))


def test_only_a_budget_has_to_be_given(tmp_path: Path) -> None:
    grid = LocalGrid(federation(tmp_path, [add(0.01)] * 5, **ALLOWED))
    made = HushbitStrategy(budget=MODEL_BUDGET, rounds=2, honest=5)
    result = run(grid, made, rounds=2)
    assert result.train_metrics_clientapp[2]["accepted"] == 5
    last = result.train_metrics_clientapp[2]
    assert (last["delta"], last["honest"]) == (1e-5, 5)
    assert 7 < last["epsilon_run_model"] <= 8 < last["epsilon_run_server"]
    assert (made.quorum, made.delta) == (5, 1e-5)


def test_the_budget_chooses_the_mechanism() -> None:
    auto = budgeted().privacy.build(40, 5)
    assert isinstance(auto, AutoCPA)
    assert 7.9 < auto.guarantee.of_tally(5, 4, delta=1e-5).epsilon <= 8
    clipped = budgeted(clip=0.5).privacy.build(40, 5)
    assert clipped == hb.calibrate(40, MODEL_BUDGET, rounds=4, honest=5, clip=0.5)
    per_bit = hb.Budget(0.5, 0.0, per="bit", against="server")
    made = budgeted(budget=per_bit, rounds=None, honest=None, quorum=3, delta=1e-5)
    assert made.privacy.build(40, 3).guarantee.epsilon_per_bit == 0.5


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"rounds": None}, "rounds"),
        ({"honest": None, "quorum": 3}, "honest"),
        ({"honest": None}, "pass honest="),
        ({"quorum": 4}, "quorum must be"),
        ({"honest": 0.9}, "users_per_round"),
        ({"users": 5}, "users_per_round"),
        ({"mechanism": MODEL_BUDGET, "budget": None}, "budget="),
        ({"budget": 8.0}, "budget must be a Budget"),
        ({"mechanism": "cpa"}, "but not both"),
        ({"budget": None}, "but not both"),
        ({"radius": 0.1}, "unknown options: radius"),
        ({"clip": -1.0}, "clip"),
        (
            {"mechanism": hb.CPA(40, 0.5, 0.1), "clip": 0.3, "budget": None}
            | {"rounds": None, "honest": None, "quorum": 1, "delta": 1e-5},
            "clip applies to a budget or to a mechanism given by name",
        ),
        ({"folder": "x", "secret": None}, "load_secret"),
        ({"users_per_round": 4}, "honest must be"),
        (
            {
                "budget": hb.Budget(1, 0.0, per="message", against="server"),
                "rounds": None,
                "honest": None,
                "quorum": 3,
            },
            "delta is missing",
        ),
    ],
)
def test_wrong_budgets_are_refused(changes: Any, text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        budgeted(**changes)


def test_rounds_and_honest_belong_to_a_budget() -> None:
    with pytest.raises(InvalidInput, match="belong to a budget"):
        strategy("cpa", epsilon_per_bit=1.0, radius=0.1, rounds=3)


def test_a_share_of_honest_users_needs_their_number(tmp_path: Path) -> None:
    made = budgeted(honest=0.9, users_per_round=10)
    assert (made.quorum, made.privacy.honest, made.users_per_round) == (9, 9, 10)
    run(LocalGrid(federation(tmp_path, [add(0.01)] * 10, **ALLOWED)), made)
    assert isinstance(made._mechanism, AutoCPA)
    assert made._mechanism.users == 10


def test_more_rounds_than_the_budget_covers_are_refused_before_a_request(tmp_path: Path) -> None:
    grid = LocalGrid(federation(tmp_path, [add(0.01)] * 5, **ALLOWED))
    with pytest.raises(InvalidInput, match="covers 4 rounds"):
        run(grid, budgeted(), rounds=5)
    assert not (tmp_path / "0" / "ledger.db").exists()


@pytest.mark.parametrize("short", [0, 1])
def test_a_tally_of_fewer_voters_than_stated_is_not_used(tmp_path: Path, short: int) -> None:
    """With fewer ballots than honest voters, the estimate would reveal more than the budget."""
    apps = federation(tmp_path, [add(0.01)] * 6, **ALLOWED)
    dropped = {100} | ({101} if short else set())
    grid = LocalGrid(apps, lambda a, r: [] if a.metadata.dst_node_id in dropped else [r])
    made = budgeted(deadline_seconds=4.0)
    if short:
        result = run_unchanged(grid, made)
        assert np.array_equal(values(result)["w"], MODEL["w"])
        assert made._mechanism.round == 1  # nothing was released
    else:
        assert run(grid, made).train_metrics_clientapp[1]["model_updated"] == 1
        assert made._mechanism.round == 2


def test_the_clip_of_the_policy_lowers_the_cost(tmp_path: Path) -> None:
    """The clip that norm votes choose starts near 1; the policy's smaller clip counts."""
    costs = []
    for clip in (100.0, 0.01):
        place = tmp_path / str(clip)
        place.mkdir()
        run(LocalGrid(federation(place, [add(0.01)] * 5, l2_clip=clip, **ALLOWED)), budgeted())
        ledger = hb.Ledger.open(place / "0" / "ledger.db")
        costs.append(ledger.spent("me").epsilon)
    assert costs[1] < 0.7 * costs[0]  # what remains is the cost of the norm vote


def uniform(rng: np.random.Generator, size: float) -> np.ndarray:
    return (size * rng.standard_normal(40)).astype(np.float32)


def test_the_strategy_computes_what_the_simulator_computes(
    tmp_path: Path, monkeypatch: Any
) -> None:
    """The same updates, keys and coins give the same models and checkpoints, bit by bit."""
    pytest.importorskip("torch")
    from hushbit.lab.sim import rounds as simulator
    from hushbit.lab.sim.settings import Settings
    from hushbit.lab.sim.setup import build_setup

    users, rounds = 6, 4
    budget = {"epsilon": 8.0, "delta": 1e-5, "per": "run", "against": "model", "server_rate": 1.0}
    settings = Settings(
        users=users, rounds=rounds, mechanism="cpa-auto", honest=1.0, server="plain", **budget
    )
    setup = replace(build_setup(settings), run=b"r" * 16)
    train_users = simulator.train_users

    def rounded_updates(
        setup: Any, number: int, chosen: Any, params: Any, state: Any = None
    ) -> Any:
        """A Flower app returns a model, so the client sends the difference of two models."""
        for chunk in train_users(setup, number, chosen, params, state):
            yield chunk._replace(updates=(params + chunk.updates) - params)

    monkeypatch.setattr(simulator, "train_users", rounded_updates)
    monkeypatch.setattr(client, "OsCoins", lambda: SimulationCoins(settings.seed))
    monkeypatch.setattr("hushbit.flower.strategy.secrets.token_bytes", lambda _: setup.run)
    expected = simulator.initial_state(setup)
    shown: list[int] = []

    def train(at: int) -> Any:
        def one_user(before: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            [chunk] = train_users(setup, len(shown) - 1, np.array([at]), before["w"])
            return {"w": before["w"] + chunk.updates[0]}

        return one_user

    def compare(number: int, arrays: Any) -> None:
        """Called before the first round and after each round, before its checkpoint."""
        shown.append(number)
        if number:
            simulator.one_round(setup, expected)
        assert arrays["w"].numpy().tobytes() == expected.params.tobytes()

    grid = LocalGrid(federation(tmp_path, [train(at) for at in range(users)], **ALLOWED))
    made = HushbitStrategy(
        setup.mechanism,
        delta=1e-5,
        quorum=users,
        users={100 + at: at for at in range(users)},
        secret=setup.secret,
        folder=tmp_path / "run",
    )
    run(grid, made, rounds=rounds, model={"w": expected.params}, evaluate_fn=compare)
    assert shown == list(range(rounds + 1))
    saved = RunFolder(tmp_path / "run", CONFIG_FILE).read_checkpoint()
    assert saved is not None
    assert saved.groups["model"]["w"].tobytes() == expected.params.tobytes()
    assert expected.tuning["round"] == rounds + 1
    assert set(saved.groups["tuning"]) == set(expected.tuning)
    for name, value in expected.tuning.items():
        assert saved.groups["tuning"][name].tobytes() == value.tobytes(), name


class Killed(Exception):
    pass


def test_a_resumed_run_continues_the_tuning(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(client, "OsCoins", lambda: SimulationCoins(1))
    monkeypatch.setattr("hushbit.flower.strategy.RUN_BYTES", 0)
    monkeypatch.setattr("hushbit.flower.strategy.secrets.token_bytes", lambda n: b"r" * 16)

    def go(name: str, stop: int | None) -> Any:
        place = tmp_path / name / ("a" if stop else "b")
        place.mkdir(parents=True)
        grid = LocalGrid(federation(place, [add(0.03)] * 5, **ALLOWED))
        made = budgeted(folder=tmp_path / name / "run")

        def evaluate(number: int, arrays: Any) -> None:
            if number == stop:
                raise Killed

        return made, made.start(grid, record(MODEL), num_rounds=4, evaluate_fn=evaluate)

    whole, expected = go("whole", None)
    with pytest.raises(Killed):
        go("parts", 3)
    resumed, found = go("parts", None)
    assert np.array_equal(values(expected)["w"], values(found)["w"])
    for name, value in whole._mechanism.state.items():
        assert np.array_equal(value, resumed._mechanism.state[name]), name
    config = json.loads((tmp_path / "parts" / "run" / "flower.json").read_text())
    assert config["rounds"] == 4
    larger = hb.Budget(9, 1e-5, per="run", against="model")
    other = budgeted(budget=larger, folder=tmp_path / "parts" / "run")
    with pytest.raises(InvalidInput, match="another budget"):
        run(LocalGrid(federation(tmp_path, [add(0.1)], **OPEN)), other, rounds=4)
