"""Peak memory of a server that counts the ballots of many users: memory.py USERS DIM FOLDER."""

import math
import resource
import sys
from pathlib import Path

import numpy as np

from flower.parts import SECRET, LocalGrid, policy, record, shifting_app
from hushbit.flower.client import HushbitMod
from hushbit.flower.strategy import HushbitStrategy

if __name__ == "__main__":
    users, dim, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    mod = HushbitMod(policy(folder, budget=math.inf))
    app = shifting_app(lambda a: {k: v + np.float32(0.01) for k, v in a.items()}, [mod])
    grid = LocalGrid(dict.fromkeys(range(1, users + 1), app))
    strategy = HushbitStrategy(
        "cpa",
        epsilon_per_bit=1.0,
        radius=0.05,
        secret=SECRET,
        delta=1e-5,
        quorum=users,
        deadline_seconds=300,
    )
    result = strategy.start(grid, record({"w": np.zeros(dim, np.float32)}), num_rounds=1)
    assert result.train_metrics_clientapp[1]["accepted"] == users
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
