"""Peak memory of a server that counts the ballots of many users: memory.py USERS DIM FOLDER."""

import resource
import sys
from pathlib import Path

import numpy as np

from flower.parts import SECRET, LocalGrid, add, federation, record
from hushbit.flower.strategy import HushbitStrategy

if __name__ == "__main__":
    users, dim, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    grid = LocalGrid(federation(folder, [add(0.01)] * users))
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
