"""Memory of long runs: what training frees goes back to the system."""

import sys

import pytest

from hushbit.fl import memory
from hushbit.fl.rounds import run_rounds, start
from hushbit.fl.settings import Settings
from hushbit.fl.setup import prepare


@pytest.mark.skipif(sys.platform != "linux", reason="asks glibc")
def test_freed_pages_are_given_back_once_a_round_where_it_is_worth_it(monkeypatch):
    asked = []
    trim = memory._trim()
    monkeypatch.setattr(memory, "_trim", lambda: lambda pad: asked.append(trim(pad)))
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
    assert len(asked) == 3
