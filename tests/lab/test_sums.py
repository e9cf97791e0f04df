"""Sums of baselines: the moments of ballots, and the tables they come from."""

import math

import numpy as np
import pytest

from hushbit.baselines import JoPEQ, Laplace
from hushbit.baselines.jopeq_scalar import ScalarCode
from hushbit.fl.settings import Settings
from hushbit.lab.standings import standings
from hushbit.lab.sums import (
    CELLS,
    Clipped,
    Levels,
    Plain,
    add_moments,
    decoded_moments,
    reference_moments,
)
from lab.test_law import decoded_rounds

USERS, COPIES, ROUNDS = 100, 200, 20


def updates_of(scale: float) -> np.ndarray:
    """Every user has one value of its own, many times; some beyond the clipping."""
    row = np.random.default_rng(5).normal(0.2 * scale, 0.8 * scale, (USERS, 1))
    return np.repeat(row, COPIES, axis=1).astype(np.float32)


def drawn_of(settings: Settings, updates: np.ndarray) -> np.ndarray:
    rng, made = np.random.default_rng(6), []
    for _ in range(ROUNDS):
        gathered = standings(settings, (), COPIES)
        assert gathered is not None
        gathered.add(updates, np.zeros(USERS, np.bool_))
        made.append(gathered.decode(rng))
    return np.array(made).ravel()


@pytest.mark.parametrize("kind", ["laplace", "jopeq", "jopeq authors"])
@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_sums_have_the_moments_of_ballots(kind: str, epsilon: float) -> None:
    """Mean and variance agree within 6 standard errors: by chance once in 10^8 it would fail."""
    scale = 0.02
    preset = "authors" if "authors" in kind else None
    settings = Settings(
        mechanism=kind.split()[0], preset=preset, epsilon_per_bit=epsilon, radius=scale, users=USERS
    )
    mechanism = Laplace(COPIES, epsilon, scale)
    if kind != "laplace":
        mechanism = JoPEQ(COPIES, epsilon, scale, preset=preset or "honest")
    updates = updates_of(scale)
    ballots, drawn = decoded_rounds(mechanism, updates, ROUNDS).ravel(), drawn_of(settings, updates)
    error = ballots.std() / math.sqrt(ballots.size)
    assert abs(ballots.mean() - drawn.mean()) < 6 * math.sqrt(2) * error
    assert drawn.var() == pytest.approx(ballots.var(), rel=6 * math.sqrt(4 / ballots.size))


@pytest.mark.parametrize("levels", [2, 3, 5])
@pytest.mark.parametrize("moment", [False, True])
def test_without_overload_an_entry_is_kept_and_its_variance_known(
    levels: int, moment: bool
) -> None:
    """A quantizer that reaches far is unbiased, with the variance that the code states."""
    code = ScalarCode(1, 4.0, 1.0, levels, moment, 40.0 if levels > 3 and not moment else None,
                      1e-12 if not moment else 0.01)  # fmt: skip
    entries = np.linspace(-1, 1, 9)
    mean, variance = decoded_moments(code, entries)
    tolerance = 0.03 if moment else 1e-3
    assert np.abs(mean - entries).max() < tolerance
    assert variance == pytest.approx(np.full(9, code.variance), rel=0.2 if moment else 1e-3)


def test_moments_are_symmetric() -> None:
    code = JoPEQ(1, 0.5, 1.0, preset="authors").code
    assert isinstance(code, ScalarCode)
    mean, variance = decoded_moments(code, np.linspace(-1, 1, 21))
    assert mean == pytest.approx(-mean[::-1], abs=1e-9)
    assert variance == pytest.approx(variance[::-1])
    # The published rule overloads: a value of 1 leans to zero by more than a fifth.
    assert mean[-1] - 1 == pytest.approx(-0.2252, abs=1e-4)


def test_the_kernel_adds_what_the_definition_adds() -> None:
    rng = np.random.default_rng(1)
    updates = rng.normal(0, 0.05, (30, 41)).astype(np.float32)
    table = rng.normal(0, 1, (CELLS + 1, 2)).astype(np.float32)
    ours, wanted = ([np.ones(41), np.zeros(41)] for _ in range(2))
    add_moments(updates, 12.5, table, *ours)
    reference_moments(updates, 12.5, table, *wanted)
    for mine, theirs in zip(ours, wanted, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-9)


def test_vanilla_loses_nothing() -> None:
    updates = np.random.default_rng(1).normal(0, 1, (7, 5)).astype(np.float32)
    plain = Plain(Settings(mechanism="fedavg", users=7), 5)
    plain.add(updates[:3], np.zeros(3, np.bool_))
    plain.add(updates[3:], np.zeros(4, np.bool_))
    got = plain.decode(np.random.default_rng(0))
    assert got == pytest.approx(updates.astype(np.float64).mean(axis=0), abs=1e-15)


def test_which_noise_the_server_knows() -> None:
    honest = Settings(mechanism="jopeq", epsilon_per_bit=0.5, radius=0.1, users=200)
    published = Settings(**{**vars(honest), "preset": "authors"})
    mechanism = JoPEQ(4, 0.5, 0.1)
    assert isinstance(mechanism.code, ScalarCode)
    assert Levels(honest, 4).noise == pytest.approx(mechanism.code.variance / 200)
    assert Levels(published, 4).noise is None
    laplace = Settings(mechanism="laplace", epsilon_per_bit=0.5, radius=0.1, users=200)
    assert Clipped(laplace, 4).noise == pytest.approx(8 * 0.1**2 / 0.5**2 / 200)
