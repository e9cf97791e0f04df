"""Size of messages, and peak memory of the server process."""

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flower.parts import (
    SECRET,
    LocalGrid,
    context,
    federation,
    record,
    serialized,
    shifting_app,
    train_message,
)
from hushbit.flower.strategy import HushbitStrategy

DIM = 1_000_000
MODEL = {"w": np.zeros(DIM, np.float32)}


def shift(arrays: Any) -> Any:
    return {name: array + np.float32(0.01) for name, array in arrays.items()}


def test_a_million_weights_need_a_million_bits(tmp_path: Path) -> None:
    grid = LocalGrid(federation(tmp_path, [shift]))
    strategy = HushbitStrategy(
        "cpa",
        epsilon_per_bit=1.0,
        radius=0.05,
        secret=SECRET,
        delta=1e-5,
        quorum=1,
        deadline_seconds=60,
    )
    strategy.start(grid, record(MODEL), num_rounds=1)
    [ours] = grid.bytes_up
    assert 8 * ours / DIM <= 1.03
    plain = shifting_app(shift, [])(train_message(MODEL, {"lr": 0.1}), context())
    theirs = serialized(plain)[1]
    assert theirs >= 30 * ours


@pytest.mark.flower
def test_memory_does_not_grow_with_users(tmp_path: Path) -> None:
    tests = Path(__file__).parents[1]
    paths = os.pathsep.join([str(tests), os.environ.get("PYTHONPATH", "")])
    peaks = []
    for users in (8, 64):
        folder = tmp_path / str(users)
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, Path(__file__).with_name("memory.py"), str(users), str(DIM), folder],
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        peaks.append(int(done.stdout.split()[-1]))
    assert math.isclose(peaks[0], peaks[1], rel_tol=0.10), peaks
