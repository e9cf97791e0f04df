"""How far the decoded mean is from the true one."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.kernels.jit import njit


@njit
def add_rows(
    total: NDArray[np.float64], rows: NDArray[np.float32], chosen: NDArray[np.bool_]
) -> None:
    """Add the chosen rows to the total one after the other, so that no grouping changes it."""
    for number in range(rows.shape[0]):
        if chosen[number]:
            total += rows[number]


@dataclass(frozen=True)
class Distortion:
    """Error of one round's estimate.

    snr_db          10 log10 of var(mean update) / var(error): what the ballots carried
    snr_weights_db  10 log10 of var(w_FA) / var(w_FA - w): the paper's equation, on the weights
    snr_authors_db  20 log10 of var(mean update) / var(error), as the published code prints
    mse             mean square of the error, for each entry
    """

    snr_db: float
    snr_weights_db: float
    snr_authors_db: float
    mse: float

    def row(self) -> dict[str, Any]:
        """The figures by name."""
        return dict(vars(self))


def distortion(
    params: NDArray[np.floating], true_mean: NDArray[np.float64], decoded: NDArray[np.float64]
) -> Distortion:
    """Compare a decoded mean update with the true mean of the honest users' updates."""
    error = decoded - true_mean
    noise = float(np.var(error))
    signal = _decibel(float(np.var(true_mean)), noise)
    return Distortion(
        snr_db=signal,
        snr_weights_db=_decibel(float(np.var(params + true_mean)), noise),
        snr_authors_db=2 * signal,
        mse=float(np.mean(error**2)),
    )


def _decibel(signal: float, noise: float) -> float:
    if math.isnan(noise):
        return math.nan
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf
