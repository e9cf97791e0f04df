"""The samples of all clients of a task as arrays, from pairs of tensors or from data set objects.

A client is a pair (x, y) of arrays or tensors. Inputs x may also be a tuple or a dict of arrays,
which the model receives as several arguments. The caller's function `prepare` converts other
objects to pairs, such as those of Hugging Face `datasets`, `flwr-datasets` and `torch.utils.data`.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hushbit.errors import HushbitError, InvalidInput
from hushbit.lab.sim.partition import Parts, UserRows

Array = NDArray[Any]
Prepare = Callable[[Any], tuple[Any, Any]]
MAX_SHOWN = 5


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs and targets of samples; the first dimension of every array counts samples.

    `stored` orders images with channels last, as convolutions prefer. `names` are the keyword
    arguments of a model whose inputs are a dict; None for positional ones.
    """

    inputs: tuple[Array, ...]
    targets: Array
    names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.targets)

    def stored(self) -> "Samples":
        """The samples with images (samples, channels, height, width) stored channels last."""
        inputs = (one.transpose(0, 2, 3, 1) if one.ndim == 4 else one for one in self.inputs)
        return dataclasses.replace(self, inputs=tuple(map(np.ascontiguousarray, inputs)))

    def part(self, rows: slice) -> "Samples":
        """Some of the samples."""
        return Samples(tuple(one[rows] for one in self.inputs), self.targets[rows], self.names)

    def batch(self, rows: Any) -> "Batch":
        """The stored samples in these rows, a slice or an array of any shape; channels first."""
        inputs = tuple(
            channels_first(_tensor(one, rows)) if one.ndim == 4 else _tensor(one, rows)
            for one in self.inputs
        )
        return Batch(inputs, _tensor(self.targets, rows))


@dataclass(frozen=True, eq=False)
class Batch:
    """Tensors of some samples."""

    inputs: tuple[Tensor, ...]
    targets: Tensor


def _tensor(array: Array, rows: Any) -> Tensor:
    """A copy of some rows."""
    found = array[rows]
    return torch.from_numpy(found if found.flags.owndata else found.copy())


def channels_first(images: Tensor) -> Tensor:
    """A view (..., channels, height, width) of channels-last images, with channels-last strides.

    torch reads the memory format from strides, which `permute` leaves ambiguous for one channel.
    """
    *lead, height, width, channels = images.shape
    strides = (*images.stride()[:-3], 1, width * channels, channels)
    return images.as_strided((*lead, channels, height, width), strides)


def read_clients(
    clients: Any, data: Any = None, prepare: Prepare | None = None
) -> tuple[Samples, UserRows]:
    """The samples of all clients, and the rows of each.

    `clients` is a sequence of pairs, of data set objects or, with `data`, of row numbers; or an
    object with `load_partition` such as a FederatedDataset or a Partitioner of flwr-datasets.
    """
    partitioned = hasattr(clients, "load_partition")
    if isinstance(clients, Mapping) or not (partitioned or isinstance(clients, Iterable)):
        raise InvalidInput(
            "clients must be a list with one pair (x, y) for each user; got "
            f"{type(clients).__name__}"
        )
    if data is not None:
        samples = read_samples(data, prepare, "data")
        rows = clients if isinstance(clients, np.ndarray) else [np.asarray(one) for one in clients]
        return samples, _rows(rows, len(samples))
    parts = [
        read_samples(one, prepare, f"client {number}")
        for number, one in enumerate(_each_client(clients))
    ]
    if not parts:
        raise InvalidInput("a task needs at least one client; got none")
    samples = _joined(parts)
    return samples, _rows(_consecutive([len(part) for part in parts]), len(samples))


def _consecutive(sizes: Sequence[int]) -> Parts:
    """Row numbers of clients stored one after the other; a matrix if all have the same size."""
    rows = np.arange(sum(sizes))
    if len(set(sizes)) == 1:
        return rows.reshape(len(sizes), -1)
    return np.split(rows, np.cumsum(sizes)[:-1])


def read_samples(source: Any, prepare: Prepare | None, what: str) -> Samples:
    """The samples of one client, of the test set or of all data."""
    try:
        pair = source if prepare is None else prepare(source)
    except HushbitError:
        raise
    except Exception as error:  # of the user's own function
        raise InvalidInput(f"prepare failed for {what}: {type(error).__name__}: {error}") from error
    if source is None:
        raise InvalidInput(f"{what} must be a pair (x, y); got None")
    if not (isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2):
        raise InvalidInput(
            f"{what} must be a pair (x, y); got {type(pair).__name__}: give prepare, a function "
            "that turns your object into a pair"
        )
    x, y = pair
    names: tuple[str, ...] | None = None
    if isinstance(x, Mapping):
        names, leaves = tuple(str(name) for name in x), tuple(x.values())
    else:
        leaves = x if isinstance(x, tuple) else (x,)
    inputs, targets = tuple(_array(one, what) for one in leaves), _array(y, what)
    if targets.dtype.kind == "i":  # losses of torch take labels of this type only
        targets = targets.astype(np.int64)
    lengths = [len(one) for one in (*inputs, targets)]
    if len(set(lengths)) != 1:
        raise InvalidInput(
            f"{what} must have equally many inputs and targets; got "
            f"{' and '.join(map(str, lengths))}"
        )
    if not lengths[0]:
        advice = ", or leave it out" if what.startswith("client") else ""
        raise InvalidInput(f"{what} has no samples: give it at least one{advice}")
    return Samples(inputs, targets, names)


def _each_client(clients: Any) -> Any:
    """The data of each client; partitions are loaded one after the other."""
    if not hasattr(clients, "load_partition"):
        return clients
    partitioner = clients
    if hasattr(clients, "partitioners"):  # a FederatedDataset: one partitioner for each split
        found = clients.partitioners
        if len(found) != 1:
            raise InvalidInput(
                f"the federated data set has partitioners for {', '.join(sorted(found)) or 'no'} "
                "splits; give one with a single partitioner"
            )
        (partitioner,) = found.values()
        clients.load_partition(0)  # assigns the data set to its partitioner
    return (clients.load_partition(number) for number in range(partitioner.num_partitions))


def _array(values: Any, what: str) -> Array:
    """Values as an array of numbers; float64 becomes float32, the type of models."""
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    try:
        made = np.asarray(values)
        if made.dtype == object:  # such as a list of images
            made = np.stack([np.asarray(one) for one in values])
    except (ValueError, TypeError) as error:
        raise InvalidInput(
            f"{what} holds values of different shapes: pad them to one shape ({error})"
        ) from error
    if made.dtype.kind not in "fiub":
        raise InvalidInput(
            f"{what} must hold numbers; got {made.dtype}: turn text into integers with a tokenizer"
        )
    if made.ndim == 0:
        raise InvalidInput(f"{what} must hold arrays with one row for each sample; got a number")
    if made.dtype == np.uint16 or made.dtype == np.uint32:  # types with few operations in torch
        return made.astype(np.int64)
    return made.astype(np.float32) if made.dtype == np.float64 else made


def _joined(parts: Sequence[Samples]) -> Samples:
    """All samples in the order of clients; every client must have the same kind of arrays."""
    first = parts[0]
    for number, part in enumerate(parts):
        if part.names != first.names or _layout(part) != _layout(first):
            raise InvalidInput(
                f"client {number} has samples of {_layout(part)}, client 0 of {_layout(first)}: "
                "give all clients the same shapes and types"
            )
    inputs = tuple(
        np.concatenate(leaves) for leaves in zip(*(part.inputs for part in parts), strict=True)
    )
    return Samples(inputs, np.concatenate([part.targets for part in parts]), first.names)


def _layout(part: Samples) -> str:
    return ", ".join(f"{one.dtype} {one.shape[1:]}" for one in (*part.inputs, part.targets))


def shortened(items: Iterable[Any]) -> str:
    """The first items as text."""
    texts = [str(one) for one in items]
    return ", ".join(texts[:MAX_SHOWN]) + (", ..." if len(texts) > MAX_SHOWN else "")


def rows_not_finite(samples: Samples) -> NDArray[np.bool_]:
    """Which samples have an entry that is NaN or infinite."""
    found = np.zeros(len(samples), dtype=bool)
    for array in (*samples.inputs, samples.targets):
        if array.dtype.kind == "f":
            found |= ~np.isfinite(array).reshape(len(samples), -1).all(axis=1)
    return found


def owners_text(rows: UserRows, chosen: NDArray[np.bool_]) -> str:
    """The clients that hold one of the chosen samples, as text; empty if none does."""
    owners = np.repeat(np.arange(rows.users), rows.counts)[chosen[rows.members]]
    clients = np.unique(owners)
    return f"client{'s' * (len(clients) > 1)} {shortened(clients)}" if len(clients) else ""


def _rows(parts: Parts, count: int) -> UserRows:
    """The rows of each client, checked."""
    empty = [number for number, part in enumerate(parts) if not len(part)]
    if empty or not len(parts):
        raise InvalidInput(
            f"every client needs at least one sample; {shortened(empty) or 'no client'} has none: "
            "leave it out"
        )
    if any(part.dtype.kind not in "iu" for part in parts):
        raise InvalidInput("with data, clients must be arrays of row numbers")
    return UserRows.from_parts(parts, count)
