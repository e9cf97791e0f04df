"""Flower's server optimizers, applied to the decoded mean as if it were the only reply."""

import copy
from logging import WARNING, getLogger
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi

from hushbit.errors import DamagedFile, HushbitError, InvalidInput
from hushbit.flower.records import Arrays, array_record, numpy_arrays

log = getLogger("flwr").log

UNSAVED_ATTRIBUTES = ("current_arrays",)
# The parameters of each optimizer. Subclasses are refused: their own methods would not be called.
PARAMETERS: dict[type[FedAvg], tuple[str, ...]] = {
    FedAvg: (),
    FedAvgM: ("server_learning_rate", "server_momentum"),
    FedAdam: ("eta", "eta_l", "beta_1", "beta_2", "tau"),
    FedYogi: ("eta", "eta_l", "beta_1", "beta_2", "tau"),
    FedAdagrad: ("eta", "eta_l", "tau"),
}
METRIC_AGGREGATORS = ("train_metrics_aggr_fn", "evaluate_metrics_aggr_fn")
IGNORED_PARAMETERS = (
    "fraction_train",
    "fraction_evaluate",
    "min_train_nodes",
    "min_evaluate_nodes",
    "min_available_nodes",
    "weighted_by_key",
)


class ServerOptimizer:
    """FedAvg, FedAvgM, FedAdam, FedYogi or FedAdagrad; only its step and record keys are used."""

    def __init__(self, strategy: FedAvg) -> None:
        if type(strategy) not in PARAMETERS:
            names = ", ".join(kind.__name__ for kind in PARAMETERS)
            text = (
                f"optimizer must be one of Flower's {names}; got {type(strategy).__name__}, whose "
                "sampling and aggregation would be ignored"
            )
            if isinstance(strategy, FedProx):
                text += (
                    ". FedProx changes only the training of the clients: use FedAvg, and send its "
                    "parameter with start(..., train_config=ConfigRecord({'proximal-mu': "
                    f"{strategy.proximal_mu}}}))"
                )
            raise InvalidInput(text)
        default = FedAvg()
        for name in METRIC_AGGREGATORS:
            if getattr(strategy, name) is not getattr(default, name):
                raise InvalidInput(
                    f"{name} is not supported, because metrics are always averaged: leave it out"
                )
        ignored = [
            name for name in IGNORED_PARAMETERS if getattr(strategy, name) != getattr(default, name)
        ]
        if ignored:
            log(
                WARNING,
                "hushbit: the optimizer's %s is ignored: users_per_round and quorum determine the "
                "sampling, and all ballots have the same weight",
                ", ".join(ignored),
            )
        self.strategy = copy.copy(strategy)
        # HushbitStrategy samples the users; with a fraction of 0 the optimizer sends no messages.
        self.strategy.fraction_train = 0.0

    @property
    def settings(self) -> dict[str, Any]:
        """Name and parameters of the optimizer, for comparison with another run."""
        kind = type(self.strategy)
        return {"name": kind.__name__} | {
            name: getattr(self.strategy, name) for name in PARAMETERS[kind]
        }

    def content(self, arrays: ArrayRecord, config: ConfigRecord) -> RecordDict:
        """The content of a train message to a user, with the record keys of the optimizer."""
        keys = self.strategy.arrayrecord_key, self.strategy.configrecord_key
        return RecordDict({keys[0]: arrays, keys[1]: config})

    def evaluate_content(self, arrays: ArrayRecord, config: ConfigRecord) -> RecordDict:
        """The content of an evaluate message; the records of a NumPyClient have other keys then."""
        made = self.content(arrays, config)
        return RecordDict({key.replace("fitins.", "evaluateins."): made[key] for key in made})

    def step(self, round: int, before: Arrays, mean_model: Arrays, grid: Grid) -> Arrays:
        """The next model, from the current model and the mean of the users' models."""
        self.strategy.configure_train(round, array_record(before), ConfigRecord(), grid)
        weight = MetricRecord({self.strategy.weighted_by_key: 1})
        content = RecordDict({"arrays": array_record(mean_model), "metrics": weight})
        reply = Message(content, 1, MessageType.TRAIN)
        after, _ = self.strategy.aggregate_train(round, [reply])
        if after is None:
            raise HushbitError(f"{type(self.strategy).__name__} returned no model")
        made = numpy_arrays(after)
        return {name: made[name].astype(array.dtype) for name, array in before.items()}

    def state(self) -> Arrays:
        """The optimizer's state (momentum or moments) as named arrays."""
        saved: Arrays = {}
        for name, value in vars(self.strategy).items():
            if name in UNSAVED_ATTRIBUTES or isinstance(value, ArrayRecord):
                continue
            if isinstance(value, dict) and _all_arrays(value.values()):
                saved |= {f"{name} dict {key}": np.asarray(part) for key, part in value.items()}
            elif isinstance(value, list) and _all_arrays(value):
                saved |= {f"{name} list {at}": np.asarray(part) for at, part in enumerate(value)}
        return saved

    def restore(self, saved: Arrays) -> None:
        """Restore a state that `state` returned."""
        parts: dict[str, Any] = {}
        for name, array in saved.items():
            attribute, _, rest = name.partition(" ")
            kind, _, key = rest.partition(" ")
            if attribute not in vars(self.strategy) or kind not in ("dict", "list"):
                raise DamagedFile(f"array {name!r} of the checkpoint is not part of this optimizer")
            if kind == "dict":
                parts.setdefault(attribute, {})[key] = array
            else:
                parts.setdefault(attribute, []).append(array)
        for attribute, value in parts.items():
            setattr(self.strategy, attribute, value)


def _all_arrays(values: Any) -> bool:
    listed = list(values)
    return bool(listed) and all(isinstance(value, np.ndarray | np.generic) for value in listed)
