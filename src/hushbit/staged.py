"""Decoding CPA: the stages of a tally added up to one mean with its variance."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import choice
from hushbit.decode import (
    DECODERS,
    Estimate,
    level_power,
    signal_power,
    stage_votes,
)
from hushbit.tally import Tally

if TYPE_CHECKING:
    from hushbit.cpa import CPA

DITHER_UNIT = 2.0**-32


def rounding_power(cpa: "CPA") -> float:
    """An upper bound of E|q - x|² over the rounding of one block x."""
    lattice = cpa.quantizer.points.lattice
    if cpa.rounding == "stochastic":
        reach = lattice.covering_radius if cpa.block_size == 1 else cpa.radius
        return float(reach**2)
    times = {"dithered": 4.0, "subtractive": 1.0, "nearest": 0.0}[cpa.rounding]
    return times * lattice.second_moment


def decode_stages(cpa: "CPA", tally: Tally, decoder: str) -> Estimate:
    """Mean and variance of a tally.

    The variance is the smaller of two upper estimates: noise less the power of the common signal,
    or noise less the power of the users' levels (from the histogram) plus that of rounding.
    """
    choice("decoder", decoder, DECODERS)
    count, size = tally.count, cpa.block_size
    mean = np.zeros((cpa.blocks, size))
    by_signal, largest = np.zeros(size), np.zeros(size)
    by_levels = np.full(size, rounding_power(cpa) / size)
    histograms: list[NDArray[np.float64]] = []
    for stage in cpa.stages:
        gain, shift, noise = stage.decoders[decoder]
        counter = tally.counters[stage.name]
        by_levels += noise
        if stage.keeps_votes(counter):
            votes = stage_votes(counter, stage.points)
            histograms.append(np.asarray(gain / count * votes + shift).T)
            counter = stage.coordinate_sums(counter)
            if decoder == "corrected":
                by_levels -= level_power(histograms[-1], stage.points, shift)
        pull = gain / count * (counter.T @ stage.points.basis)
        by_signal += noise - signal_power(pull, noise, count)
        largest += noise
        mean += pull + shift * stage.points.positions.sum(axis=0)
    if cpa.rounding == "subtractive":
        lattice = cpa.quantizer.points.lattice
        mean -= tally.counters["dither"] * (DITHER_UNIT / count) @ lattice.generator
        by_signal += lattice.second_moment / size
        largest += lattice.second_moment / size
    variance = np.tile(np.clip(by_levels, 0.0, by_signal) / count, cpa.blocks)
    return Estimate(
        mean=mean.reshape(-1)[: cpa.dim],
        variance=variance[: cpa.dim],
        count=count,
        unbiased=decoder == "corrected" and cpa.rounding != "nearest",
        histograms=tuple(histograms) if len(histograms) == len(cpa.stages) else None,
        points=tuple(stage.points for stage in cpa.stages),
        noise=float(largest.mean()) / count,
    )
