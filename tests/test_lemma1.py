"""Lemma 1 of the paper, by enumeration of words and answers."""

from fractions import Fraction

import pytest

from enumeration import stage_outcomes
from hushbit import CPA


@pytest.mark.parametrize("points", [2, 4, 8])
def test_histogram_errors_of_balanced_words_are_correlated_and_biased(points):
    """The paper's histogram is bit · word / (2p - 1), for a user at the first point."""
    stage = CPA(1, 0.5, 1.0, points=points).stage_encoders[0]
    beta = stage.response.beta
    ways = [
        (o.chance, [Fraction(vote) / beta for vote in o.votes]) for o in stage_outcomes(stage, 0)
    ]
    mean = [sum(chance * share[j] for chance, share in ways) for j in range(points)]
    assert mean == [1] + [Fraction(-1, points - 1)] * (points - 1)
    both = sum(chance * share[0] * share[1] for chance, share in ways)
    assert both - mean[0] * mean[1] != 0
