"""Attacks on the budget: a new ledger in another folder, and many answers at the same time."""

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Context, Message

import hushbit as hb
from flower.parts import context, policy, train_message
from hushbit.flower.client import HushbitMod
from hushbit.flower.records import request_entries
from hushbit.registry import description_text

MODEL = {"w": np.zeros(10, np.float32)}
CPA = hb.CPA(10, 1.0, 0.05)  # pure epsilon 10 per ballot
ALLOWED = 3
BUDGET = {"budget": 10.0 * ALLOWED, "delta": 0.0}


def request(run: bytes, number: int) -> Message:
    key = hb.RoundKey(bytes(32), number, run).user(1)
    return train_message(MODEL, request_entries(description_text(CPA), key, ()))


def echo(message: Message, _: Context) -> Message:
    return Message(message.content, reply_to=message)


def test_an_app_that_changes_the_folder_keeps_its_ledger(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    mod = HushbitMod(policy(tmp_path, ledger="ledger.db", **BUDGET))
    folders = iter(range(10))

    def move(message: Message, kept: Context) -> Message:
        folder = tmp_path / str(next(folders))
        folder.mkdir()
        os.chdir(folder)
        return echo(message, kept)

    replies = [mod(request(b"run", number), context(), move) for number in range(ALLOWED + 2)]
    assert [reply.has_error() for reply in replies] == [False] * ALLOWED + [True] * 2
    assert len(list(tmp_path.rglob("ledger.db"))) == 1


@pytest.mark.parametrize("runs", ["one run", "many runs"])
def test_clients_with_one_ledger_share_budget_and_rounds(tmp_path: Path, runs: str) -> None:
    """Each thread is a client of its own, as a process would be: they share only the file."""
    workers, rounds = 4, ALLOWED if runs == "one run" else 3 * ALLOWED
    barrier, answered = threading.Barrier(workers), [0] * workers

    def work(at: int) -> None:
        mod = HushbitMod(policy(tmp_path, **BUDGET))
        for number in range(rounds):
            barrier.wait()
            run = b"run" if runs == "one run" else bytes([at + 1])
            answered[at] += not mod(request(run, number), context(), echo).has_error()

    threads = [threading.Thread(target=work, args=(at,)) for at in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries = hb.Ledger.open(tmp_path / "ledger.db").entries()
    assert sum(answered) == len(entries) == ALLOWED
    assert len({(entry.run, entry.round) for entry in entries}) == ALLOWED
