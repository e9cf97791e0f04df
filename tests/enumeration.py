"""Exact distribution of one decoded vote, in fractions: every word, rounding and flip."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

from hushbit.cpa import CPA
from hushbit.encoding.stage import StageEncoder
from hushbit.encoding.words import all_words
from hushbit.lattice.points import stage_indices
from hushbit.tally.estimate import decoder_constants

Vector = tuple[Fraction, ...]


@dataclass(frozen=True)
class Outcome:
    """One possible vote in a stage, with its probability."""

    chance: Fraction
    votes: tuple[int, ...]  # bit · word: what is added to the counters


def stage_outcomes(stage: StageEncoder, level: int) -> Iterator[Outcome]:
    """All words and flips for a user whose block was rounded to point `level`."""
    words = all_words(stage.family, stage.points.size).tolist()
    truth = (1 + stage.response.beta) / 2
    for word in words:
        for flip, chance in ((1, truth), (-1, 1 - truth)):
            bit = flip * word[level]
            yield Outcome(chance / len(words), tuple(bit * sign for sign in word))


def decoded(stage: StageEncoder, outcome: Outcome, decoder: str = "corrected") -> Vector:
    """One decoded vote, in integer coordinates of the points."""
    gain, shift = decoder_constants(decoder, stage.response.beta, stage.rho)
    coords = stage.points.coords.tolist()
    return tuple(
        sum((gain * v + shift) * c for v, c in zip(outcome.votes, axis, strict=True))
        for axis in zip(*coords, strict=True)
    )


def histogram(stage: StageEncoder, outcome: Outcome) -> Vector:
    """The decoded shares of all points from one vote."""
    gain, shift = decoder_constants("corrected", stage.response.beta, stage.rho)
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
        levels = [int(part) for part in stage_indices(point, mechanism.points_per_stage)]
        parts = [
            [(o.chance, decoded(stage, o, decoder)[0]) for o in stage_outcomes(stage, level)]
            for stage, level in zip(mechanism.stage_encoders, levels, strict=True)
        ]
        for outcomes in product(*parts):
            weight = chance
            for share, _ in outcomes:
                weight *= share
            value = sum(part for _, part in outcomes)
            mean += weight * value
            square += weight * (value - x) ** 2
    return mean, square
