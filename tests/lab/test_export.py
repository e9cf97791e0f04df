"""Exported weights and metrics equal those of the run and are read by other programs."""

import csv
import dataclasses
import json
import math
from collections import OrderedDict

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from hushbit import lab
from hushbit.errors import DamagedFile, InvalidInput
from hushbit.lab import export
from hushbit.lab.sim.datasets import DATASET_NAMES, load_dataset
from hushbit.lab.sim.image_task import task_without_data
from hushbit.lab.sim.models import build_model
from hushbit.lab.sim.run import run
from hushbit.lab.sim.settings import Settings
from hushbit.store.run_folder import CHECKPOINT, METRICS

SETTINGS = Settings(model="mlp", users=20, rounds=3, mechanism="fedavg", average_weights=True)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "run"
    return folder, run(SETTINGS, folder)


def plain_mlp():
    layers = [
        ("fc1", nn.Linear(64, 32)),
        ("relu1", nn.ReLU()),
        ("fc2", nn.Linear(32, 16)),
        ("relu2", nn.ReLU()),
        ("fc3", nn.Linear(16, 10)),
    ]
    return nn.Sequential(OrderedDict(layers))


def read_pt(path):
    return torch.load(path, weights_only=True)


@pytest.mark.parametrize(("name", "read"), [("m.safetensors", load_file), ("m.pt", read_pt)])
def test_a_plain_torch_module_with_the_weights_has_the_accuracy_of_the_run(
    stored, tmp_path, name, read
):
    folder, summary = stored
    export.write_weights(folder, tmp_path / name)
    model, data = plain_mlp(), load_dataset("digits")
    model.load_state_dict(read(tmp_path / name))
    inputs = torch.from_numpy(data.test_x).flatten(1).float() / 255
    with torch.inference_mode():
        logits = model(inputs)
    labels = torch.from_numpy(data.test_y)
    assert (logits.argmax(1) == labels).float().mean().item() == pytest.approx(
        summary["test_accuracy"], abs=1e-6
    )
    assert nn.functional.cross_entropy(logits, labels).item() == pytest.approx(
        summary["test_loss"], rel=1e-4
    )


def test_a_safetensors_file_says_what_its_inputs_are(stored, tmp_path):
    export.write_weights(stored[0], tmp_path / "m.safetensors")
    with safe_open(tmp_path / "m.safetensors", "pt") as file:
        assert file.metadata() == {
            "format": "pt",
            "model": "mlp",
            "dataset": "digits",
            "inputs": "(byte - 0) / 255",
            "round": "3",
        }


def test_without_an_average_the_weights_are_those_of_the_last_round(tmp_path):
    run(dataclasses.replace(SETTINGS, average_weights=False), tmp_path / "run")
    found = export.state_dict(tmp_path / "run")
    with np.load(tmp_path / "run" / CHECKPOINT) as file:
        last = file["model params"]
    flat = np.concatenate([tensor.numpy().ravel() for tensor in found.values()])
    assert np.array_equal(flat, last)


def test_statistics_of_a_weights_file_are_part_of_the_state(stored, monkeypatch):
    mean, variance = torch.ones(2), torch.full((2,), 4.0)
    model = dataclasses.replace(
        build_model("mlp", (1, 8, 8), 10), statistics={"bn1": (mean, variance)}
    )
    monkeypatch.setattr(export, "_image_task", lambda record: task_without_data(model))
    found = export.state_dict(stored[0])
    assert (found["bn1.running_mean"], found["bn1.running_var"]) == (mean, variance)


def test_weights_of_an_own_task_are_those_of_the_finished_run(tmp_path):
    x, y = torch.randn(6, 3), torch.randint(2, (6,))
    task = lab.Task(nn.Linear(3, 2), nn.functional.cross_entropy, [(x, y), (x, y)], (x, y))
    summary = lab.run(task, "fedavg", rounds=1, out=tmp_path / "run", workers=1)
    export.write_weights(tmp_path / "run", tmp_path / "m.safetensors")
    found = load_file(tmp_path / "m.safetensors")
    assert found.keys() == {"weight", "bias"}
    assert torch.equal(found["weight"], summary.state_dict()["weight"])
    with safe_open(tmp_path / "m.safetensors", "pt") as file:
        assert "inputs" not in file.metadata()
    (tmp_path / "run" / "model.safetensors").unlink()
    with pytest.raises(InvalidInput, match="not finished: resume it"):
        export.state_dict(tmp_path / "run")


def test_the_shapes_of_all_data_sets_are_known():
    assert tuple(export.IMAGES) == DATASET_NAMES
    digits = load_dataset("digits")
    assert export.IMAGES["digits"] == (digits.input_shape, digits.classes)


def test_metrics_have_one_row_per_round_in_every_format(stored, tmp_path):
    folder, summary = stored
    for name in ("m.jsonl", "m.csv", "m.parquet"):
        export.write_metrics(folder, tmp_path / name)
    lines = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    with (tmp_path / "m.csv").open(newline="") as file:
        cells = list(csv.DictReader(file))
    table = pq.read_table(tmp_path / "m.parquet").to_pylist()
    assert len(lines) == len(cells) == len(table) == 3
    for made, line, cell, row in zip(summary["history"], lines, cells, table, strict=True):
        assert line.keys() == cell.keys() == row.keys() == made.keys()
        assert line["test_loss"] == float(cell["test_loss"]) == row["test_loss"]
        assert row["test_loss"] == made["test_loss"]
        assert math.isinf(made["snr_db"]) == math.isinf(row["snr_db"])
        assert (line["backdoor_rate"], cell["backdoor_rate"]) == (None, "")
    assert [cell["round"] for cell in cells] == ["1", "2", "3"]


def test_a_row_without_a_checkpoint_is_left_out(stored, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for path in stored[0].iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    row = json.loads((folder / METRICS).read_text().splitlines()[-1]) | {"round": 4}
    with (folder / METRICS).open("a") as file:
        file.write(json.dumps(row) + "\n")
    export.write_metrics(folder, tmp_path / "m.csv")
    assert len((tmp_path / "m.csv").read_text().splitlines()) == 4


def test_a_configuration_of_another_model_is_refused(stored, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for path in stored[0].iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    config = folder / "config.toml"
    config.write_text(config.read_text().replace('"mlp"', '"linear"'))
    with pytest.raises(DamagedFile, match="2778 weights, the model of its configuration has 650"):
        export.write_weights(folder, tmp_path / "m.pt")
    assert not (tmp_path / "m.pt").exists()


def test_wrong_suffixes_and_folders_are_refused(stored, tmp_path):
    with pytest.raises(InvalidInput, match=r"m.onnx must end in one of .safetensors, .pt"):
        export.write_weights(stored[0], tmp_path / "m.onnx")
    with pytest.raises(InvalidInput, match=r"m.txt must end in one of .jsonl, .csv, .parquet"):
        export.write_metrics(stored[0], tmp_path / "m.txt")
    with pytest.raises(InvalidInput, match="holds no run"):
        export.write_metrics(tmp_path, tmp_path / "m.csv")
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "config.toml").write_text("users = 3\n")
    with pytest.raises(InvalidInput, match=r"no round of the run in .* is complete"):
        export.write_weights(begun, tmp_path / "m.pt")
