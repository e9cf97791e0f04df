"""Images of plots."""

import itertools
import math

from hushbit.lab.report.document import ReportTable, Value
from hushbit.lab.report.plots import line_plot, numbered_line, plot_runs, result_plots, to_svg
from lab.report.report_samples import lines_result, table_result


def test_missing_and_infinite_values_are_left_out(tmp_path):
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


def test_more_runs_than_colours_have_different_styles(tmp_path):
    rows = [{"round": 1, "test_accuracy": 0.5, "snr_db": 1.0}]
    plot_runs({str(n): rows for n in range(20)}, tmp_path / "plot.png", "many")
    styles = [(line.colour, line.dash) for line in (numbered_line(n, "", {}) for n in range(32))]
    assert len(set(styles)) == 32
    assert all(one[1] != other[1] for one, other in itertools.pairwise(styles[:8]))


def test_svg_has_every_name_and_the_same_bytes_every_time():
    result = lines_result()
    plots = result_plots(result, result.axes.y[1])
    picture = to_svg("Title", plots)
    assert picture == to_svg("Title", plots)
    text = picture.decode()
    assert len(plots) == 2
    assert all(name in text for name in ("Title", "users 100", "Laplace, corrected"))


def test_svg_of_a_table_has_a_label_for_each_row():
    result = table_result()
    (plot,) = result_plots(result, result.axes.y[0])
    assert plot.categories[0] == ("users 10", "CPA")
    assert "users 10, CPA without noise" in to_svg("T", [plot]).decode()


def test_a_plot_has_a_table_of_its_lines_by_default():
    line = numbered_line(0, "CPA", {float(x): Value(1.0, 1.0, 1.0) for x in range(1, 101)})
    data = line_plot("T", "round", "loss", [line]).data
    assert isinstance(data, ReportTable)
    assert data.columns == ("round", "CPA")
    assert data.rows[0] == ("1", "1")
    assert data.rows[-1] == ("100", "1")
    assert "34 of 100 rows" in data.caption
