"""Flower's server optimizers around a decoded mean: they see one reply, the mean model."""

from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

from hushbit.errors import DamagedFile, HushbitError, InvalidInput
from hushbit.flower.arrays import Arrays, array_record, numpy_arrays

Saved = dict[str, NDArray[Any]]
SKIPPED = ("current_arrays",)


class ServerOptimizer:
    """FedAvg, FedAvgM, FedAdam, FedYogi or another heir of FedAvg, used for its step alone."""

    def __init__(self, strategy: FedAvg) -> None:
        if not isinstance(strategy, FedAvg):
            raise InvalidInput(
                "optimizer must be FedAvg, FedAvgM, FedAdam, FedYogi or another heir of FedAvg; "
                f"got {type(strategy).__name__}"
            )
        self.strategy = strategy
        # Users are sampled by HushbitStrategy; with no share of its own it sends no messages.
        self.strategy.fraction_train = 0.0

    def step(self, round: int, before: Arrays, mean_model: Arrays, grid: Grid) -> Arrays:
        """The next model from the current one and the users' mean model."""
        self.strategy.configure_train(round, array_record(before), ConfigRecord(), grid)
        weight = MetricRecord({self.strategy.weighted_by_key: 1})
        content = RecordDict({"arrays": array_record(mean_model), "metrics": weight})
        reply = Message(content, 1, MessageType.TRAIN)
        after, _ = self.strategy.aggregate_train(round, [reply])
        if after is None:
            raise HushbitError(f"{type(self.strategy).__name__} gave no model")
        made = numpy_arrays(after)
        return {name: made[name].astype(array.dtype) for name, array in before.items()}

    def state(self) -> Saved:
        """The optimizer's memory (momentum, moments) as named arrays."""
        saved: Saved = {}
        for name, value in vars(self.strategy).items():
            if name in SKIPPED or isinstance(value, ArrayRecord):
                continue
            if isinstance(value, dict) and _all_arrays(value.values()):
                saved |= {f"{name} dict {key}": np.asarray(part) for key, part in value.items()}
            elif isinstance(value, list) and _all_arrays(value):
                saved |= {f"{name} list {at}": np.asarray(part) for at, part in enumerate(value)}
        return saved

    def restore(self, saved: Saved) -> None:
        """Put back what `state` gave."""
        parts: dict[str, Any] = {}
        for name, array in saved.items():
            attribute, kind, key = name.split(" ", 2)
            if attribute not in vars(self.strategy) or kind not in ("dict", "list"):
                raise DamagedFile(f"the checkpoint's {name!r} is not of this optimizer")
            if kind == "dict":
                parts.setdefault(attribute, {})[key] = array
            else:
                parts.setdefault(attribute, []).append(array)
        for attribute, value in parts.items():
            setattr(self.strategy, attribute, value)


def _all_arrays(values: Any) -> bool:
    listed = list(values)
    return bool(listed) and all(isinstance(value, np.ndarray | np.generic) for value in listed)
