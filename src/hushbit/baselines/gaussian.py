"""The Gaussian mechanism (DP-FedAvg): a trusted server adds noise to the mean that it releases.

Users send clipped updates as 32-bit floats, so the server sees every update. It adds noise of
standard deviation `noise_multiplier` · `clip` to every entry of the sum.

The noise comes from private coins of the server, never from a key that users share. It is computed
in floating point, and the noisy sum is rounded to a public grid of 16 to 32 steps per standard
deviation. Rounding is post-processing, so only the error of the computed noise matters. That error
is at most e = 2^-39 grid steps, because

    noise = R cos(angle),  R = sqrt(2 E) < 13.4,  E exponential, angle uniform

are computed with relative errors of at most 2^-50 (E, R) and absolute errors of at most 2^-48.9
(cosine). Within 13.4 standard deviations the normal density varies inside a step by a factor below
2.4, so the probability of each output is exact up to a factor between 1 - 4.8 e and 1 + 4.8 e for
each entry. `Gaussian.guarantee` counts this error. Noise beyond 10 standard deviations, which has a
probability below 2^-74, has a larger error that is not counted.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from hushbit.baselines.entry_mechanism import FLOAT_LIMIT, FloatCodec, SumMechanism
from hushbit.checks import Floats, check_int, check_positive
from hushbit.encoding.clip_and_rotate import clip_l2
from hushbit.errors import InvalidInput, RefusedBallot
from hushbit.kernels import Words64
from hushbit.kernels.chacha import keystream
from hushbit.mechanism import Bytes, Updates, Words
from hushbit.privacy.central import GaussianSum
from hushbit.privacy.guarantee import Guarantee
from hushbit.tally.estimate import Estimate
from hushbit.tally.tally import Counters
from hushbit.wire.coins import coin_source
from hushbit.wire.keys import RoundKey

GAUSSIAN_TAG = int.from_bytes(b"gaus", "little")
STEPS_PER_DEVIATION = 16
LOG_ERROR = 2.0**-36  # of the probability of one rounded entry
MIN_CLIP = 1e-4  # the sum has units of 2^-48; its rounding errors stay below 1e-6 of the clip
NOISE_LIMITS = (1e-6, 1e6)


@dataclass(frozen=True, eq=False, repr=False)
class Gaussian(SumMechanism):
    """The mean of clipped updates plus Gaussian noise, which a trusted server adds.

    dim               entries of an update
    noise_multiplier  standard deviation of the noise in the sum, divided by `clip`
    clip              l2 norm to which updates are scaled down

    Against the server, epsilon is infinite. Against those who see only models, `guarantee.of_tally`
    is exact. Each call of `estimate` draws new noise and is a release that counts as a round; the
    tally itself has no noise and must not be shown. `estimate` takes the option `coins`: the
    operating system by default, SimulationCoins in a simulation.

    >>> gaussian = Gaussian(dim=10, noise_multiplier=20.0, clip=1.0)
    >>> round(gaussian.guarantee.of_tally(1, rounds=60, delta=1e-5).epsilon, 3)
    3.265
    """

    name: ClassVar[str] = "gaussian"
    server_noise: ClassVar[bool] = True

    dim: int
    noise_multiplier: float
    clip: float = 0.0  # required; the inherited property would be the default otherwise

    def __post_init__(self) -> None:
        self._set(dim=check_int("dim", self.dim, 1))
        for name, low, high in (
            ("noise_multiplier", *NOISE_LIMITS),
            ("clip", MIN_CLIP, FLOAT_LIMIT / 2),
        ):
            value = check_positive(name, getattr(self, name))
            if not low <= value <= high:
                raise InvalidInput(f"{name} must be from {low:g} to {high:g}; got {value!r}")
            self._set(**{name: value})

    @cached_property
    def codec(self) -> FloatCodec:
        """32-bit floats."""
        return FloatCodec(self.dim)

    @cached_property
    def guarantee(self) -> Guarantee:
        """Infinite against the server; against the model that of the Gaussian mechanism."""
        return Guarantee(
            groups=((math.inf, self.dim),),
            dim=self.dim,
            message_bits=self.payload_bits,
            k_anonymity=1,
            unit="entry",
            note="the update itself is sent; a trusted server adds noise to what it releases",
            sums=GaussianSum(self.noise_multiplier, self.dim * LOG_ERROR),
        )

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise in an entry of the sum."""
        return self.noise_multiplier * self.clip

    @property
    def step(self) -> float:
        """The grid of the released sum: a power of two, so that grid steps are exact floats."""
        return float(2.0 ** math.floor(math.log2(self.deviation / STEPS_PER_DEVIATION)))

    def encode_user(self, update: Updates, key: Words, coin: Words, row: Bytes) -> int:
        """Write the clipped update as 32-bit floats; returns `dim` if it was scaled down."""
        rows = update[None]
        clipped = clip_l2(rows, self.clip)
        self.codec.write(clipped[0], row)
        return 0 if clipped is rows else self.dim

    def check_payload(self, payload: Bytes) -> None:
        """Refuse values that no encoder writes, and updates above the clip."""
        super().check_payload(payload)
        rows = payload.view("<f4")
        if (np.einsum("ud,ud->u", rows, rows, dtype=np.float64) > self.clip**2).any():
            raise RefusedBallot("value", f"the l2 norm of an update must be at most {self.clip:g}")

    def decode(
        self, counters: Counters, count: int, round_key: RoundKey, coins: Any = None
    ) -> Estimate:
        """The sum with noise from the server's coins, on the grid, divided by the count."""
        coin = coin_source(coins).keys(round_key.users([0]))[0]
        exact = self.codec.total(counters["sum"]) / self.step
        whole = np.floor(exact)
        noise = normal_noise(coin, self.dim) * (self.deviation / self.step)
        steps = whole + np.rint((exact - whole) + noise)
        variance = (self.deviation**2 + self.step**2 / 12) / count**2
        return Estimate(
            steps * self.step / count,
            np.full(self.dim, variance),
            count,
            unbiased=True,
            noise=variance,
        )


def normal_noise(coin: Words, size: int) -> Floats:
    """Standard normal variables from the keystream of a private coin."""
    words = np.empty(6 * ((size + 1) // 2), dtype=np.uint32)
    keystream(coin, GAUSSIAN_TAG, 0, 0, 0, words)
    return normal_of_words(words.view(np.uint64))[:size]


def normal_of_words(words: Words64) -> Floats:
    """Two standard normal variables for every three uniform words, by Box and Muller."""
    high, low, turn = words.reshape(3, -1)
    # A uniform number u below 1/2 with a small relative error; another bit chooses u or 1 - u.
    uniform = (high + (low + 0.5) * 2.0**-64) * 2.0**-65
    length = np.sqrt(-2 * np.where(turn & np.uint64(1), np.log(uniform), np.log1p(-uniform)))
    angle = (turn >> np.uint64(1)) * (2 * np.pi * 2.0**-63)
    return np.concatenate([length * np.cos(angle), length * np.sin(angle)])
