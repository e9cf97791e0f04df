"""CSV, Plotly JSON and the format of numbers."""

import csv
import io

import pytest

from hushbit.lab.report.csv_table import escape_formula, write_csv
from hushbit.lab.report.document import Plot, Value, number
from hushbit.lab.report.plots import thinned, to_plotly
from hushbit.lab.report.sections import report_document
from hushbit.lab.report.sources import Sources
from hushbit.lab.report.tables import decimals_for, side_by_side
from lab.report.report_samples import (
    blocks,
    cell,
    lines_result,
    make,
    text_of,
)


def test_csv_holds_every_cell_and_every_round(sources):
    rows = list(csv.DictReader(io.StringIO(write_csv(sources))))
    cells = [c for result in sources.results for c in result.cells]
    for row, c in zip(rows, cells, strict=False):
        assert (row["scheme"], row["variant"], row["metric"]) == (c.scheme, c.variant, c.metric)
        assert (float(row["mean"]), float(row["low"]), float(row["high"])) == (
            c.mean,
            c.low,
            c.high,
        )
    rounds = rows[len(cells) :]
    losses = [r for r in rounds if (r["source"], r["metric"]) == ("cpa", "training_loss")]
    assert [float(r["x"]) for r in losses] == list(range(1, 13))


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\tx"])
def test_csv_has_no_spreadsheet_formulas(text):
    assert escape_formula(text) == "'" + text
    assert escape_formula("CPA") == "CPA"


def test_plotly_accepts_every_plot(sources):
    import plotly.graph_objects as go

    found = blocks(report_document(sources, "Report"), Plot)
    assert len(found) == 2 + 2 + 4
    for plot in found:
        figure = to_plotly(plot)
        go.Figure(figure)
        assert plot.caption.endswith(".")
        assert plot.data.rows
        for trace in figure["data"]:
            assert trace["x"]
            assert trace["meta"]["keys"]


def test_a_line_of_many_points_has_a_band_with_its_keys():
    document = report_document(Sources((lines_result(points=30),)), "T")
    traces = to_plotly(blocks(document, Plot)[0])["data"]
    bands = [t for t in traces if t["meta"].get("band")]
    assert len(bands) == 6  # published lines have no interval
    lines = [t["meta"]["keys"] for t in traces if not t["meta"].get("band")]
    assert all(band["meta"]["keys"] in lines for band in bands)
    assert bands[0]["y"][0] > bands[0]["y"][-1]


def test_schemes_of_one_variant_each_are_columns():
    variants = {"measured": "corrected", "bound as published": "published", "code": "authors"}
    cells = [
        cell(scheme, variant, {"users": users}, "accuracy", 50.0 + users / step, 1.0, float(step))
        for scheme, variant in variants.items()
        for users in (10, 100)
        for step in range(1, 41)
    ]
    result = make("t", "T", "", "lines", [c for c in cells if c.x < 4])
    table = side_by_side(result, result.axes.y[0])
    names = ("measured", "bound as published", "code (authors)")
    assert table.columns == ("users", "epsilon per bit", *names)
    assert text_of(table.rows[1]) == ["10", "2", *["55.0 [54.0, 56.0]"] * 3]
    assert len(table.rows) == 2 * 3
    traces = to_plotly(blocks(report_document(Sources((result,)), "T"), Plot)[0])["data"]
    assert [trace["meta"]["keys"] for trace in traces] == [[name] for name in names]


def test_a_band_ends_above_zero_on_a_logarithmic_axis():
    cells = [
        cell("CPA", "corrected", {}, "accuracy", 1000 / x**2, 3.0, float(x)) for x in range(1, 31)
    ]
    plot = blocks(report_document(Sources((make("t", "T", "", "lines", cells),)), "T"), Plot)[0]
    figure = to_plotly(plot)
    assert figure["layout"]["yaxis"]["type"] == "log"
    band = figure["data"][0]
    assert min(band["y"]) == pytest.approx(1000 / 30**2 / 10)
    assert max(band["y"]) == 1003


def test_a_long_line_is_thinned_and_keeps_its_ends():
    assert thinned(tuple(range(1000))) == tuple(range(1000))
    short = thinned(tuple(range(10_001)))
    assert len(short) <= 1001
    assert short[0] == 0
    assert short[-1] == 10_000


@pytest.mark.parametrize(
    ("value", "decimals", "text"),
    [
        (-17.574, None, "−17.57"),
        (85.0, None, "85"),
        (85.04, 1, "85.0"),
        (12345.6, None, "12,346"),
        (1.234e-5, None, "1.234e−05"),
        (float("-inf"), None, "−∞"),
        (float("nan"), None, "–"),
        (2.5e9, None, "2.500e+09"),
    ],
)
def test_format_of_numbers(value, decimals, text):
    assert number(value, decimals) == text


def test_decimals_follow_the_intervals():
    def cells(*figures):
        return [cell("CPA", "corrected", {}, "m", mean, width) for mean, width in figures]

    assert decimals_for(cells((85.0, 0.4), (84.0, 0.9))) == 1
    assert decimals_for(cells((85.0, 0.04), (84.0, 0.03))) == 2
    assert decimals_for(cells((85.0, 7.0))) == 1
    assert decimals_for(cells((85.0, 0.0))) is None
    assert decimals_for(cells((0.02, 0.001))) is None
    # No number of decimals suits values of very different size.
    assert decimals_for(cells((10.0, 1.0), (1.0, 0.1), (0.001, 0.0001))) is None


def test_a_value_without_width_has_no_interval():
    assert str(Value(85.0, 85.0, 85.0, 2)) == "85"
    assert str(Value(85.0, 84.5, 85.5, 1)) == "85.0 [84.5, 85.5]"
