"""Exact laws of one user's decoded vote: every word, rounding and flip, in fractions."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

from hushbit.cpa import CPA
from hushbit.decode import gain_and_shift
from hushbit.points import digits
from hushbit.stage import Stage
from hushbit.words import all_words

Vector = tuple[Fraction, ...]


@dataclass(frozen=True)
class Outcome:
    """One way in which a stage's vote can come out, with its chance."""

    chance: Fraction
    votes: tuple[int, ...]  # bit · word: what is added to the counters


def stage_outcomes(stage: Stage, level: int) -> Iterator[Outcome]:
    """All words and flips for a user whose block was rounded to point `level`."""
    words = all_words(stage.family, stage.points.size).tolist()
    truth = (1 + stage.response.beta) / 2
    for word in words:
        for flip, chance in ((1, truth), (-1, 1 - truth)):
            bit = flip * word[level]
            yield Outcome(chance / len(words), tuple(bit * sign for sign in word))


def decoded(stage: Stage, outcome: Outcome, decoder: str = "corrected") -> Vector:
    """The decoder on one user's vote, in integer coordinates of the points."""
    gain, shift = gain_and_shift(decoder, stage.response.beta, stage.rho)
    coords = stage.points.coords.tolist()
    return tuple(
        sum((gain * v + shift) * c for v, c in zip(outcome.votes, axis, strict=True))
        for axis in zip(*coords, strict=True)
    )


def histogram(stage: Stage, outcome: Outcome) -> Vector:
    """The decoded shares of all points from one user's vote."""
    gain, shift = gain_and_shift("corrected", stage.response.beta, stage.rho)
    return tuple(gain * v + shift for v in outcome.votes)


def rounding(mechanism: CPA, x: Fraction) -> list[tuple[int, Fraction]]:
    """Points and chances of stochastic rounding of a scalar x, in integer coordinates."""
    places = [int(c) for c in mechanism.quantizer.points.coords[:, 0]]
    assert places == sorted(places)
    low = max(i for i, place in enumerate(places[:-1]) if place <= x)
    share = (x - places[low]) / (places[low + 1] - places[low])
    return [(low, 1 - share), (low + 1, share)]


def law(mechanism: CPA, x: Fraction, decoder: str = "corrected") -> tuple[Fraction, Fraction]:
    """Mean and mean square error of the decoded scalar x: rounding, words and flips."""
    mean = square = Fraction(0)
    for point, chance in rounding(mechanism, x):
        levels = [int(part) for part in digits(point, mechanism.counts)]
        parts = [
            [(o.chance, decoded(stage, o, decoder)[0]) for o in stage_outcomes(stage, level)]
            for stage, level in zip(mechanism.stages, levels, strict=True)
        ]
        for way in product(*parts):
            weight = chance
            for share, _ in way:
                weight *= share
            value = sum(part for _, part in way)
            mean += weight * value
            square += weight * (value - x) ** 2
    return mean, square
