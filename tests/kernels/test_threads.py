"""Results never depend on the number of threads."""

import os
import threading

import numpy as np
import pytest

import hushbit as hb
from hushbit.kernels import threads

MECHANISMS = [
    hb.CPA(dim=9001, epsilon_per_bit=0.5, radius=1.0),
    hb.CPA(dim=9001, epsilon_per_bit=0.5, radius=1.0, points=8),
    hb.CPA(dim=4100, epsilon_per_bit=0.5, radius=1.0, points=3),
    hb.NestedCPA(dim=4100, epsilon_per_bit=0.5, radius=1.0, stages=(2, 4)),
    hb.CPA(dim=4100, epsilon_per_bit=0.5, radius=1.0, points=16, lattice="E8"),
    hb.CPA(dim=4100, epsilon_per_bit=0.5, radius=1.0, points=4, rounding="subtractive"),
    hb.Rotated(hb.CPA(dim=9001, epsilon_per_bit=0.5, radius=1.0)),
    hb.Subset(hb.CPA(dim=9001, epsilon_per_bit=0.5, radius=1.0), report=300),
]


def outcome(mechanism: hb.Mechanism, key: hb.RoundKey, one_by_one: bool) -> list[bytes]:
    users = 5
    updates = np.random.default_rng(1).normal(0, 0.5, (users, mechanism.dim))
    coins, keys = hb.SeededCoins(9), key.users(range(users))
    tally = mechanism.tally(key)
    if one_by_one:
        ballots = [mechanism.encode(x, k, coins) for x, k in zip(updates, keys, strict=True)]
        for ballot in ballots:
            tally.add(ballot)
    else:
        ballots = mechanism.encode_many(updates, keys, coins)
        tally.add_many(ballots)
    estimate = mechanism.estimate(tally)
    wire = [ballot.to_bytes() for ballot in ballots]
    overloaded = [bytes([ballot.overloaded % 256]) for ballot in ballots]
    return [
        *wire,
        *overloaded,
        *(c.tobytes() for c in tally.counters.values()),
        estimate.mean.tobytes(),
        estimate.variance.tobytes(),
    ]


@pytest.mark.usefixtures("usual_threads")
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: m.description["mechanism"])
def test_threads_and_single_ballots_give_the_same_bits(
    mechanism: hb.Mechanism, round_key: hb.RoundKey
) -> None:
    threads.set_threads(1)
    first = outcome(mechanism, round_key, one_by_one=False)
    assert outcome(mechanism, round_key, one_by_one=True) == first
    for count in (2, 3):
        threads.set_threads(count)
        assert outcome(mechanism, round_key, one_by_one=False) == first


@pytest.mark.usefixtures("usual_threads")
@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("parts", [0, 1, 2, 3, 10])
def test_parallel_for_covers_every_part_once(count: int, parts: int) -> None:
    threads.set_threads(count)
    seen, lock = [], threading.Lock()

    def run(first: int, last: int) -> None:
        with lock:
            seen.extend(range(first, last))

    threads.parallel_for(run, parts)
    assert sorted(seen) == list(range(parts))


@pytest.mark.usefixtures("usual_threads")
def test_an_error_in_a_thread_is_raised() -> None:
    threads.set_threads(2)

    def run(first: int, last: int) -> None:
        raise hb.InvalidInput("from a thread")

    with pytest.raises(hb.InvalidInput, match="from a thread"):
        threads.parallel_for(run, 4)


@pytest.mark.usefixtures("usual_threads")
def test_the_setting_precedes_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    threads.set_threads(3)
    assert threads.get_threads() == 3
    threads.set_threads(0)
    monkeypatch.setenv("HUSHBIT_THREADS", "5")
    assert threads.get_threads() == 5
    for invalid in ("", "0", "-1", "two", "²", "1.5"):
        monkeypatch.setenv("HUSHBIT_THREADS", invalid)
        assert threads.get_threads() == threads.available_cores() >= 1
    for wrong in (-1, 2000, 1.0, True, "2"):
        with pytest.raises(ValueError, match="whole number from 0 to 1024"):
            threads.set_threads(wrong)  # type: ignore[arg-type]


@pytest.mark.usefixtures("usual_threads")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_starts_its_own_threads() -> None:
    threads.set_threads(2)
    threads.parallel_for(lambda first, last: None, 4)
    child = os.fork()
    if child == 0:
        threads.parallel_for(lambda first, last: None, 4)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
