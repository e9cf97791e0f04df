"""SQKR (Chen, Kairouz and Ozgur, NeurIPS 2020): a few bits of Kashin's representation.

The coefficients of the vector in a frame of N vectors, none beyond `edge`, become bits without
bias; k of them, at places that user and server share, are sent as one of 2^k words by randomized
response with epsilon for the whole word. k = ceil(epsilon log2 e), so a message has k bits.

    estimate = N / k · (e^epsilon + 2^k - 1) / (e^epsilon - 1) · edge · sum of ±f_j
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.arrays import Floats
from hushbit.checks import positive
from hushbit.errors import InvalidInput
from hushbit.field.carried import Carried, checked_ball
from hushbit.field.kashin import LEVEL, Frame, edge, even_coefficients, random_frame

MOST_BITS = 62
USERS_AT_ONCE = 64


@dataclass(frozen=True)
class Response:
    """Randomized response over all words of k bits: keep, or send any word."""

    epsilon: float
    bits: int

    @property
    def keep(self) -> float:
        """P[the word is kept]; otherwise all words, its own too, are equally likely."""
        return math.expm1(self.epsilon) / (math.expm1(self.epsilon) + 2.0**self.bits)

    def chances(self) -> tuple[float, float]:
        """P[a word is sent as itself], P[it is sent as one other word]."""
        other = (1 - self.keep) / 2.0**self.bits
        return self.keep + other, other


def response_for(epsilon: float) -> Response:
    """k = ceil(epsilon log2 e) bits."""
    epsilon = positive("epsilon", epsilon)
    bits = max(1, math.ceil(epsilon / math.log(2)))
    if bits > MOST_BITS:
        raise InvalidInput(f"epsilon {epsilon} means {bits} bits; at most {MOST_BITS} are handled")
    return Response(epsilon, bits)


def error(dim: int, epsilon: float) -> float:
    """E|estimate - v|² of one user with a unit vector, over places, coins and words.

    dim LEVEL² / (k keep²) + (1 - 1/k) / keep - 1
    """
    response = response_for(epsilon)
    spread = LEVEL**2 * dim / (response.bits * response.keep**2)
    return spread + (1 - 1 / response.bits) / response.keep - 1


def encode(
    coefficients: Floats, limit: float, places: NDArray[np.int64], response: Response,
    rng: np.random.Generator,
) -> NDArray[np.int8]:  # fmt: skip
    """The private word, as signs."""
    up = rng.random(len(places)) < (1 + coefficients[places] / limit) / 2
    if rng.random() >= response.keep:
        up = rng.random(len(places)) < 0.5
    return np.where(up, 1, -1).astype(np.int8)


def decode(
    signs: NDArray[np.int8], places: NDArray[np.int64], frame: Frame, response: Response
) -> Floats:
    """The coefficients that the word stands for, without bias."""
    weight = frame.size / len(places) * edge(frame) / response.keep
    return np.asarray(np.bincount(places, weight * signs, frame.size), dtype=np.float64)


def mean_estimate(vectors: Any, epsilon: float, rng: np.random.Generator) -> Carried:
    """The mean of what the server decodes; all users share the frame."""
    rows = checked_ball(vectors)
    users, dim = rows.shape
    response, frame = response_for(epsilon), random_frame(dim, rng)
    total = np.zeros(frame.size)
    for first in range(0, users, USERS_AT_ONCE):
        spread = even_coefficients(rows[first : first + USERS_AT_ONCE].T, frame)
        for coefficients in spread.T:
            places = rng.integers(0, frame.size, response.bits)
            signs = encode(coefficients, edge(frame), places, response, rng)
            total += decode(signs, places, frame, response)
    return Carried(frame.combine(total[:, None] / users)[:, 0], response.bits / dim)
