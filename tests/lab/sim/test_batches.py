"""Batches and dropout masks are functions of seed, round and user alone."""

import numpy as np

from hushbit.lab.sim.partition import Federation
from hushbit.lab.sim.training import batch_seeds, draw_batch, dropout_masks


def federation(counts) -> Federation:
    total = int(np.sum(counts))
    parts = np.split(np.random.default_rng(0).permutation(total), np.cumsum(counts)[:-1])
    return Federation.of(np.zeros((total, 1, 1, 1), np.uint8), np.zeros(total, int), parts)


def test_batches_cover_every_sample_once_per_pass() -> None:
    fed = federation([10, 3, 5])
    users = np.arange(3)
    seeds = batch_seeds(1, 4, users)
    for first in (0, 3):
        seen: list[list[int]] = [[], [], []]
        for step in range(first, first + 3):
            rows, present = draw_batch(fed, users, seeds, step, 4)
            for user in users:
                seen[user] += rows[user][present[user] == 1].tolist()
        assert sorted(seen[0]) == sorted(fed.samples_of(0))
        assert sorted(seen[1]) == sorted(np.tile(fed.samples_of(1), 3))
    orders = [tuple(draw_batch(fed, users, seeds, step, 4).rows[0]) for step in (0, 3, 6)]
    assert len(set(orders)) == 3


def test_batches_are_a_function_of_seed_round_and_user_alone() -> None:
    fed = federation([40, 8, 40, 23])
    everyone, two = np.arange(4), np.array([0, 3])
    together = draw_batch(fed, everyone, batch_seeds(9, 2, everyone), 1, 8)
    separate = draw_batch(fed, two, batch_seeds(9, 2, two), 1, 8)
    assert np.array_equal(together.rows[two], separate.rows)
    for seed, round_number in ((9, 3), (10, 2)):
        other = draw_batch(fed, two, batch_seeds(seed, round_number, two), 1, 8)
        assert not np.array_equal(other.rows, separate.rows)


def test_first_sample_of_a_shuffle_is_uniform() -> None:
    """Chi-square with 9 degrees of freedom; fixed seeds, 99.9 % limit 27.9."""
    users = np.arange(20_000)
    fed = Federation.of(
        np.zeros((10, 1, 1, 1), np.uint8), np.zeros(10, int), np.tile(np.arange(10), (20_000, 1))
    )
    rows = draw_batch(fed, users, batch_seeds(3, 0, users), 0, 1).rows[:, 0]
    counts = np.bincount(rows, minlength=10)
    assert ((counts - 2000) ** 2 / 2000).sum() < 27.9


def test_dropout_masks_depend_on_seed_and_step_only() -> None:
    seeds = batch_seeds(1, 0, np.arange(4))
    shapes = ((5, 5, 8), (7,))
    whole = dropout_masks(seeds, 2, 6, shapes, 0.2)
    part = dropout_masks(seeds[2:], 2, 6, shapes, 0.2)
    assert all(np.array_equal(w[2:], p) for w, p in zip(whole, part, strict=True))
    assert not np.array_equal(whole[0], dropout_masks(seeds, 3, 6, shapes, 0.2)[0])
    # 4800 values, standard deviation 0.0058: the limit is five standard deviations.
    assert abs(whole[0].mean() - 0.8) < 0.029
