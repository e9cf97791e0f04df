"""Clients from data set objects: Hugging Face datasets, flwr-datasets and stand-ins of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hushbit.errors import InvalidInput
from hushbit.lab import Task
from hushbit.lab.sim.client_data import channels_first

X = np.random.default_rng(0).normal(size=(24, 4))
Y = np.random.default_rng(1).integers(0, 3, 24)


class Table:
    """Columns by name, as a data set of Hugging Face."""

    def __init__(self, rows: Any) -> None:
        self.columns = {"x": X[rows].tolist(), "label": Y[rows].tolist()}

    def __getitem__(self, name: str) -> Any:
        return self.columns[name]


class Partitioner:
    """What a task uses of a partitioner of flwr-datasets, which needs a data set first."""

    def __init__(self, ready: bool = True) -> None:
        self.ready = ready

    @property
    def num_partitions(self) -> int:
        assert self.ready
        return 3

    def load_partition(self, number: int) -> Table:
        return Table(slice(8 * number, 8 * number + 8 - number))


class Federated:
    """What a task uses of a FederatedDataset: its partitioner is ready after the first use."""

    def __init__(self, *splits: str) -> None:
        self.partitioners = {split: Partitioner(ready=False) for split in splits}

    def load_partition(self, number: int) -> Table:
        (partitioner,) = self.partitioners.values()
        partitioner.ready = True
        return partitioner.load_partition(number)


def columns(part: Any) -> tuple[Any, Any]:
    return part["x"], part["label"]


def task_of(clients: Any, test: Any = None) -> Task:
    return Task(
        lambda: nn.Linear(4, 3), F.cross_entropy, clients, test or Table(slice(9)), prepare=columns
    )


@pytest.mark.parametrize("clients", [Partitioner(), Federated("train")])
def test_partitions_become_clients(clients: Any) -> None:
    task = task_of(clients)
    assert task.rows.counts.tolist() == [8, 7, 6]
    rows = np.r_[0:8, 8:15, 16:22]
    assert np.array_equal(task.samples.inputs[0], X[rows].astype(np.float32))
    assert np.array_equal(task.samples.targets, Y[rows])


@pytest.mark.parametrize("splits", [(), ("train", "test")])
def test_a_federated_data_set_needs_one_partitioner(splits: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput, match="single partitioner"):
        task_of(Federated(*splits))


def test_a_list_of_data_sets() -> None:
    task = task_of([Table(slice(5)), Table(slice(5, 12))])
    assert task.rows.counts.tolist() == [5, 7]


def test_a_list_of_images() -> None:
    images = [np.full((6, 6), number, np.uint8) for number in range(4)]
    task = Task(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 3)),
        F.cross_entropy,
        [images, images],
        images,
        prepare=lambda part: (np.stack(part) / 255, [0, 1, 2, 0]),
    )
    assert task.samples.inputs[0].dtype == np.float32
    assert task.samples.inputs[0].shape == (8, 6, 6)


def test_images_keep_their_values_with_other_strides() -> None:
    x = torch.arange(48.0).reshape(2, 3, 4, 2)
    view = channels_first(x.permute(0, 2, 3, 1).contiguous())
    assert torch.equal(view, x)
    assert view.stride()[1] == 1
    one = channels_first(x[:, :1].permute(0, 2, 3, 1).contiguous())
    assert torch.equal(one, x[:, :1])
    assert one.stride()[1] == 1


def test_hugging_face_datasets_and_flwr_datasets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("flwr_datasets")
    from flwr_datasets import FederatedDataset
    from flwr_datasets.partitioner import IidPartitioner

    whole = datasets.Dataset.from_dict({"x": X, "label": Y})
    files = {"train": str(tmp_path / "train.parquet"), "test": str(tmp_path / "test.parquet")}
    for file in files.values():
        whole.to_parquet(file)
    federated = FederatedDataset(
        dataset="parquet", partitioners={"train": IidPartitioner(4)}, data_files=files
    )
    task = task_of(federated, federated.load_split("test"))
    assert task.rows.counts.tolist() == [6, 6, 6, 6]
    assert sorted(task.samples.targets.tolist()) == sorted(Y.tolist())
    listed = task_of([whole.select(range(6)), whole.with_format("torch").select(range(6, 9))])
    assert np.array_equal(listed.samples.inputs[0], X[:9].astype(np.float32))
