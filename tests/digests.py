"""Small runs of the command line: their metrics, and a digest of all bits of the metrics.

Commands are run in this process by their command line, so that this file does not depend on the
modules of the package. The only exception is `cells`: no command runs a sampled aggregate without
data files. `write()` replaces the golden file; use it only after an intended change of results.
"""

import contextlib
import hashlib
import io
import json
import runpy
import sys
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

FILE = Path(__file__).parent / "golden" / "digests.json"
KEPT = 4
TIMES = ("seconds", "cpu_seconds")
SMALL = (
    *("--dataset", "digits", "--users", "24", "--rounds", "3", "--seed", "3", "--workers", "1"),
    *("--pixels", "symmetric", "--batch-size", "16"),
)
LOUD = ("--epsilon-per-bit", "1.5")
RUNS: dict[str, tuple[str, ...]] = {
    "two points": ("--mechanism", "cpa", *LOUD),
    "nested": ("--mechanism", "nested", "--stages", "2,4", *LOUD),
    "auto": ("--mechanism", "cpa-auto", *LOUD),
    "laplace": ("--mechanism", "laplace", *LOUD),
    "constant bits and defence": (
        *("--mechanism", "cpa", *LOUD, "--users", "60", "--attack", "ones", "--attackers", "0.2"),
        *("--defence", "scores"),
    ),
    "attack and defence": (
        *("--mechanism", "cpa", "--epsilon-per-bit", "3", "--users", "80", "--rounds", "9"),
        *("--attack", "directed", "--attackers", "0.3", "--defence", "scores"),
    ),
}
CELLS: dict[str, dict[str, Any]] = {
    "sampled votes": {"mechanism": "cpa", "preset": "authors", "epsilon_per_bit": 1.5},
    "sampled noise": {"mechanism": "laplace", "epsilon_per_bit": 1.5, "rotate": True},
}


def call(*words: object) -> str:
    """The standard output of `hushbit WORDS`; raises an error if the command fails."""
    shown = io.StringIO()
    line = ["hushbit", *map(str, words)]
    with (
        mock.patch.object(sys, "argv", line),
        contextlib.redirect_stdout(shown),
        warnings.catch_warnings(),
    ):
        # Collecting doctests imports the very module that is run here.
        warnings.filterwarnings("ignore", message=".*found in sys.modules")
        try:
            runpy.run_module("hushbit", run_name="__main__")
        except SystemExit as ended:
            if ended.code:
                raise RuntimeError(f"{' '.join(line)} ended with {ended.code}") from None
    return shown.getvalue()


def timeless(row: dict[str, Any]) -> dict[str, Any]:
    """A row of metrics without the measured times."""
    return {
        name: value
        for name, value in row.items()
        if name not in TIMES and not name.startswith(tuple(f"{word}_" for word in TIMES))
    }


def digest_of_text(value: Any) -> str:
    """SHA-256 of JSON with sorted names; numbers are written so that no bit is lost."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def digest_of_array(array: np.ndarray) -> str:
    """SHA-256 of an array's type, shape and little-endian bytes."""
    plain = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    head = f"{plain.dtype.str} {plain.shape}".encode()
    return hashlib.sha256(head + plain.tobytes()).hexdigest()


def with_digest(figures: Any) -> dict[str, Any]:
    """Figures, and the digest of all their bits."""
    return {"figures": figures, "sha256": digest_of_text(figures)}


def metrics(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics without times."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [timeless(json.loads(line)) for line in lines]


def run(name: str, scratch: Path) -> list[dict[str, Any]]:
    """Run one of `RUNS` into a folder; its metrics."""
    folder = scratch / name
    call("run", *SMALL, *RUNS[name], "--out", folder, "--json")
    return metrics(folder)


def cell(name: str, scratch: Path) -> dict[str, Any]:
    """Compute one of `CELLS`; its outcome without the time, and the file that keeps it."""
    from hushbit.lab.experiments.cells import run_cells
    from hushbit.lab.sim.settings import PAPER_TRAINING, Settings

    folder, options = scratch / name, PAPER_TRAINING | CELLS[name]
    run_cells([Settings(users=120, rounds=3, seed=3, validation=200, **options)], folder)
    (kept,) = folder.iterdir()
    outcome = json.loads(kept.read_text(encoding="utf-8"))["outcome"]
    return {"file": kept.name, "outcome": timeless(outcome)}


def recount(scratch: Path) -> dict[str, Any]:
    """Store the ballots of a run and count them again: digests of report, tallies and means.

    Tallies are integers; the first entries of each mean are stored beside its digest.
    """
    ballots, counted = scratch / "ballots", scratch / "counted"
    call("run", *SMALL, *RUNS["nested"], "--ballots", ballots, "--json")
    report = json.loads(call("tally", ballots, "--seed", 3, "--out", counted, "--json"))
    made: dict[str, Any] = {"report": digest_of_text(report)}
    for path in sorted(counted.glob("*.tally")):
        made[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    for path in sorted(counted.glob("*.npy")):
        mean = np.load(path)
        made[path.name] = {"figures": mean[:KEPT].tolist(), "sha256": digest_of_array(mean)}
    return made


def digests(scratch: Path) -> dict[str, Any]:
    """Everything in the golden file."""
    made: dict[str, Any] = {name: with_digest(run(name, scratch)) for name in RUNS}
    made |= {name: with_digest(cell(name, scratch)) for name in CELLS}
    return made | {"recount": recount(scratch)}


def write(scratch: Path) -> None:
    """Replace the golden file by the current results; `scratch` is a new folder."""
    FILE.write_text(json.dumps(digests(scratch), indent=1, sort_keys=True) + "\n")
