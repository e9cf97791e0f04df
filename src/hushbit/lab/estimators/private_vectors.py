"""Private estimators of whole vectors: PrivUnitG, PrivHS and SQKR.

Each has pure epsilon for a vector of l2 norm at most 1 and an unbiased estimate of the mean. The
epsilon is that of the ideal distribution. Samples are floats, whose last bits may reveal more, so
these estimators serve to compare errors and not to protect data.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import Floats, Ints, check_int, check_positive
from hushbit.errors import InvalidInput
from hushbit.kernels.hadamard import transform
from hushbit.lab.estimators import FLOAT_BITS, MeanEstimate, check_unit_ball, mean_of

NORMAL = NormalDist()
MAX_PRIVUNIT_EPSILON = 600.0
SEARCH_STEPS = 120
GOLDEN = (math.sqrt(5) - 1) / 2
MAX_SQKR_BITS = 62
USER_CHUNK = 64

KASHIN_LEVEL = 1.6
"""Every vector tried has such coefficients in frames of this size; 1.4 is not always enough."""

KASHIN_STEPS = 500
KASHIN_OVERSHOOT = 1.6  # any factor below 2 converges, this one in half as many steps
KASHIN_TOLERANCE = 1e-6


@dataclass(frozen=True)
class CapParameters:
    """PrivUnitG's distribution: cap probability p, mass q and start gamma of the cap, moments.

    `mean` is m = E<U, v> and `square` is E<U, v>².
    """

    p: float
    q: float
    gamma: float
    mean: float
    square: float

    @classmethod
    def at_odds(cls, epsilon: float, log_odds: float) -> "CapParameters":
        """The parameters for p / (1 - p) = e^log_odds; epsilon then determines the others."""
        p = 1 / (1 + math.exp(-log_odds))
        rest = 1 / (1 + math.exp(log_odds))
        q = 1 / (1 + math.exp(epsilon - log_odds))
        gamma = -NORMAL.inv_cdf(q)
        height = NORMAL.pdf(gamma)
        far = 1 / (1 + math.exp(log_odds - epsilon))
        mean = height * (p / q - rest / far)
        return cls(p, q, gamma, mean, 1 + gamma * mean)

    def error(self, dim: int) -> float:
        """E|estimate - v|² of one user with a unit vector of length `dim`."""
        return (dim - 1 + self.square) / self.mean**2 - 1

    def draw(self, rng: np.random.Generator) -> float:
        """<U, v>: a normal variable above gamma with probability p, below gamma otherwise."""
        share = 1 - rng.random()
        if rng.random() < self.p:
            return -NORMAL.inv_cdf(share * self.q)
        # Below gamma: 1 - q of the mass, from the left where doubles are dense.
        return NORMAL.inv_cdf(min(share * (1 - self.q), 1 - 2**-53))


@lru_cache(maxsize=64)
def best_cap(dim: int, epsilon: float) -> CapParameters:
    """The parameters of least error for unit vectors of length `dim` (golden-section search)."""
    dim = check_int("dim", dim, 1)
    epsilon = check_positive("epsilon", epsilon)
    if epsilon > MAX_PRIVUNIT_EPSILON:
        raise InvalidInput(f"epsilon must be at most {MAX_PRIVUNIT_EPSILON:g}; got {epsilon}")
    low, high = 0.0, epsilon
    for _ in range(SEARCH_STEPS):
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        errors = [CapParameters.at_odds(epsilon, odds).error(dim) for odds in (left, right)]
        low, high = (low, right) if errors[0] < errors[1] else (left, high)
    return CapParameters.at_odds(epsilon, (low + high) / 2)


def optimal_mse(dim: int, epsilon: float) -> float:
    """Least E|estimate - v|² of one user: unit vectors, pure epsilon for the whole vector.

    The mean of `users` such vectors has this divided by users.

    >>> round(optimal_mse(7850, 4.0) * 4.0 / 7850, 3)
    1.741
    """
    return best_cap(dim, epsilon).error(dim)


@dataclass(frozen=True)
class PrivUnitG:
    """PrivUnitG (Asi, Feldman and Talwar, ICML 2022): optimal pure-epsilon mean of unit vectors.

    Send U / m with U normal in R^dim, conditioned on <U, v> >= gamma with probability p and on
    <U, v> < gamma otherwise. With q = P[N(0, 1) >= gamma] and m = E<U, v>

        e^epsilon = p (1 - q) / (q (1 - p))        the ratio of densities, attained
        m         = density(gamma) (p / q - (1 - p) / (1 - q))
        E|U/m - v|² = (dim - 1 + E<U, v>²) / m² - 1

    p is the value of least error. A vector shorter than 1 gets one more entry that makes it a
    unit vector, and the server drops that entry: unbiased, with the same noise.
    """

    epsilon: float

    def error(self, dim: int) -> float:
        """E|estimate - v|² of one user with a unit vector: `optimal_mse`."""
        return optimal_mse(dim, self.epsilon)

    def encode(self, vector: Floats, rng: np.random.Generator) -> Floats:
        """A private unbiased estimate of a vector of length at most 1, one entry longer."""
        parameters = best_cap(len(vector) + 1, self.epsilon)
        unit = np.append(vector, math.sqrt(max(0.0, 1 - float(vector @ vector))))
        unit /= np.linalg.norm(unit)
        noise = rng.standard_normal(len(unit))
        along = parameters.draw(rng)
        return np.asarray((noise + (along - noise @ unit) * unit) / parameters.mean)

    def mean_estimate(self, vectors: Any, rng: np.random.Generator) -> MeanEstimate:
        """The mean of all messages, which are uncompressed floats."""
        rows = check_unit_ball(vectors)
        dim = rows.shape[1]
        mean = mean_of((self.encode(row, rng) for row in rows), rows)
        return MeanEstimate(mean[:dim], FLOAT_BITS * (dim + 1) / dim)


@dataclass(frozen=True)
class PrivHS:
    """PrivHS (Duchi, Jordan and Wainwright, 2018): a point of the half-sphere around the vector.

    A vector shorter than 1 becomes ±v/|v| at random, without bias. Then a point uniform on the
    sphere of radius B is sent: with probability e^epsilon / (1 + e^epsilon) from the half that
    contains the vector, otherwise from the other half. With E|U_1| of a uniform point U of the
    unit sphere

        B = 1 / (tanh(epsilon / 2) E|U_1|),   E|U_1| = Gamma(dim/2) / (sqrt(pi) Gamma((dim+1)/2))

    the point is an unbiased estimate with error B² - |v|².
    """

    epsilon: float

    def sphere_radius(self, dim: int) -> float:
        """B."""
        dim, epsilon = check_int("dim", dim, 1), check_positive("epsilon", self.epsilon)
        log_mean = math.lgamma(dim / 2) - math.lgamma((dim + 1) / 2) - math.log(math.pi) / 2
        return math.exp(-log_mean) / math.tanh(epsilon / 2)

    def error(self, dim: int) -> float:
        """E|estimate - v|² of one user with a unit vector."""
        return self.sphere_radius(dim) ** 2 - 1

    def encode(self, vector: Floats, rng: np.random.Generator) -> Floats:
        """A private unbiased estimate of a vector of length at most 1."""
        norm = float(np.linalg.norm(vector))
        forward = rng.random() < (1 + norm) / 2
        direction = vector / norm if norm else np.eye(1, len(vector))[0]
        point = rng.standard_normal(len(vector))
        point *= self.sphere_radius(len(vector)) / np.linalg.norm(point)
        keep = rng.random() < 1 / (1 + math.exp(-self.epsilon))
        same_half = (point @ direction >= 0) == forward
        return point if same_half == keep else -point

    def mean_estimate(self, vectors: Any, rng: np.random.Generator) -> MeanEstimate:
        """The mean of all messages, which are uncompressed floats."""
        rows = check_unit_ball(vectors)
        mean = mean_of((self.encode(row, rng) for row in rows), rows)
        return MeanEstimate(mean, float(FLOAT_BITS))


@dataclass(frozen=True, eq=False)
class KashinFrame:
    """`size` vectors f_j in R^dim with sum f_j f_j^T = I, for Kashin's representation.

    The frame consists of dim random columns of a Hadamard matrix with random signs, size >= 4 dim.
    It gives every vector many sets of coefficients. Among them are some with all |a_j| <=
    KASHIN_LEVEL |x| / sqrt(size), found by alternating projections between that cube and the sets
    that add up to x.
    """

    size: int
    columns: Ints
    signs: Floats

    @classmethod
    def draw(cls, dim: int, rng: np.random.Generator) -> "KashinFrame":
        """A frame of the smallest power of two that is at least 4 dim."""
        size = 1 << math.ceil(math.log2(4 * dim))
        # Neighbouring columns would repeat the same few vectors: the choice must be random.
        columns = rng.permutation(size)[:dim]
        return cls(size, columns, np.where(rng.random(dim) < 0.5, 1.0, -1.0))

    @property
    def limit(self) -> float:
        """The largest coefficient of a vector of length 1."""
        return KASHIN_LEVEL / math.sqrt(self.size)

    def coefficients(self, vectors: Floats) -> Floats:
        """<x, f_j> for every j; a column for each column of `vectors`."""
        spread = np.zeros((self.size, vectors.shape[1]))
        spread[self.columns] = vectors * self.signs[:, None]
        transform(spread.reshape(-1), self.size, vectors.shape[1])
        return spread

    def combine(self, coefficients: Floats) -> Floats:
        """sum a_j f_j, for every column."""
        rotated = coefficients.copy()
        transform(rotated.reshape(-1), self.size, coefficients.shape[1])
        return np.asarray(rotated[self.columns] * self.signs[:, None])

    def even_coefficients(self, vectors: Floats) -> Floats:
        """Coefficients within ±limit of vectors (columns) of length at most 1.

        The projection onto the cube is last, so the bound always holds; the part of x that is
        missing is below 1e-6 for all but very unlikely frames.
        """
        limit = self.limit
        spread = self.coefficients(vectors)
        for _ in range(KASHIN_STEPS):
            inside = np.clip(spread, -limit, limit)
            missing = vectors - self.combine(inside)
            if float(np.linalg.norm(missing, axis=0).max()) < KASHIN_TOLERANCE:
                break
            spread = inside + KASHIN_OVERSHOOT * self.coefficients(missing)
        return np.clip(spread, -limit, limit)


@dataclass(frozen=True)
class Sqkr:
    """SQKR (Chen, Kairouz and Ozgur, NeurIPS 2020): a few bits of Kashin's representation.

    The coefficients of the vector in a Kashin frame of N vectors, all within ±limit, are rounded
    to signs without bias. k of them, at positions that user and server share, are sent as one of
    2^k words by randomized response with epsilon for the whole word: the word is kept with
    probability `keep`; otherwise all words, its own included, are equally likely.
    k = ceil(epsilon log2 e), so a message has k bits.

        estimate = N / k · (e^epsilon + 2^k - 1) / (e^epsilon - 1) · limit · sum of ±f_j
    """

    epsilon: float

    @property
    def bits(self) -> int:
        """k."""
        epsilon = check_positive("epsilon", self.epsilon)
        bits = max(1, math.ceil(epsilon / math.log(2)))
        if bits > MAX_SQKR_BITS:
            raise InvalidInput(
                f"epsilon {epsilon} needs {bits} bits; at most {MAX_SQKR_BITS} are supported: "
                "lower epsilon"
            )
        return bits

    @property
    def keep(self) -> float:
        """P[the word is kept] = (e^epsilon - 1) / (e^epsilon - 1 + 2^k)."""
        words = 2.0**self.bits
        return math.expm1(self.epsilon) / (math.expm1(self.epsilon) + words)

    def error(self, dim: int) -> float:
        """E|estimate - v|² of one user with a unit vector, over positions, coins and words.

        dim KASHIN_LEVEL² / (k keep²) + (1 - 1/k) / keep - 1
        """
        spread = KASHIN_LEVEL**2 * dim / (self.bits * self.keep**2)
        return spread + (1 - 1 / self.bits) / self.keep - 1

    def encode(
        self,
        coefficients: Floats,
        places: Ints,
        frame: KashinFrame,
        rng: np.random.Generator,
    ) -> NDArray[np.int8]:
        """The private word, as signs."""
        up = rng.random(len(places)) < (1 + coefficients[places] / frame.limit) / 2
        if rng.random() >= self.keep:
            up = rng.random(len(places)) < 0.5
        return np.where(up, 1, -1).astype(np.int8)

    def decode(self, signs: NDArray[np.int8], places: Ints, frame: KashinFrame) -> Floats:
        """An unbiased estimate of the coefficients."""
        weight = frame.size / len(places) * frame.limit / self.keep
        return np.asarray(np.bincount(places, weight * signs, frame.size), dtype=np.float64)

    def mean_estimate(self, vectors: Any, rng: np.random.Generator) -> MeanEstimate:
        """The mean of the decoded vectors; all users share the frame."""
        rows = check_unit_ball(vectors)
        users, dim = rows.shape
        bits, frame = self.bits, KashinFrame.draw(dim, rng)
        total = np.zeros(frame.size)
        for first in range(0, users, USER_CHUNK):
            spread = frame.even_coefficients(rows[first : first + USER_CHUNK].T)
            for coefficients in spread.T:
                places = rng.integers(0, frame.size, bits)
                signs = self.encode(coefficients, places, frame, rng)
                total += self.decode(signs, places, frame)
        return MeanEstimate(frame.combine(total[:, None] / users)[:, 0], bits / dim)
