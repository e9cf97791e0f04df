"""The roll remembers users in at most sixteen bytes each."""

import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hushbit.roll import Roll


def numbers(users: list[int]) -> np.ndarray:
    return np.array(users, dtype=np.uint64)


@given(st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=8, unique=True), max_size=12),
       st.lists(st.integers(0, 2**64 - 1), max_size=8))  # fmt: skip
def test_behaves_like_a_set(batches: list[list[int]], others: list[int]) -> None:
    roll, model = Roll(), set()
    for batch in batches:
        fresh = [user for user in batch if user not in model]
        assert (roll.find(numbers(batch)) == [user in model for user in batch]).all()
        roll.add(numbers(fresh))
        model |= set(fresh)
    assert len(roll) == len(model)
    assert roll.users().tolist() == sorted(model)
    assert roll.users().dtype == np.uint64
    assert (roll.find(numbers(others)) == [user in model for user in others]).all()


def test_one_at_a_time_keeps_few_runs() -> None:
    roll = Roll()
    for user in np.random.default_rng(1).permutation(3000).astype(np.uint64):
        roll.add(np.array([user]))
    assert len(roll._runs) <= 13
    assert roll.users().tolist() == list(range(3000))


def test_adding_copies_what_it_was_given() -> None:
    roll, batch = Roll(), numbers([3, 1])
    roll.add(batch)
    batch[:] = 9
    assert roll.users().tolist() == [1, 3]


def test_at_most_sixteen_bytes_a_user() -> None:
    users = np.random.default_rng(2).permutation(400_000).astype(np.uint64)
    roll = Roll()
    tracemalloc.start()
    for first in range(0, users.size, 1000):
        roll.add(users[first : first + 1000])
    kept, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(roll) == users.size
    assert kept <= 8 * users.size * 1.05
    assert most <= 24 * users.size  # for a moment, while two runs become one
