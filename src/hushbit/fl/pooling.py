"""The largest of each 2 x 2 window of channels-last images, forwards and backwards in one pass.

Gives the values and gradients of the library's pooling, which is slow for few channels.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hushbit.kernels.jit import njit
from hushbit.kernels.threads import spread


class PairPool(torch.autograd.Function):
    """Largest value of each 2 x 2 window; of equal ones the first gets the slope."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Images (samples, height, width, channels); an odd last line or column is left out."""
        images = x.detach().contiguous().numpy()
        samples, height, width, channels = images.shape
        shape = (samples, height // 2, width // 2, channels)
        largest, place = np.empty(shape, np.float32), np.empty(shape, np.uint8)
        spread(lambda first, last: pool(images, first, last, largest, place), samples)
        ctx.place, ctx.sides = place, images.shape
        return torch.from_numpy(largest)

    @staticmethod
    def backward(ctx: Any, slopes: Tensor) -> Tensor:  # type: ignore[override]
        """Slopes go to where the largest values came from."""
        back = slopes.contiguous().numpy()
        before = np.zeros(ctx.sides, np.float32)
        spread(lambda first, last: unpool(back, ctx.place, first, last, before), len(back))
        return torch.from_numpy(before)


@njit
def pool(
    images: NDArray[np.float32], first: int, last: int, largest: NDArray[np.float32],
    place: NDArray[np.uint8],
) -> None:  # fmt: skip
    """Largest values of samples first … last-1, and which of the four each one is."""
    _, height, width, channels = largest.shape
    for sample in range(first, last):
        for y in range(height):
            for x in range(width):
                upper, lower = images[sample, 2 * y], images[sample, 2 * y + 1]
                for c in range(channels):
                    top, which = upper[2 * x, c], np.uint8(0)
                    if upper[2 * x + 1, c] > top:
                        top, which = upper[2 * x + 1, c], np.uint8(1)
                    if lower[2 * x, c] > top:
                        top, which = lower[2 * x, c], np.uint8(2)
                    if lower[2 * x + 1, c] > top:
                        top, which = lower[2 * x + 1, c], np.uint8(3)
                    largest[sample, y, x, c] = top
                    place[sample, y, x, c] = which


@njit
def unpool(
    slopes: NDArray[np.float32], place: NDArray[np.uint8], first: int, last: int,
    before: NDArray[np.float32],
) -> None:  # fmt: skip
    """Slopes of the images of samples first … last-1, zero but at the largest values."""
    _, height, width, channels = slopes.shape
    for sample in range(first, last):
        for y in range(height):
            for x in range(width):
                for c in range(channels):
                    which = np.int64(place[sample, y, x, c])
                    down, right = 2 * y + (which >> 1), 2 * x + (which & 1)
                    before[sample, down, right, c] = slopes[sample, y, x, c]
