"""One run from settings to summary, recorded on disk if a folder is named."""

import dataclasses
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hushbit.engine import Engine
from hushbit.errors import HushbitError, InvalidInput
from hushbit.fl.rounds import Round, run_rounds, start
from hushbit.fl.settings import Settings
from hushbit.fl.setup import Setup, prepare
from hushbit.lab.record import Record

Watcher = Callable[[Setup, Round], None]


def run(
    settings: Settings, out: str | Path | None = None, *, resume: bool = False,
    data: str | Path | None = None, watch: Watcher | None = None, engine: Engine | None = None,
    ballots: str | Path | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Run (or go on with) a federation; the summary, with the rounds under "history".

    The engine decides where users are computed, never what comes out. A folder for ballots keeps
    every one of them as Parquet.
    """
    record = None if out is None else Record(out)
    try:
        return _run(settings, record, resume, data, watch, engine, ballots)
    finally:
        if record is not None:
            record.release()


def _run(
    settings: Settings, record: Record | None, resume: bool, data: str | Path | None,
    watch: Watcher | None, engine: Engine | None, ballots: str | Path | None,
) -> dict[str, Any]:  # fmt: skip
    begun = time.perf_counter()
    if record is not None and not resume:
        record.refuse_full()
    kept = _ballot_folder(ballots, resume)
    setup = dataclasses.replace(prepare(settings, data), ballots=kept)
    progress = start(setup)
    notes = {
        "coins": "SimulationCoins",
        "start": setup.model.note,
        "mechanism": setup.mechanism.description,
        "fingerprint": setup.mechanism.fingerprint.hex(),
        "guarantee": setup.mechanism.guarantee.line(),
        "guarantee_note": setup.mechanism.guarantee.note,
    }
    history: list[dict[str, Any]] = []
    if record is not None and resume:
        progress = record.resume(settings, progress, notes)
        history = record.rows()
    elif record is not None:
        record.begin(settings, notes)
    try:
        for made in run_rounds(setup, progress, engine):
            if record is not None:
                record.save(progress, made)
            if watch is not None:
                watch(setup, made)
            history.append(made.row())
    except HushbitError:
        if record is not None and not resume and not record.has_checkpoint:
            record.withdraw()
        raise
    summary = summarise(setup, history) | {"seconds": time.perf_counter() - begun}
    if record is not None:
        record.finish(summary)
    return summary | {"history": history}


def _ballot_folder(folder: str | Path | None, resume: bool) -> Path | None:
    if folder is None:
        return None
    place = Path(folder)
    if not resume and place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise InvalidInput(f"{place} is not an empty folder: ballots of two runs do not mix")
    return place.resolve()


def summarise(setup: Setup, history: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of a run; SNR is the median over rounds, who was removed the mean."""
    settings, guarantee = setup.settings, setup.mechanism.guarantee
    taking_part = max(settings.rounds, len(history))
    last: dict[str, Any] = next(
        (row for row in reversed(history) if row.get("test_accuracy") is not None), {}
    )
    ratios = [float(row["snr_db"]) for row in history if not math.isnan(float(row["snr_db"]))]
    return {
        "mechanism": settings.mechanism,
        "dataset": settings.dataset,
        "model": settings.model,
        "dim": setup.model.dim,
        "users": setup.federation.users,
        "rounds": len(history),
        "test_accuracy": last.get("test_accuracy", math.nan),
        "test_loss": last.get("test_loss", math.nan),
        "validation_accuracy": last.get("validation_accuracy"),
        "removed_honest": _mean_of(history, "removed_honest"),
        "removed_attackers": _mean_of(history, "removed_attackers") if settings.attackers else None,
        "backdoor_rate": last.get("backdoor_rate"),
        "snr_db": statistics.median(ratios) if ratios else math.nan,
        "mse": history[-1]["mse"] if history else math.nan,
        "bytes_up": sum(row["bytes_up"] for row in history),
        "bytes_down": sum(row["bytes_down"] for row in history),
        "bits_per_entry": guarantee.bits_per_entry,
        "epsilon_per_bit": guarantee.epsilon_per_bit,
        "epsilon_per_message": guarantee.epsilon_per_message(),
        "epsilon_per_message_at_delta": guarantee.epsilon_per_message(settings.delta),
        "epsilon_run": guarantee.epsilon_per_run(taking_part),
        "epsilon_run_at_delta": guarantee.epsilon_per_run(taking_part, settings.delta),
        "delta": settings.delta,
        "k_anonymity": guarantee.k_anonymity,
        "seed": settings.seed,
    }


def _mean_of(history: list[dict[str, Any]], name: str) -> float | None:
    """The mean over rounds; None where no round has the figure."""
    values = [row[name] for row in history if row.get(name) is not None]
    return statistics.fmean(values) if values else None
