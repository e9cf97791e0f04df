"""Layers of many users who share their weights: one large batch, a gradient for each user.

A weight has the shape (users, ...) with all users at the same memory (`Tensor.expand`); samples
are ordered by user, equally many of each. Forwards it is one product with the shared weight;
backwards the gradient of the weight has a row for each user.
"""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from hushbit.kernels.jit import njit
from hushbit.kernels.threads import spread


class SharedDense(torch.autograd.Function):
    """x W^T + b for x (samples, in), W (users, out, in), b (users, out)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Multiply all samples by the one weight."""
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight[0], bias[0])

    @staticmethod
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        """Slopes of the input; gradients of weight and bias, user by user."""
        x, weight = ctx.saved_tensors
        users = len(weight)
        by_user = slopes.reshape(users, -1, slopes.shape[1])
        gradient = by_user.transpose(1, 2) @ x.reshape(users, -1, x.shape[1])
        return slopes @ weight[0], gradient, by_user.sum(dim=1)


class SharedConvolution(torch.autograd.Function):
    """Convolve images (samples, height, width, in) with a weight (users, out, in, k, k)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Convolve all images with the one weight."""
        images = x.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
        ctx.save_for_backward(images, weight)
        return F.conv2d(images, weight[0], bias[0]).permute(0, 2, 3, 1)

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, slopes: Tensor
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        """Slopes of the images (unless they are data); gradients of weight and bias, by user."""
        images, weight = ctx.saved_tensors
        before = None
        if ctx.needs_input_grad[0]:
            turned = F.conv_transpose2d(slopes.permute(0, 3, 1, 2), weight[0])
            before = turned.permute(0, 2, 3, 1)
        gradient = np.empty(weight.shape, np.float32)
        bias = np.empty(weight.shape[:2], np.float32)
        x, back = images.permute(0, 2, 3, 1).numpy(), slopes.contiguous().numpy()

        def run(first: int, last: int) -> None:
            convolution_gradients(x, back, first, last, gradient, bias)

        spread(run, len(weight))
        return before, torch.from_numpy(gradient), torch.from_numpy(bias)


@njit
def convolution_gradients(
    images: NDArray[np.float32], slopes: NDArray[np.float32], first: int, last: int,
    gradient: NDArray[np.float32], bias: NDArray[np.float32],
) -> None:  # fmt: skip
    """Weight and bias gradients of users first … last-1, from channels-last images and slopes.

    gradient[u, o, c, i, j] = sum over the user's samples s and places (y, x) of
    slopes[s, y, x, o] · images[s, y + i, x + j, c]. Slopes of zero are skipped.
    """
    users, outer, inner, kernel, _ = gradient.shape
    samples, height, width, _ = slopes.shape
    each = samples // users
    reach = kernel * inner
    lines = images.reshape(samples, images.shape[1], -1)
    total = np.empty((outer, kernel, reach), np.float32)
    for user in range(first, last):
        total[:] = np.float32(0)
        bias[user] = np.float32(0)
        for sample in range(user * each, (user + 1) * each):
            for y in range(height):
                for x in range(width):
                    for o in range(outer):
                        slope = slopes[sample, y, x, o]
                        if slope != 0:
                            bias[user, o] += slope
                            for i in range(kernel):
                                line = lines[sample, y + i, x * inner : x * inner + reach]
                                sums = total[o, i]
                                for j in range(reach):
                                    sums[j] += slope * line[j]
        for o in range(outer):
            for c in range(inner):
                for i in range(kernel):
                    for j in range(kernel):
                        gradient[user, o, c, i, j] = total[o, i, j * inner + c]
