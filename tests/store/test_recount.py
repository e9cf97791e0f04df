"""A recount of stored ballots gives the bits of the run, with a defence or with damaged rows."""

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from hushbit.engine import SerialEngine
from hushbit.errors import DamagedFile
from hushbit.lab.sim.defences import robust_estimate
from hushbit.lab.sim.rounds import UserBatch, initial_state, train_and_tally
from hushbit.lab.sim.settings import Settings
from hushbit.lab.sim.setup import build_setup, simulation_secret
from hushbit.store.ballot_files import find_ballot_files, publish_round
from hushbit.store.recount import count_folder

RUN = b"attacked run"


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray, int]:
    """Ballots of a defended round under attack, its estimate, and how many were removed."""
    folder = tmp_path_factory.mktemp("ballots")
    setup = build_setup(
        Settings(
            dataset="digits",
            users=150,
            rounds=1,
            mechanism="cpa",
            epsilon_per_bit=2.0,
            radius=0.05,
            attack="directed",
            attackers=0.4,
            defence="scores",
            seed=4,
        )
    )
    setup = dataclasses.replace(setup, ballots=folder, run=RUN)
    batch = UserBatch(0, np.arange(150), initial_state(setup).params, setup.mechanism)
    with publish_round(folder, 0, RUN):
        votes = train_and_tally(setup, batch)
    assert votes.removals is not None
    estimate = robust_estimate(setup.settings, setup.mechanism, votes.tally, votes.ballots)
    removed = int((~votes.removals.result.accepted).sum())
    return folder, estimate.mean, removed


def counted(folder: Path, out: Path, skip_damaged: bool = False) -> dict:
    out.mkdir()
    files, _ = find_ballot_files(folder)
    return count_folder(
        files,
        simulation_secret(4),
        RUN,
        out,
        decoder="mean",
        trim=0.1,
        defence="scores",
        skip_damaged=skip_damaged,
        engine=SerialEngine(),
        damaged={},
    )


def test_a_defended_recount_equals_the_run(
    attacked: tuple[Path, np.ndarray, int], tmp_path: Path
) -> None:
    folder, mean, removed = attacked
    report = counted(folder, tmp_path / "t")
    assert removed > 0
    assert report["rounds"][0]["refused"] == {"filtered": removed}
    assert np.array_equal(np.load(tmp_path / "t" / "round-0.mean.npy"), mean)


def test_damaged_rows_are_skipped_before_the_defence(
    attacked: tuple[Path, np.ndarray, int], tmp_path: Path
) -> None:
    folder, _, _ = attacked
    (path,) = folder.rglob("*.parquet")
    table = pq.read_table(path)
    home = tmp_path / "ballots" / "round=0"
    home.mkdir(parents=True)
    pq.write_table(
        table,
        home / "a.parquet",
        row_group_size=100,
        compression="none",
        use_dictionary=False,
        write_page_checksum=True,
    )
    raw = bytearray((home / "a.parquet").read_bytes())
    raw[len(raw) // 3] ^= 0xFF
    (home / "a.parquet").write_bytes(raw)
    with pytest.raises(DamagedFile):
        counted(tmp_path / "ballots", tmp_path / "strict")
    (row,) = counted(tmp_path / "ballots", tmp_path / "t", skip_damaged=True)["rounds"]
    assert row["refused"]["damaged"] == 100
    assert row["counted"] + row["refused"]["filtered"] == 50
