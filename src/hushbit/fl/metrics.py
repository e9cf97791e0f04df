"""How far the decoded mean is from the true one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.kernels.jit import njit
from hushbit.kernels.threads import spread


def add_rows(
    total: NDArray[np.float64], rows: NDArray[np.float32], chosen: NDArray[np.bool_]
) -> None:
    """Add the chosen rows to the total one after the other, so that no grouping changes it."""
    spread(lambda first, last: _add_columns(total, rows, chosen, first, last), total.size)


@njit
def _add_columns(
    total: NDArray[np.float64], rows: NDArray[np.float32], chosen: NDArray[np.bool_],
    first: int, last: int,
) -> None:  # fmt: skip
    part = total[first:last]
    for number in range(rows.shape[0]):
        if chosen[number]:
            row = rows[number, first:last]
            for i in range(part.size):
                part[i] += row[i]


@dataclass(frozen=True)
class Distortion:
    """Error of one round's estimate.

    snr_db          10 log10 of var(mean update) / var(error): what the ballots carried
    snr_weights_db  10 log10 of var(w_FA) / var(w_FA - w): the paper's equation, on the weights
    snr_authors_db  20 log10 of var(mean update) / var(error), as the published code prints
    snr_layers      var(mean update) / var(error) of each tensor, averaged over tensors, no decibel:
                    what the published code averages over rounds before its logarithm
    mse             mean square of the error, for each entry
    """

    snr_db: float
    snr_weights_db: float
    snr_authors_db: float
    mse: float
    snr_layers: float = math.nan

    def row(self) -> dict[str, Any]:
        """The figures by name."""
        return dict(vars(self))


def distortion(
    params: NDArray[np.floating], true_mean: NDArray[np.float64], decoded: NDArray[np.float64],
    layers: Sequence[slice] = (),
) -> Distortion:  # fmt: skip
    """Compare a decoded mean update with the true mean of the honest users' updates."""
    error = decoded - true_mean
    noise = float(np.var(error))
    signal = _decibel(float(np.var(true_mean)), noise)
    return Distortion(
        snr_db=signal,
        snr_weights_db=_decibel(float(np.var(params + true_mean)), noise),
        snr_authors_db=2 * signal,
        snr_layers=_mean_ratio(true_mean, error, layers or (slice(None),)),
        mse=float(np.mean(error**2)),
    )


def _mean_ratio(
    signal: NDArray[np.float64], error: NDArray[np.float64], layers: Sequence[slice]
) -> float:
    """Mean of the ratios of variances; tensors of one entry have none and are left out."""
    ratios = []
    for layer in layers:
        noise = float(np.var(error[layer]))
        if error[layer].size > 1:
            ratios.append(float(np.var(signal[layer])) / noise if noise else math.inf)
    return sum(ratios) / len(ratios) if ratios else math.nan


def _decibel(signal: float, noise: float) -> float:
    if math.isnan(noise):
        return math.nan
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf
