"""MVU: the minimum-variance unbiased private channel of a few bits for each entry.

    z = clip(h / scale, -1, 1),  x = (z + 1) / 2,  symbol j ~ P(. | x),  decoded as 2 alpha_j - 1

One bit has a closed form for every x, P(1 | x) = (x + a) / (1 + 2a) with a = 1 / (e^eps - 1). This
is the distribution of a stochastic sign with randomized response. With more bits, x is rounded at
random to one of n grid points x_i = i / (n-1), and the symbol is drawn from a designed channel P
with B outputs alpha_j (Chaudhuri et al. 2022):

    minimise    mean_i sum_j P_ij (x_i - alpha_j)²
    subject to  sum_j P_ij = 1,  sum_j P_ij alpha_j = x_i,  m_j <= P_ij <= e^eps m_j

Channel and alphabet are symmetric, P_ij = P_(n-1-i)(B-1-j) and alpha_j = 1 - alpha_(B-1-j). The
unknowns are therefore the first half of the rows of P, half of the column minima m_j and half of
the alphabet. Positions are relative to 1/2, in units of the width of the one-bit alphabet. Joint
descent finds the alphabet, then a linear program finds the channel. The channel is rounded to
multiples of 2^-32, and its epsilon is checked in integers.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from hushbit.baselines.entry_mechanism import EntryMechanism, SignVotes, SymbolCodec
from hushbit.baselines.signsgd import stochastic_sign_bits
from hushbit.checks import Floats, Ints, check_int, check_positive
from hushbit.encoding.randomized_response import RandomizedResponse
from hushbit.encoding.stage import response_coins
from hushbit.errors import HushbitError, MissingExtra
from hushbit.kernels import njit
from hushbit.kernels.chacha import keystream
from hushbit.kernels.encode import COIN_TAG
from hushbit.mechanism import Bytes, Updates, Words
from hushbit.privacy.guarantee import Guarantee
from hushbit.tally.estimate import Estimate
from hushbit.tally.tally import Counters
from hushbit.wire.keys import RoundKey, UserKeys

UNUSED = 1e-6  # largest probability of an output that is left out
COUNT_RANGE = 2**32
MAX_DESIGN_EPSILON = 14.0
MAX_MARGIN = 0.2


@dataclass(frozen=True, eq=False)
class MvuProblem:
    """n inputs, B outputs and the epsilon of the channel."""

    inputs: int
    outputs: int
    epsilon: float

    @property
    def rows(self) -> int:
        """Unknown rows of the channel."""
        return (self.inputs + 1) // 2

    @property
    def half(self) -> int:
        """Unknown outputs: half the alphabet."""
        return self.outputs // 2

    @property
    def cells(self) -> int:
        """Unknown entries of the channel."""
        return self.rows * self.outputs

    @cached_property
    def unit(self) -> float:
        """The width of the one-bit alphabet, 1 + 2 / (e^eps - 1)."""
        return 1 + 2 / math.expm1(self.epsilon)

    @cached_property
    def x(self) -> Floats:
        """The inputs of the unknown rows."""
        return (np.linspace(0.0, 1.0, self.inputs)[: self.rows] - 0.5) / self.unit

    @cached_property
    def weight(self) -> Floats:
        """The weight of each row in the mean: 2/n, or 1/n for a middle row."""
        weight = np.full((self.rows, 1), 2.0 / self.inputs)
        weight[-1] /= 1 + self.inputs % 2
        return weight

    @cached_property
    def mirror(self) -> Floats:
        """The matrix that maps half an alphabet to the whole alphabet."""
        return np.vstack([np.eye(self.half), -np.eye(self.half)[::-1]])

    @cached_property
    def private(self) -> Floats:
        """The matrix of the privacy constraints P_ij - m_j >= 0 and e^eps m_j - P_ij >= 0."""
        spread = np.kron(np.ones((self.rows, 1)), np.abs(self.mirror))
        one, ratio = np.eye(self.cells), math.exp(self.epsilon)
        return np.vstack([np.hstack([one, -spread]), np.hstack([-one, ratio * spread])])

    @cached_property
    def sums(self) -> Floats:
        """The matrix that maps a flattened channel to its row sums."""
        return self.means(np.ones(self.outputs))

    def means(self, alphabet: Floats) -> Floats:
        """The matrix that maps a flattened channel to the mean output of each row."""
        return np.asarray(np.kron(np.eye(self.rows), alphabet[None]), dtype=np.float64)

    def starts(self) -> list[Floats]:
        """Initial half alphabets: in the range of the inputs, near the ends, and a mixture."""
        near = (np.linspace(0.0, 1.0, self.outputs)[: self.half] - 0.5) / self.unit
        far = -0.5 * np.linspace(1.15, 0.75, self.half)
        mixed = np.where(np.arange(self.half) < (self.half + 1) // 2, far, 0.5 * near)
        return [near, far, mixed]


@dataclass(frozen=True, eq=False)
class Descent:
    """The variance as a function of v = (channel, column minima, half alphabet)."""

    problem: MvuProblem

    def split(self, v: Floats) -> tuple[Floats, Floats]:
        """The channel and the whole alphabet."""
        p = self.problem
        return v[: p.cells].reshape(p.rows, -1), p.mirror @ v[p.cells + p.half :]

    def value(self, v: Floats) -> tuple[float, Floats]:
        """Mean variance and its gradient."""
        p = self.problem
        channel, alphabet = self.split(v)
        gap = p.x[:, None] - alphabet
        gradient = (-2 * p.weight * channel * gap).sum(axis=0) @ p.mirror
        parts = ((p.weight * gap**2).reshape(-1), np.zeros(p.half), gradient)
        return float((p.weight * channel * gap**2).sum()), np.concatenate(parts)

    def cross(self, factor: Floats) -> Floats:
        """The Hessian of sum_ij factor_ij P_ij alpha_j."""
        p = self.problem
        matrix = np.zeros((p.cells + 2 * p.half,) * 2)
        block = (factor[:, :, None] * p.mirror).reshape(p.cells, p.half)
        matrix[: p.cells, p.cells + p.half :] = block
        matrix[p.cells + p.half :, : p.cells] = block.T
        return matrix

    def hessian(self, v: Floats) -> Floats:
        """The Hessian of the mean variance."""
        p = self.problem
        channel, alphabet = self.split(v)
        matrix = self.cross(-2 * p.weight * (p.x[:, None] - alphabet))
        inner = 2 * (p.weight * channel).sum(axis=0)[:, None] * p.mirror
        matrix[p.cells + p.half :, p.cells + p.half :] = p.mirror.T @ inner
        return matrix

    def bias(self, v: Floats) -> Floats:
        """Mean output minus input."""
        channel, alphabet = self.split(v)
        return np.asarray(channel @ alphabet - self.problem.x)

    def bias_jacobian(self, v: Floats) -> Any:
        """The Jacobian of the bias."""
        p = self.problem
        channel, alphabet = self.split(v)
        parts = [p.means(alphabet), np.zeros((p.rows, p.half)), channel @ p.mirror]
        return _scipy()[1].csr_matrix(np.hstack(parts))

    def bias_hessian(self, v: Floats, dual: Floats) -> Floats:
        """The Hessian of the bias, weighted by the multipliers."""
        return self.cross(np.repeat(dual[:, None], self.problem.outputs, axis=1))


def best_alphabet(problem: MvuProblem, start: Floats) -> Floats:
    """Half an alphabet, by joint descent from the uniform channel and an initial alphabet."""
    optimize, sparse = _scipy()
    p, descent = problem, Descent(problem)
    linear = np.zeros((2 * p.cells + p.rows, p.cells + 2 * p.half))
    linear[: 2 * p.cells, : p.cells + p.half] = p.private
    linear[2 * p.cells :, : p.cells] = p.sums
    low = np.concatenate([np.zeros(2 * p.cells), np.ones(p.rows)])
    high = np.concatenate([np.full(2 * p.cells, np.inf), np.ones(p.rows)])
    minima = np.full(p.half, 0.9 / p.outputs)
    lower = np.concatenate([np.zeros(p.cells + p.half), np.full(p.half, -np.inf)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the solver warns about steps that it rejects
        found = optimize.minimize(
            descent.value,
            np.concatenate([np.full(p.cells, 1 / p.outputs), minima, start]),
            jac=True,
            hess=descent.hessian,
            method="trust-constr",
            constraints=[
                optimize.LinearConstraint(sparse.csr_matrix(linear), low, high),
                optimize.NonlinearConstraint(
                    descent.bias, 0, 0, jac=descent.bias_jacobian, hess=descent.bias_hessian
                ),
            ],
            bounds=optimize.Bounds(lower, np.inf),
            options={"maxiter": 300, "gtol": 1e-6, "xtol": 1e-8},
        )
    return np.sort(np.asarray(found.x[p.cells + p.half :], dtype=np.float64))


def best_channel(problem: MvuProblem, half: Floats) -> Floats | None:
    """The best channel for an alphabet, without outputs of negligible probability."""
    p = problem
    used = np.ones(p.outputs, dtype=bool)
    for _ in range(2):
        found = _solve_channel(p, p.mirror @ half, used)
        if found.status != 0:
            return None
        first = np.asarray(found.x[: p.cells], dtype=np.float64).reshape(p.rows, -1)
        channel = np.vstack([first, first[: p.inputs - p.rows][::-1, ::-1]])
        used = channel.max(axis=0) > UNUSED
        if used.all():
            break
    return np.where(used, np.clip(channel, 0.0, None), 0.0)


def _solve_channel(p: MvuProblem, alphabet: Floats, used: NDArray[np.bool_]) -> Any:
    """The result of the linear program for the channel and its column minima."""
    optimize, sparse = _scipy()
    equal = np.zeros((2 * p.rows, p.cells + p.half))
    equal[:, : p.cells] = np.vstack([p.sums, p.means(alphabet)])
    cost = (p.weight * (p.x[:, None] - alphabet) ** 2).reshape(-1)
    top = np.concatenate([np.tile(used.astype(np.float64), p.rows), np.ones(p.half)])
    return optimize.linprog(
        np.concatenate([cost, np.zeros(p.half)]),
        A_ub=sparse.csr_matrix(-p.private),
        b_ub=np.zeros(2 * p.cells),
        A_eq=sparse.csr_matrix(equal),
        b_eq=np.concatenate([np.ones(p.rows), p.x]),
        bounds=np.stack([np.zeros_like(top), top], axis=1),
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10},
    )


def _scipy() -> tuple[Any, Any]:
    try:
        from scipy import optimize, sparse
    except ImportError as error:
        raise MissingExtra(
            "MVU with more than one bit needs SciPy to design its channel: "
            "pip install 'hushbit[lab]', or use bits=1"
        ) from error
    return optimize, sparse


@dataclass(frozen=True, eq=False)
class MvuDesign:
    """A channel in integers: counts[i, j] of the 2^32 coins map input i to output j."""

    counts: Ints
    alphabet: Floats

    @property
    def inputs(self) -> Floats:
        """x_i."""
        return np.linspace(0.0, 1.0, len(self.counts))

    @property
    def realised_epsilon(self) -> float:
        """ln of the largest ratio of two counts in a column."""
        used = self.counts[:, self.counts.max(axis=0) > 0]
        if used.min() == 0:
            return math.inf
        return max(math.log(int(column.max()) / int(column.min())) for column in used.T)

    @property
    def bias(self) -> Floats:
        """Mean output minus input, for each input; caused only by the rounding to 2^-32."""
        return np.asarray(self.counts @ self.alphabet / COUNT_RANGE - self.inputs)

    @property
    def variance(self) -> Floats:
        """Variance of the output for each input."""
        squares = (self.inputs[:, None] - self.alphabet) ** 2
        return np.asarray((self.counts * squares).sum(axis=1) / COUNT_RANGE)


@lru_cache(maxsize=64)
def design_mechanism(bits: int, inputs: int, epsilon: float) -> MvuDesign:
    """The channel with 2^bits outputs whose epsilon after rounding is at most `epsilon`.

    Epsilons above 14 are reduced to 14: a channel in units of 2^-32 gains nothing from more.
    """
    problem = MvuProblem(inputs, 2**bits, min(epsilon, MAX_DESIGN_EPSILON))
    designs = [_private_design(problem, best_alphabet(problem, s)) for s in problem.starts()]
    private = [made for made in designs if made is not None]
    if not private:
        raise HushbitError(f"no channel of {bits} bits was found for epsilon {epsilon}: try bits=1")
    return min(private, key=lambda made: float(made.variance.mean()))


def _private_design(problem: MvuProblem, half: Floats) -> MvuDesign | None:
    """Solve for decreasing epsilons until the rounded channel has the epsilon of the problem."""
    margin = 1e-6
    while margin < MAX_MARGIN:
        tighter = MvuProblem(problem.inputs, problem.outputs, problem.epsilon * (1 - margin))
        found = best_channel(tighter, half * (problem.unit / tighter.unit))
        if found is not None:
            alphabet = 0.5 + problem.unit * (problem.mirror @ half)
            order = np.argsort(alphabet, kind="stable")
            made = MvuDesign(_rounded(found[:, order]), alphabet[order])
            if keeps_privacy(made.counts, problem.epsilon):
                return made
        # A smaller epsilon may need a slightly wider alphabet to be unbiased.
        half, margin = half * (1 + margin), 2 * margin
    return None


def keeps_privacy(counts: Ints, epsilon: float) -> bool:
    """Whether the counts of every column differ by a factor of at most e^epsilon, exactly."""
    largest = Fraction(math.exp(epsilon)) * (1 - Fraction(1, 2**50))
    return all(int(column.max()) <= largest * int(column.min()) for column in counts.T)


def _rounded(channel: Floats) -> Ints:
    """Rows in units of 2^-32 that add up to 1; the largest count takes the rounding error."""
    shares = channel / channel.sum(axis=1, keepdims=True)
    counts: Ints = np.rint(shares * COUNT_RANGE).astype(np.int64)
    counts[np.arange(len(counts)), counts.argmax(axis=1)] += COUNT_RANGE - counts.sum(axis=1)
    return counts


@njit
def channel_symbols(
    update: Updates,
    scale: float,
    limits: Ints,
    coins: Words,
    symbols: Words,
) -> int:
    """Round each entry with one coin, draw its symbol with another; returns the number of clips."""
    steps = limits.shape[0] - 1
    clipped = 0
    for i in range(update.size):
        z = np.float64(update[i]) / scale
        clipped += int(abs(z) > 1.0)
        place = (min(max(z, -1.0), 1.0) + 1.0) * 0.5 * steps
        row = min(int(place), steps - 1)
        row += int(coins[2 * i] * 2.0**-32 < place - row)
        coin = np.int64(coins[2 * i + 1])
        symbol = 0
        for j in range(limits.shape[1]):
            symbol += int(coin >= limits[row, j])
        symbols[i] = np.uint32(symbol)
    return clipped


@dataclass(frozen=True, eq=False, repr=False)
class MVU(EntryMechanism):
    """A few private bits for each entry, unbiased, with the smallest variance.

    dim                entries of an update
    epsilon_per_entry  epsilon of all bits of one entry; math.inf for the smallest noise
    scale              entries are clipped to [-scale, scale]
    bits               1 (closed form), 2 or 3 (designed on first use; needs SciPy)
    inputs             grid points of the designed channel

    >>> MVU(dim=7850, epsilon_per_entry=0.5, scale=0.05, bits=1).payload_bits
    7850
    """

    name: ClassVar[str] = "mvu"

    dim: int
    epsilon_per_entry: float
    scale: float
    _: KW_ONLY
    bits: int = 1
    inputs: int = 16
    response: RandomizedResponse = field(init=False)
    design: MvuDesign | None = field(init=False)

    def __post_init__(self) -> None:
        epsilon = check_positive("epsilon_per_entry", self.epsilon_per_entry, infinite=True)
        bits, inputs = check_int("bits", self.bits, 1, 3), check_int("inputs", self.inputs, 2, 64)
        self._set(dim=check_int("dim", self.dim, 1), epsilon_per_entry=epsilon)
        self._set(scale=check_positive("scale", self.scale), bits=bits, inputs=inputs)
        self._set(response=RandomizedResponse(epsilon))
        self._set(design=design_mechanism(bits, inputs, epsilon) if bits > 1 else None)

    @cached_property
    def codec(self) -> SymbolCodec:
        """A few bits for each entry."""
        return SymbolCodec(self.dim, 2**self.bits)

    @property
    def description(self) -> dict[str, Any]:
        """Name, parameters and alphabet, because solvers may differ in the last digits."""
        designed = self.design is not None
        return super().description | {
            "inputs": self.inputs if designed else None,
            "alphabet": self.alphabet.round(6).tolist() if designed else None,
        }

    @classmethod
    def from_description(cls, fields: Mapping[str, Any]) -> Self:
        """Leaves out the alphabet, which is computed, and the inputs of a one-bit channel."""
        kept = {name: value for name, value in fields.items() if name != "alphabet"}
        if kept["inputs"] is None:
            del kept["inputs"]
        return super().from_description(kept)

    @cached_property
    def guarantee(self) -> Guarantee:
        """Epsilon of each entry."""
        return self.pure_guarantee(self.epsilon_per_entry, self.dim)

    @cached_property
    def alphabet(self) -> Floats:
        """The decoded value of each symbol, in units of `scale`."""
        if self.design is None:
            return np.array([-1.0, 1.0]) / float(self.response.beta)
        return 2 * self.design.alphabet - 1

    @cached_property
    def worst_variance(self) -> float:
        """The largest variance of one entry of one user, in units of scale²."""
        if self.design is None:
            return 1 / float(self.response.beta) ** 2
        rounding = 0.25 / (self.inputs - 1) ** 2
        return 4 * (float(self.design.variance.max()) + rounding)

    @cached_property
    def _limits(self) -> Ints:
        assert self.design is not None
        return np.cumsum(self.design.counts, axis=1)[:, :-1].copy()

    def encode_user(self, update: Updates, key: Words, coin: Words, row: Bytes) -> int:
        """Write the symbols of one user; returns the number of clipped entries."""
        symbols = np.empty(self.dim, dtype=np.uint32)
        clipped: int
        if self.bits == 1:
            offset = float(self.response.threshold_offset)
            coins = response_coins(coin, self.dim)
            clipped = stochastic_sign_bits(
                update, min(offset / self.scale, 1e300), offset, coins, symbols
            )
        else:
            coins = np.empty(2 * self.dim, dtype=np.uint32)
            keystream(coin, COIN_TAG, 0, 0, 0, coins)
            clipped = channel_symbols(update, self.scale, self._limits, coins, symbols)
        self.codec.write(symbols, row)
        return clipped

    def empty_counters(self, histogram: bool) -> Counters:
        """Zeroed counts of each symbol for each entry."""
        return {"symbols": np.zeros((2**self.bits, self.dim), dtype=np.int64)}

    def add_payload(self, counters: Counters, payload: Bytes, keys: UserKeys) -> None:
        """Count the symbols."""
        self.codec.add(counters["symbols"], payload, np.eye(2**self.bits, dtype=np.int64))

    def decode(self, counters: Counters, count: int, round_key: RoundKey) -> Estimate:
        """The mean of the clipped updates; the variance is that of the worst input."""
        mean = self.scale / count * (self.alphabet @ counters["symbols"])
        variance = self.worst_variance * self.scale**2 / count
        return Estimate(mean, np.full(self.dim, variance), count, unbiased=True)

    @cached_property
    def votes(self) -> SignVotes | None:
        """With one bit for each entry, every bit is its sign; otherwise None."""
        return SignVotes(self.dim, float(self.response.beta)) if self.bits == 1 else None
