"""A model's arrays as one flat vector of the entries that are voted on, and back.

Voted are all floating-point arrays, in the order of the record, but those that a pattern names as
frozen; whole-number arrays (such as a batch count) keep the server's value.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from hushbit.errors import InvalidInput

Arrays = dict[str, NDArray[Any]]
FLOATS = ("float16", "float32", "float64")
MUST_NOT_BE_NEGATIVE = "*running_var"


@dataclass(frozen=True)
class Slot:
    """Where one array lies in the flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


def numpy_arrays(record: ArrayRecord) -> Arrays:
    """Copies of all arrays of a record."""
    return {str(name): np.array(array.numpy()) for name, array in record.items()}


def array_record(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """A record of arrays."""
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def voted_slots(arrays: Mapping[str, NDArray[Any]], frozen: Sequence[str]) -> tuple[Slot, ...]:
    """The arrays that are voted on and their places."""
    slots: list[Slot] = []
    start = 0
    for name, array in arrays.items():
        if array.dtype.name not in FLOATS or any(fnmatchcase(name, mask) for mask in frozen):
            continue
        slots.append(Slot(name, array.shape, start, start + array.size))
        start += array.size
    if start == 0:
        raise InvalidInput("the model has no floating-point entries to vote on")
    return tuple(slots)


def dimension(slots: Sequence[Slot]) -> int:
    """Entries of the flat vector."""
    return slots[-1].stop


def flat_update(slots: Sequence[Slot], before: Arrays, after: Arrays) -> NDArray[np.floating]:
    """after - before as one vector; float32 if every array is, else float64."""
    for slot in slots:
        if slot.name not in after or after[slot.name].shape != slot.shape:
            raise InvalidInput(
                f"the app returned no array {slot.name!r} of shape {slot.shape}: return the "
                "whole trained model, with the names that came in"
            )
    single = all(
        before[slot.name].dtype == np.float32 == after[slot.name].dtype for slot in slots
    )  # fmt: skip
    kind = np.float32 if single else np.float64
    parts = [np.subtract(after[slot.name], before[slot.name], dtype=kind).ravel() for slot in slots]
    return np.concatenate(parts)


def moved(slots: Sequence[Slot], before: Arrays, mean: NDArray[np.float64]) -> Arrays:
    """The voted arrays with the mean update added, in their own types."""
    out: Arrays = {}
    for slot in slots:
        old = before[slot.name]
        new = old.astype(np.float64) + mean[slot.start : slot.stop].reshape(slot.shape)
        if fnmatchcase(slot.name, MUST_NOT_BE_NEGATIVE):
            new = np.maximum(new, 0.0)  # noise must not make a variance negative
        out[slot.name] = new.astype(old.dtype)
    return out
