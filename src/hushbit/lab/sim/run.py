"""One run from settings to summary, recorded in a run folder if one is named."""

import hashlib
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.engine import Engine
from hushbit.errors import DamagedFile, HushbitError, InvalidInput, MissingExtra
from hushbit.lab.callbacks import Callback
from hushbit.lab.decision_card import DecisionCard
from hushbit.lab.sim.early_stopping import has_stopped
from hushbit.lab.sim.learning_task import LearningTask
from hushbit.lab.sim.metrics import WORST_CLASS
from hushbit.lab.sim.privacy import SIMULATION_ONLY, check_model_budget, statement_of
from hushbit.lab.sim.rounds import (
    RoundResult,
    RunState,
    evaluated_params,
    initial_state,
    run_rounds,
)
from hushbit.lab.sim.server_steps import Params
from hushbit.lab.sim.settings import CONFIG, Settings, read_settings
from hushbit.lab.sim.setup import Setup, build_setup, run_identifier
from hushbit.mechanism import Mechanism
from hushbit.statement import PrivacyStatement
from hushbit.store.run_folder import (
    CHECKPOINT,
    ENVIRONMENT,
    SUMMARY,
    ArrayGroups,
    RunFolder,
    software_versions,
)
from hushbit.wire.files import write_atomic, write_text

PACKAGES = ("hushbit", "numpy", "numba", "torch", "scikit-learn", "pyarrow")
WEIGHTS, METRICS_TABLE = "model.safetensors", "metrics.parquet"
STATE_GROUPS = ("server", "local", "average", "tuning", "defence")


class RunRecord(RunFolder):
    """The folder of a simulated run: its settings, and its state as checkpoint."""

    def __init__(self, folder: str | Path) -> None:
        super().__init__(folder, CONFIG)
        self._digest = np.zeros(0, dtype=np.uint8)

    def settings(self) -> Settings:
        """The settings of the run in this folder."""
        self._check_run()
        return Settings(**read_settings(self.config))

    def _check_run(self) -> None:
        if not self.holds_run:
            raise InvalidInput(f"{self.folder} holds no run: there is no {CONFIG} in it")

    def begin(self, settings: Settings, notes: Mapping[str, Any], task: bytes = b"") -> None:
        """Write the settings of a new run; a folder that is not empty is refused."""
        self.check_empty()
        self._digest = _digest(settings, task)
        self.create(settings.resolved().to_toml(), software_versions(PACKAGES) | dict(notes))

    def save_round(self, state: RunState, made: RoundResult) -> None:
        """Store the metrics of a round and the state after it."""
        self.save(made.row(), {"settings": {"sha256": self._digest}, **_groups(state)})

    def resume(
        self, settings: Settings, fresh: RunState, notes: Mapping[str, Any], task: bytes = b""
    ) -> RunState:
        """The state of the last checkpoint, or `fresh` if there is none; later rows are dropped.

        `task` is the digest of the task, empty for built-in tasks. Settings with more rounds than
        the stored ones extend the run.
        """
        self._check_run()
        extends = self._check_rounds(settings)
        self._digest = _digest(settings, task)
        kept = self.read_checkpoint()
        state = fresh if kept is None else self._state(kept.round, kept.groups, fresh)
        if extends:
            for name in (SUMMARY, METRICS_TABLE, WEIGHTS):  # of the shorter run
                (self.folder / name).unlink(missing_ok=True)
            write_text(self.config, settings.resolved().to_toml())
        self.rewind(state.round, software_versions(PACKAGES) | dict(notes))
        return state

    def _check_rounds(self, settings: Settings) -> bool:
        """Whether the settings have more rounds than the stored ones; refuse what is not allowed.

        The noise of a budget per run is chosen for a number of rounds, so that more rounds would
        exceed the budget.
        """
        stored = self.settings().rounds
        if settings.rounds < stored:
            raise InvalidInput(
                f"the run in {self.folder} has {stored} rounds: a resumed run can have more, not "
                f"fewer; got {settings.rounds}"
            )
        more = settings.rounds > stored
        if more and settings.per == "run":
            raise InvalidInput(
                f"the budget of the run in {self.folder} covers its {stored} rounds, and more "
                f"rounds would exceed it: start a new run with --rounds {settings.rounds}"
            )
        return more

    def check_ballots_stored(self, run: bytes) -> None:
        """Refuse to resume with other keys: a run stores the ballots of all rounds or of none."""
        known = self.read_json(ENVIRONMENT) if (self.folder / ENVIRONMENT).exists() else {}
        begun = known.get("run", run.hex())
        if begun and run and begun != run.hex():
            raise InvalidInput(
                f"the ballots of the run in {self.folder} are stored under keys for its number of "
                "rounds: start a new run instead of extending it"
            )
        if begun != run.hex():
            raise InvalidInput(
                f"the run in {self.folder} began {'without' if run else 'with'} --ballots: "
                "resume it in the same way"
            )

    def _state(self, number: int, groups: ArrayGroups, fresh: RunState) -> RunState:
        """The stored state, if it has the arrays of a fresh one, with the same shapes."""
        path, found = self.folder / CHECKPOINT, dict(groups)
        if not np.array_equal(found.pop("settings", {}).get("sha256", ()), self._digest):
            raise InvalidInput(
                f"{path} was made with other settings than {CONFIG} contains now, or with other "
                f"data of the task: restore {CONFIG} and the data, or start the run again in "
                "another folder"
            )
        if _layout(found) != _layout(_groups(fresh)):
            raise DamagedFile(
                f"{path} is of another model or server; start the run again in another folder"
            )
        states = {group: dict(found.get(group, {})) for group in STATE_GROUPS}
        return RunState(number, found["model"]["params"], **states)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the summary, and the metrics once more as Parquet."""
        super().finish(summary)
        self.write_parquet(self.rows(), self.folder / METRICS_TABLE)

    def write_parquet(self, rows: list[dict[str, Any]], path: Path) -> None:
        """Write rows of the metrics as Parquet, with numbers for "inf", "-inf" and "nan"."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        numbers = [
            {k: float(v) if v in ("inf", "-inf", "nan") else v for k, v in row.items()}
            for row in rows
        ]
        table = pa.Table.from_pylist(numbers)
        write_atomic(path, lambda file: pq.write_table(table, file))


def _digest(settings: Settings, task: bytes) -> NDArray[np.uint8]:
    """Identifies the settings and the task that a checkpoint was made with.

    The number of rounds counts for budgets per run only, since other runs can be extended.
    """
    if settings.per != "run":
        settings = replace(settings, rounds=1)
    digest = hashlib.sha256(settings.resolved().to_toml().encode() + task).digest()
    return np.frombuffer(digest, dtype=np.uint8)


def _groups(state: RunState) -> dict[str, Mapping[str, NDArray[Any]]]:
    return {
        "model": {"params": state.params},
        **{group: getattr(state, group) for group in STATE_GROUPS},
    }


def _layout(groups: ArrayGroups) -> dict[tuple[str, str], Any]:
    return {
        (group, name): (array.shape, array.dtype)
        for group, members in groups.items()
        for name, array in members.items()
    }


Watcher = Callable[[Setup, RoundResult], None]


class RunSummary(dict[str, Any]):
    """The figures of a run by name, its privacy statement and its last model."""

    def __init__(
        self,
        figures: Mapping[str, Any],
        statement: PrivacyStatement,
        task: LearningTask,
        params: Params,
    ) -> None:
        super().__init__(figures)
        self.statement = statement
        self.task, self.params = task, params

    @property
    def history(self) -> list[dict[str, Any]]:
        """The figures of each round."""
        return list(self.get("history", []))

    @property
    def metrics(self) -> dict[str, float]:
        """The test results of the last model, such as accuracy and loss."""
        names = [n for n in ("test_accuracy", "test_loss") if not math.isnan(self[n])]
        return {n.removeprefix("test_"): self[n] for n in (*names, *self.task.own_metrics)}

    @property
    def card(self) -> DecisionCard:
        """The decision card of the run; print(result.card.text()) shows it as text."""
        return DecisionCard.of([self])

    def _repr_html_(self) -> str:
        """The card in a notebook."""
        return self.card.notebook()

    def state_dict(self) -> dict[str, Any]:
        """The state of the last model, for `load_state_dict` of its module."""
        return self.task.state_dict(self.params)

    def save(self, path: str | Path) -> None:
        """Write the last model as a safetensors file, which needs no hushbit to be loaded."""
        if Path(path).suffix != ".safetensors":
            raise InvalidInput(
                f"save writes a safetensors file: give a name such as model.safetensors; got {path}"
            )
        save_weights(Path(path), self.state_dict())

    def privacy_note(self, *details: str) -> str:
        """A page of Markdown about the run for the person who approves its deployment.

        `details` are further lines of its summary.
        """
        task = "{dataset}, {model} ({dim:,} weights), {users:,} users, {rounds:,} rounds"
        shown = [
            task.format(**self),
            "mechanism {mechanism}, {bits_per_entry:.4g} bits per weight".format(**self),
            *(f"test {name} {metric_text(name, value)}" for name, value in self.metrics.items()),
            *details,
        ]
        return self.statement.note(f"Privacy note of a run with {self['mechanism']}", details=shown)


def metric_text(name: str, value: float) -> str:
    """A test result as text: the accuracy in percent."""
    return f"{value:.2%}" if name == "accuracy" else f"{value:.4g}"


def save_weights(
    path: Path, tensors: Mapping[str, Any], metadata: dict[str, str] | None = None
) -> None:
    """Write tensors as a safetensors file; tied tensors are stored once for each name."""
    try:
        from safetensors.torch import save
    except ImportError as error:
        raise MissingExtra("weights need safetensors: pip install 'hushbit[lab]'") from error
    copies = {name: one.detach().clone().contiguous() for name, one in tensors.items()}
    content = save(copies, metadata)
    write_atomic(path, lambda file: file.write(content))


def run(
    settings: Settings,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    data: str | Path | None = None,
    watch: Watcher | None = None,
    engine: Engine | None = None,
    ballots: str | Path | None = None,
    mechanism: Mechanism | None = None,
    task: LearningTask | None = None,
    callbacks: Sequence[Callback] = (),
) -> RunSummary:
    """Run or resume a federation; returns the summary, with the rounds under "history".

    The engine decides where users are computed and changes no result. All ballots are stored as
    Parquet in the folder `ballots`, under keys of a run: their words differ from those of the same
    settings without `ballots`. `mechanism` replaces the one that the settings name, and `task` the
    built-in one.
    """
    begun = time.perf_counter()
    record = None if out is None else RunRecord(out)
    if record is not None and not resume:
        record.check_empty()
    with nullcontext() if record is None else record.locked():
        kept = _ballot_folder(ballots, resume)
        setup = build_setup(settings, data, task=task)
        check_model_budget(setup.settings, ballots_stored=kept is not None)
        if kept is not None:
            setup = replace(setup, ballots=kept, run=run_identifier(setup.settings))
        if mechanism is not None:
            setup = replace(setup, mechanism=mechanism)
        state, history = _run_rounds(setup, record, resume, watch, engine, callbacks)
        summary = summarise(setup, history, evaluated_params(state))
        before = setup.task.scores(setup.task.init(setup.settings.seed))
        for name in ("accuracy", "loss"):
            summary[f"start_{name}"] = before.get(f"test_{name}", math.nan)
        summary["seconds"] = time.perf_counter() - begun
        if record is not None:
            record.finish(summary)
            summary.save(record.folder / WEIGHTS)
    for one in callbacks:
        one.on_end(summary)
    summary["history"] = history
    return summary


def _run_rounds(
    setup: Setup,
    record: RunRecord | None,
    resume: bool,
    watch: Watcher | None,
    engine: Engine | None,
    callbacks: Sequence[Callback],
) -> tuple[RunState, list[dict[str, Any]]]:
    """The last state, and the metrics of all rounds, those before an interruption included."""
    state, history = initial_state(setup), []
    notes = {
        "coins": "SimulationCoins",
        "run": setup.run.hex(),
        "start": setup.task.note,
        **setup.task.describe(),
        "mechanism": setup.mechanism.description,
        "fingerprint": setup.mechanism.fingerprint.hex(),
        "guarantee": setup.mechanism.guarantee.summary(),
        "guarantee_note": setup.mechanism.guarantee.note,
    }
    if record is not None and resume:
        record.check_ballots_stored(setup.run)
        state = record.resume(setup.settings, state, notes, setup.task.digest)
        history = record.rows()
    elif record is not None:
        record.begin(setup.settings, notes, setup.task.digest)
    try:
        for one in callbacks:
            one.on_start(setup.settings.given())
        rounds = run_rounds(setup, state, engine)
        while not has_stopped(history, setup.settings.patience) and (made := next(rounds, None)):
            if record is not None:
                record.save_round(state, made)
            if watch is not None:
                watch(setup, made)
            history.append(made.row())
            for one in callbacks:
                one.on_round(history[-1])
    except HushbitError:
        if record is not None and not resume and not (record.folder / CHECKPOINT).exists():
            record.remove()
        raise
    return state, history


def _ballot_folder(folder: str | Path | None, resume: bool) -> Path | None:
    if folder is None:
        return None
    place = Path(folder)
    if not resume and place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise InvalidInput(
            f"{place} is not an empty folder: name a new one for the ballots of this run"
        )
    return place.resolve()


def summarise(setup: Setup, history: list[dict[str, Any]], params: Params) -> RunSummary:
    """The figures of a run; SNR is the median over rounds, shares of removed users are means."""
    settings, guarantee = setup.settings, setup.mechanism.guarantee
    rounds = max(settings.rounds, len(history))
    last: dict[str, Any] = next(
        (row for row in reversed(history) if row.get("test_loss") is not None), {}
    )
    ratios = [float(row["snr_db"]) for row in history if not math.isnan(float(row["snr_db"]))]
    statement = statement_of(settings, guarantee, rounds, setup.ballots is not None)
    figures = {
        "mechanism": settings.mechanism,
        "dataset": settings.dataset,
        "model": settings.model,
        "dim": setup.task.dim,
        "users": setup.task.users,
        "rounds": len(history),
        **{
            name: float(last[name]) if last.get(name) is not None else math.nan
            for name in ("test_accuracy", "test_loss", *setup.task.own_metrics)
        },
        WORST_CLASS: last.get(WORST_CLASS),
        "validation_accuracy": last.get("validation_accuracy"),
        "removed_honest": _mean_over_rounds(history, "removed_honest"),
        "removed_attackers": _mean_over_rounds(history, "removed_attackers")
        if settings.attackers
        else None,
        "backdoor_rate": last.get("backdoor_rate"),
        "snr_db": statistics.median(ratios) if ratios else math.nan,
        "mse": history[-1]["mse"] if history else math.nan,
        "bytes_up": sum(row["bytes_up"] for row in history),
        "bytes_down": sum(row["bytes_down"] for row in history),
        "bits_per_entry": guarantee.bits_per_entry,
        "pure_epsilon_message_server": guarantee.epsilon_per_message(),
        "pure_epsilon_run_server": guarantee.epsilon_per_run(rounds),
        **statement.row(),
        "budget": None if settings.budget is None else asdict(settings.budget),
        "epsilon_spent": statement.spent,
        "simulation_only": SIMULATION_ONLY,
        "k_anonymity": guarantee.k_anonymity,
        "server": settings.server_name,
        "server_rate": setup.server.rate,
        "seed": settings.seed,
    }
    return RunSummary(figures, statement, setup.task, params)


def _mean_over_rounds(history: list[dict[str, Any]], name: str) -> float | None:
    """The mean over rounds; None if no round has the figure."""
    values = [row[name] for row in history if row.get(name) is not None]
    return statistics.fmean(values) if values else None
