"""Decoding CPA: the stages of a tally added up to one mean with its variance."""

from typing import TYPE_CHECKING

import numpy as np

from hushbit.checks import choice
from hushbit.decode import DECODERS, Estimate, Shares, signal_power
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
    mean = np.zeros((size, cpa.blocks))
    by_signal = largest = np.zeros(size)
    by_levels = np.array([rounding_power(cpa) / size] * size)
    shares: list[Shares] = []
    for stage in cpa.stages:
        counter, reading = tally.counters[stage.name], stage.readings[decoder]
        votes = stage.keeps_votes(counter)
        pull = reading.pull(counter, count, votes)
        by_signal = by_signal + reading.noise - signal_power(pull, reading.noise, count)
        by_levels = by_levels + reading.noise
        largest = largest + reading.noise
        mean += pull
        if reading.shift:
            mean += reading.centre[:, None]
        if votes:
            # A tally may go on counting; what was learnt of it so far stays as it is.
            shares.append(Shares(reading, counter.copy(), count))
            if decoder == "corrected":
                by_levels = by_levels - shares[-1].level_power()
    if cpa.rounding == "subtractive":
        lattice = cpa.quantizer.points.lattice
        mean -= (tally.counters["dither"] * (DITHER_UNIT / count) @ lattice.generator).T
        by_signal = by_signal + lattice.second_moment / size
        largest = largest + lattice.second_moment / size
    variance = np.empty((cpa.blocks, size))
    variance[:] = np.minimum(np.maximum(by_levels, 0.0), by_signal) / count
    return Estimate(
        mean=mean.T.reshape(-1)[: cpa.dim],
        variance=variance.reshape(-1)[: cpa.dim],
        count=count,
        unbiased=decoder == "corrected" and cpa.rounding != "nearest",
        shares=tuple(shares) if len(shares) == len(cpa.stages) else (),
        noise=float(largest.mean()) / count,
    )
