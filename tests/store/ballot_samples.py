"""Ballots for the tests of the store, and a helper that writes them to a file."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

import hushbit as hb
from hushbit.store.ballot_files import ballot_path, ballot_writer
from hushbit.wire.ballot import Ballots
from hushbit.wire.coins import SimulationCoins

KEY = hb.RoundKey(bytes(range(32)), 3, b"stored run")
CPA = hb.CPA(53, 0.5, 1.0, points=4)


def encode_users(users: Any, mechanism: Any = CPA, key: hb.RoundKey = KEY) -> Ballots:
    """Ballots of users whose updates depend on their numbers."""
    users = np.asarray(users)
    updates = np.sin(np.outer(users + 1.0, np.arange(1, mechanism.dim + 1)))
    ballots: Ballots = mechanism.encode_many(updates, key.users(users), SimulationCoins(1))
    return ballots


def with_macs(ballots: Ballots) -> Ballots:
    """The ballots with the MACs that their users make."""
    return ballots.with_macs(KEY.users(ballots.users))


def write_ballots(folder: Path, mechanism: Any, batches: Iterable[Ballots], name: str) -> Path:
    """Write batches of round 3 to one file, with MACs."""
    with ballot_writer(folder, mechanism, KEY, name) as write:
        for batch in batches:
            write(with_macs(batch))
    return ballot_path(folder, KEY.round, name)
