"""The set of voters: equal to a Python set, in at most sixteen bytes per user."""

import itertools
import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hushbit.tally.tally import VoterSet


def numbers(users: list[int]) -> np.ndarray:
    return np.array(users, dtype=np.uint64)


@given(
    st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=8, unique=True), max_size=12),
    st.lists(st.integers(0, 2**64 - 1), max_size=8),
)
def test_behaves_like_a_set(batches: list[list[int]], others: list[int]) -> None:
    voters, model = VoterSet(), set()
    for batch in batches:
        fresh = [user for user in batch if user not in model]
        assert (voters.find(numbers(batch)) == [user in model for user in batch]).all()
        voters.add(numbers(fresh))
        model |= set(fresh)
    assert len(voters) == len(model)
    assert voters.users().tolist() == sorted(model)
    assert voters.users().dtype == np.uint64
    assert (voters.find(numbers(others)) == [user in model for user in others]).all()


def test_adding_one_at_a_time_leaves_few_runs() -> None:
    voters = VoterSet()
    for user in np.random.default_rng(1).permutation(3000).astype(np.uint64):
        voters.add(np.array([user]))
    assert len(voters._runs) <= 13
    assert voters.users().tolist() == list(range(3000))


def test_every_run_is_more_than_twice_as_large_as_the_next() -> None:
    for sizes in ([4, 2], [3, 1, 1], [9, 4, 2, 1], [1] * 20, [8, 3, 1], [5, 5, 5]):
        voters, next_user = VoterSet(), 0
        for size in sizes:
            voters.add(np.arange(next_user, next_user + size, dtype=np.uint64))
            next_user += size
        found = [run.size for run in voters._runs]
        assert all(large > 2 * small for large, small in itertools.pairwise(found))
        assert sum(found) == len(voters) == sum(sizes)
    voters = VoterSet()
    for size in (9, 4, 1):
        voters.add(np.arange(100 * size, 101 * size, dtype=np.uint64))
    assert [run.size for run in voters._runs] == [9, 4, 1]  # such runs are not merged


def test_add_copies_its_argument() -> None:
    voters, batch = VoterSet(), numbers([3, 1])
    voters.add(batch)
    batch[:] = 9
    assert voters.users().tolist() == [1, 3]


def test_a_voter_set_needs_at_most_sixteen_bytes_per_user() -> None:
    users = np.random.default_rng(2).permutation(400_000).astype(np.uint64)
    voters = VoterSet()
    tracemalloc.start()
    for first in range(0, users.size, 1000):
        voters.add(users[first : first + 1000])
    kept, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(voters) == users.size
    assert kept <= 8 * users.size * 1.05
    assert most <= 24 * users.size  # for a moment, while two runs become one
