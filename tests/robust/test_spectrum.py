"""Directions of whole ballots: pure noise has none, planted ones are found, cost is linear."""

import math
from unittest import mock

import numpy as np
import pytest

from hushbit.robust.bound import hidden_spike
from hushbit.robust.filter import judge
from hushbit.robust.pulls import PackedPulls
from hushbit.robust.rules import Rule
from hushbit.robust.spectrum import look, noise_edge


def packed(votes):
    """Pulls of rows of ±1."""
    users, dim = votes.shape
    rows = np.zeros((users, 8 * -(-dim // 64)), dtype=np.uint8)
    bits = np.packbits(votes > 0, axis=1, bitorder="little")
    rows[:, : bits.shape[1]] = bits
    return PackedPulls(rows, dim, reach=10.0)


def votes(means, seed=0):
    """±1 with the given means, each within [-1, 1]."""
    drawn = np.random.default_rng(seed).uniform(-1, 1, size=means.shape)
    return np.where(drawn < means, 1.0, -1.0)


def planted(users, dim, share, length, seed=0):
    """A share of users `length` noises away from the others along one direction."""
    axis = np.random.default_rng(seed + 9).choice([-1.0, 1.0], dim) / math.sqrt(dim)
    place = np.where(np.arange(users) < share * users, length, 0.0)
    return np.outer(place, axis), axis


def everyone(users):
    return np.ones(users, dtype=np.bool_)


def test_pure_noise_has_no_direction():
    found = 0
    for seed in range(40):
        found += look(packed(votes(np.zeros((200, 500)), seed)), everyone(200), 6).found
    assert found <= 2  # the edge is a 99 % quantile: three of forty have a chance of 0.8 %


@pytest.mark.parametrize(("users", "dim"), [(300, 600), (200, 3000)])
def test_a_planted_direction_is_found_with_its_value_and_its_scores(users, dim):
    share, length = 0.25, 3.0 * math.sqrt(hidden_spike(users, dim) / 0.1875)
    means, axis = planted(users, dim, share, length)
    rows = votes(means)
    seen = look(packed(rows), everyone(users), 4)
    gram = rows @ rows.T
    np.fill_diagonal(gram, 0.0)
    centred = gram - gram.mean(axis=0) - gram.mean(axis=1)[:, None] + gram.mean()
    assert seen.found == 1
    assert seen.values[0] == pytest.approx(np.linalg.eigvalsh(centred)[-1], rel=0.03)
    assert abs(float(seen.axes[:, 0] @ axis)) > 0.8
    direction = seen.weights[:, 0] @ rows / np.linalg.norm(seen.weights[:, 0] @ rows)
    without_own = rows @ direction - dim * seen.weights[:, 0] / np.linalg.norm(
        seen.weights[:, 0] @ rows
    )
    # The direction is rounded to four bits and a sign, which turns it a little.
    assert float((seen.scores[:, 0] - without_own).std()) < 0.25


def test_what_is_below_the_edge_stays_hidden_and_what_is_above_does_not():
    users, dim = 400, 800
    found = []
    for factor in (0.25, 4.0):
        length = math.sqrt(factor * hidden_spike(users, dim) / 0.25)
        found.append(look(packed(votes(planted(users, dim, 0.5, length)[0])), everyone(users), 4))
    assert [seen.found for seen in found] == [0, 1]


def test_removed_users_are_not_looked_at():
    means, _ = planted(300, 600, 0.25, 12.0)
    seen = look(packed(votes(means)), np.arange(300) >= 75, 4)
    assert seen.found == 0
    assert not seen.weights[:75].any()


def test_the_edge_counts_users_and_entries():
    assert noise_edge(1000, 7850) * 999 - 7850 == pytest.approx(
        2 * math.sqrt(999 * 7850) + 999, rel=0.02
    )


def test_passes_over_ballots_do_not_grow_with_users():
    """Linear time: the number of passes is fixed, and a pass is linear in K · dim."""
    counts = []
    for users in (100, 400, 1600):
        pulls = packed(votes(planted(users, 200, 0.3, 9.0)[0]))
        with mock.patch.object(pulls, "scores", wraps=pulls.scores) as asked:
            judge(pulls, Rule(looks=2))
        counts.append(asked.call_count)
    assert max(counts) <= 2 * (1 + 2 * 4 + 12 * 3)
    assert max(counts) <= 1.5 * min(counts)
