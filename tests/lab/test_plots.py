"""Pictures: they come out as PNG whatever the figures are."""

import math

from hushbit.lab.plots import plot_runs


def test_plots_take_missing_and_infinite_figures(tmp_path):
    rows = [
        {"round": 1, "test_accuracy": None, "snr_db": -3.0},
        {"round": 2, "test_accuracy": 0.4, "snr_db": math.nan},
        {"round": 3, "test_accuracy": 0.6, "snr_db": 2.0},
    ]
    exact = [{"round": n, "test_accuracy": 0.9, "snr_db": "inf"} for n in (1, 2, 3)]
    target = tmp_path / "plot.png"
    plot_runs({"cpa": rows, "fedavg": exact, "empty": []}, target, "title")
    assert target.read_bytes().startswith(b"\x89PNG")
    assert list(tmp_path.iterdir()) == [target]


def test_more_runs_than_colours(tmp_path):
    rows = [{"round": 1, "test_accuracy": 0.5, "snr_db": 1.0}]
    plot_runs({str(n): rows for n in range(20)}, tmp_path / "plot.png", "many")
