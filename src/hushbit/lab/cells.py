"""Runs that are kept: one run of settings with one seed is a cell, found again by its hash.

OUT/cells/HASH.json     written whole, by the process that made it, as soon as it is done
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hushbit.errors import DamagedFile, HushbitError, InvalidInput
from hushbit.files import write_text
from hushbit.fl.settings import Settings

if TYPE_CHECKING:
    from hushbit.lab.bench import Bench

CELL_FORMAT = 1
THREADS = ("HUSHBIT_THREADS", "NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
FREE = ("memory_mb",)  # options that never change a result


@dataclass(frozen=True)
class Outcome:
    """What a run gave.

    accuracy        test accuracy of the last round's model, in percent
    validation      its validation accuracy in percent: what tuning looks at
    snr_db          10 log10 of the mean over rounds of var(mean update) / var(error)
    snr_median_db   the same with the median over rounds
    snr_wiener_db   snr_db of the best guess of each round's mean (`hushbit.tuning.guess`); None in
                    cells of the published decoder, which knows no noise
    snr_authors_db  20 log10 of the mean over rounds and tensors, as the published code averages
    rmse            root of the mean over rounds of the mean square error of an entry
    curve           (round, validation accuracy, test accuracy) where they were evaluated
    seconds         of CPU, on one thread
    diverged        training left the finite numbers; the accuracies are those of guessing
    removed_honest  share of honest users removed by a defence, mean over rounds, in percent
    removed_attackers  the same of attackers
    backdoor        how often the trigger of a backdoor works after the last round, in percent
    """

    accuracy: float
    validation: float
    snr_db: float | None
    snr_median_db: float | None
    snr_authors_db: float | None
    rmse: float
    curve: tuple[tuple[int, float, float], ...]
    privacy: tuple[str, str, str]
    seconds: float
    diverged: bool = False
    snr_wiener_db: float | None = None
    removed_honest: float | None = None
    removed_attackers: float | None = None
    backdoor: float | None = None


def cell_key(settings: Settings) -> str:
    """The hash that a cell is stored under; it changes with anything that decides the run."""
    deciding = dataclasses.asdict(settings.resolved())
    for name in FREE:
        deciding.pop(name)
    # Options that a later version adds keep their default out of the hash, so old cells stay.
    blank = dataclasses.asdict(Settings().resolved())
    named = {k: v for k, v in deciding.items() if v != blank.get(k) or k in ("rate", "seed")}
    text = json.dumps([CELL_FORMAT, named], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def read_cell(folder: Path, settings: Settings) -> Outcome | None:
    """The outcome that is kept for the settings; None if there is none."""
    path = folder / f"{cell_key(settings)}.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))["outcome"]
        curve = tuple((int(r), float(v), float(t)) for r, v, t in raw.pop("curve"))
        first, second, third = raw.pop("privacy")
        return Outcome(curve=curve, privacy=(first, second, third), **raw)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedFile(
            f"{path} is no cell of a reproduction ({error!r}); delete it to compute it again"
        ) from error


def keep_cell(folder: Path, settings: Settings, outcome: Outcome) -> None:
    """Store an outcome with the settings it belongs to."""
    made = {
        "settings": settings.resolved().to_toml().splitlines(),
        "outcome": dataclasses.asdict(outcome),
    }
    write_text(folder / f"{cell_key(settings)}.json", json.dumps(made, indent=1))


def compute(settings: Settings, folder: Path, data: str | None) -> Outcome:
    """Run the settings in this process and keep the outcome."""
    from hushbit.lab.outcomes import run_outcome

    outcome = run_outcome(settings, data)
    keep_cell(folder, settings, outcome)
    return outcome


Watcher = Callable[[Settings, bool], None]


def run_cells(
    wanted: Sequence[Settings], folder: Path, *, workers: int = 1, data: str | None = None,
    watch: Watcher | None = None, bench: "Bench | None" = None,
) -> list[Outcome]:  # fmt: skip
    """Outcomes in the order asked for; kept ones are read, the others computed and kept.

    Cells are independent of each other, so the number of workers changes nothing but the time.
    A bench has workers of its own, which it shares out among all who ask. `watch` hears of each
    cell as it is there, and whether it was kept already.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{folder} cannot hold cells: {error}") from error
    found: dict[str, Outcome] = {}
    missing: dict[str, Settings] = {}
    for settings in wanted:
        kept = read_cell(folder, settings)
        if kept is not None:
            found[cell_key(settings)] = kept
            if watch is not None:
                watch(settings, True)
        else:
            missing[cell_key(settings)] = settings
    rest = list(missing.values())
    alone = bench is None and (workers <= 1 or len(rest) <= 1)
    computed = (
        _computed(rest, folder, data) if alone
        else _shared_out(rest, folder, workers, data, bench)
    )  # fmt: skip
    for settings, outcome in computed:
        found[cell_key(settings)] = outcome
        if watch is not None:
            watch(settings, False)
    return [found[cell_key(settings)] for settings in wanted]


def _computed(
    wanted: list[Settings], folder: Path, data: str | None
) -> Iterator[tuple[Settings, Outcome]]:
    for settings in wanted:
        yield settings, compute(settings, folder, data)


def _shared_out(
    wanted: list[Settings], folder: Path, workers: int, data: str | None, bench: "Bench | None"
) -> Iterator[tuple[Settings, Outcome]]:
    from hushbit.lab.bench import Bench

    own = bench or Bench(min(workers, len(wanted)), data)
    try:
        jobs = {own.ask(settings, folder): settings for settings in wanted}
        for job in as_completed(jobs):
            yield jobs[job], job.result()
    finally:
        if bench is None:
            own.close()


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Keep processes that are started meanwhile to one thread: the cores are shared out as cells.

    NumPy's linear algebra looks at its environment once, when it is loaded.
    """
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def one_thread() -> None:
    """Keep this process to one thread as far as its environment did not."""
    import torch

    torch.set_num_threads(1)


def guessing(settings: Settings, failure: HushbitError, seconds: float) -> Outcome:
    """The outcome of a run that diverged: no better than a guess among the classes."""
    classes = 100.0 if settings.dataset == "cifar100" else 10.0
    chance = 100.0 / classes
    return Outcome(
        chance, chance, None, None, None, 0.0, ((settings.rounds, chance, chance),),
        ("diverged", "diverged", str(failure)[:80]), seconds, diverged=True,
    )  # fmt: skip
