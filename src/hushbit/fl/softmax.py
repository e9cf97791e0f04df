"""One gradient step of softmax regression for many users: from logits to updates in one pass.

Writes what `training` computes for the linear model with one step of plain SGD, without ever
holding a user's weights or gradient in memory: several times faster, equal to rounding.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hushbit.fl.models import Model
from hushbit.fl.optimizers import Optimizer
from hushbit.kernels.jit import njit
from hushbit.kernels.threads import spread

LARGEST = 1e38  # of float32, which ends at 3.4e38


def fits(model: Model, steps: int, optimizer: Optimizer) -> bool:
    """Whether a round is one plain step of the linear model."""
    plain = optimizer.kind == "sgd" and optimizer.momentum == 0
    return model.name == "linear" and steps == 1 and plain


def stays_finite(start: Tensor, rate: float) -> bool:
    """Whether users with finite losses must have finite updates.

    No entry of a gradient exceeds 1: a sample's slopes are at most its share, its pixels at most 1.
    """
    return float(start.abs().max()) + rate < LARGEST


def plain_step(
    model: Model, start: Tensor, images: NDArray[np.uint8], rows: NDArray[np.int64],
    y: NDArray[np.int64], present: NDArray[np.float32], rate: float,
    updates: NDArray[np.float32], losses: NDArray[np.float32],
) -> None:  # fmt: skip
    """Fill the updates (users, dim) and losses of the first users of a tile.

    rows (tile, batch) are numbers of images, y their labels, present 1 where one is there; all
    users start from `start`.
    """
    flat = images.reshape(len(images), -1)
    samples = np.empty((*rows.shape, flat.shape[1]), np.float32)
    spread(lambda first, last: read_samples(flat, rows, first, last, samples), len(rows))
    x = torch.from_numpy(samples.reshape(-1, *model.input_shape))
    logits = model.apply(start, x).reshape(*y.shape, -1).numpy()
    weights = start.numpy()

    def run(first: int, last: int) -> None:
        step_users(samples, logits, y, present, weights, np.float32(rate), first, last, updates,
                   losses)  # fmt: skip

    spread(run, len(updates))


@njit
def read_samples(
    images: NDArray[np.uint8], rows: NDArray[np.int64], first: int, last: int,
    samples: NDArray[np.float32],
) -> None:  # fmt: skip
    """The images of users first … last-1 in [-1, 1], as `training.normalised` makes them."""
    half = np.float32(127.5)
    for user in range(first, last):
        for b in range(rows.shape[1]):
            pixels, into = images[rows[user, b]], samples[user, b]
            for p in range(into.size):
                into[p] = (np.float32(pixels[p]) - half) / half


@njit
def step_users(
    x: NDArray[np.float32], logits: NDArray[np.float32], y: NDArray[np.int64],
    present: NDArray[np.float32], start: NDArray[np.float32], rate: float, first: int, last: int,
    updates: NDArray[np.float32], losses: NDArray[np.float32],
) -> None:  # fmt: skip
    """Users first … last-1: update = (w - rate g) - w, rounded as a user's own subtraction would.

    g is the mean over the samples present of (softmax(logits) - onehot(y)) x, biases last.
    """
    _, size, classes = logits.shape
    pixels = x.shape[2]
    slopes = np.empty((size, classes), np.float32)
    gradient = np.empty(pixels, np.float32)
    for user in range(first, last):
        count = max(present[user].sum(), np.float32(1))
        total = 0.0
        for b in range(size):
            share = present[user, b] / count
            total += share * softmax_slopes(logits[user, b], y[user, b], share, slopes[b])
        losses[user] = np.float32(total)
        row = updates[user]
        for c in range(classes):
            gradient[:] = np.float32(0)
            bias = np.float32(0)
            for b in range(size):
                bias += slopes[b, c]
            # Two samples in one pass over the gradient, added one after the other all the same.
            for b in range(0, size - 1, 2):
                one, two = slopes[b, c], slopes[b + 1, c]
                left, right = x[user, b], x[user, b + 1]
                for p in range(pixels):
                    gradient[p] = (gradient[p] + one * left[p]) + two * right[p]
            odd = slopes[size - 1, c] if size % 2 else np.float32(0)
            sample = x[user, size - 1]
            weights = start[c * pixels : (c + 1) * pixels]
            cut = row[c * pixels : (c + 1) * pixels]
            for p in range(pixels):
                cut[p] = (weights[p] - rate * (gradient[p] + odd * sample[p])) - weights[p]
            own = start[classes * pixels + c]
            row[classes * pixels + c] = (own - rate * bias) - own


@njit
def softmax_slopes(
    logits: NDArray[np.float32], label: int, share: float, slopes: NDArray[np.float32]
) -> float:
    """Fill share · (softmax(logits) - onehot(label)); return the cross entropy."""
    top = np.float64(logits.max())
    total = 0.0
    for c in range(logits.size):
        total += np.exp(np.float64(logits[c]) - top)
    for c in range(logits.size):
        here = np.exp(np.float64(logits[c]) - top) / total
        slopes[c] = np.float32(share * (here - np.float64(c == label)))
    return float(np.log(total) + top - np.float64(logits[label]))
