"""The paper's two theorems as formulas and as experiments, and the exact error by bit allocation.

    theorem1          measured distortion, the exact formula, the bounds as published and corrected
    theorem2          suboptimality of CPA on a strongly convex problem against the bounds
    bit-allocations   exact error of points, lattices and stages at equal epsilon

Notation: M blocks, K users, points q_1 ... q_N, beta = 2p - 1, Q = sum |q|^2 and Qc the same
around the mean of the points.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from hushbit.checks import Floats
from hushbit.cpa import CPA, NestedCPA
from hushbit.lab.experiments.experiment import (
    Coordinates,
    ExperimentRunner,
    Findings,
    experiment,
    line_axes,
    stated_cell,
)
from hushbit.lab.experiments.results import Cell, Check
from hushbit.lab.intervals import interval
from hushbit.wire.coins import SimulationCoins
from hushbit.wire.keys import RoundKey


def published_moment(mechanism: CPA) -> float:
    """sigma^2 as printed: (1/L) int |x|^2 / V^(2/L) over the basic cell: D V^(1 - 2/L) / L."""
    lattice = mechanism.quantizer.points.lattice
    return float(lattice.second_moment * lattice.volume ** (1 - 2 / lattice.dim) / lattice.dim)


def published_term(mechanism: CPA) -> float:
    """Bracket of Theorem 1 as published: Q / beta^2 + sigma^2."""
    return _energy(mechanism, centred=False) / _beta(mechanism) ** 2 + published_moment(mechanism)


def corrected_term(mechanism: CPA) -> float:
    """Bracket that holds for balanced words and stochastic rounding: (1 - 1/N) Qc / beta^2."""
    share = 1 - 1 / mechanism.quantizer.points.size
    return share * _energy(mechanism, centred=True) / _beta(mechanism) ** 2


def distortion_bound(term: float, blocks: int, users: int) -> float:
    """Theorem 1: E|w_CPA - w_FA|^2 <= (M / K) term."""
    return blocks / users * term


def exact_distortion(mechanism: CPA, updates: Floats) -> float:
    """E|estimate - mean|^2 for these updates: sum of (1-1/N) Qc / beta^2 - |x - qbar|^2 over K^2.

    Exact for even N with stochastic rounding and no block beyond the unbiased radius.
    """
    users, blocks = len(updates), mechanism.blocks
    padded = np.zeros((users, blocks * mechanism.block_size))
    padded[:, : mechanism.dim] = updates
    centre = mechanism.quantizer.points.positions.mean(axis=0)
    offsets = padded.reshape(users, blocks, mechanism.block_size) - centre
    return (users * blocks * corrected_term(mechanism) - float(np.sum(offsets**2))) / users**2


def _energy(mechanism: CPA, centred: bool) -> float:
    positions = mechanism.quantizer.points.positions
    return float(np.sum((positions - positions.mean(axis=0) * centred) ** 2))


def _beta(mechanism: CPA) -> float:
    return float(mechanism.stage_encoders[0].response.beta)


@dataclass(frozen=True)
class Convexity:
    """The constants of a problem that Theorem 2 needs.

    smooth, convex  rho_s and rho_c of every user's objective
    gradient        mean over users of xi_r^2, which bounds E|gradient of a sample|^2
    gap             heterogeneity psi = F(w*) - mean of the users' own minima
    start           |w_0 - w*|^2
    """

    smooth: float
    convex: float
    gradient: float
    gap: float
    start: float


def step_offset(problem: Convexity, steps: int) -> float:
    """phi = tau max(1, 4 rho_s / rho_c)."""
    return steps * max(1.0, 4 * problem.smooth / problem.convex)


def step_size(problem: Convexity, steps: int, t: int) -> float:
    """eta_t = tau / (rho_c (t + phi)), where t counts local steps."""
    return steps / (problem.convex * (t + step_offset(problem, steps)))


def convergence_bound(
    problem: Convexity, *, steps: int, users: int, blocks: int, scale: float, term: float, t: int
) -> float:
    """Theorem 2: rho_s / (2 (t + phi)) max((rho_c^2 + tau^2 b) / (tau rho_c^2), phi |w_0 - w*|^2).

    `term` is the bracket of Theorem 1 for points at unit scale and `scale` the constant C with
    zeta_t^2 <= C eta_t^2; term = 0 is local SGD without compression or privacy.
    """
    noise = blocks * scale * term + problem.gradient
    noise += 8 * (steps - 1) ** 2 * users * problem.gradient
    b = noise / users + 6 * problem.smooth * problem.gap
    offset = step_offset(problem, steps)
    first = (problem.convex**2 + steps**2 * b) / (steps * problem.convex**2)
    return problem.smooth / (2 * (t + offset)) * max(first, offset * problem.start)


ENTRIES, ROUNDS_PER_VALUE = 384, 4
THEOREM1_AXES = line_axes("users", "users", "distortion", log=True)


@dataclass(frozen=True)
class Theorem1Case:
    """One setting: users, epsilon, lattice, block size L and rate R; 2^(LR) points."""

    users: int
    epsilon: float
    lattice: str
    size: int
    rate: float

    @property
    def where(self) -> Coordinates:
        """The coordinates of its cells."""
        return {"epsilon_per_bit": self.epsilon, "L": self.size, "R": self.rate}

    def mechanism(self, preset: str) -> CPA:
        """CPA with N = 2^(L R) points of radius 1."""
        return CPA(
            ENTRIES,
            self.epsilon,
            1.0,
            points=1 << round(self.size * self.rate),
            lattice=self.lattice,
            preset=preset,
            rounding="stochastic",
        )

    def updates(self) -> Floats:
        """Updates with a mean far from zero, inside the unbiased radius."""
        rng = np.random.default_rng([self.users, self.size, 0x71])
        reach = self.mechanism("corrected").unbiased_radius / math.sqrt(self.size)
        return rng.uniform(0.1 * reach, 0.5 * reach, (self.users, ENTRIES))

    def cells(self, repeats: int) -> list[Cell]:
        """Measured distortion of both decoders, the exact formula and both bounds."""
        corrected, updates = self.mechanism("corrected"), self.updates()
        measured = partial(measured_distortion, updates=updates, repeats=repeats)
        bound = partial(distortion_bound, blocks=corrected.blocks, users=self.users)
        found = {
            ("measured, corrected decoder", "corrected"): measured(corrected),
            ("measured, decoder as written", "authors"): measured(self.mechanism("paper")),
            ("exact formula", "exact"): [exact_distortion(corrected, updates)],
            ("corrected bound", "bound"): [bound(corrected_term(corrected))],
            ("bound as published", "published"): [bound(published_term(corrected))],
        }
        return [
            Cell(*line, self.where, "distortion", *interval(some), tuple(some), float(self.users))
            for line, some in found.items()
        ]


def theorem1_cases(quick: bool) -> list[Theorem1Case]:
    """All cases over K, epsilon, L and R."""
    users = (10, 100) if quick else (10, 100, 1000)
    shapes = (("Z", 1, 1), ("Z", 1, 2), ("A2", 2, 1), ("D4", 4, 0.75), ("E8", 8, 0.5))
    return [
        Theorem1Case(k, epsilon, *shape)
        for epsilon in (0.5, 2.0)
        for shape in shapes
        for k in users
    ]


def find_theorem1(runner: ExperimentRunner) -> Findings:
    """Measure each case over several rounds of fresh words and coins."""
    cells: list[Cell] = []
    cases = theorem1_cases(runner.quick)
    for number, case in enumerate(cases, 1):
        cells += case.cells(len(runner.seeds))
        runner.watch("cases", number, len(cases))
    return Findings(THEOREM1_AXES, tuple(cells))


def run_cpa(
    mechanism: CPA, updates: Floats, key: RoundKey, seed: int, decoder: str | None = None
) -> Floats:
    """The mean of one round, by the mechanism's own decoder or the one with this name."""
    tally = mechanism.tally(key)
    keys = key.users(np.arange(len(updates)))
    tally.add_many(mechanism.encode_many(updates, keys, SimulationCoins(seed)))
    return mechanism.estimate(tally, decoder=decoder).mean


def measured_distortion(mechanism: CPA, updates: Floats, repeats: int) -> list[float]:
    """|estimate - mean|^2, `repeats` values, each a mean over rounds of fresh words and coins."""
    truth, found = updates.mean(axis=0), []
    for group in range(repeats):
        total = 0.0
        for number in range(ROUNDS_PER_VALUE):
            key = RoundKey(b"theorem one of a well known work", group * ROUNDS_PER_VALUE + number)
            total += float(np.sum((run_cpa(mechanism, updates, key, 7) - truth) ** 2))
        found.append(total / ROUNDS_PER_VALUE)
    return found


QUADRATIC_USERS, SAMPLES, EPSILON = 50, 5, 1.0
CONVEX, SPREAD, BOX = 1.0, 0.5, 4.0
THEOREM2_ROUNDS = 600
THEOREM2_METRICS = ("gap", "gradient_noise", "drift", "decay")
THEOREM2_AXES = line_axes("round", "local step t", *THEOREM2_METRICS, log=True)


@dataclass(frozen=True)
class Theorem2Case:
    """A quadratic problem: its dimension, its condition number, and the local steps of a round."""

    dim: int
    condition: float
    steps: int

    def __str__(self) -> str:
        return f"{self.dim} weights, condition {self.condition:g}, {self.steps} local steps"

    @property
    def where(self) -> Coordinates:
        """The coordinates of its cells."""
        return {"dim": self.dim, "condition": self.condition, "local_steps": self.steps}

    def shown_steps(self, rounds: int) -> list[float]:
        """The local steps t, at ends of rounds, for which there are cells."""
        shown = sorted({round(rounds ** (k / 24)) for k in range(25)})
        return [float(number * self.steps) for number in shown]


def theorem2_cases(quick: bool) -> list[Theorem2Case]:
    """All cases over dimension, condition number and local steps."""
    dims, conditions, steps = (
        ((16,), (2.0,), (1, 4)) if quick else ((4, 16, 64), (2.0, 10.0), (1, 4, 10))
    )
    return [Theorem2Case(*one) for one in itertools.product(dims, conditions, steps)]


@dataclass(frozen=True, eq=False)
class Quadratic:
    """Users with F_r(w) = mean over samples of 1/2 sum_j h_j (w_j - a_j)^2, weights kept in a box.

    In the box |w_j| <= BOX gradients are bounded, as the theorem requires; projection to it moves
    no point away from the minimum.
    """

    curvature: Floats
    samples: Floats

    @classmethod
    def draw(cls, users: int, seed: int, dim: int = 16, condition: float = 2.0) -> "Quadratic":
        """Users with different centres, and samples spread around them."""
        rng = np.random.default_rng([seed, 0x72])
        centres = 1.0 + SPREAD * rng.uniform(-1, 1, (users, 1, dim))
        noise = SPREAD * rng.uniform(-1, 1, (users, SAMPLES, dim))
        return cls(np.linspace(CONVEX, condition * CONVEX, dim), centres + noise)

    @property
    def start(self) -> Floats:
        """The first weights."""
        return np.full(self.curvature.size, -1.0)

    @property
    def best(self) -> Floats:
        """The minimum of the mean objective."""
        return np.asarray(self.samples.mean(axis=(0, 1)))

    def gap(self, w: Floats) -> float:
        """F(w) - F(w*)."""
        return float(0.5 * np.sum(self.curvature * (w - self.best) ** 2))

    def constants(self, start: Floats) -> Convexity:
        """Constants of the theorem; the gradient is bounded over the whole box."""
        own = self.samples.mean(axis=1)
        reach = BOX + np.abs(self.samples)
        squares = np.sum((self.curvature * reach) ** 2, axis=2).max(axis=1)
        spread = 0.5 * np.sum(self.curvature * own.var(axis=0))
        distance = float(np.sum((start - self.best) ** 2))
        smooth, convex = float(self.curvature.max()), float(self.curvature.min())
        return Convexity(smooth, convex, float(squares.mean()), float(spread), distance)

    @property
    def max_gradient(self) -> float:
        """The largest entry of any gradient in the box."""
        return float((self.curvature * (BOX + np.abs(self.samples))).max())

    def local_updates(
        self, w: Floats, rates: Sequence[float], rng: np.random.Generator
    ) -> tuple[Floats, float, float]:
        """All users' updates after one step per rate, each on one sample.

        Also, at the last step: the mean squared distance of the users' weights from their mean
        (Lemma 3), and the squared error of the mean stochastic gradient (Lemma 2).
        """
        users = len(self.samples)
        own = np.repeat(w[None], users, axis=0)
        for rate in rates:
            drift = float(np.mean(np.sum((own - own.mean(axis=0)) ** 2, axis=1)))
            drawn = self.samples[np.arange(users), rng.integers(0, SAMPLES, users)]
            error = self.curvature * (self.samples.mean(axis=1) - drawn)
            own = np.clip(own - rate * self.curvature * (own - drawn), -BOX, BOX)
        return own - w, drift, float(np.sum(error.mean(axis=0) ** 2))


@dataclass(frozen=True)
class QuadraticRound:
    """Figures after one round: F(w) - F(w*), and the left sides of Lemmas 2 and 3."""

    gap: float
    gradient_noise: float
    drift: float


def run_quadratic(
    problem: Quadratic, steps: int, rounds: int, seed: int, decoder: str | None
) -> list[QuadraticRound]:
    """Local SGD with the decoder of CPA, or without CPA (None).

    The radius of CPA shrinks with the step size, so that no entry lies beyond it.
    """
    w = problem.start
    constants, dim = problem.constants(w), w.size
    rng = np.random.default_rng([seed, steps, 0x73])
    made = []
    for number in range(rounds):
        rates = [step_size(constants, steps, number * steps + step) for step in range(steps)]
        updates, drift, noise = problem.local_updates(w, rates, rng)
        mean = truth = updates.mean(axis=0)
        if decoder is not None:
            mechanism = CPA(dim, EPSILON, steps * rates[0] * problem.max_gradient)
            key = RoundKey(b"theorem two of a well known work", number)
            mean = run_cpa(mechanism, updates, key, seed, decoder)
        w = np.clip(w + mean, -BOX, BOX)
        noise = float(np.sum((mean - truth) ** 2)) + rates[0] ** 2 * noise
        made.append(QuadraticRound(problem.gap(w), noise, drift))
    return made


def find_theorem2(runner: ExperimentRunner) -> Findings:
    """Run every case with CPA, corrected and as written, and without it, beside the bounds."""
    rounds, cases = runner.rounds_of(THEOREM2_ROUNDS), theorem2_cases(runner.quick)
    cells: list[Cell] = []
    for number, case in enumerate(cases, 1):
        cells += _theorem2_cells(case, runner.seeds, rounds)
        runner.watch("cases", number, len(cases))
    return Findings(THEOREM2_AXES, tuple(cells))


THEOREM2_RUNS = (
    ("CPA", "corrected", "corrected"),
    ("CPA, decoder as written", "authors", "paper"),
    ("local SGD", "exact", None),
)


def _theorem2_cells(case: Theorem2Case, seeds: Sequence[int], rounds: int) -> list[Cell]:
    problem = Quadratic.draw(QUADRATIC_USERS, 1, case.dim, case.condition)
    shown, cells = case.shown_steps(rounds), []
    for scheme, variant, decoder in THEOREM2_RUNS:
        runs = [run_quadratic(problem, case.steps, rounds, seed, decoder) for seed in seeds]
        found: dict[str, dict[float, list[float]]] = {
            metric: {
                t: [getattr(run[round(t / case.steps) - 1], metric) for run in runs] for t in shown
            }
            for metric in THEOREM2_METRICS[:3]
        }
        slope = fitted_decay({t: float(np.mean(values)) for t, values in found["gap"].items()})
        if math.isfinite(slope):
            found["decay"] = {shown[-1]: [slope]}
        cells += [
            Cell(scheme, variant, case.where, metric, *interval(values), tuple(values), t)
            for metric, line in found.items()
            for t, values in line.items()
        ]
    return cells + _theorem2_bounds(case, problem, shown)


def _theorem2_bounds(case: Theorem2Case, problem: Quadratic, shown: Sequence[float]) -> list[Cell]:
    """The bounds of the theorem and of its lemmas."""
    constants, users = problem.constants(problem.start), QUADRATIC_USERS
    # zeta_t = tau g eta_t at unit points, so C = (tau g)^2.
    scale = (case.steps * problem.max_gradient) ** 2
    unit = CPA(case.dim, EPSILON, 1.0)
    bound = partial(
        convergence_bound,
        constants,
        steps=case.steps,
        users=users,
        blocks=case.dim,
        scale=scale,
    )
    cells = []
    for scheme, variant, term in (
        ("bound, corrected", "bound", corrected_term(unit)),
        ("bound as published", "published", published_term(unit)),
        ("bound for local SGD", "bound", 0.0),
    ):
        for t in shown:
            begin, end = (step_size(constants, case.steps, round(t) - n) for n in (case.steps, 1))
            noise = begin**2 / users * (case.dim * scale * term + constants.gradient)
            values = {"gap": bound(term=term, t=round(t)), "gradient_noise": noise}
            if variant == "published":
                values["drift"] = 4 * (case.steps - 1) ** 2 * end**2 * constants.gradient
            cells += [
                stated_cell(scheme, variant, case.where, metric, value, t)
                for metric, value in values.items()
            ]
    return cells


def fitted_decay(line: dict[float, float]) -> float:
    """Slope of log value over log t in the last decade; NaN if that is a single point."""
    last = max(line)
    points = [(math.log(t), math.log(v)) for t, v in line.items() if t >= max(last / 10, 1)]
    if len(points) < 2:
        return math.nan
    x, y = np.array(points).T
    return float(np.polyfit(x, y, 1)[0])


COVERED_SPREADS = 3.0
EPSILON_SHARES = (0.5, 0.6, 0.7, 0.8, 0.9)
BLOCK_LATTICES = {"A2": (2, 4), "D4": (4, 16), "E8": (8, 16)}  # block size, points
ALLOCATION_EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
ALLOCATION_AXES = line_axes("epsilon", "epsilon", "error_db", log=True)


@dataclass(frozen=True)
class BitAllocation:
    """One way to spend epsilon on an entry, and its exact error (`noise_per_user`).

    Entries are Gaussian with unit spread. The hull of the points contains blocks up to
    COVERED_SPREADS times the root of their length, for every allocation.
    """

    family: str
    name: str
    bits_per_weight: float
    epsilon_per_weight: float
    error: float


def allocations(epsilon: float) -> list[BitAllocation]:
    """Every allocation at a total of epsilon per weight, for any number of bits."""
    made = [_on_a_line(points, epsilon) for points in (2, 4, 8, 16)]
    made += [_per_block(lattice, epsilon) for lattice in BLOCK_LATTICES]
    for counts in ((2, 2), (2, 4), (4, 4), (2, 2, 2)):
        made.append(_in_stages(counts, (epsilon / len(counts),) * len(counts), "even split"))
    splits = [(epsilon * share, epsilon * (1 - share)) for share in EPSILON_SHARES]
    nested = [_in_stages((2, 2), split, "best split") for split in splits]
    return [*made, min(nested, key=lambda one: one.error)]


def allocations_per_bit(epsilon: float) -> list[BitAllocation]:
    """Every allocation at epsilon per bit: more bits spend more."""
    made = [_on_a_line(points, epsilon) for points in (2, 4, 8, 16)]
    made += [_per_block(lattice, epsilon / size) for lattice, (size, _) in BLOCK_LATTICES.items()]
    for counts in ((2, 2), (2, 4), (2, 2, 2)):
        made.append(_in_stages(counts, (epsilon,) * len(counts), "each bit"))
    return made


def _on_a_line(points: int, epsilon: float) -> BitAllocation:
    error = CPA(1, epsilon, COVERED_SPREADS, points=points).noise_per_user(1.0)
    return BitAllocation("points on a line", f"{points} points", 1.0, epsilon, error)


def _per_block(lattice: str, epsilon: float) -> BitAllocation:
    """One bit for a block, which may spend the epsilon of all its entries."""
    size, points = BLOCK_LATTICES[lattice]
    unit = CPA(size, epsilon * size, 1.0, lattice=lattice, points=points)
    made = unit.scaled(COVERED_SPREADS * size**0.5 / unit.unbiased_radius)
    name = f"{points} points of {lattice}"
    return BitAllocation("one bit for a block", name, 1 / size, epsilon, made.noise_per_user(1.0))


def _in_stages(counts: tuple[int, ...], epsilons: tuple[float, ...], split: str) -> BitAllocation:
    error = NestedCPA(1, epsilons, COVERED_SPREADS, stages=counts).noise_per_user(1.0)
    name = f"{' x '.join(map(str, counts))}, {split}"
    return BitAllocation("stages", name, float(len(counts)), sum(epsilons), error)


def find_allocations(runner: ExperimentRunner) -> Findings:
    """The error of every allocation over epsilon per weight and over epsilon per bit."""
    per_weight = {epsilon: allocations(epsilon) for epsilon in ALLOCATION_EPSILONS}
    per_bit = {epsilon: allocations_per_bit(epsilon) for epsilon in ALLOCATION_EPSILONS}
    cells = [
        stated_cell(one.name, "exact", {"per": per}, "error_db", 10 * math.log10(one.error), x)
        for per, found in (("weight", per_weight), ("bit", per_bit))
        for x, row in found.items()
        for one in row
    ]
    best = {x: min(row, key=lambda one: one.error) for x, row in per_weight.items()}
    figures = "; ".join(f"epsilon {x:g}: {one.name}, {one.error:.3g}" for x, one in best.items())
    two_points = all(best[x].name == "2 points" for x in best if x <= 2)
    stages = all(best[x].family == "stages" for x in best if x >= 4)
    checks = (
        Check("two points have the least error up to epsilon 2 per weight", two_points, figures),
        Check("stages have the least error from epsilon 4 per weight", stages, figures),
    )
    return Findings(ALLOCATION_AXES, tuple(cells), checks)


EXPERIMENTS = (
    experiment("theorem1", find_theorem1),
    experiment("theorem2", find_theorem2),
    experiment(
        "bit-allocations",
        find_allocations,
        shares=", ".join(f"{share:.0%}" for share in EPSILON_SHARES),
    ),
)
