"""Held against the field: the error of the mean on the same vectors, at the same bits or epsilon.

NMSE = |estimate - mean|² / (mean of |x_u|²)
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from hushbit.arrays import Floats
from hushbit.field.carried import Carried
from hushbit.lab.experiments.base import Experiment, Findings, Lab, Where, interval
from hushbit.lab.experiments.nmse_checks import checks_of
from hushbit.lab.experiments.nmse_schemes import (
    AUTO_ROUNDS,
    Contestant,
    compressed,
    private,
    whole_message,
)
from hushbit.lab.experiments.nmse_vectors import FAMILIES, Family
from hushbit.lab.results import Axes, Cell, Metric, PrivacyLine

EPSILON_PER_BIT = 0.5
BITS = (1, 2, 3, 4)
EPSILONS = (1.0, 4.0, 8.0)
TUNING_SEED = 990_001
AXES = Axes("table", None, "", False, (
    Metric("nmse", "NMSE"),
    Metric("slope", "slope (1: not shrunken)"),
    Metric("bits", "bits an entry"),
))  # fmt: skip


@dataclass(frozen=True)
class Contest:
    """One kind of promise: who takes part, at which place, with how many users."""

    where: Where
    users: int
    scaled: bool
    enter: Callable[[int], Iterable[Contestant]]


def find(lab: Lab) -> Findings:
    """Draw each family once; tune and measure every contestant on it."""
    families = [one for one in FAMILIES if not lab.quick or "CIFAR" not in one.name]
    contests = list(_contests(lab.quick))
    cells: list[Cell] = []
    notes: list[str] = []
    for number, family in enumerate(families):
        most = family.draw(max(one.users for one in contests), lab.seeds[0], lab.data)
        notes.append(_described(family, most))
        for contest in contests:
            made, chosen = _measured(contest, family, most[: contest.users], lab.seeds)
            cells += made
            notes += chosen
        if lab.watch is not None:
            lab.watch("families", number + 1, len(families))
    return Findings(AXES, tuple(cells), checks_of(cells), CHOICES, PRIVACY, tuple(notes))


def _contests(quick: bool) -> Iterator[Contest]:
    users = 200 if quick else 1000
    where: Where = {"promise": "per bit", "epsilon": EPSILON_PER_BIT, "users": users}
    yield Contest(where, users, False, _private)
    for bits in BITS[:2] if quick else BITS:
        where = {"promise": "none", "bits": bits, "users": 10}
        yield Contest(where, 10, False, partial(_compressed, bits))
    users = 20 if quick else 100
    for epsilon in EPSILONS[1:2] if quick else EPSILONS:
        where = {"promise": "whole message", "epsilon": epsilon, "users": users}
        yield Contest(where, users, True, partial(_whole_message, epsilon))


def _private(dim: int) -> Iterable[Contestant]:
    return private(EPSILON_PER_BIT)


def _compressed(bits: int, dim: int) -> Iterable[Contestant]:
    return compressed(bits)


def _whole_message(epsilon: float, dim: int) -> Iterable[Contestant]:
    return whole_message(dim, epsilon)


def _measured(
    contest: Contest, family: Family, vectors: Floats, seeds: tuple[int, ...]
) -> tuple[list[Cell], list[str]]:
    if contest.scaled:
        vectors = vectors / (np.linalg.norm(vectors, axis=1).max() * (1 + 1e-6))
    where = {**contest.where, "vectors": family.name}
    cells, notes = [], []
    for one in contest.enter(vectors.shape[1]):
        text, carry = min(
            one.candidates,
            key=lambda candidate: (
                0.0 if len(one.candidates) == 1
                else _figures(candidate[1](vectors, TUNING_SEED), vectors)[0]
            ),
        )  # fmt: skip
        if text:
            notes.append(f"{one.name} ({one.variant}; {_words(where)}): {text}")
        found = [_figures(carry(vectors, seed), vectors) for seed in seeds]
        for metric, values in zip(("nmse", "slope", "bits"), zip(*found, strict=True), strict=True):
            cells.append(Cell(one.name, one.variant, where, metric, *interval(values), values))
        if one.stated is not None:
            cells.append(_stated(one, where, contest, vectors))
    return cells, notes


def _figures(carried: Carried, vectors: Floats) -> tuple[float, float, float]:
    """NMSE, slope of the estimate on the truth, bits an entry."""
    mean = vectors.mean(axis=0)
    error = float(((carried.mean - mean) ** 2).sum()) / float((vectors**2).sum(axis=1).mean())
    return error, float(carried.mean @ mean) / float(mean @ mean), carried.bits_per_entry


def _stated(one: Contestant, where: Where, contest: Contest, vectors: Floats) -> Cell:
    """What theory states: for unit vectors where a norm of 1 is promised, else relative."""
    assert one.stated is not None
    power = float((vectors**2).sum(axis=1).mean()) if contest.scaled else 1.0
    value = one.stated / contest.users / power
    return Cell(one.name, "exact", where, "nmse", value, value, value, ())


def _described(family: Family, vectors: Floats) -> str:
    power = (vectors**2).sum(axis=1).mean()
    share = float((vectors.mean(axis=0) ** 2).sum() / power)
    return (
        f"{family.name}: {family.about}; {vectors.shape[1]} entries; the mean of "
        f"{len(vectors)} users holds {share:.3f} of a user's power (the NMSE of sending nothing)"
    )


def _words(where: Where) -> str:
    return ", ".join(f"{key} {value}" for key, value in where.items())


CHOICES = (
    "The vectors of a family are drawn once; seeds differ in coins, keys and rotations.",
    "Schemes with a size (radius, scale, step) take the one of least NMSE on a seed of its own, "
    "from 0.1 to 8 times the rms entry, and with or without rotation; CPA as published and "
    "signSGD are not rotated. CPA w/o RR may also choose stochastic or subtractive rounding.",
    "QSGD and UVeQFed (hexagonal lattice) use an ideal entropy code whose table is free, with the "
    "finest step that fits the bits; top-k pays 32 bits a value and log2 of the choice of places.",
    "EDEN, QUIC-FL, PrivUnitG, PrivHS and SQKR are written from their papers' definitions; cells "
    "of variant exact hold the error that theory states for them.",
    "Whole message: vectors scaled so that the longest has norm 1; shorter ones get one more entry "
    "in PrivUnitG, a random sign in PrivHS. Nothing is tuned.",
    f"CPA auto has followed the same vectors for {AUTO_ROUNDS} rounds; the last one is measured.",
)
PRIVACY = (
    PrivacyLine("per bit", "eps = 0.5", "0.5 times the bits (pure)", "one round"),
    PrivacyLine("none", "none", "none", "none"),
    PrivacyLine("whole message", "-", "eps = 1, 4, 8 (pure; CPA clip: delta 1e-5)", "one round"),
)

NMSE = Experiment(
    "nmse",
    "Mean estimation: CPA against the field",
    "beyond the paper",
    "Error of the mean of the same vectors: one private bit for each entry; one to four bits "
    "without privacy; and a budget for the whole vector.",
    "cifar",
    find,
)
