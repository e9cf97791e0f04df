"""docs/privacy.md: the examples run, and the tables equal what the code computes."""

import doctest
import math
import statistics
from pathlib import Path

import pytest

import hushbit as hb
from hushbit.budget import Budget
from hushbit.lab.attacks.inversion import invert
from hushbit.privacy.guarantee import expected_candidates, k_per_block
from hushbit.tuning.plan import plan

PAGE = Path(__file__).parents[2] / "docs" / "privacy.md"


def table(name: str) -> list[list[str]]:
    lines = PAGE.read_text(encoding="utf-8").split(f"<!-- table: {name} -->\n")[1].splitlines()
    end = lines.index("")
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:end]]


def test_examples_run() -> None:
    flags = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
    failed, tried = doctest.testfile(str(PAGE), module_relative=False, optionflags=flags)
    assert tried > 8
    assert failed == 0


def test_models() -> None:
    for row in table("models"):
        found = hb.CPA(int(row[0].replace(",", "")), 0.5, 1.0).guarantee
        levels = [found.epsilon_per_run(rounds, delta) for rounds in (1, 30) for delta in (0, 1e-5)]
        assert row[1:] == [f"{level:,.0f}" for level in levels]


def test_clips() -> None:
    for row in table("clip"):
        found = hb.CPA(7850, float(row[0]), 1.0, clip=float(row[1])).guarantee
        message, run = found.epsilon_per_message(1e-5), found.epsilon_per_run(30, 1e-5)
        assert row[2:] == [f"{message:.2f}", f"{run:.1f}", f"{found.epsilon_per_message():,.0f}"]


def test_budgets() -> None:
    for row in table("budgets"):
        budget = Budget(float(row[0]), 1e-5, per="message", against="server")
        made = plan(7850, 10_000, budget=budget)
        options = {option.name: option for option in made.options}
        cells = []
        for name in ("pure subset, rotated", "l2 clip, rotated"):
            cells += [f"{options[name].snr_db:.1f}", str(options[name].message_bytes)]
        assert row[1:] == cells


def test_tallies() -> None:
    for row in table("tallies"):
        honest = int(row[0].split()[0].replace(",", ""))
        found = []
        for clip in (1.0, 3.0, 10.0, None):
            guarantee = hb.CPA(7850, 0.5, 1.0, clip=clip).guarantee
            found.append(f"{guarantee.of_tally(honest, 60, delta=1e-5).epsilon:.4g}")
        assert row[1:] == found


def test_survivors() -> None:
    for row in table("survivors"):
        points = int(row[0])
        left = [f"{expected_candidates(points, rounds):.3f}" for rounds in (1, 2, 5)]
        assert row[1:] == [str(k_per_block(points)), *left]


@pytest.mark.slow
def test_inversion() -> None:
    """The table has the mean and the standard deviation of five runs with other random draws.

    A change of the draws moves a mean of five by less than four of its standard deviations.
    """
    runs = [invert("digits", epsilon_per_bit=0.5, seed=seed).rows() for seed in range(5)]
    rows = table("inversion")
    assert [row[0] for row in rows] == [row["seen"] for row in runs[0]]
    for (_, printed, deviation), *found in zip(rows, *runs, strict=True):
        mean = statistics.fmean(row["psnr_db"] for row in found)
        slack = 4 * float(deviation) * math.sqrt(2 / 5)
        assert mean == pytest.approx(float(printed), abs=slack + 0.06)
        spread = statistics.stdev(row["psnr_db"] for row in found)
        assert spread <= 3 * float(deviation) + 0.06
