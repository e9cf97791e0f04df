"""Result files: round trip and validation."""

import dataclasses
import json

import pytest

from hushbit.errors import DamagedFile, InvalidInput
from hushbit.lab.experiments.results import (
    Axes,
    Cell,
    Check,
    Metric,
    PrivacyLine,
    Result,
    read_result,
    result_from_json,
)

CELL = Cell("CPA", "authors", {"users": 10, "model": "linear"}, "accuracy", 2.0, 1.0, 3.0, (2.0,))
RESULT = Result(
    name="nested",
    title="T",
    paper="Table V",
    quick=True,
    command="hushbit reproduce nested",
    seeds=(1, 2),
    about="a <b>",
    choices=("we chose",),
    privacy=(PrivacyLine("CPA", "eps = 0.5", "m", "r"),),
    axes=Axes("table", None, "", False, (Metric("accuracy", "test accuracy (%)"),)),
    cells=(CELL, dataclasses.replace(CELL, x=0.5)),
    checks=(Check("c", True, "1 against 2"),),
    notes=(),
    environment={"python": "3"},
    seconds=1.5,
)


def test_round_trip(tmp_path):
    path = RESULT.save(tmp_path)
    assert path == tmp_path / "nested" / "result.json"
    assert read_result(path) == read_result(path.parent) == RESULT
    raw = json.loads(path.read_text())
    assert raw["format"] == 1
    assert raw["cells"][0]["where"] == {"users": 10, "model": "linear"}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda raw: raw.pop("cells"),
        lambda raw: raw.pop("format"),
        lambda raw: raw.update(format=2),
        lambda raw: raw.update(more=1),
        lambda raw: raw.update(quick=1),
        lambda raw: raw.update(seeds=["1"]),
        lambda raw: raw.update(seeds=[True]),
        lambda raw: raw["cells"][0].update(variant="magic"),
        lambda raw: raw["cells"][0].update(mean="2"),
        lambda raw: raw["cells"][0].update(mean=9.0),
        lambda raw: raw["cells"][0].update(where={"users": [1]}),
        lambda raw: raw["cells"].append(7),
        lambda raw: raw["axes"].update(kind="pie"),
    ],
)
def test_an_invalid_result_raises(spoil):
    raw = json.loads(RESULT.to_json())
    spoil(raw)
    with pytest.raises(InvalidInput):
        result_from_json(json.dumps(raw))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"mean": NaN}', "\x00"])
def test_another_file_is_reported_as_damaged(tmp_path, text):
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(DamagedFile, match="not a valid result file"):
        read_result(tmp_path)


def test_a_missing_file_is_reported_as_damaged(tmp_path):
    with pytest.raises(DamagedFile):
        read_result(tmp_path / "nothing.json")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_cells_must_be_finite(value):
    with pytest.raises(InvalidInput):
        dataclasses.replace(CELL, mean=value)
