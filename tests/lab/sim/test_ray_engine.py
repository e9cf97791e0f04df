"""The Ray engine on a local cluster with several workers, one of which is killed."""

from pathlib import Path
from typing import Any

import pytest
import torch.nn.functional as F

from engine_jobs import SHARED, bits, count, deadly, jobs, merge, refuse
from hushbit.engine import SerialEngine
from hushbit.errors import HushbitError, InvalidInput, RefusedBallot
from hushbit.lab import Task
from hushbit.lab import run as run_task
from hushbit.lab.sim import rounds
from hushbit.lab.sim.engines import RayEngine
from hushbit.lab.sim.run import run
from hushbit.lab.sim.settings import Settings
from plain_fedavg import Regression, table

pytest.importorskip("ray")
pytestmark = pytest.mark.flower


def test_ray_trains_own_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=":")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    monkeypatch.setattr(rounds, "BATCH_USERS", 4)
    task = Task(Regression, F.mse_loss, [table(3) for _ in range(8)], table(5))
    alone, ray = (
        run_task(task, "cpa", epsilon_per_bit=2.0, rounds=2, engine=engine, workers=workers)
        for engine, workers in (("local", 1), ("ray", 2))
    )
    assert figures(alone) == figures(ray)


def figures(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """The figures of all rounds without times."""
    return [
        {name: value for name, value in row.items() if "seconds" not in name}
        for row in summary["history"]
    ]


def test_ray_gives_the_same_bits_and_survives_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=":")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    alone = bits(SerialEngine().run(count, SHARED, jobs(), merge))
    with RayEngine(3) as engine:
        assert engine.workers == 3
        assert bits(engine.run(count, SHARED, jobs(), merge)) == alone
        assert bits(engine.run(count, SHARED, deadly(tmp_path / "mark", 4), merge)) == alone
        assert (tmp_path / "mark.0").exists()
        with pytest.raises(RefusedBallot, match="another round"):
            engine.run(refuse, SHARED, jobs(), merge)
        with pytest.raises(HushbitError, match="more tries"):
            engine.run(count, SHARED, deadly(tmp_path / "again", 1, times=99), merge)
        defended = Settings(
            users=60,
            rounds=3,
            mechanism="cpa",
            epsilon_per_bit=1.0,
            rotate=True,
            clip=0.5,
            radius=0.04,
            attack="directed",
            attackers=0.3,
            defence="scores",
            seed=3,
        )
        assert figures(run(defended, engine=engine)) == figures(run(defended))


def test_workers_of_a_running_cluster_cannot_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with pytest.raises(InvalidInput, match="RAY_ADDRESS"):
        RayEngine(2)
