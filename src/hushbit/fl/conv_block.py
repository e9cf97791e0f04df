"""A convolution of 5 x 5, the largest of each 2 x 2 window and ReLU in one pass, for many users.

For few channels the library's convolutions are slow, and three of four values are thrown away
by pooling. Here a sample's values stay in the cache until they are pooled, and backwards only
slopes of values that pooling and ReLU kept are followed. All users share their weights (see
`per_user`); equal to the three layers one after the other, up to rounding.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hushbit.kernels.jit import njit
from hushbit.kernels.threads import spread

SIDE = 5
MOST_CHANNELS = 8  # in and out; with more of them the library's products win
CUT = 4  # in `place`: ReLU cut the window
Floats = NDArray[np.float32]


def fits(weight: Tensor) -> bool:
    """Whether a weight (users, out, in, k, k) is small enough for this way."""
    return weight.shape[-1] == SIDE and max(weight.shape[1], weight.shape[2]) <= MOST_CHANNELS


class PooledConvolution(torch.autograd.Function):
    """Images (samples, in, height, width), ordered by user, to (samples, out, half, half)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Convolve, pool and cut; an odd last line or column is left out."""
        images = x.detach().contiguous().numpy()
        kernel, added = weight[0].detach().contiguous().numpy(), bias[0].detach().numpy()
        samples, _, height, width = images.shape
        shape = (samples, len(kernel), (height - SIDE + 1) // 2, (width - SIDE + 1) // 2)
        largest, place = np.empty(shape, np.float32), np.empty(shape, np.uint8)

        def run(first: int, last: int) -> None:
            pooled_convolution(images, kernel, added, first, last, largest, place)

        spread(run, samples)
        ctx.kept, ctx.users, ctx.kernel = (images, place), len(weight), kernel
        return torch.from_numpy(largest)

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, slopes: Tensor
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        """Slopes of the images (unless they are data); gradients of weight and bias, by user."""
        images, place = ctx.kept
        kernel = ctx.kernel
        back, follow = slopes.contiguous().numpy(), bool(ctx.needs_input_grad[0])
        gradient = np.zeros((ctx.users, *kernel.shape), np.float32)
        bias = np.zeros((ctx.users, len(kernel)), np.float32)
        before = np.zeros(images.shape if follow else (0, 0, 0, 0), np.float32)

        def run(first: int, last: int) -> None:
            pooled_slopes(images, kernel, back, place, first, last, gradient, bias, before)

        spread(run, ctx.users)
        slopes_before = torch.from_numpy(before) if follow else None
        return slopes_before, torch.from_numpy(gradient), torch.from_numpy(bias)


@njit
def pooled_convolution(
    images: Floats, kernel: Floats, bias: Floats, first: int, last: int, largest: Floats,
    place: NDArray[np.uint8],
) -> None:  # fmt: skip
    """Largest values of samples first … last-1, and which of the four each one is.

    A plane is convolved as one long line, so values that reach over its right border are formed
    and left: long lines are what the processor is fast at.
    """
    outer, inner = kernel.shape[0], kernel.shape[1]
    height, width = images.shape[2], images.shape[3]
    half_height, half_width = largest.shape[2], largest.shape[3]
    length = (height - 4) * width - 4
    sums = np.empty(length, np.float32)
    planes = images.reshape(images.shape[0], inner, height * width)
    for sample in range(first, last):
        for o in range(outer):
            sums[:] = bias[o]
            for c in range(inner):
                for i in range(5):
                    line = planes[sample, c, i * width : i * width + length + 4]
                    one, two, three, four, five = kernel[o, c, i]
                    for p in range(length):
                        sums[p] += (
                            one * line[p]
                            + two * line[p + 1]
                            + three * line[p + 2]
                            + four * line[p + 3]
                            + five * line[p + 4]
                        )
            for y in range(half_height):
                upper = sums[2 * y * width :]
                lower = sums[(2 * y + 1) * width :]
                for x in range(half_width):
                    top, which = upper[2 * x], np.uint8(0)
                    if upper[2 * x + 1] > top:
                        top, which = upper[2 * x + 1], np.uint8(1)
                    if lower[2 * x] > top:
                        top, which = lower[2 * x], np.uint8(2)
                    if lower[2 * x + 1] > top:
                        top, which = lower[2 * x + 1], np.uint8(3)
                    if top <= 0:
                        top, which = np.float32(0), np.uint8(CUT)
                    largest[sample, o, y, x] = top
                    place[sample, o, y, x] = which


@njit
def pooled_slopes(
    images: Floats, kernel: Floats, slopes: Floats, place: NDArray[np.uint8], first: int,
    last: int, gradient: Floats, bias: Floats, before: Floats,
) -> None:  # fmt: skip
    """Gradients of users first … last-1, and slopes of their images unless `before` is empty.

    A slope at (y, x) of the convolution adds slope · images[c, y + i, x + j] to the gradient of
    weight (c, i, j), and slope · weight to the slope of that pixel.
    """
    users, outer, inner = gradient.shape[0], gradient.shape[1], gradient.shape[2]
    each, follow = images.shape[0] // users, before.shape[0] > 0
    for sample in range(first * each, last * each):
        user = sample // each
        for o in range(outer):
            for y in range(slopes.shape[2]):
                for x in range(slopes.shape[3]):
                    slope, which = slopes[sample, o, y, x], np.int64(place[sample, o, y, x])
                    if which == CUT or slope == 0:
                        continue
                    down, right = 2 * y + (which >> 1), 2 * x + (which & 1)
                    bias[user, o] += slope
                    for c in range(inner):
                        for i in range(5):
                            row = images[sample, c, down + i, right : right + 5]
                            sums = gradient[user, o, c, i]
                            for j in range(5):
                                sums[j] += slope * row[j]
                            if follow:
                                behind = before[sample, c, down + i, right : right + 5]
                                weights = kernel[o, c, i]
                                for j in range(5):
                                    behind[j] += slope * weights[j]
