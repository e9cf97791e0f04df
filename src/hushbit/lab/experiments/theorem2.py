"""Theorem 2: suboptimality of CPA on a strongly convex problem, below the bound and like 1/t."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hushbit.coins import SimulationCoins
from hushbit.cpa import CPA
from hushbit.keys import RoundKey
from hushbit.lab.experiments.base import Experiment, Findings, Lab, interval
from hushbit.lab.results import Axes, Cell, Check, Metric
from hushbit.lab.theorems import (
    Convexity,
    convergence_bound,
    corrected_term,
    published_term,
    step_size,
)

Floats = NDArray[np.float64]
ENTRIES, SAMPLES, EPSILON = 16, 5, 1.0
SMOOTH, CONVEX, SPREAD, BOX = 2.0, 1.0, 0.5, 4.0
AXES = Axes("lines", "round", "local step t", True, (Metric("gap", "E F(w_t) - F(w*)"),))
LOCAL_STEPS = (1, 4)


@dataclass(frozen=True, eq=False)
class Quadratic:
    """Users with F_r(w) = mean over samples of 1/2 sum_j h_j (w_j - a_j)^2, weights kept in a box.

    In the box |w_j| <= BOX gradients are bounded, as the theorem asks; its projection moves no
    point away from the minimum.
    """

    curvature: Floats
    samples: Floats

    @classmethod
    def draw(cls, users: int, seed: int) -> "Quadratic":
        """Users that differ a little: their centres spread, and their samples around them."""
        rng = np.random.default_rng([seed, 0x72])
        centres = 1.0 + SPREAD * rng.uniform(-1, 1, (users, 1, ENTRIES))
        noise = SPREAD * rng.uniform(-1, 1, (users, SAMPLES, ENTRIES))
        return cls(np.linspace(CONVEX, SMOOTH, ENTRIES), centres + noise)

    @property
    def best(self) -> Floats:
        """The minimum of the mean objective."""
        return np.asarray(self.samples.mean(axis=(0, 1)))

    def gap(self, w: Floats) -> float:
        """F(w) - F(w*)."""
        return float(0.5 * np.sum(self.curvature * (w - self.best) ** 2))

    def facts(self, start: Floats) -> Convexity:
        """Constants of the theorem, the gradient's bound taken over the whole box."""
        own = self.samples.mean(axis=1)
        reach = BOX + np.abs(self.samples)
        squares = np.sum((self.curvature * reach) ** 2, axis=2).max(axis=1)
        spread = 0.5 * np.sum(self.curvature * own.var(axis=0))
        return Convexity(
            SMOOTH, CONVEX, float(squares.mean()), float(spread),
            float(np.sum((start - self.best) ** 2)),
        )  # fmt: skip

    @property
    def steepest(self) -> float:
        """Largest entry of any gradient in the box."""
        return float((self.curvature * (BOX + np.abs(self.samples))).max())


def run(problem: Quadratic, steps: int, rounds: int, seed: int, private: bool) -> list[float]:
    """F(w_t) - F(w*) after every round of local SGD with one sample a step."""
    w = np.full(ENTRIES, -1.0)
    facts = problem.facts(w)
    rng = np.random.default_rng([seed, steps, 0x73])
    gaps = []
    for number in range(rounds):
        rates = [step_size(facts, steps, number * steps + step) for step in range(steps)]
        updates = _local(problem, w, rates, rng)
        if private:
            mean = _aggregate(updates, steps * rates[0] * problem.steepest, number, seed)
        else:
            mean = updates.mean(axis=0)
        w = np.clip(w + mean, -BOX, BOX)
        gaps.append(problem.gap(w))
    return gaps


def _local(problem: Quadratic, w: Floats, rates: list[float], rng: np.random.Generator) -> Floats:
    users = len(problem.samples)
    own = np.repeat(w[None], users, axis=0)
    for rate in rates:
        drawn = problem.samples[np.arange(users), rng.integers(0, SAMPLES, users)]
        own = np.clip(own - rate * problem.curvature * (own - drawn), -BOX, BOX)
    return own - w


def _aggregate(updates: Floats, radius: float, number: int, seed: int) -> Floats:
    """CPA whose points shrink with the step size, so that no entry lies beyond them."""
    mechanism = CPA(ENTRIES, EPSILON, radius)
    key = RoundKey(b"theorem two of a well known work"[:32], number)
    tally = mechanism.tally(key)
    keys = key.users(np.arange(len(updates)))
    tally.add_many(mechanism.encode_many(updates, keys, SimulationCoins(seed)))
    return mechanism.estimate(tally).mean


def find(lab: Lab) -> Findings:
    """Run both algorithms for one and for four local steps, beside both bounds."""
    rounds = lab.rounds_of(600)
    cells: list[Cell] = []
    checks: list[Check] = []
    for number, steps in enumerate(LOCAL_STEPS, 1):
        made = _curves(lab, steps, rounds)
        cells += made
        checks += check(made, steps)
        if lab.watch is not None:
            lab.watch("curves", number, len(LOCAL_STEPS))
    return Findings(AXES, tuple(cells), tuple(checks), CHOICES)


def _curves(lab: Lab, steps: int, rounds: int) -> list[Cell]:
    problem = Quadratic.draw(50, 1)
    facts = problem.facts(np.full(ENTRIES, -1.0))
    shown = sorted({round(rounds ** (k / 24)) for k in range(25)})
    unit = CPA(ENTRIES, EPSILON, 1.0)
    more = {"steps": steps, "users": 50, "blocks": ENTRIES}
    # zeta_t = tau g eta_t at unit points, so C = (tau g)^2.
    scale = (steps * problem.steepest) ** 2
    cells = []
    for scheme, variant, private in (
        ("CPA", "corrected", True), ("local SGD", "exact", False)
    ):  # fmt: skip
        runs = [run(problem, steps, rounds, seed, private) for seed in lab.seeds]
        for at in shown:
            values = [gaps[at - 1] for gaps in runs]
            mean, low, high = interval(values)
            cells.append(_cell(scheme, variant, steps, at, mean, low, high, tuple(values)))
    for scheme, variant, term in (
        ("bound, corrected", "bound", corrected_term(unit)),
        ("bound as published", "published", published_term(unit)),
        ("bound for local SGD", "bound", 0.0),
    ):
        for at in shown:
            value = convergence_bound(facts, scale=scale, term=term, t=at * steps, **more)  # type: ignore[arg-type]
            cells.append(_cell(scheme, variant, steps, at, value, value, value, ()))
    return cells


def _cell(
    scheme: str, variant: str, steps: int, at: int, mean: float, low: float, high: float,
    values: tuple[float, ...],
) -> Cell:  # fmt: skip
    return Cell(
        scheme, variant, {"local_steps": steps}, "gap", mean, low, high, values, float(at * steps)
    )


def check(cells: list[Cell], steps: int) -> list[Check]:
    """Below the bound at every t, and a slope of about -1 over the last decade."""
    lines = {
        scheme: {cell.x: cell.mean for cell in cells if cell.scheme == scheme}
        for scheme in ("CPA", "local SGD", "bound, corrected")
    }
    ours, bound = lines["CPA"], lines["bound, corrected"]
    tightest = max(ours[t] / bound[t] for t in ours)
    slope = decay(ours)  # type: ignore[arg-type]
    return [
        Check(
            f"suboptimality below the corrected bound at every t, {steps} local steps",
            tightest <= 1, f"at most {tightest:.2%} of the bound",
        ),
        Check(
            f"suboptimality of CPA decays like 1/t, {steps} local steps",
            -1.35 <= slope <= -0.65, f"slope {slope:.2f} in log-log over the last decade",
        ),
    ]  # fmt: skip


def decay(line: dict[float, float]) -> float:
    """Slope of log value over log t in the last decade; NaN where that is a single point."""
    last = max(line)
    points = [(math.log(t), math.log(v)) for t, v in line.items() if t >= max(last / 10, 1)]
    if len(points) < 2:
        return math.nan
    x, y = np.array(points).T
    return float(np.polyfit(x, y, 1)[0])


CHOICES = (
    "A quadratic problem with 16 weights, curvature from 1 to 2, 50 users with 5 samples each and "
    "centres that differ; one sample a step; epsilon 1 per bit; two points whose radius is the "
    "largest possible update, so that nothing is cut and C = (tau g)^2.",
    "Weights stay in a box, on which the gradients are bounded as assumption AS3 wants.",
    "The step sizes are those of the theorem: eta_t = tau / (rho_c (t + phi)).",
)
THEOREM2 = Experiment(
    "theorem2",
    "Theorem 2: convergence on a strongly convex problem",
    "Theorem 2 (proved, not shown)",
    "Suboptimality of local SGD with CPA and without, for one and for four local steps, beside the "
    "bound as published, its corrected form, and that of local SGD alone.",
    "theory",
    find,
    seeds=20,
)
