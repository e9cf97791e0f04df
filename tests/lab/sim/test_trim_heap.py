"""Memory of long runs: freed pages are returned to the system once a process has grown."""

import mmap
import sys

import pytest

from hushbit.lab.sim import rounds
from hushbit.lab.sim.rounds import initial_state, run_rounds
from hushbit.lab.sim.settings import Settings
from hushbit.lab.sim.setup import build_setup

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs glibc")


def test_rounds_of_large_jobs_trim_the_heap(monkeypatch):
    trims = []
    monkeypatch.setattr(rounds, "_malloc_trim", lambda: trims.append)
    monkeypatch.setattr(rounds, "MIN_GROWTH", -(1 << 50))
    settings = Settings(
        dataset="digits",
        model="mlp",
        users=1700,
        rounds=3,
        evaluate_every=3,
        mechanism="fedavg",
        samples_per_user=1,
        replace=True,
    )
    setup = build_setup(settings)
    assert 4 * setup.task.model.dim * 1700 < rounds.MIN_TRIM_BYTES
    list(run_rounds(setup, initial_state(setup)))
    assert trims == []
    monkeypatch.setattr(rounds, "MIN_TRIM_BYTES", 1 << 20)
    list(run_rounds(setup, initial_state(setup)))
    assert trims == [0, 0, 0]


def test_the_heap_is_trimmed_once_the_process_has_grown(monkeypatch):
    sizes, trims = iter([100, 100, 300, 120, 300, 500, 130]), []
    monkeypatch.setattr(rounds, "resident_bytes", lambda: next(sizes))
    monkeypatch.setattr(rounds, "MIN_GROWTH", 199)
    monkeypatch.setattr(rounds, "_trimmed", {"resident bytes": 0})
    monkeypatch.setattr(rounds, "_malloc_trim", lambda: trims.append)
    counts = []
    for _ in range(5):
        rounds.trim_heap(rounds.MIN_TRIM_BYTES)
        counts.append(len(trims))
    # 100, 100: small; 300: trims, 120 are left; 300: less than 199 more; 500: trims again.
    assert counts == [0, 0, 1, 1, 2]


def test_resident_bytes_count_pages_in_use():
    size = 64 << 20
    with mmap.mmap(-1, size) as pages:  # not from the heap, which may hold freed pages
        before = rounds.resident_bytes()
        pages[:] = b"x" * size
        assert rounds.resident_bytes() - before > 60 << 20
    assert rounds.resident_bytes() < before + (32 << 20)
