"""Real processes on loopback: TLS, node authentication, kills and resumption."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import hushbit as hb
from flower.deployment import POLICY, Deployment, rows, until

pytestmark = pytest.mark.flower

NODES = ("ann", "bob", "eve")
TIMEOUT = 240


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    made = Deployment(tmp_path_factory.mktemp("net"))
    try:
        made.link = made.superlink()
        made.nodes = {name: made.node(name, at) for at, name in enumerate(NODES)}
        for name in NODES:
            until(lambda name=name: made.online(name), 90, f"{name} is not online")
        yield made
    finally:
        made.stop()


def finish(net: Deployment, folder: Path) -> list[dict[str, object]]:
    until(lambda: (folder / "done").exists(), TIMEOUT, f"{folder.name} did not end")
    return rows(folder)


def ballots(net: Deployment, name: str) -> int:
    return len(hb.Ledger.open(net.folder / f"{name}-home" / "ledger.db").entries())


def hold(net: Deployment, name: str) -> None:
    """Make the next training of a node wait, and remove the mark of earlier training."""
    home = net.folder / f"{name}-home"
    (home / "training").unlink(missing_ok=True)
    (home / "wait").touch()


def training(net: Deployment, name: str) -> None:
    place = net.folder / f"{name}-home" / "training"
    until(place.exists, TIMEOUT, f"{name} was not asked to train")


def release(net: Deployment, name: str) -> None:
    (net.folder / f"{name}-home" / "wait").unlink()


def test_a_round_completes_without_an_unregistered_node(net: Deployment) -> None:
    unregistered = net.node("mallory", 9, register=False)
    until(lambda: unregistered.poll() is not None, 90, "the unregistered node was not refused")
    assert not net.online("mallory")
    folder = net.folder / "first"
    net.run(folder, rounds=1, deadline=120)
    [row] = finish(net, folder)
    assert (row["asked"], row["accepted"], row["refused"], row["model_updated"]) == (3, 3, 0, 1)
    assert [ballots(net, name) for name in NODES] == [1, 1, 1]
    home = net.folder / "mallory-home"
    assert not (home / "training").exists()
    assert not (home / "ledger.db").exists()


def test_a_client_over_budget_refuses_and_others_are_counted(net: Deployment) -> None:
    policy = net.folder / "eve-home" / "policy.toml"
    policy.write_text(POLICY.format(budget=1500.0))
    folder = net.folder / "poor"
    net.run(folder, rounds=1, deadline=120)
    [row] = finish(net, folder)
    assert (row["accepted"], row["refused_budget"], row["model_updated"]) == (2, 1, 1)
    assert ballots(net, "eve") == 1
    assert "budget is spent" in net.log("eve")
    policy.write_text(POLICY.format(budget=1e9))


def accounted(rows: list[dict[str, object]]) -> int:
    """The ballots that may have been charged: counted, refused by the server, or listed."""
    for row in rows:
        found = [int(row[k]) for k in ("accepted", "refused", "lost", "unanswered")]  # type: ignore[call-overload]
        assert row["asked"] == sum(found), row
    return sum(int(row[k]) for row in rows for k in ("accepted", "lost", "unanswered"))  # type: ignore[call-overload]


def test_every_charged_ballot_is_listed_when_a_node_is_killed(net: Deployment) -> None:
    before = [ballots(net, name) for name in NODES]
    hold(net, "bob")
    folder = net.folder / "killed-node"
    net.run(folder, rounds=1, deadline=45)
    training(net, "bob")
    net.kill(net.nodes["bob"])
    [row] = finish(net, folder)
    assert (row["asked"], row["accepted"], row["model_updated"]) == (3, 2, 1), net.log("superlink")
    assert row["seconds"] < 45 + 30
    charged = [ballots(net, name) - old for name, old in zip(NODES, before, strict=True)]
    assert charged == [1, 1, 1]
    assert accounted([row]) == sum(charged)
    release(net, "bob")
    net.nodes["bob"] = net.revive("bob", 1)


def resumed(net: Deployment, folder: Path, before: list[int]) -> None:
    """The run was resumed: three rounds, each once, no user counted twice."""
    made = finish(net, folder)
    assert [row["round"] for row in made] == [1, 2, 3]
    assert all(row["accepted"] <= 3 and row["model_updated"] == 1 for row in made)
    accounted(made)
    counted = sum(int(row["accepted"]) for row in made)
    sent = sum(ballots(net, name) for name in NODES) - sum(before)
    assert counted <= sent


def test_a_killed_server_app_resumes_after_its_last_round(net: Deployment) -> None:
    before = [ballots(net, name) for name in NODES]
    folder = net.folder / "killed-app"
    net.run(folder, rounds=3, deadline=120)
    until(lambda: len(rows(folder)) >= 1, TIMEOUT, "no round was done")
    hold(net, "ann")
    training(net, "ann")
    os.kill(net.server_app(), signal.SIGKILL)
    release(net, "ann")
    kept = rows(folder)
    assert 1 <= len(kept) < 3
    time.sleep(2)
    net.run(folder, rounds=3, deadline=120)
    resumed(net, folder, before)
    assert rows(folder)[: len(kept)] == kept


def test_a_run_resumes_after_the_superlink_is_killed(net: Deployment) -> None:
    before = [ballots(net, name) for name in NODES]
    folder = net.folder / "killed-link"
    net.run(folder, rounds=3, deadline=120)
    until(lambda: len(rows(folder)) >= 1, TIMEOUT, "no round was done")
    hold(net, "ann")
    training(net, "ann")
    net.kill(net.link)
    release(net, "ann")
    kept = rows(folder)
    net.link = net.superlink()
    net.run(folder, rounds=3, deadline=120)
    resumed(net, folder, before)
    assert rows(folder)[: len(kept)] == kept
