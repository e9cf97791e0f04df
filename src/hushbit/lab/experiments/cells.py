"""Cells: one run of settings with one seed, its few figures kept in a file named by their hash.

    OUT/cells/HASH.json     replaced atomically by the process that computed it, once it is done

`run_cells` reads kept cells and computes the others, in this process or by a `CellPool`. The pool
serves all experiments of a command: its workers load libraries, compiled kernels and data once, and
while one experiment waits for its last tuning cell, cells of another keep the workers busy.
"""

import dataclasses
import hashlib
import heapq
import itertools
import json
import math
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, as_completed
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.errors import DamagedFile, InvalidInput, NotFinite
from hushbit.lab.sim.aggregate_sampler import can_sample_aggregate, sampled
from hushbit.lab.sim.datasets import data_folder, load_dataset
from hushbit.lab.sim.engines import WorkerPool
from hushbit.lab.sim.metrics import WORST_CLASS, MeanDenoiser, distortion
from hushbit.lab.sim.privacy import statement_of
from hushbit.lab.sim.rounds import RoundResult, ballots, initial_state, run_rounds
from hushbit.lab.sim.settings import PAPER_TRAINING, Settings
from hushbit.lab.sim.setup import Setup, build_setup
from hushbit.wire.files import write_text

CELL_FORMAT = 1
NOT_HASHED = ("memory_mb",)  # options that never change a result


@dataclass(frozen=True)
class Outcome:
    """The figures of one run.

    accuracy        test accuracy of the last round's model, in percent
    validation      its validation accuracy in percent, by which settings are tuned
    snr_db          10 log10 of the mean over rounds of var(mean update) / var(error)
    snr_median_db   the same with the median over rounds
    snr_wiener_db   snr_db of the denoised mean of each round (`MeanDenoiser`); None where the
                    decoder does not state the noise, as the published one
    snr_authors_db  20 log10 of the mean over rounds and tensors, as the published code averages
    rmse            root of the mean over rounds of the mean square error of an entry
    curve           (round, validation accuracy, test accuracy) where they were evaluated
    seconds         CPU seconds on one thread
    diverged        a value left the finite range; the accuracies are those of guessing
    removed_honest  share of honest users removed by a defence, mean over rounds, in percent
    removed_attackers  the same of attackers
    backdoor        success rate of a backdoor's trigger after the last round, in percent
    worst_class     lowest test accuracy of a class after the last round, in percent
    ever_removed_honest  share of honest users removed in at least one round, in percent
    ever_removed_attackers  the same of attackers
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
    worst_class: float | None = None
    ever_removed_honest: float | None = None
    ever_removed_attackers: float | None = None


def cell_key(settings: Settings) -> str:
    """The hash of a cell's file name; it changes with every option that changes the run."""
    deciding = dataclasses.asdict(settings.resolved())
    for name in NOT_HASHED:
        deciding.pop(name)
    # Defaults stay out of the hash, so cells remain valid when a later version adds options. The
    # first cells had the inputs and batches of the paper as defaults.
    blank = dataclasses.asdict(Settings(**PAPER_TRAINING).resolved())
    named = {k: v for k, v in deciding.items() if v != blank.get(k) or k in ("rate", "seed")}
    text = json.dumps([CELL_FORMAT, named], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def read_cell(folder: Path, settings: Settings) -> Outcome | None:
    """The outcome kept for the settings; None if there is none."""
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
            f"{path} is not a cell of a reproduction ({error!r}); delete it to compute it again"
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
    outcome = run_outcome(settings, data)
    keep_cell(folder, settings, outcome)
    return outcome


def run_cells(
    wanted: Sequence[Settings],
    folder: Path,
    *,
    workers: int = 1,
    data: str | None = None,
    watch: Callable[[int, int], None] = lambda done, total: None,
    pool: "CellPool | None" = None,
) -> list[Outcome]:
    """Outcomes in the order of `wanted`; kept ones are read, the others computed and kept.

    Cells are independent of each other, so the number of workers changes nothing but the time. A
    shared `pool` replaces `workers`. `watch` is called after each cell, with the number of cells
    that are done and the number of all.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{folder} cannot hold cells: {error}") from error
    found: dict[str, Outcome] = {}
    missing: dict[str, Settings] = {}
    done = itertools.count(1)
    for settings in wanted:
        kept = read_cell(folder, settings)
        if kept is None:
            missing[cell_key(settings)] = settings
        else:
            found[cell_key(settings)] = kept
            watch(next(done), len(wanted))
    for settings, outcome in _computed(list(missing.values()), folder, workers, data, pool):
        found[cell_key(settings)] = outcome
        watch(next(done), len(wanted))
    return [found[cell_key(settings)] for settings in wanted]


def _computed(
    wanted: list[Settings], folder: Path, workers: int, data: str | None, pool: "CellPool | None"
) -> Iterator[tuple[Settings, Outcome]]:
    """Settings with their outcomes, in the order in which they are finished."""
    if pool is None and (workers <= 1 or len(wanted) <= 1):
        for settings in wanted:
            yield settings, compute(settings, folder, data)
        return
    used = pool or CellPool(min(workers, len(wanted)), data)
    try:
        jobs = {used.submit(settings, folder): settings for settings in wanted}
        for job in as_completed(jobs):
            yield jobs[job], job.result()
    finally:
        if pool is None:
            used.close()


# CPU seconds of one user's round on one core of 2024: training, casting a ballot, a robust mean.
TRAINING_COST = {"linear": 4e-5, "mlp": 7e-5, "cnn2": 4e-4, "cnn3": 1.5e-2, "resnet18": 8.0}
BALLOT_COST = {"linear": 8e-5, "mlp": 3e-4, "cnn2": 2e-4, "cnn3": 2e-3, "resnet18": 0.2}
MEAN_COST = {"median": 2e-4, "trimmed-mean": 2e-4, "multi-krum": 3e-4, "geometric-median": 1e-3}
CIFAR_FACTOR = 3.0  # of CNN2, for images with three channels
QUEUE_DEPTH = 1  # cells submitted beyond those being computed, so that no worker waits


def cell_cost(settings: Settings) -> float:
    """A rough number of CPU seconds."""
    cost = TRAINING_COST[settings.model]
    if settings.model == "cnn2" and settings.dataset == "cifar10":
        cost *= CIFAR_FACTOR
    if settings.mechanism != "fedavg" and settings.preset != "authors":
        cost += BALLOT_COST[settings.model]
    cost += MEAN_COST.get(settings.defence, 0.0)
    return cost * settings.users * settings.rounds


class CellPool:
    """Workers of one thread each that compute the most expensive waiting cell first.

    A cell that is submitted twice is computed once. `on_done` is called after each cell.
    """

    def __init__(
        self,
        workers: int,
        data: str | None = None,
        on_done: Callable[[Settings], None] | None = None,
    ) -> None:
        self._data, self._on_done = data, on_done
        self._lock, self._order = threading.Lock(), itertools.count()
        self._waiting: list[tuple[float, int, Settings, Path, Future[Outcome]]] = []
        self._submitted: dict[tuple[str, str], Future[Outcome]] = {}
        self._free, self._closed = workers + QUEUE_DEPTH, False
        self._pool = WorkerPool(workers, threads_each=1)

    def submit(self, settings: Settings, folder: Path) -> "Future[Outcome]":
        """The future outcome of a cell."""
        key = str(folder), cell_key(settings)
        with self._lock:
            if key in self._submitted:
                return self._submitted[key]
            future = self._submitted[key] = Future()
            if self._closed:
                _cancel(future)
                return future
            entry = (-cell_cost(settings), next(self._order), settings, folder, future)
            heapq.heappush(self._waiting, entry)
        self._dispatch()
        return future

    def _dispatch(self) -> None:
        while True:
            with self._lock:
                if self._closed or not self._free or not self._waiting:
                    return
                *_, settings, folder, future = heapq.heappop(self._waiting)
                self._free -= 1
            job = self._pool.submit(compute, settings, folder, self._data)
            job.add_done_callback(lambda job, s=settings, f=future: self._finish(job, s, f))  # type: ignore[misc]

    def _finish(
        self, job: "Future[Outcome]", settings: Settings, future: "Future[Outcome]"
    ) -> None:
        with self._lock:
            self._free += 1
            if future.done():
                return
            failure = CancelledError() if job.cancelled() else job.exception()
            if failure is not None:
                future.set_exception(failure)
            else:
                future.set_result(job.result())
        if failure is None and self._on_done is not None:
            self._on_done(settings)
        self._dispatch()

    def close(self) -> None:
        """End the workers; unfinished cells are cancelled, finished ones are kept."""
        with self._lock:
            self._closed = True
            for future in self._submitted.values():
                _cancel(future)
        self._pool.stop()


def _cancel(future: "Future[Outcome]") -> None:
    """Cancel a future and notify those who wait for it."""
    if future.cancel():
        future.set_running_or_notify_cancel()


def run_outcome(settings: Settings, data: str | None = None) -> Outcome:
    """Run the settings; the aggregate is sampled where its distribution is known."""
    begun = time.process_time()  # does not depend on the load of the machine
    writers = settings.partition == "writer"
    loaded = _load_once(settings.dataset, str(data_folder(data)), writers=writers)
    setup = build_setup(settings, data, loaded)
    aggregator = sampled if can_sample_aggregate(settings) else ballots
    denoiser = MeanDenoiser([slot.shape for slot in setup.task.slots], setup.task.image_shape)
    rows, removed = [], np.zeros(setup.task.users, dtype=np.bool_)
    try:
        for made in run_rounds(setup, initial_state(setup), aggregator=aggregator):
            rows.append(made.row() | _denoised_snr(denoiser, made))
            if made.removed is not None:
                removed[made.removed] = True
    except NotFinite as failure:
        # No better than guessing the class.
        chance = 1.0 if settings.dataset == "cifar100" else 10.0
        curve = ((settings.rounds, chance, chance),)
        privacy = ("diverged", "diverged", str(failure)[:80])
        seconds = time.process_time() - begun
        return Outcome(
            chance, chance, None, None, None, 0.0, curve, privacy, seconds, diverged=True
        )
    outcome = outcome_of(setup, rows, time.process_time() - begun)
    if outcome.removed_honest is None:
        return outcome
    return dataclasses.replace(
        outcome,
        ever_removed_honest=_share_percent(removed[~setup.attackers]),
        ever_removed_attackers=_share_percent(removed[setup.attackers]),
    )


_load_once = lru_cache(maxsize=1)(load_dataset)
"""The data set, which the next cells of a process mostly share; it is never changed."""


def _denoised_snr(denoiser: MeanDenoiser, made: RoundResult) -> dict[str, Any]:
    """The SNR of the denoised mean, by which no model is moved; none if the noise is unknown."""
    noise = made.noise
    if noise is None or noise == 0 or not math.isfinite(noise):
        return {}
    guess = denoiser.denoise(made.estimate.mean, noise)
    return {"snr_wiener_db": distortion(guess, made.true_mean, guess).snr_db}


def outcome_of(setup: Setup, rows: list[dict[str, Any]], seconds: float) -> Outcome:
    """The outcome of a run from the figures of its rounds."""
    tested = [row for row in rows if row.get("test_accuracy") is not None]
    curve = tuple(
        (
            int(row["round"]),
            _percent(row.get("validation_accuracy")),
            _percent(row["test_accuracy"]),
        )
        for row in tested
    )
    ratios, best = (
        [10 ** (row[name] / 10) for row in rows if math.isfinite(row.get(name, math.nan))]
        for name in ("snr_db", "snr_wiener_db")
    )
    layers = [row["snr_layers"] for row in rows if math.isfinite(row["snr_layers"])]
    return Outcome(
        accuracy=curve[-1][2],
        validation=curve[-1][1],
        snr_db=_decibel(ratios, statistics.fmean),
        snr_median_db=_decibel(ratios, statistics.median),
        snr_authors_db=_decibel(layers, statistics.fmean, factor=20),
        rmse=math.sqrt(statistics.fmean(row["mse"] for row in rows)),
        curve=curve,
        privacy=_privacy(setup),
        seconds=seconds,
        removed_honest=_mean_percent(rows, "removed_honest"),
        removed_attackers=_mean_percent(rows, "removed_attackers"),
        snr_wiener_db=_decibel(best, statistics.fmean),
        backdoor=_mean_percent(tested[-1:], "backdoor_rate"),
        worst_class=_mean_percent(tested[-1:], WORST_CLASS),
    )


def _percent(share: float | None) -> float:
    return 0.0 if share is None else round(100 * share, 4)


def _share_percent(flags: NDArray[np.bool_]) -> float | None:
    return _percent(float(flags.mean())) if flags.size else None


def _mean_percent(rows: list[dict[str, Any]], name: str) -> float | None:
    """Mean over the rounds that have the figure; None if no round has it."""
    values = [row[name] for row in rows if row.get(name) is not None]
    return round(100 * statistics.fmean(values), 4) if values else None


def _decibel(ratios: list[float], middle: Any, factor: int = 10) -> float | None:
    typical = middle(ratios) if ratios else 0.0
    return factor * math.log10(typical) if typical > 0 else None


def _privacy(setup: Setup) -> tuple[str, str, str]:
    """Pure epsilon per bit (or entry), per message, and per run of a user in all rounds.

    Under a budget against the model, epsilon at its delta against both observers.
    """
    guarantee, rounds = setup.mechanism.guarantee, setup.settings.rounds
    if setup.settings.against == "model":
        stated = statement_of(setup.settings, guarantee, rounds)
        delta = f"at delta {stated.delta:g}"
        return (
            f"eps = {stated.epsilon_bit:.4g} against the server",
            f"eps = {stated.epsilon_message_server:.4g} {delta} against the server",
            f"eps = {stated.epsilon_run_model:.4g} against the model, "
            f"{stated.epsilon_run_server:.4g} against the server, {delta}",
        )
    if math.isinf(guarantee.epsilon_per_bit):
        return "none (eps = inf)", "none (eps = inf)", "none (eps = inf)"
    plural = "entries" if guarantee.unit == "entry" else f"{guarantee.unit}s"
    return (
        f"eps = {guarantee.epsilon_per_bit:.4g} per {guarantee.unit}",
        f"eps = {guarantee.epsilon_per_message():,.4g} (pure, sum over its {plural})",
        f"eps = {guarantee.epsilon_per_run(rounds):,.4g} (pure, all {rounds} rounds)",
    )
