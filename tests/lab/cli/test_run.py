"""hushbit run: summary, configuration files, resuming, Ctrl-C, TensorBoard."""

import json
import signal
import sys
import types

import numpy as np
import pytest

import hushbit as hb
from hushbit.lab.sim.privacy import spent_text
from hushbit.lab.sim.run import RunRecord
from hushbit.lab.sim.settings import Settings
from hushbit.lab.sim.setup import ACCEPTED_OPTIONS
from hushbit.store.run_folder import CHECKPOINT, METRICS

KEYS = {
    "test_accuracy",
    "snr_db",
    "bytes_up",
    "bytes_down",
    "pure_epsilon_message_server",
    "pure_epsilon_run_server",
    "epsilon_bit",
    "epsilon_message_server",
    "epsilon_run_server",
    "epsilon_run_model",
    "delta",
    "honest",
    "relation",
    "rounds",
    "users",
    "seconds",
}
SMALL = ("--users", 12, "--rounds", 3, "--mechanism", "cpa", "--epsilon-per-bit", 1, "--seed", 2)


def params(folder):
    with np.load(folder / CHECKPOINT) as file:
        return file["model params"].tobytes()


@pytest.mark.parametrize("name", ACCEPTED_OPTIONS)
def test_every_mechanism_prints_json_and_nothing_else_on_standard_output(hushbit, name):
    words = ["run", "--users", 12, "--rounds", 2, "--mechanism", name, "--json"]
    words += ["--epsilon-per-bit", 1] if "epsilon_per_bit" in ACCEPTED_OPTIONS[name] else []
    words += ["--sign-step", 0.01] if name == "signsgd" else []
    words += ["--noise-multiplier", 2, "--clip", 1] if name == "gaussian" else []
    answer = hushbit(*words)
    assert answer.code == 0
    figures = json.loads(answer.out)
    assert figures.keys() >= KEYS
    assert (figures["rounds"], figures["users"]) == (2, 12)
    assert "history" not in figures


BUDGET = ("--epsilon", 4, "--delta", 1e-5, "--per", "run", "--against", "model")
IN_BUDGET = ("--users", 40, "--rounds", 3, "--clip", 0.5, *BUDGET)


@pytest.mark.parametrize("details", [(), ("--details",)])
def test_the_output_fits_eighty_columns(hushbit, details):
    answer = hushbit("run", *SMALL, *details)
    assert answer.code == 0
    assert "test accuracy" in answer.out
    assert ("snr_db" in answer.out) == bool(details)
    assert ("must not release" in answer.out) == bool(details)
    assert "None" not in answer.out
    assert max(len(line) for line in answer.out.splitlines()) <= 80


def test_the_accountant_belongs_to_a_budget_against_the_model(hushbit):
    tightest = json.loads(hushbit("run", *IN_BUDGET, "--accountant", "tightest", "--json").out)
    assert tightest["budget"]["accountant"] == "tightest"
    assert 3.9 < tightest["epsilon_run_model"] == tightest["epsilon_spent"] <= 4
    wrong = hushbit("run", "--epsilon-per-bit", "1", "--accountant", "renyi")
    assert wrong.code == 2
    assert "--accountant applies to a budget only" in " ".join(wrong.err.split())
    wrong = hushbit("run", *IN_BUDGET, "--accountant", "pld")
    assert "accountant must be one of renyi, tightest; got 'pld'" in " ".join(wrong.err.split())


def test_a_run_spends_at_most_its_budget_and_says_so(hushbit, tmp_path):
    note = tmp_path / "note.md"
    figures = json.loads(hushbit("run", *IN_BUDGET, "--json", "--note", note).out)
    assert 3.9 < figures["epsilon_run_model"] == figures["epsilon_spent"] <= 4
    assert (figures["honest"], figures["relation"], figures["delta"]) == (40, "replace", 1e-5)
    assert figures["budget"] == {
        "epsilon": 4.0,
        "delta": 1e-5,
        "per": "run",
        "against": "model",
        "accountant": "renyi",
    }
    assert figures["epsilon_run_server"] > figures["epsilon_message_server"] > 4
    assert "snr_db" in figures["simulation_only"]
    assert "at least 40 voters" in " ".join(note.read_text().split())


def test_the_requested_unit_comes_before_the_statement(hushbit):
    answer = hushbit("run", *IN_BUDGET)
    text = " ".join(answer.out.split())
    first, server, model, simulated = (
        text.index(part)
        for part in (
            "within the budget: epsilon",
            "Against the server",
            "Against those who see only the model",
            "Simulated run",
        )
    )
    assert first < server < model < simulated
    assert "per run (model)" in answer.lines[-1]


def test_the_progress_line_adds_rounds_up_in_the_unit_of_the_budget():
    guarantee = hb.CPA(650, 0.5, 0.05, clip=0.5).guarantee
    budget = {"epsilon": 4.0, "delta": 1e-5, "per": "run", "against": "model"}

    def shown(rounds, **options):
        return spent_text(Settings(users=50, **budget | options), guarantee, rounds)

    for rounds in (1, 9):
        spent = guarantee.of_tally(50, rounds, delta=1e-5).epsilon
        assert shown(rounds) == f"epsilon {spent:.3g} per run (model)"
    assert shown(1) != shown(9)
    assert shown(9, per="message") == shown(1, per="message") == shown(1).replace("run", "message")
    assert shown(9, against="server").endswith("per run (server)")
    assert spent_text(Settings(), guarantee, 9) == "epsilon 0.5 per bit (server)"
    assert spent_text(Settings(), hb.baselines.FedAvg(4).guarantee, 9) == "no privacy"
    gaussian = hb.baselines.Gaussian(4, 8.0, 1.0).guarantee
    spent = gaussian.of_tally(1, 9, delta=1e-5).epsilon
    assert spent_text(Settings(), gaussian, 9) == f"epsilon {spent:.3g} per run (model)"


def test_fedavg_cannot_spend_a_budget(hushbit):
    answer = hushbit("run", *IN_BUDGET[:4], *BUDGET, "--mechanism", "fedavg")
    assert answer.code == 2
    assert (
        "fedavg has no privacy and cannot spend a budget: leave out the budget (--eps" in answer.err
    )
    answer = hushbit("run", *IN_BUDGET[:4], "--mechanism", "fedavg")
    assert "Not private: messages are sent without noise." in answer.out
    assert "No privacy: users send messages without noise" in answer.out
    assert "no privacy" in answer.lines[-1]


@pytest.mark.parametrize(("honest", "number"), [("1", 1), ("1.0", 40), ("0.5", 20)])
def test_honest_voters_are_a_number_or_with_a_decimal_point_a_share(hushbit, honest, number):
    words = ("--users", 40, "--rounds", 1, "--epsilon-per-bit", 1, "--honest", honest, "--json")
    assert json.loads(hushbit("run", *words).out)["honest"] == number


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--defence", "scores"), "the defence scores reads single ballots"),
        (("--attack", "directed", "--attackers", 0.1), "read the updates of honest users"),
        (("--ballots", "stored"), "ballots are stored"),
        (("--honest", 41), "from 1 to 40 may count as honest"),
        (("--mechanism", "signsgd", "--sign-step", 1), "takes a budget per bit"),
    ],
)
def test_budgets_that_a_run_cannot_keep_are_refused(hushbit, tmp_path, monkeypatch, words, reason):
    monkeypatch.chdir(tmp_path)
    clip = () if "signsgd" in words else ("--clip", 0.5)
    answer = hushbit("run", "--users", 40, "--rounds", 2, *clip, *BUDGET, *words)
    assert answer.code == 2
    assert reason in answer.err
    assert not list(tmp_path.iterdir())


def test_the_progress_line_fits_eighty_columns(hushbit):
    answer = hushbit("run", *SMALL)
    line = answer.lines[-1]
    assert len(line.rstrip()) <= 80
    assert "…" not in line
    for word in ("cpa", "3/3", "accuracy", "SNR", "dB", "epsilon 1 per bit (server)", "0:00"):
        assert word in line


def test_options_override_the_file(hushbit, tmp_path):
    config = tmp_path / "run.toml"
    config.write_text('users = 9\nrounds = 2\nmechanism = "cpa-no-rr"\nrotate = true\n')
    first = json.loads(hushbit("run", "--config", config, "--json").out)
    assert (first["users"], first["rounds"], first["mechanism"]) == (9, 2, "cpa-no-rr")
    out = tmp_path / "run"
    hushbit("run", "--config", config, "--users", 7, "--no-rotate", "--out", out)
    settings = RunRecord(out).settings()
    assert (settings.users, settings.rounds, settings.rotate) == (7, 2, False)


def test_a_run_folder_repeats_the_run(hushbit, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    assert hushbit("run", *SMALL, "--out", one).code == 0
    assert hushbit("run", "--config", one / "config.toml", "--out", two).code == 0
    assert params(one) == params(two)
    names = {
        "config.toml",
        "environment.json",
        METRICS,
        CHECKPOINT,
        "summary.json",
        "metrics.parquet",
        "model.safetensors",
    }
    assert {path.name for path in one.iterdir()} == names


@pytest.fixture
def interrupts_enabled():
    """Enable interrupts, which a shell disables for background jobs."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_after(monkeypatch, rounds):
    save = RunRecord.save_round

    def save_then_stop(self, progress, made):
        save(self, progress, made)
        if made.number == rounds:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(RunRecord, "save_round", save_then_stop)


@pytest.mark.usefixtures("interrupts_enabled")
def test_an_interrupted_run_resumes_to_the_same_weights(hushbit, tmp_path, monkeypatch):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped run"
    hushbit("run", *SMALL, "--out", whole)
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2)
        answer = hushbit("run", *SMALL, "--out", stopped)
    assert answer.code == 130
    assert answer.lines == [
        f"hushbit: interrupted; continue with: hushbit run --resume --out '{stopped}'"
    ]
    assert hushbit("run", "--resume", "--out", stopped, "--json").code == 0
    assert params(stopped) == params(whole)


@pytest.mark.usefixtures("interrupts_enabled")
def test_an_interrupted_run_without_a_folder_stores_nothing(hushbit, monkeypatch):
    def stop(*_):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("hushbit.lab.sim.image_task.evaluate", stop)
    answer = hushbit("run", *SMALL)
    assert (answer.code, answer.lines) == (130, ["hushbit: interrupted; nothing was stored"])


def test_resume_with_more_rounds_extends_a_run(hushbit, tmp_path):
    folder = tmp_path / "run"
    assert hushbit("run", *SMALL, "--out", folder).code == 0
    answer = hushbit("run", "--resume", "--rounds", 5, "--out", folder, "--json")
    assert (answer.code, json.loads(answer.out)["rounds"]) == (0, 5)
    refused = hushbit("run", "--resume", "--rounds", 6, "--seed", 3, "--out", folder)
    assert (refused.code, "leave the others out" in refused.err) == (2, True)


def test_a_run_that_stops_early_says_so(hushbit):
    words = ("run", *SMALL, "--server-rate", 1e-9, "--patience", 1)
    answer = hushbit(*words)
    assert answer.code == 0
    assert "2 rounds" in answer.out
    assert "stopped early: no higher test accuracy in 1 rounds" in answer.err


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_tracker_is_named_and_nothing_is_written(hushbit, tmp_path, monkeypatch, name):
    module = "torch.utils.tensorboard" if name == "tensorboard" else name
    monkeypatch.setitem(sys.modules, module, None)
    answer = hushbit("run", *SMALL, "--out", tmp_path / "run", f"--{name}")
    wanted = f"hushbit: {name} is not installed: pip install 'hushbit[{name}]'"
    assert (answer.code, answer.lines) == (2, [wanted])
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_events_are_written_into_the_run_folder(hushbit, tmp_path, monkeypatch):
    folders = []

    class Writer:
        def __init__(self, folder):
            folders.append(folder)

        def add_scalar(self, name, value, number): ...

        def flush(self): ...

        def close(self): ...

    module = types.SimpleNamespace(SummaryWriter=Writer)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    assert hushbit("run", *SMALL, "--out", tmp_path / "run", "--tensorboard").code == 0
    assert folders == [str(tmp_path / "run" / "events")]
