"""Flower's server optimizers around a decoded mean: they see one reply, the mean model."""

import copy
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi
from flwr.supercore import log
from numpy.typing import NDArray

from hushbit.errors import DamagedFile, HushbitError, InvalidInput
from hushbit.flower.arrays import Arrays, array_record, numpy_arrays

Saved = dict[str, NDArray[Any]]
SKIPPED = ("current_arrays",)
# What makes the step of each optimizer; a subclass may do more, which would be lost.
SETTINGS: dict[type[FedAvg], tuple[str, ...]] = {
    FedAvg: (),
    FedAvgM: ("server_learning_rate", "server_momentum"),
    FedAdam: ("eta", "eta_l", "beta_1", "beta_2", "tau"),
    FedYogi: ("eta", "eta_l", "beta_1", "beta_2", "tau"),
    FedAdagrad: ("eta", "eta_l", "tau"),
}
OWN_MEANS = ("train_metrics_aggr_fn", "evaluate_metrics_aggr_fn")
SAMPLING = ("fraction_train", "fraction_evaluate", "min_train_nodes", "min_evaluate_nodes",
            "min_available_nodes", "weighted_by_key")  # fmt: skip


class ServerOptimizer:
    """FedAvg, FedAvgM, FedAdam, FedYogi or FedAdagrad, used for its step and its record keys."""

    def __init__(self, strategy: FedAvg) -> None:
        if type(strategy) not in SETTINGS:
            names = ", ".join(kind.__name__ for kind in SETTINGS)
            raise InvalidInput(
                f"optimizer must be one of Flower's {names}; got {type(strategy).__name__}, whose "
                "own way of asking users or of combining their models cannot be kept"
            )
        usual = FedAvg()
        for name in OWN_MEANS:
            if getattr(strategy, name) is not getattr(usual, name):
                raise InvalidInput(
                    f"{name} cannot be used: users' metrics are averaged as they come; leave it out"
                )
        unused = [name for name in SAMPLING if getattr(strategy, name) != getattr(usual, name)]
        if unused:
            log(WARNING, "hushbit: no effect have the optimizer's %s: users_per_round and quorum "
                "say who is asked, every ballot counts the same", ", ".join(unused))  # fmt: skip
        self.strategy = copy.copy(strategy)
        # Users are sampled by HushbitStrategy; with no share of its own it sends no messages.
        self.strategy.fraction_train = 0.0

    @property
    def settings(self) -> dict[str, Any]:
        """The optimizer's name and what makes its step, for comparison with another run."""
        kind = type(self.strategy)
        return {"name": kind.__name__} | {
            name: getattr(self.strategy, name) for name in SETTINGS[kind]
        }

    def content(self, arrays: ArrayRecord, config: ConfigRecord) -> RecordDict:
        """What users are sent, under the optimizer's record keys."""
        keys = self.strategy.arrayrecord_key, self.strategy.configrecord_key
        return RecordDict({keys[0]: arrays, keys[1]: config})

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
            attribute, _, rest = name.partition(" ")
            kind, _, key = rest.partition(" ")
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
