"""The whole-message experiment: its budget is exact, its checks can fail."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hushbit.lab.experiments import EXPERIMENTS, Lab, whole_message
from hushbit.lab.experiments.whole_message import (
    DELTA,
    EPSILON,
    Scheme,
    _checks,
    _noise,
    find,
    mechanisms,
    predicted_db,
)


def test_both_schemes_spend_the_budget_and_no_more() -> None:
    clip, subset = mechanisms(7850, 0.6).values()
    assert EPSILON - 1e-3 < clip.guarantee.epsilon_per_message(DELTA) <= EPSILON
    assert subset.guarantee.epsilon_per_message() == EPSILON
    assert subset.payload_bits == 1
    assert clip.payload_bits == 7850


def test_the_prediction_is_signal_over_noise() -> None:
    row = {"snr_db": 10.0, "mse": 0.5}
    assert predicted_db(row, 0.5) == pytest.approx(10.0)
    assert predicted_db(row, 5.0) == pytest.approx(0.0)


@pytest.mark.parametrize(("accuracy", "gap", "holds"), [(0.81, 0.3, [True, True]),
                                                        (0.79, -0.6, [False, False])])  # fmt: skip
def test_checks_can_fail(accuracy: float, gap: float, holds: list[bool]) -> None:
    mechanism = mechanisms(100, 0.6)["CPA, clip and radius"]
    noise = _noise(mechanism, 1000) * 10 ** (-gap / 10)
    row: dict[str, Any] = {"snr_db": 3.0, "mse": noise, "test_accuracy": accuracy}
    checks = _checks(Scheme("x", mechanism, [[row, row]]), 1000)
    assert [check.holds for check in checks] == holds


def test_the_experiment_runs_and_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_message, "QUICK_USERS", 40)
    usual = whole_message.settings_of
    monkeypatch.setattr(
        whole_message, "settings_of",
        lambda lab, seed: type(usual(lab, seed))(
            **{**vars(usual(lab, seed)), "dataset": "digits"}
        ),
    )  # fmt: skip
    seen: list[str] = []
    lab = Lab(tmp_path, (1,), quick=True, rounds=2, watch=lambda name, *_: seen.append(name))
    first = find(lab)
    assert Counter(seen) == {"CPA, clip and radius": 2, "CPA, seeded subset": 2}
    assert find(lab).cells == first.cells
    assert len(seen) == 4
    assert all(math.isfinite(cell.mean) for cell in first.cells)
    assert EXPERIMENTS["whole-message"].find is find
