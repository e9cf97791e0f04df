"""How far out the points should lie: the ratio that makes the predicted error smallest.

Lengths are in units of s, the rms of an entry of the median user's update. Rotated entries of a
user of size t (in units of s) are Gaussian, so points at ±c keep the fraction

    kept(t) = E[x clip(x, c)] / E[x²] = erf(c / (t sqrt(2)))

of them (a clip of the norm: min(1, c/t)). Sizes are log-normal about 1. Dividing by the mean
fraction, gain = E[t] / E[t kept(t)], leaves per entry of the mean

    error(c) = gain² c² noise / K  +  signal · E[t (gain kept(t) - 1)²] / E[t]

the first from randomized response (`noise` for points at ±1), the second because large updates
are cut by more than small ones; `signal` is the power of an entry of the mean.
"""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import positive, real, whole
from hushbit.errors import InvalidInput

Floats = NDArray[np.float64]

SIZE_SPREAD = 0.6
"""Standard deviation of users' log2 norms that predictions take for granted."""

RATIOS = np.geomspace(0.5, 8.0, 81)
"""Below half a spread, smaller points gain less than half a decibel: bits are nearly signs."""

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(31)
_SIZES = 2.0 ** (SIZE_SPREAD * _NODES)
_CHANCES = _WEIGHTS / _WEIGHTS.sum()


@dataclass(frozen=True)
class Choice:
    """Where the points lie, the gain that undoes the cut on average, the error foreseen."""

    ratio: float
    gain: float
    error: float


def predicted(
    ratio: float, users: int, noise: float, signal: float, clips: str = "entries"
) -> Choice:
    """The error of the decoded mean for points at `ratio`, per entry, in units of s²."""
    gain, uneven = _effects(positive("ratio", ratio), clips)
    if real("signal", signal) < 0:
        raise InvalidInput(f"signal is a power, at least 0; got {signal!r}")
    from_bits = gain**2 * ratio**2 * positive("noise", noise) / whole("users", users, 1)
    return Choice(float(ratio), gain, from_bits + signal * uneven)


def best_ratio(users: int, noise: float, signal: float, clips: str = "entries") -> Choice:
    """The ratio of the smallest predicted error.

    >>> best_ratio(users=10, noise=16.7, signal=0.1).ratio < best_ratio(10**5, 16.7, 0.1).ratio
    True
    """
    gains, unevens = _tabled(clips)
    each = positive("noise", noise) / whole("users", users, 1)
    errors = (gains * RATIOS) ** 2 * each + real("signal", signal) * unevens
    return predicted(float(RATIOS[np.argmin(errors)]), users, noise, signal, clips)


@cache
def _tabled(clips: str) -> tuple[Floats, Floats]:
    """The effects of all RATIOS."""
    gains, unevens = zip(*(_effects(float(ratio), clips) for ratio in RATIOS), strict=True)
    return np.array(gains), np.array(unevens)


def _effects(ratio: float, clips: str) -> tuple[float, float]:
    """The gain that undoes the cut on average, and E[t (gain kept(t) - 1)²] / E[t]."""
    kept = _kept(ratio, clips)
    gain = float(_CHANCES @ _SIZES / (_CHANCES @ (_SIZES * kept)))
    uneven = float(_CHANCES @ (_SIZES * (gain * kept - 1) ** 2) / (_CHANCES @ _SIZES))
    return gain, uneven


def _kept(ratio: float, clips: str) -> Floats:
    if clips == "norm":
        return np.minimum(1.0, ratio / _SIZES)
    if clips != "entries":
        raise InvalidInput(f"clips must be entries or norm; got {clips!r}")
    return np.array([math.erf(ratio / size / math.sqrt(2)) for size in _SIZES.tolist()])
