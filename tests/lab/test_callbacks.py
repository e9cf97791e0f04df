"""Callbacks of a run. The trackers are replaced by stand-ins that record every call."""

import sys
import types

import pytest

from hushbit.errors import MissingExtra
from hushbit.lab.callbacks import Callback, MLflow, TensorBoard, WandB
from hushbit.lab.sim.run import run
from hushbit.lab.sim.settings import Settings

SETTINGS = Settings(users=6, rounds=2, mechanism="cpa", epsilon_per_bit=1.0)


class Recorder:
    """Records the calls of its attributes, under the path of their names."""

    def __init__(self, calls, path="", results=None):
        self._calls, self._path, self._results = calls, path, results or {}

    def __getattr__(self, name):
        path = f"{self._path}.{name}".lstrip(".")
        if path in self._results:
            return self._results[path]
        return Recorder(self._calls, path, self._results)

    def __call__(self, *args, **named):
        self._calls.append((self._path, args, named))
        return self


def installed(monkeypatch, module, **results):
    """Install a stand-in for a module; returns the list of its calls."""
    calls = []
    monkeypatch.setitem(sys.modules, module, Recorder(calls, results=results))
    return calls


class Log(Callback):
    def __init__(self):
        self.calls = []

    def on_start(self, settings):
        self.calls.append(("start", settings["users"], "clip" in settings))

    def on_round(self, row):
        self.calls.append(("round", row["round"]))

    def on_end(self, summary):
        self.calls.append(("end", summary["rounds"]))


def test_a_callback_gets_settings_rounds_and_summary_in_order():
    first, second = Log(), Log()
    run(SETTINGS, callbacks=[first, second, Callback()])
    assert first.calls == [("start", 6, False), ("round", 1), ("round", 2), ("end", 2)]
    assert second.calls == first.calls


def test_a_resumed_run_reports_the_remaining_rounds_only(tmp_path):
    class Stop(Log):
        def on_round(self, row):
            super().on_round(row)
            raise KeyboardInterrupt

    stopped, resumed = Stop(), Log()
    with pytest.raises(KeyboardInterrupt):
        run(SETTINGS, tmp_path / "run", callbacks=[stopped])
    assert stopped.calls[1:] == [("round", 1)]
    run(SETTINGS, tmp_path / "run", resume=True, callbacks=[resumed])
    assert resumed.calls[1:] == [("round", 2), ("end", 2)]


ROWS = [{"round": n, "test_accuracy": n / 10, "test_loss": None, "users": 6} for n in (1, 2)]


def tell(callback):
    callback.on_start({"users": 6, "mechanism": "cpa"})
    for row in ROWS:
        callback.on_round(row)
    callback.on_end({"rounds": 2, "test_accuracy": 0.2, "mechanism": "cpa"})


def test_tensorboard_gets_the_numbers_of_every_round(tmp_path, monkeypatch):
    calls = []
    module = types.SimpleNamespace(SummaryWriter=lambda folder: Recorder(calls, folder))
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    tell(TensorBoard("events"))
    scalars = [args for path, args, _ in calls if path == "events.add_scalar"]
    assert scalars == [
        ("test_accuracy", 0.1, 1),
        ("users", 6, 1),
        ("test_accuracy", 0.2, 2),
        ("users", 6, 2),
    ]
    assert [path for path, *_ in calls].count("events.flush") == 2
    assert calls[-1][0] == "events.close"


def test_mlflow_gets_parameters_metrics_and_figures(monkeypatch):
    calls = installed(monkeypatch, "mlflow", active_run=lambda: None)
    tell(MLflow())
    assert calls == [
        ("start_run", (), {}),
        ("log_params", ({"users": 6, "mechanism": "cpa"},), {}),
        ("log_metrics", ({"test_accuracy": 0.1, "users": 6},), {"step": 1}),
        ("log_metrics", ({"test_accuracy": 0.2, "users": 6},), {"step": 2}),
        ("log_metrics", ({"final_rounds": 2, "final_test_accuracy": 0.2},), {}),
        ("end_run", (), {}),
    ]


def test_an_active_mlflow_run_is_used_and_left_open(monkeypatch):
    calls = installed(monkeypatch, "mlflow", active_run=lambda: "active")
    tell(MLflow())
    assert {path for path, *_ in calls} == {"log_params", "log_metrics"}


def test_wandb_gets_configuration_metrics_and_summary(monkeypatch):
    calls = installed(monkeypatch, "wandb", run=None)
    tell(WandB())
    assert [path for path, *_ in calls] == [
        "init",
        "init.config.update",
        "init.log",
        "init.log",
        "init.summary.update",
        "init.finish",
    ]
    assert calls[1][1] == ({"users": 6, "mechanism": "cpa"},)
    assert calls[3][1:] == (({"test_accuracy": 0.2, "users": 6},), {"step": 2})
    assert calls[4][1] == ({"rounds": 2, "test_accuracy": 0.2},)


def test_an_active_wandb_run_is_used_and_left_open(monkeypatch):
    calls = []
    installed(monkeypatch, "wandb", run=Recorder(calls, "active"))
    tell(WandB())
    assert [path for path, *_ in calls] == [
        "active.config.update",
        "active.log",
        "active.log",
        "active.summary.update",
    ]


@pytest.mark.parametrize("make", [MLflow, WandB])
def test_a_missing_package_is_named_when_the_callback_is_made(make, monkeypatch):
    name = make.__name__.lower()
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'hushbit\[{name}\]'"):
        make()
