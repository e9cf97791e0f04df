"""Folders of tallies: whole or not at all, also after a kill; filtered as in a run."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from hushbit.engine import Alone
from hushbit.errors import DamagedFile, InvalidInput
from hushbit.fl.rounds import start
from hushbit.fl.secret import simulation_secret
from hushbit.fl.settings import Settings
from hushbit.fl.setup import prepare
from hushbit.fl.votes import Span, cast_votes
from hushbit.rest.report import count_folder, new_folder
from hushbit.rest.scratch import LOCK
from hushbit.rest.store import find_sources, whole_round
from hushbit.robust.round import robust_estimate

FILLING = """
import sys, time
from pathlib import Path
from hushbit.rest.report import new_folder
with new_folder(Path(sys.argv[1])) as place:
    (place / "part").write_text("half")
    print("ready", flush=True)
    time.sleep(60)
"""


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    with new_folder(tmp_path / "deep" / "out") as place:
        (place / "a").write_text("x")
        assert not (tmp_path / "deep" / "out").exists()
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["out"]
    assert [path.name for path in (tmp_path / "deep" / "out").iterdir()] == ["a"]
    with pytest.raises(InvalidInput, match="exists already"), new_folder(tmp_path / "deep" / "out"):
        pass


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    def fail(target: Path) -> None:
        with new_folder(target) as place:
            (place / "a").write_text("x")
            raise DamagedFile("no")

    with pytest.raises(DamagedFile, match="no"):
        fail(tmp_path / "out")
    with pytest.raises(DamagedFile, match="nothing was kept"), new_folder(tmp_path / "out"):
        raise OSError(28, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_of_two_at_once_one_is_kept_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def both() -> None:
        with new_folder(out) as late:
            (late / "late").write_text("x")
            with new_folder(out) as early:
                (early / "early").write_text("x")

    with pytest.raises(InvalidInput, match="another process"):
        both()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in out.iterdir()] == ["early"]


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_fills_is_not(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out[1]"
    command = [sys.executable, "-c", FILLING, str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as filling:
        assert filling.stdout is not None
        assert filling.stdout.readline() == "ready\n"
        with pytest.raises(DamagedFile), new_folder(out):
            raise DamagedFile("no")
        (left,) = tmp_path.iterdir()
        assert (left / "part").exists()
        filling.kill()
    assert (left / LOCK).exists()
    with new_folder(out) as place:
        (place / "a").write_text("x")
    assert [path.name for path in tmp_path.iterdir()] == ["out[1]"]
    assert [path.name for path in out.iterdir()] == ["a"]


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray, int]:
    """Ballots of a defended round under attack, its estimate, and how many were removed."""
    folder = tmp_path_factory.mktemp("ballots")
    setup = prepare(
        Settings(dataset="digits", users=150, rounds=1, mechanism="cpa", epsilon_per_bit=2.0,
                 radius=0.05, attack="directed", attackers=0.2, defence="spectral", seed=4)
    )  # fmt: skip
    setup = dataclasses.replace(setup, ballots=folder)
    span = Span(0, np.arange(150), start(setup).params, setup.mechanism)
    with whole_round(folder, 0):
        votes = cast_votes(setup, span)
    assert votes.removals is not None
    estimate = robust_estimate(setup.settings, setup.mechanism, votes.tally, votes.ballots)
    return folder, estimate.mean, int((~votes.removals.verdict.accepted).sum())


def counted(folder: Path, place: Path, skip_damaged: bool = False) -> dict:
    place.mkdir()
    sources, _ = find_sources(folder)
    return count_folder(
        sources, simulation_secret(4), place, decoder="mean", trim=0.1, spectral=True,
        skip_damaged=skip_damaged, engine=Alone(), damaged={},
    )  # fmt: skip


def test_a_filtered_recount_has_the_bits_of_the_run(
    attacked: tuple[Path, np.ndarray, int], tmp_path: Path
) -> None:
    folder, mean, removed = attacked
    report = counted(folder, tmp_path / "t")
    assert removed > 0
    assert report["rounds"][0]["refused"] == {"filtered": removed}
    assert np.array_equal(np.load(tmp_path / "t" / "round-0.mean.npy"), mean)


def test_a_filter_goes_on_without_damaged_rows(
    attacked: tuple[Path, np.ndarray, int], tmp_path: Path
) -> None:
    folder = attacked[0]
    (path,) = folder.rglob("*.parquet")
    table = pq.read_table(path)
    home = tmp_path / "ballots" / "round=0"
    home.mkdir(parents=True)
    pq.write_table(table, home / "a.parquet", row_group_size=100, compression="none",
                   use_dictionary=False, write_page_checksum=True)  # fmt: skip
    raw = bytearray((home / "a.parquet").read_bytes())
    raw[len(raw) // 3] ^= 0xFF
    (home / "a.parquet").write_bytes(raw)
    with pytest.raises(DamagedFile):
        counted(tmp_path / "ballots", tmp_path / "strict")
    (row,) = counted(tmp_path / "ballots", tmp_path / "t", skip_damaged=True)["rounds"]
    assert row["refused"]["damaged"] == 100
    assert row["counted"] + row["refused"]["filtered"] == 50
