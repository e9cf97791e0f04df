"""Estimators for secure aggregation: discrete Gaussian, Skellam and Poisson-binomial mechanism.

Secure aggregation shows the server nothing but a sum modulo 2^bits of all users' integers. Each
estimator has (epsilon, delta) against everyone who sees only that sum, if one user's vector of l2
norm at most 1 is replaced by another ("replace"), with all users honest. As in the papers, no bits
are saved by packing: every entry takes as many bits as the modulus has.

Samples are floats, and the noise of all users is drawn as one sum, so these estimators serve to
compare errors and not to protect data.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from hushbit.budget import Budget
from hushbit.checks import Floats, Ints
from hushbit.cpa import CPA
from hushbit.errors import InvalidInput
from hushbit.lab.estimators import MeanEstimate, PermutedRotation, check_unit_ball
from hushbit.lab.estimators.private_vectors import USER_CHUNK, KashinFrame
from hushbit.privacy.central import ORDERS, epsilon_of_orders
from hushbit.tuning.calibrate import calibrate

WHOLE_ORDERS = tuple(float(order) for order in range(2, 257))
DEVIATIONS = 4.0
"""The modulus covers so many standard deviations of an entry of the sum (Kairouz et al., k = 4)."""

MAX_THETA = 0.25
"""Largest shift of a coin of the Poisson-binomial mechanism; beyond it users send more coins."""

WINDOW = 12.0  # standard deviations of the noise that are tabulated


def rounded_norm(norm: float, dim: int) -> float:
    """Bound of the l2 norm after conditional rounding to integers, beta = e^(-1/2).

    Kairouz, Liu, Steinke 2021, theorem 1: a vector is rounded again until it is within

        min(norm + sqrt(d), sqrt(norm² + d/4 + sqrt(2 ln 1/beta) (norm + sqrt(d)/2))).
    """
    root = math.sqrt(dim)
    return min(norm + root, math.sqrt(norm**2 + dim / 4 + norm + root / 2))


def sum_law(log_law: Floats, users: int) -> Floats:
    """The law of a sum of `users` independent integers; log_law is symmetric about its middle."""
    law = np.exp(log_law - log_law.max())
    spectrum = np.fft.rfft(np.fft.ifftshift(law / law.sum()))
    found = np.fft.fftshift(np.fft.irfft(spectrum**users, law.size))
    return np.maximum(found, 0.0)


@dataclass(frozen=True)
class LatticeSum:
    """A sum of rotated, scaled and rounded vectors with integer noise, modulo 2^bits.

    step      length of one integer step, the smallest one whose sums fit into the modulus
    variance  variance of the noise in the sum, in steps²
    """

    users: int
    dim: int
    bits: int
    epsilon: float
    delta: float

    orders = ORDERS

    @abstractmethod
    def divergences(self, variance: float, distance: float) -> Floats:
        """Rényi divergences of two sums at this l2 distance (in steps), for each order."""

    @abstractmethod
    def draw(self, size: int, rng: np.random.Generator) -> Ints:
        """The noise of all users, added up."""

    def epsilon_of(self, variance: float, step: float) -> float:
        """Epsilon at delta; replacing a vector moves the sum by twice the rounded norm."""
        distance = 2 * rounded_norm(1 / step, self.dim)
        divergences = self.divergences(variance, distance)
        return epsilon_of_orders(np.array(self.orders), divergences, self.delta)

    def variance_of(self, step: float) -> float:
        """The least variance within the budget for this step."""
        low, high = 0.0, 1.0
        while self.epsilon_of(high, step) > self.epsilon:
            low, high = high, 4 * high
        while high - low > 1e-9 * high:
            middle = (low + high) / 2
            within = self.epsilon_of(middle, step) <= self.epsilon
            low, high = (low, middle) if within else (middle, high)
        return high

    @cached_property
    def step(self) -> float:
        """The smallest step whose modulus covers DEVIATIONS standard deviations of the sum.

        An entry of the rotated sum has a variance of at most users² / d; rounding adds at most 1/4
        for each user, and the noise its variance.
        """

        def covered(step: float) -> bool:
            spread = self.users**2 / self.dim / step**2 + self.users / 4 + self.variance_of(step)
            return 2 * DEVIATIONS * math.sqrt(spread) <= 2.0**self.bits

        low, high = 1e-9, 1.0
        if not covered(high):
            raise InvalidInput(f"{self.bits} bits are too few for {self.users} users: use more")
        while high - low > 1e-6 * high:
            middle = math.sqrt(low * high)
            low, high = (low, middle) if covered(middle) else (middle, high)
        return high

    @cached_property
    def variance(self) -> float:
        """The variance that belongs to the step."""
        return self.variance_of(self.step)

    def round(self, rows: Floats, rng: np.random.Generator) -> Floats:
        """Unbiased integers, drawn again for rows whose norm exceeds the bound."""
        found = np.floor(rows + rng.random(rows.shape))
        bound = rounded_norm(1 / self.step, self.dim)
        while (again := np.linalg.norm(found, axis=1) > bound).any():
            found[again] = np.floor(rows[again] + rng.random((int(again.sum()), rows.shape[1])))
        return found

    def mean_estimate(self, vectors: Any, rng: np.random.Generator) -> MeanEstimate:
        """Rotate, scale, round, add noise, reduce modulo 2^bits; the server inverts the rest."""
        rows = check_unit_ball(vectors)
        rotation, total = PermutedRotation(self.dim, rng), np.zeros(self.dim)
        for first in range(0, self.users, USER_CHUNK):
            part = np.array([rotation.apply(row) for row in rows[first : first + USER_CHUNK]])
            total += self.round(part / self.step, rng).sum(axis=0)
        half = 2.0 ** (self.bits - 1)
        received = (total + self.draw(self.dim, rng) + half) % 2.0**self.bits - half
        return MeanEstimate(rotation.invert(received * self.step / self.users), float(self.bits))


class DiscreteGaussianSum(LatticeSum):
    """The distributed discrete Gaussian (Kairouz, Liu, Steinke, ICML 2021)."""

    def divergences(self, variance: float, distance: float) -> Floats:
        """Theorem 1 of the paper, as Rényi divergences of concentrated differential privacy.

        tau bounds how far a sum of discrete Gaussians is from one discrete Gaussian.
        """
        order, local = np.array(self.orders), variance / self.users
        k = np.arange(1, self.users)
        tau = float(10 * np.exp(-2 * math.pi**2 * local * k / (k + 1)).sum())
        two, one = distance / math.sqrt(variance), distance * math.sqrt(self.dim / variance)
        bounds = (
            order / 2 * two**2 + tau * self.dim,
            order / 2 * (two**2 + 2 * one * tau + tau**2 * self.dim),
            order / 2 * (two + tau * math.sqrt(self.dim)) ** 2,
        )
        return np.asarray(np.minimum.reduce(bounds))

    @cached_property
    def law(self) -> tuple[Ints, Floats]:
        """Values of the sum of all users' noise and their probabilities."""
        reach = math.ceil(WINDOW * math.sqrt(self.variance)) + 4
        values = np.arange(-reach, reach + 1)
        law = sum_law(-(values**2) * self.users / (2 * self.variance), self.users)
        return values, law / law.sum()

    def draw(self, size: int, rng: np.random.Generator) -> Ints:
        """Drawn from the law of the sum of independent discrete Gaussians."""
        values, law = self.law
        return np.asarray(rng.choice(values, size, p=law))


class SkellamSum(LatticeSum):
    """The Skellam mechanism (Agarwal, Kairouz, Liu, NeurIPS 2021)."""

    orders = WHOLE_ORDERS

    def divergences(self, variance: float, distance: float) -> Floats:
        """Corollary 4.1 of the paper, for whole orders and integer vectors.

        |x|_1 is at most sqrt(d) |x|_2, and at most |x|_2² because entries are integers.
        """
        order = np.array(self.orders)
        one = distance * min(math.sqrt(self.dim), distance)
        first = ((2 * order - 1) * distance**2 + 6 * one) / (4 * variance**2)
        more = np.minimum(first, 3 * one / (2 * variance))
        return np.asarray(order * distance**2 / (2 * variance) + more)

    def draw(self, size: int, rng: np.random.Generator) -> Ints:
        """Skellam variables add up to a Skellam variable: a difference of two Poisson ones."""
        return np.asarray(
            rng.poisson(self.variance / 2, size) - rng.poisson(self.variance / 2, size)
        )


@dataclass(frozen=True)
class PoissonBinomial:
    """The Poisson-binomial mechanism (Chen, Ozgur, Kairouz, ICML 2022), one coin per coefficient.

    A user sends a coin with P[1] = 1/2 + theta a / limit for each coefficient a of its vector in a
    Kashin frame, in which |a| <= limit. As in the paper every coefficient counts with its largest
    change, so the l2 norm enters through the frame only. The divergence of a coefficient is
    computed exactly (`hushbit.privacy.central`): two-point CPA without a clip has the same law,
    with theta = tanh(epsilon_per_bit / 2) / 2.

    The paper sends m coins where theta alone cannot spend the budget; that is refused here.
    """

    users: int
    dim: int
    epsilon: float
    delta: float

    @cached_property
    def theta(self) -> float:
        """The largest shift within the budget."""
        frame = KashinFrame.draw(self.dim, np.random.default_rng(0))
        per_bit = _coins_within(frame.size, self.users, self.epsilon, self.delta)
        theta = math.tanh(per_bit / 2) / 2
        if theta > MAX_THETA:
            raise InvalidInput(
                f"epsilon {self.epsilon:g} needs several coins for {self.users} users: lower it"
            )
        return theta

    def mean_estimate(self, vectors: Any, rng: np.random.Generator) -> MeanEstimate:
        """The counts of ones, decoded without bias; bits are those of a count of all users."""
        rows = check_unit_ball(vectors)
        frame, theta = KashinFrame.draw(self.dim, rng), self.theta
        ones = np.zeros(frame.size)
        for first in range(0, self.users, USER_CHUNK):
            spread = frame.even_coefficients(rows[first : first + USER_CHUNK].T)
            ones += (rng.random(spread.shape) < 0.5 + theta / frame.limit * spread).sum(axis=1)
        mean = (ones / self.users - 0.5) * frame.limit / theta
        bits = count_bits(self.users) * frame.size / self.dim
        return MeanEstimate(frame.combine(mean[:, None])[:, 0], bits)


def count_bits(users: int) -> int:
    """Bits of a number from 0 to `users`, modulo a power of two: ceil(log2(users + 1))."""
    return users.bit_length()


@lru_cache(maxsize=64)
def _coins_within(coins: int, users: int, epsilon: float, delta: float) -> float:
    """The largest epsilon per coin within the budget; all coins of a user may change."""
    budget = Budget(epsilon, delta, per="message", against="model", accountant="tightest")
    made = calibrate(coins, budget, honest=users, radius=1.0, rotate=False)
    assert isinstance(made, CPA)
    return made.epsilon_per_bit
