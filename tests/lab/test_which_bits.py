"""Which bits: the table agrees with closed forms, and two points win where they should."""

import math

import pytest

from hushbit.lab.which_bits import REACH, plot_ways, ways, ways_per_bit


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_points_have_the_closed_form(epsilon):
    beta = math.tanh(epsilon / 2)
    found = {way.name: way.error for way in ways(epsilon)}
    for points in (2, 4, 8, 16):
        wanted = REACH**2 * (points + 1) / (3 * beta**2) - 1
        assert found[f"{points} points"] == pytest.approx(wanted, rel=1e-6)


def test_two_points_win_at_small_epsilon_and_stages_at_large():
    assert min(ways(0.5), key=lambda way: way.error).name == "2 points"
    assert min(ways(2.0), key=lambda way: way.error).name == "2 points"
    assert min(ways(8.0), key=lambda way: way.error).family == "stages"


def test_equal_totals_are_equal_and_more_bits_cost_more():
    assert all(way.epsilon_per_weight == pytest.approx(4.0) for way in ways(4.0))
    stages = [way for way in ways_per_bit(1.0) if way.family == "stages"]
    assert all(way.epsilon_per_weight == way.bits_per_weight for way in stages)


def test_the_figure_is_drawn(tmp_path):
    plot_ways(tmp_path / "ways.svg", (0.5, 4.0))
    text = (tmp_path / "ways.svg").read_text()
    assert "2 points" in text or len(text) > 5000
