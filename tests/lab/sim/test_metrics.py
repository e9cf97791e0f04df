"""Distortion of a round against values computed by hand."""

import math

import numpy as np
import pytest

from hushbit.lab.sim.metrics import add_rows, distortion


def test_distortion_by_hand():
    params = np.array([3.0, -3.0], dtype=np.float32)
    true_mean = np.array([1.0, -1.0])
    decoded = np.array([1.1, -1.1])
    made = distortion(params, true_mean, decoded)
    assert made.snr_db == pytest.approx(20.0)  # var 1 over var 0.01
    assert made.snr_weights_db == pytest.approx(10 * math.log10(16 / 0.01))
    assert made.snr_authors_db == pytest.approx(40.0)
    assert made.mse == pytest.approx(0.01)


def test_the_sum_of_rows_does_not_depend_on_grouping():
    rows = np.random.default_rng(0).normal(size=(50, 9)).astype(np.float32)
    chosen = np.arange(50) % 3 != 0
    whole, parts, plain = np.zeros(9), np.zeros(9), np.zeros(9)
    add_rows(whole, rows, chosen)
    for part in (slice(0, 7), slice(7, 50)):
        add_rows(parts, rows[part], chosen[part])
    for row in rows[chosen]:
        plain += row
    assert whole.tobytes() == parts.tobytes() == plain.tobytes()


def test_a_constant_error_counts_in_mse_but_not_in_snr():
    made = distortion(np.zeros(2, np.float32), np.array([1.0, -1.0]), np.array([2.0, 0.0]))
    assert made.mse == 1.0
    assert made.snr_db == math.inf


def test_rounds_without_error_or_without_signal():
    zeros, ones = np.zeros(3, np.float32), np.array([1.0, 2.0, 3.0])
    assert distortion(zeros, ones, ones).snr_db == math.inf
    assert distortion(zeros, np.zeros(3), ones).snr_db == -math.inf


def test_a_round_without_honest_users_has_nan_metrics():
    unknown = np.full(3, np.nan)
    made = distortion(np.zeros(3, np.float32), unknown, np.ones(3))
    assert all(math.isnan(value) for value in vars(made).values())
    assert set(vars(made)) == {"snr_db", "snr_weights_db", "snr_authors_db", "snr_layers", "mse"}


def test_ratios_are_averaged_over_layers():
    true_mean = np.array([1.0, -1.0, 2.0, -2.0, 7.0])
    decoded = np.array([1.1, -1.1, 3.0, -3.0, 0.0])
    layers = (slice(0, 2), slice(2, 4), slice(4, 5))  # one entry has no variance
    made = distortion(np.zeros(5, np.float32), true_mean, decoded, layers)
    assert made.snr_layers == pytest.approx((100 + 4) / 2)
