"""Memory of long runs: what training frees goes back to the system once a process has grown."""

import sys

import pytest

from hushbit.fl import memory
from hushbit.fl.rounds import run_rounds, start
from hushbit.fl.settings import Settings
from hushbit.fl.setup import prepare

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks glibc")


def test_rounds_of_large_jobs_ask(monkeypatch):
    asked = []
    monkeypatch.setattr(memory, "_trim", lambda: asked.append)
    monkeypatch.setattr(memory, "GROWN", -(1 << 50))
    settings = Settings(
        dataset="digits", model="mlp", users=1700, rounds=3, evaluate_every=3, mechanism="fedavg",
        samples_per_user=1, replace=True,
    )  # fmt: skip
    setup = prepare(settings)
    assert 4 * setup.model.dim * 1700 < memory.WORTH_IT
    list(run_rounds(setup, start(setup)))
    assert asked == []
    monkeypatch.setattr(memory, "WORTH_IT", 1 << 20)
    list(run_rounds(setup, start(setup)))
    assert asked == [0, 0, 0]


def test_pages_go_back_when_the_process_has_grown_and_not_before(monkeypatch):
    sizes, asked = iter([100, 100, 300, 120, 300, 500, 130]), []
    monkeypatch.setattr(memory, "resident", lambda: next(sizes))
    monkeypatch.setattr(memory, "GROWN", 199)
    monkeypatch.setattr(memory, "_after", {"giving back": 0})
    monkeypatch.setattr(memory, "_trim", lambda: asked.append)
    counts = []
    for _ in range(5):
        memory.give_back(memory.WORTH_IT)
        counts.append(len(asked))
    # 100, 100: small; 300: asked, 120 are left; 300: less than 199 more; 500: asked again.
    assert counts == [0, 0, 1, 1, 2]


def test_resident_counts_what_is_touched():
    before = memory.resident()
    held = bytearray(b"x") * (64 << 20)
    assert 60 << 20 < memory.resident() - before < 100 << 20
    del held
