"""Layers as functions of channels-last images: of one user, of many under vmap, of shared weights.

A convolution is one matrix product over gathered patches. Under vmap over users it becomes one
batched product, whose result does not depend on the number of threads (that of torch's grouped
convolution does).

In the first step of a round all users have the same weights. A weight of shape (users, ...) whose
users share one memory (`Tensor.expand`) selects layers for this case. Samples are ordered by user,
equally many per user. The forward pass is one product with the shared weight; the backward pass
gives the gradient of the weight for each user. `conv_pool_relu` computes a convolution with few
channels, max pooling and ReLU in one pass: the values of a sample stay in the cache until they are
pooled, and only gradients that pooling and ReLU pass on are followed. Both equal the general
layers up to rounding.
"""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from hushbit.kernels import njit
from hushbit.kernels.threads import parallel_for

KERNEL_SIDE = 5  # of `conv_pool_relu`
MAX_CHANNELS = 8  # of `conv_pool_relu`, in and out; with more channels torch's products are faster
RELU_ZERO = 4  # position of a window whose maximum ReLU sets to zero
BATCH_NORM_EPSILON = 1e-5

Floats = NDArray[np.float32]
Gradients = tuple[Tensor | None, Tensor, Tensor]
"""Gradients of the input (None for data), of the weight and of the bias, the last two by user."""


def dense(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return x W^T + b for x of shape (batch, in) and W of shape (out, in) or (users, out, in)."""
    if weight.dim() == 3:
        return cast(Tensor, SharedDense.apply(x, weight, bias))
    return F.linear(x, weight, bias)


def output_size(size: int, kernel: int, stride: int = 1, padding: int = 0) -> int:
    """Return the side of an image after a convolution or a pooling window."""
    return (size + 2 * padding - kernel) // stride + 1


def convolve_with_bias(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Convolve images (batch, height, width, in) with stride 1 and add a bias of shape (out,)."""
    if weight.dim() == 5:
        return cast(Tensor, SharedConvolution.apply(x, weight, bias))
    return convolve(x, weight) + bias


def convolve(x: Tensor, weight: Tensor, stride: int = 1, padding: int = 0) -> Tensor:
    """Convolve images (batch, height, width, in) with a weight of shape (out, in, k, k)."""
    out_channels, _, kernel, _ = weight.shape
    padded = F.pad(x, (0, 0, padding, padding, padding, padding)) if padding else x
    height = output_size(x.shape[1], kernel, stride, padding)
    width = output_size(x.shape[2], kernel, stride, padding)
    reach_down, reach_right = stride * (height - 1) + 1, stride * (width - 1) + 1
    patches = torch.cat(
        [
            padded[:, top : top + reach_down : stride, left : left + reach_right : stride]
            for top in range(kernel)
            for left in range(kernel)
        ],
        dim=-1,
    )
    matrix = weight.permute(2, 3, 1, 0).reshape(-1, out_channels)
    product = patches.reshape(-1, patches.shape[-1]) @ matrix
    return product.reshape(x.shape[0], height, width, out_channels)


def max_pool(x: Tensor, kernel: int, stride: int, padding: int = 0) -> Tensor:
    """Return the maximum of each window of channels-last images."""
    pooled = F.max_pool2d(x.permute(0, 3, 1, 2), kernel, stride, padding)
    return pooled.permute(0, 2, 3, 1)


def supports_conv_pool_relu(weight: Tensor) -> bool:
    """Whether `conv_pool_relu` accepts a weight: shared (users, out, in, 5, 5), few channels."""
    return (
        weight.dim() == 5
        and weight.shape[-1] == KERNEL_SIDE
        and max(weight.shape[1], weight.shape[2]) <= MAX_CHANNELS
    )


def conv_pool_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Convolution, max pooling of 2 x 2 windows and ReLU of channels-last images in one pass."""
    made = ConvPoolRelu.apply(x.permute(0, 3, 1, 2), weight, bias)
    return cast(Tensor, made).permute(0, 2, 3, 1)


def dropout(x: Tensor, kept: Tensor, rate: float) -> Tensor:
    """Apply dropout with a mask drawn beforehand: x * kept / (1 - rate)."""
    return x * kept * (1.0 / (1.0 - rate))


def batch_norm(
    x: Tensor, weight: Tensor, bias: Tensor, present: Tensor | None, frozen: Sequence[Tensor] | None
) -> Tensor:
    """Normalise each channel by frozen (mean, variance), or by those of the samples present.

    `present` holds 1 for a real sample and 0 for padding; None means that all are real.
    """
    if frozen is not None:
        mean, variance = frozen
    else:
        ones = torch.ones_like(x[:, 0, 0, 0]) if present is None else present
        # The weight of each sample's pixels, summing to one over batch, height and width.
        share = ones / (ones.sum().clamp(min=1.0) * (x.shape[1] * x.shape[2]))
        share = share.reshape(-1, 1, 1, 1)
        mean = (x * share).sum(dim=(0, 1, 2))
        variance = ((x - mean) ** 2 * share).sum(dim=(0, 1, 2))
    scale = weight * torch.rsqrt(variance + BATCH_NORM_EPSILON)
    return (x - mean) * scale + bias


class SharedDense(torch.autograd.Function):
    """x W^T + b for x (samples, in), shared W (users, out, in) and b (users, out)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Multiply all samples by the shared weight."""
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight[0], bias[0])

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Gradients:  # type: ignore[override]
        """Return the gradients of input, weight and bias."""
        x, weight = ctx.saved_tensors
        users = len(weight)
        by_user = grad_output.reshape(users, -1, grad_output.shape[1])
        grad_weight = by_user.transpose(1, 2) @ x.reshape(users, -1, x.shape[1])
        return grad_output @ weight[0], grad_weight, by_user.sum(dim=1)


class SharedConvolution(torch.autograd.Function):
    """Convolve images (samples, height, width, in) with a shared weight (users, out, in, k, k)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Convolve all images with the shared weight."""
        images = x.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
        ctx.save_for_backward(images, weight)
        return F.conv2d(images, weight[0], bias[0]).permute(0, 2, 3, 1)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Gradients:  # type: ignore[override]
        """Return the gradients of images, weight and bias."""
        images, weight = ctx.saved_tensors
        grad_images = None
        if ctx.needs_input_grad[0]:
            channels_first = F.conv_transpose2d(grad_output.permute(0, 3, 1, 2), weight[0])
            grad_images = channels_first.permute(0, 2, 3, 1)
        grad_weight = np.empty(weight.shape, np.float32)
        grad_bias = np.empty(weight.shape[:2], np.float32)
        x, grad = images.permute(0, 2, 3, 1).numpy(), grad_output.contiguous().numpy()

        def run(first: int, last: int) -> None:
            convolution_gradients(x, grad, first, last, grad_weight, grad_bias)

        parallel_for(run, len(weight))
        return grad_images, torch.from_numpy(grad_weight), torch.from_numpy(grad_bias)


@njit
def convolution_gradients(
    images: Floats,
    grad_output: Floats,
    first: int,
    last: int,
    grad_weight: Floats,
    grad_bias: Floats,
) -> None:
    """Gradients of users first … last-1, from channels-last images and output gradients.

    grad_weight[u, o, c, i, j] is the sum over samples s of the user and positions (y, x) of
    grad_output[s, y, x, o] · images[s, y + i, x + j, c]. Output gradients of zero are skipped.
    """
    users, outer, inner, kernel, _ = grad_weight.shape
    samples, height, width, _ = grad_output.shape
    each = samples // users
    reach = kernel * inner
    lines = images.reshape(samples, images.shape[1], -1)
    total = np.empty((outer, kernel, reach), np.float32)
    for user in range(first, last):
        total[:] = np.float32(0)
        grad_bias[user] = np.float32(0)
        for sample in range(user * each, (user + 1) * each):
            for y in range(height):
                for x in range(width):
                    for o in range(outer):
                        grad = grad_output[sample, y, x, o]
                        if grad != 0:
                            grad_bias[user, o] += grad
                            for i in range(kernel):
                                line = lines[sample, y + i, x * inner : x * inner + reach]
                                sums = total[o, i]
                                for j in range(reach):
                                    sums[j] += grad * line[j]
        for o in range(outer):
            for c in range(inner):
                for i in range(kernel):
                    for j in range(kernel):
                        grad_weight[user, o, c, i, j] = total[o, i, j * inner + c]


class ConvPoolRelu(torch.autograd.Function):
    """Images (samples, in, height, width), ordered by user, to (samples, out, half, half)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Convolve, pool and apply ReLU; an odd last row or column is left out."""
        images = x.detach().contiguous().numpy()
        kernel, offset = weight[0].detach().contiguous().numpy(), bias[0].detach().numpy()
        samples, _, height, width = images.shape
        sides = ((height - KERNEL_SIDE + 1) // 2, (width - KERNEL_SIDE + 1) // 2)
        shape = (samples, len(kernel), *sides)
        maxima, positions = np.empty(shape, np.float32), np.empty(shape, np.uint8)

        def run(first: int, last: int) -> None:
            conv_pool_relu_samples(images, kernel, offset, first, last, maxima, positions)

        parallel_for(run, samples)
        ctx.saved, ctx.users, ctx.kernel = (images, positions), len(weight), kernel
        return torch.from_numpy(maxima)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Gradients:  # type: ignore[override]
        """Return the gradients of images, weight and bias."""
        images, positions = ctx.saved
        kernel = ctx.kernel
        grad, with_images = grad_output.contiguous().numpy(), bool(ctx.needs_input_grad[0])
        grad_weight = np.zeros((ctx.users, *kernel.shape), np.float32)
        grad_bias = np.zeros((ctx.users, len(kernel)), np.float32)
        grad_images = np.zeros(images.shape if with_images else (0, 0, 0, 0), np.float32)

        def run(first: int, last: int) -> None:
            conv_pool_relu_gradients(
                images, kernel, grad, positions, first, last, grad_weight, grad_bias, grad_images
            )

        parallel_for(run, ctx.users)
        of_images = torch.from_numpy(grad_images) if with_images else None
        return of_images, torch.from_numpy(grad_weight), torch.from_numpy(grad_bias)


@njit
def conv_pool_relu_samples(
    images: Floats,
    kernel: Floats,
    bias: Floats,
    first: int,
    last: int,
    maxima: Floats,
    positions: NDArray[np.uint8],
) -> None:
    """Fill the maxima of samples first … last-1, and the position of each in its 2 x 2 window.

    A plane is convolved as one long line, which vectorizes well; values that reach over the right
    border of the plane are computed and ignored.
    """
    outer, inner = kernel.shape[0], kernel.shape[1]
    height, width = images.shape[2], images.shape[3]
    half_height, half_width = maxima.shape[2], maxima.shape[3]
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
                        top, which = np.float32(0), np.uint8(RELU_ZERO)
                    maxima[sample, o, y, x] = top
                    positions[sample, o, y, x] = which


@njit
def conv_pool_relu_gradients(
    images: Floats,
    kernel: Floats,
    grad_output: Floats,
    positions: NDArray[np.uint8],
    first: int,
    last: int,
    grad_weight: Floats,
    grad_bias: Floats,
    grad_images: Floats,
) -> None:
    """Gradients of users first … last-1; those of their images unless `grad_images` is empty.

    A gradient g at (y, x) of the convolution adds g · images[c, y + i, x + j] to the gradient of
    weight (c, i, j), and g · weight to the gradient of that pixel.
    """
    users, outer, inner = grad_weight.shape[0], grad_weight.shape[1], grad_weight.shape[2]
    each, with_images = images.shape[0] // users, grad_images.shape[0] > 0
    for sample in range(first * each, last * each):
        user = sample // each
        for o in range(outer):
            for y in range(grad_output.shape[2]):
                for x in range(grad_output.shape[3]):
                    grad, which = grad_output[sample, o, y, x], np.int64(positions[sample, o, y, x])
                    if which == RELU_ZERO or grad == 0:
                        continue
                    down, right = 2 * y + (which >> 1), 2 * x + (which & 1)
                    grad_bias[user, o] += grad
                    for c in range(inner):
                        for i in range(5):
                            row = images[sample, c, down + i, right : right + 5]
                            sums = grad_weight[user, o, c, i]
                            for j in range(5):
                                sums[j] += grad * row[j]
                            if with_images:
                                pixels = grad_images[sample, c, down + i, right : right + 5]
                                weights = kernel[o, c, i]
                                for j in range(5):
                                    pixels[j] += grad * weights[j]
