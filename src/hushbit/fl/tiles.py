"""How many users are trained together."""

import torch
from torch import Tensor

from hushbit.fl.models import Model

WORKING_SET_BYTES = 96 << 20
MOST_USERS = 256


def tile_size(model: Model, batch: int) -> int:
    """Return how many users are computed together: a power of two that fits the working set."""
    floats = 6 * model.dim + batch * _saved_floats(model)
    fitting = max(1, WORKING_SET_BYTES // (4 * floats))
    return min(MOST_USERS, 1 << (fitting.bit_length() - 1))


def _saved_floats(model: Model) -> int:
    """Return how many floats the gradient of one sample keeps alive."""
    sizes: list[int] = []

    def note(saved: Tensor) -> Tensor:
        sizes.append(saved.numel())
        return saved

    flat = torch.zeros(model.dim, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved):
        model.apply(flat, torch.zeros(1, *model.input_shape))
    return max(sum(sizes) - model.dim, 0)
