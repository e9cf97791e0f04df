"""Checks of what local training is asked to do."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hushbit.errors import InvalidInput
from hushbit.fl.models import Model
from hushbit.fl.optimizers import Optimizer
from hushbit.fl.partition import Federation, Indices


def chosen_users(users: Indices, federation: Federation) -> Indices:
    """Return the user numbers in ascending order; each must exist and come once."""
    chosen = np.asarray(users)
    if chosen.ndim != 1 or chosen.size == 0 or chosen.dtype.kind not in "iu":
        raise InvalidInput(f"users are {chosen.shape} of {chosen.dtype}; give user numbers")
    chosen = np.sort(chosen.astype(np.int64))
    if chosen[0] < 0 or chosen[-1] >= federation.users:
        raise InvalidInput(f"users must lie in 0..{federation.users - 1}, got {chosen[[0, -1]]}")
    if (np.diff(chosen) == 0).any():
        raise InvalidInput("a user is named twice; name each at most once a round")
    return chosen


def check_data(model: Model, federation: Federation) -> None:
    """Refuse images or labels that the model was not built for."""
    shape = federation.images.shape[1:]
    if shape != model.input_shape:
        raise InvalidInput(f"images are {shape}, {model.name} was built for {model.input_shape}")
    if not 0 <= federation.labels.min() <= federation.labels.max() < model.classes:
        raise InvalidInput(f"labels must lie in 0..{model.classes - 1}; build the model for them")
    if len(federation.members) == 0:
        raise InvalidInput("no user holds a sample; partition the data set again")


def checked_state(
    federation: Federation,
    optimizer: Optimizer,
    dim: int,
    state: Mapping[str, NDArray[np.float32]] | None,
) -> Mapping[str, NDArray[np.float32]]:
    """Return the kept optimizer state, one row per user; empty if none is kept."""
    if not optimizer.keep_state:
        return {}
    widths = optimizer.widths(dim)
    if state is None and widths:
        raise InvalidInput("the optimizer keeps its state between rounds; pass fresh_state(...)")
    for name, width in widths.items():
        rows = None if state is None else state.get(name)
        if rows is None or rows.shape != (federation.users, width) or rows.dtype != np.float32:
            raise InvalidInput(
                f"state {name!r} must be float32 of shape ({federation.users}, {width})"
            )
    return {} if state is None else {name: state[name] for name in widths}
