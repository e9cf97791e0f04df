"""One local step of dense models in one pass over each user, from samples to updates.

Two cases are supported: the linear model with plain SGD, and the linear model or MLP with momentum
that users keep between rounds,

    v <- momentum v + g,  update = (w - rate v) - w.

The weights and the gradient of a user are never stored. Results equal those of the general path
in `training` up to rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from hushbit.kernels import njit
from hushbit.kernels.threads import parallel_for
from hushbit.lab.sim.models import Model
from hushbit.lab.sim.optimizers import Optimizer

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]

LOGIT_LIMIT = 1e38  # float32 ends at 3.4e38


@dataclass(frozen=True, eq=False)
class TileBatch:
    """The samples of one local step of a tile of users.

    rows (tile, batch) are numbers of images and labels their classes; present is 1 for a sample
    and 0 for padding. `pixel_range` holds center and scale of the inputs.
    """

    images: NDArray[np.uint8]
    rows: Indices
    labels: Indices
    present: Floats
    pixel_range: tuple[float, float]

    def pixels(self) -> Floats:
        """The inputs (byte - center) / scale, shape (tile, batch, pixels)."""
        flat = self.images.reshape(len(self.images), -1)
        made = np.empty((*self.rows.shape, flat.shape[1]), np.float32)
        center, scale = (np.float32(value) for value in self.pixel_range)

        def run(first: int, last: int) -> None:
            read_pixels(flat, self.rows, center, scale, first, last, made)

        parallel_for(run, len(made))
        return made


@njit
def read_pixels(
    images: NDArray[np.uint8],
    rows: Indices,
    center: float,
    scale: float,
    first: int,
    last: int,
    pixels: Floats,
) -> None:
    """Fill the pixels of users first … last-1, with the same bits as `training.normalised`."""
    for user in range(first, last):
        for b in range(rows.shape[1]):
            source, target = images[rows[user, b]], pixels[user, b]
            for p in range(target.size):
                target[p] = (np.float32(source[p]) - center) / scale


def supports_linear_sgd(model: Model, steps: int, optimizer: Optimizer) -> bool:
    """Whether a round is one step of plain SGD on the linear model."""
    plain = optimizer.kind == "sgd" and optimizer.momentum == 0
    return model.name == "linear" and steps == 1 and plain


def weights_stay_finite(start: Tensor, rate: float) -> bool:
    """Whether every linear SGD step from `start` with a finite loss has a finite update.

    No entry of the gradient exceeds 1: the gradient with respect to a logit is at most the
    sample's share of the mean, and a pixel is at most 1.
    """
    return float(start.abs().max()) + rate < LOGIT_LIMIT


def linear_sgd_update(
    model: Model, start: Tensor, batch: TileBatch, rate: float, updates: Floats, losses: Floats
) -> None:
    """Fill the updates (users, dim) and losses of the first users of a tile.

    All users start from the weights `start`.
    """
    pixels = batch.pixels()
    x = torch.from_numpy(pixels.reshape(-1, *model.input_shape))
    logits = model.apply(start, x).reshape(*batch.labels.shape, -1).numpy()
    given = (pixels, logits, batch.labels, batch.present, start.numpy(), np.float32(rate))

    def run(first: int, last: int) -> None:
        step_linear_users(*given, first, last, updates, losses)

    parallel_for(run, len(updates))


@njit
def step_linear_users(
    x: Floats,
    logits: Floats,
    y: Indices,
    present: Floats,
    start: Floats,
    rate: float,
    first: int,
    last: int,
    updates: Floats,
    losses: Floats,
) -> None:
    """Users first … last-1: update = (w - rate g) - w, rounded as a user's own subtraction would.

    g is the mean over the samples present of (softmax(logits) - onehot(y)) x, biases last.
    """
    _, size, classes = logits.shape
    pixels = x.shape[2]
    logit_gradients = np.empty((size, classes), np.float32)
    gradient = np.empty(pixels, np.float32)
    for user in range(first, last):
        count = max(present[user].sum(), np.float32(1))
        total = 0.0
        for b in range(size):
            share = present[user, b] / count
            total += share * softmax_gradients(
                logits[user, b], y[user, b], share, logit_gradients[b]
            )
        losses[user] = np.float32(total)
        row = updates[user]
        for c in range(classes):
            gradient[:] = np.float32(0)
            bias = np.float32(0)
            for b in range(size):
                bias += logit_gradients[b, c]
            # Two samples per pass over the gradient, still added one after the other.
            for b in range(0, size - 1, 2):
                one, two = logit_gradients[b, c], logit_gradients[b + 1, c]
                left, right = x[user, b], x[user, b + 1]
                for p in range(pixels):
                    gradient[p] = (gradient[p] + one * left[p]) + two * right[p]
            odd = logit_gradients[size - 1, c] if size % 2 else np.float32(0)
            sample = x[user, size - 1]
            weights = start[c * pixels : (c + 1) * pixels]
            update = row[c * pixels : (c + 1) * pixels]
            for p in range(pixels):
                update[p] = (weights[p] - rate * (gradient[p] + odd * sample[p])) - weights[p]
            own = start[classes * pixels + c]
            row[classes * pixels + c] = (own - rate * bias) - own


@njit
def softmax_gradients(logits: Floats, label: int, share: float, gradients: Floats) -> float:
    """Fill share · (softmax(logits) - onehot(label)); return the cross entropy."""
    top = np.float64(logits.max())
    total = 0.0
    for c in range(logits.size):
        total += np.exp(np.float64(logits[c]) - top)
    for c in range(logits.size):
        probability = np.exp(np.float64(logits[c]) - top) / total
        gradients[c] = np.float32(share * (probability - np.float64(c == label)))
    return float(np.log(total) + top - np.float64(logits[label]))


def supports_momentum_step(model: Model, steps: int, optimizer: Optimizer) -> bool:
    """Whether a round is one step of a dense model whose users keep their momentum."""
    keeps = optimizer.kind == "sgd" and optimizer.momentum > 0 and optimizer.keep_state
    return model.name in ("linear", "mlp") and steps == 1 and keeps


def momentum_update(
    model: Model,
    start: Tensor,
    batch: TileBatch,
    rate: float,
    momentum: float,
    users: Indices,
    velocity: Floats,
    updates: Floats,
    after: Floats,
    losses: Floats,
) -> None:
    """Fill updates, velocities `after` the step and losses of the first users of a tile.

    All users start from the weights `start`; `velocity` has one row per user of the federation.
    """
    inputs, gradients, loss = layer_gradients(model, start, batch)
    losses[:] = loss[: len(losses)]
    begins = [slot.start for slot in model.shapes[::2]]
    given = (start.numpy(), np.float32(momentum), np.float32(rate), users, velocity)

    def run(first: int, last: int) -> None:
        for x, gradient, begin in zip(inputs, gradients, begins, strict=True):
            update_layer(x, gradient, begin, *given, first, last, updates, after)

    parallel_for(run, len(updates))


def layer_gradients(
    model: Model, start: Tensor, batch: TileBatch
) -> tuple[Sequence[Floats], Sequence[Floats], Floats]:
    """Return inputs and output gradients (tile, batch, ...) of each dense layer, and the losses.

    Gradients are those of each user's mean loss over the samples present.
    """
    tensors, shape = model.tensors(start), batch.labels.shape
    depth = len(model.shapes) // 2
    inputs = [torch.from_numpy(batch.pixels()).flatten(0, 1)]
    with torch.inference_mode():
        for layer in range(1, depth + 1):
            out = F.linear(inputs[-1], tensors[f"fc{layer}.weight"], tensors[f"fc{layer}.bias"])
            inputs.append(F.relu(out) if layer < depth else out)
        logits = inputs.pop()
        present = torch.from_numpy(batch.present)
        share = present / present.sum(dim=1, keepdim=True).clamp(min=1.0)
        labels = torch.from_numpy(batch.labels).flatten()
        losses = F.cross_entropy(logits, labels, reduction="none").reshape(shape) * share
        last = F.softmax(logits, dim=1)
        last[torch.arange(len(labels)), labels] -= 1.0
        gradients = [last.mul_(share.reshape(-1, 1))]
        for layer in range(depth, 1, -1):
            earlier = gradients[0] @ tensors[f"fc{layer}.weight"]
            gradients.insert(0, earlier.mul_(inputs[layer - 1] > 0))
        parts = ([t.reshape(*shape, -1).numpy() for t in group] for group in (inputs, gradients))
        return next(parts), next(parts), losses.sum(dim=1).numpy()


@njit
def update_layer(
    x: Floats,
    output_gradients: Floats,
    begin: int,
    start: Floats,
    momentum: float,
    rate: float,
    users: Indices,
    velocity: Floats,
    first: int,
    last: int,
    updates: Floats,
    after: Floats,
) -> None:
    """Velocities and updates of one layer, users first … last-1; its weights lie from `begin` on.

    The gradient of a weight row is the sum over samples of output gradient · input, that of a bias
    the sum of output gradients; biases lie behind the weights.
    """
    _, size, outer = output_gradients.shape
    inner = x.shape[2]
    gradient = np.empty(inner, np.float32)
    for user in range(first, last):
        before, kept, row = velocity[users[user]], after[user], updates[user]
        for o in range(outer):
            gradient[:] = np.float32(0)
            bias = np.float32(0)
            for b in range(size):
                grad = output_gradients[user, b, o]
                if grad != 0:
                    bias += grad
                    sample = x[user, b]
                    for p in range(inner):
                        gradient[p] += grad * sample[p]
            low = begin + o * inner
            old, new = before[low : low + inner], kept[low : low + inner]
            weights, update = start[low : low + inner], row[low : low + inner]
            for p in range(inner):
                new[p] = momentum * old[p] + gradient[p]
                update[p] = (weights[p] - rate * new[p]) - weights[p]
            at = begin + outer * inner + o
            kept[at] = momentum * before[at] + bias
            row[at] = (start[at] - rate * kept[at]) - start[at]
