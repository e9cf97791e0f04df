"""Theorem 1: measured distortion, the exact formula, and both bounds."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hushbit.coins import SimulationCoins
from hushbit.cpa import CPA
from hushbit.keys import RoundKey
from hushbit.lab.experiments.base import Experiment, Findings, Lab, Where, interval
from hushbit.lab.results import Axes, Cell, Check, Metric
from hushbit.lab.theorems import (
    corrected_term,
    distortion_bound,
    exact_distortion,
    published_term,
)

RADIUS, ENTRIES, REPEATS = 1.0, 384, 4
AXES = Axes("lines", "users", "users", True, (Metric("distortion", "E|w_CPA - w_FA|²"),))


@dataclass(frozen=True)
class Spot:
    """One setting: users, epsilon, block size L and rate R; 2^(LR) points."""

    users: int
    epsilon: float
    lattice: str
    size: int
    rate: float

    @property
    def points(self) -> int:
        """N = 2^(L R)."""
        return 1 << round(self.size * self.rate)

    @property
    def where(self) -> Where:
        """What names it."""
        return {"epsilon_per_bit": self.epsilon, "L": self.size, "R": self.rate}


def spots(quick: bool) -> list[Spot]:
    """Over K, epsilon, L and R."""
    users = (10, 100) if quick else (10, 100, 1000)
    shapes = (("Z", 1, 1), ("Z", 1, 2), ("A2", 2, 1), ("D4", 4, 0.75), ("E8", 8, 0.5))
    return [Spot(k, epsilon, *shape) for epsilon in (0.5, 2.0) for shape in shapes for k in users]


def find(lab: Lab) -> Findings:
    """Measure each spot with many rounds of fresh words and coins."""
    cells: list[Cell] = []
    wanted = spots(lab.quick)
    for number, spot in enumerate(wanted, 1):
        cells += _spot_cells(spot, len(lab.seeds))
        if lab.watch is not None:
            lab.watch("spots", number, len(wanted))
    return Findings(AXES, tuple(cells), checks(cells), CHOICES)


def _spot_cells(spot: Spot, repeats: int) -> list[Cell]:
    ours, paper = _mechanism(spot, "corrected"), _mechanism(spot, "paper")
    updates = _updates(spot, ours)
    blocks = ours.blocks
    made = [
        _cell("measured, corrected decoder", "corrected", spot, measured(ours, updates, repeats)),
        _cell("measured, decoder as written", "authors", spot, measured(paper, updates, repeats)),
    ]
    for scheme, variant, value in (
        ("exact formula", "exact", exact_distortion(ours, updates)),
        ("corrected bound", "bound", distortion_bound(corrected_term(ours), blocks, spot.users)),
        ("bound as published", "published",
         distortion_bound(published_term(ours), blocks, spot.users)),
    ):  # fmt: skip
        made.append(_cell(scheme, variant, spot, [value]))
    return made


def measured(mechanism: CPA, updates: NDArray[np.float64], repeats: int) -> list[float]:
    """|estimate - mean|^2 in rounds of fresh words and coins, averaged in groups."""
    truth, found = updates.mean(axis=0), []
    for group in range(repeats):
        total = 0.0
        for number in range(REPEATS):
            key = RoundKey(b"theorem one of a well known work"[:32], group * REPEATS + number)
            tally = mechanism.tally(key)
            keys = key.users(np.arange(len(updates)))
            tally.add_many(mechanism.encode_many(updates, keys, SimulationCoins(7)))
            total += float(np.sum((mechanism.estimate(tally).mean - truth) ** 2))
        found.append(total / REPEATS)
    return found


def _mechanism(spot: Spot, preset: str) -> CPA:
    return CPA(
        ENTRIES, spot.epsilon, RADIUS, points=spot.points, lattice=spot.lattice, preset=preset,
        rounding="stochastic",
    )  # fmt: skip


def _updates(spot: Spot, mechanism: CPA) -> NDArray[np.float64]:
    """Blocks that lean to one side, inside what is decoded without bias."""
    rng = np.random.default_rng([spot.users, spot.size, 0x71])
    reach = mechanism.unbiased_radius / math.sqrt(spot.size)
    return rng.uniform(0.1 * reach, 0.5 * reach, (spot.users, ENTRIES))


def _cell(scheme: str, variant: str, spot: Spot, values: list[float]) -> Cell:
    mean, low, high = interval(values)
    return Cell(
        scheme, variant, spot.where, "distortion", mean, low, high, tuple(values),
        float(spot.users),
    )  # fmt: skip


def checks(cells: list[Cell]) -> tuple[Check, ...]:
    """Measured agrees with exact; both bounds are held against what they speak of."""
    table = {(c.scheme, str(c.where), c.x): c for c in cells}
    exact = [c for c in cells if c.variant == "exact"]
    ratios, below, broken = [], 0, 0
    for one in exact:
        place = (str(one.where), one.x)
        ratios.append(table["measured, corrected decoder", *place].mean / one.mean)
        below += one.mean <= table["corrected bound", *place].mean
        written = table["measured, decoder as written", *place].mean
        broken += written > table["bound as published", *place].mean
    worst = max(ratios, key=lambda ratio: abs(math.log(ratio)))
    return (
        Check(
            "measured distortion within 15 % of the exact formula everywhere",
            all(abs(ratio - 1) < 0.15 for ratio in ratios), f"ratios up to {worst:.3f}",
        ),
        Check(
            "exact distortion at most the corrected bound everywhere", below == len(exact),
            f"{below} of {len(exact)} places",
        ),
        Check(
            "the bound as published holds for the decoder as written", broken == 0,
            f"broken at {broken} of {len(exact)} places",
        ),
    )  # fmt: skip


CHOICES = (
    "Updates of 384 entries, uniform between a tenth and half of the unbiased radius, so that "
    "they do not average to zero and a biased decoder shows.",
    "The decoder as written divides by 2p - 1 and leaves the correlation of balanced words in. It "
    "gets the same points and the same rounding as the corrected one.",
    "R is bits per entry: N = 2^(L R) points; D4 has 8 of them and E8 16.",
)
THEOREM1 = Experiment(
    "theorem1",
    "Theorem 1: distortion of the mean, measured, exact and bounded",
    "Theorem 1 (proved, not shown)",
    "Mean squared distance between the decoded and the true mean update, over the number of "
    "users, epsilon, block size and rate; beside it the exact formula, the corrected bound and the "
    "bound as published.",
    "theory",
    find,
)
