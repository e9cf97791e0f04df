"""One step with momentum that users keep, for dense models: from slopes to updates in one pass.

    v <- momentum v + g,  update = (w - rate v) - w

Writes what `training` computes for the linear model and the MLP, without ever holding a user's
weights or gradient in memory: equal to rounding, and several times faster.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from hushbit.fl.models import Model
from hushbit.fl.optimizers import Optimizer
from hushbit.fl.softmax import read_samples
from hushbit.kernels.jit import njit
from hushbit.kernels.threads import spread

Floats = NDArray[np.float32]


def fits(model: Model, steps: int, optimizer: Optimizer) -> bool:
    """Whether a round is one step of a dense model whose users keep their momentum."""
    keeps = optimizer.kind == "sgd" and optimizer.momentum > 0 and optimizer.keep_state
    return model.name in ("linear", "mlp") and steps == 1 and keeps


def kept_step(
    model: Model, start: Tensor, images: NDArray[np.uint8], rows: NDArray[np.int64],
    y: NDArray[np.int64], present: Floats, momentum: float, rate: float,
    users: NDArray[np.int64], velocity: Floats, updates: Floats, kept: Floats, losses: Floats,
) -> None:  # fmt: skip
    """Fill updates, new velocities and losses of the first users of a tile.

    rows (tile, batch) are numbers of images, y their labels, present 1 where one is there;
    velocity holds a row for every user of the federation.
    """
    flat = images.reshape(len(images), -1)
    samples = np.empty((*rows.shape, flat.shape[1]), np.float32)
    spread(lambda first, last: read_samples(flat, rows, first, last, samples), len(rows))
    inputs, slopes, loss = slopes_of(model, start, samples, y, present)
    weights = start.numpy()
    losses[:] = loss[: len(losses)]

    def run(first: int, last: int) -> None:
        for layer, (x, back) in enumerate(zip(inputs, slopes, strict=True)):
            begin = model.shapes[2 * layer].start
            follow(x, back, weights, begin, np.float32(momentum), np.float32(rate), users, velocity,
                   first, last, updates, kept)  # fmt: skip

    spread(run, len(updates))


def slopes_of(
    model: Model, start: Tensor, samples: Floats, y: NDArray[np.int64], present: Floats
) -> tuple[Sequence[Floats], Sequence[Floats], Floats]:
    """For each dense layer its inputs and the slopes behind it (tile, batch, ...); the losses.

    Slopes are those of each user's mean loss over the samples that are there.
    """
    tensors, shape = model.tensors(start), y.shape
    depth = len(model.shapes) // 2
    inputs = [torch.from_numpy(samples).flatten(0, 1)]
    with torch.inference_mode():
        for layer in range(1, depth + 1):
            out = F.linear(inputs[-1], tensors[f"fc{layer}.weight"], tensors[f"fc{layer}.bias"])
            inputs.append(F.relu(out) if layer < depth else out)
        logits = inputs.pop()
        there = torch.from_numpy(present)
        share = there / there.sum(dim=1, keepdim=True).clamp(min=1.0)
        answers = torch.from_numpy(y).flatten()
        losses = F.cross_entropy(logits, answers, reduction="none").reshape(shape) * share
        back = F.softmax(logits, dim=1)
        back[torch.arange(len(answers)), answers] -= 1.0
        slopes = [back.mul_(share.reshape(-1, 1))]
        for layer in range(depth, 1, -1):
            before = slopes[0] @ tensors[f"fc{layer}.weight"]
            slopes.insert(0, before.mul_(inputs[layer - 1] > 0))
        parts = ([t.reshape(*shape, -1).numpy() for t in group] for group in (inputs, slopes))
        return next(parts), next(parts), losses.sum(dim=1).numpy()


@njit
def follow(
    x: Floats, slopes: Floats, start: Floats, begin: int, momentum: float, rate: float,
    users: NDArray[np.int64], velocity: Floats, first: int, last: int, updates: Floats,
    kept: Floats,
) -> None:  # fmt: skip
    """Velocities and updates of one layer, users first … last-1; its weights lie from `begin` on.

    The gradient of a weight row is the sum over samples of slope · input, that of a bias the sum
    of slopes; biases lie behind the weights.
    """
    _, size, outer = slopes.shape
    inner = x.shape[2]
    gradient = np.empty(inner, np.float32)
    for user in range(first, last):
        before, after, update = velocity[users[user]], kept[user], updates[user]
        for o in range(outer):
            gradient[:] = np.float32(0)
            bias = np.float32(0)
            for b in range(size):
                slope = slopes[user, b, o]
                if slope != 0:
                    bias += slope
                    row = x[user, b]
                    for p in range(inner):
                        gradient[p] += slope * row[p]
            low = begin + o * inner
            old, new = before[low : low + inner], after[low : low + inner]
            weights, step = start[low : low + inner], update[low : low + inner]
            for p in range(inner):
                new[p] = momentum * old[p] + gradient[p]
                step[p] = (weights[p] - rate * new[p]) - weights[p]
            at = begin + outer * inner + o
            after[at] = momentum * before[at] + bias
            update[at] = (start[at] - rate * after[at]) - start[at]
