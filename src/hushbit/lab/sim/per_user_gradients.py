"""Per-user gradients at shared weights, for modules of dense and convolutional layers.

In the first local step of a round all users have the same weights, so the samples of all users can
pass through the module as one batch. `PerUserGradientMode` replaces dense layers and convolutions
while the module runs: their backward pass writes the weight gradient of each user to a row of a
matrix. A parameter that any other operation uses gets an ordinary gradient, the sum over users;
`used_elsewhere` detects this.

`FastLayers` replaces convolutions and pooling by faster ones with the same results up to rounding:
those of torch are slow for images with few channels unless strides are channels-last.
"""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hushbit.kernels import njit
from hushbit.kernels.threads import parallel_for
from hushbit.lab.sim.client_data import channels_first
from hushbit.lab.sim.layers import convolution_gradients

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
MAX_SUMMED = 16  # largest number of samples for which sums are faster than a matrix product


class UserGradients:
    """The gradients of all users, a row for each user and a range of columns for each tensor."""

    def __init__(self, rows: Tensor, columns: Mapping[int, slice]) -> None:
        self.rows = rows
        self._columns = columns
        self._written: set[int] = set()

    def add(self, tensor: Tensor, gradient: Tensor) -> None:
        """Add the gradient (users, ...) of one tensor."""
        columns = self._columns.get(id(tensor))
        if columns is None:  # a frozen tensor
            return
        place = self.rows[:, columns].view(gradient.shape)
        if id(tensor) in self._written:
            place.add_(gradient)
        else:
            place.copy_(gradient)
            self._written.add(id(tensor))

    def add_product(self, tensor: Tensor, grad: Tensor, x: Tensor) -> None:
        """Add the gradient grad^T x of a dense layer, for grad and x of (users, samples, ...)."""
        columns = self._columns.get(id(tensor))
        if columns is None or id(tensor) in self._written or x.shape[1] > MAX_SUMMED:
            self.add(tensor, grad.transpose(1, 2) @ x)
            return
        given = (x.contiguous().numpy(), grad.contiguous().numpy(), columns.start)
        rows = self.rows.numpy()
        parallel_for(lambda first, last: dense_gradients(*given, first, last, rows), len(rows))
        self._written.add(id(tensor))

    def finish(self) -> Tensor:
        """The gradients; those of tensors that no layer used are zero."""
        for key, columns in self._columns.items():
            if key not in self._written:
                self.rows[:, columns] = 0.0
        return self.rows


class FastLayers(TorchFunctionMode):
    """While active, convolutions and pooling of images with few channels are faster."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Replace some operations; call all others unchanged."""
        named = kwargs or {}
        if func is F.conv2d:
            return self.conv2d(*args, **named)
        if func is F.linear:
            return self.linear(*args, **named)
        if func is F.max_pool2d:
            return _max_pool2d(*args, **named)
        return func(*args, **named)

    def linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x W^T + b."""
        return F.linear(input, weight, bias)

    def conv2d(self, input: Tensor, weight: Tensor, *args: Any, **named: Any) -> Tensor:
        """A convolution with channels-last strides."""
        return F.conv2d(_channels_last(input), _channels_last(weight), *args, **named)


class PerUserGradientMode(FastLayers):
    """While active, dense layers and convolutions also write gradients by user."""

    def __init__(self, gradients: UserGradients) -> None:
        super().__init__()
        self.gradients = gradients

    def linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x W^T + b, whose backward pass writes gradients by user."""
        return cast(Tensor, SharedLinear.apply(input, weight, bias, self.gradients))

    def conv2d(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        """A convolution whose backward pass writes gradients by user, if its stride is 1."""
        square = weight.shape[-1] == weight.shape[-2]
        plain = {stride, dilation} <= {1, (1, 1)} and groups == 1 and square and input.dim() == 4
        if not plain or isinstance(padding, str):
            return F.conv2d(input, weight, bias, stride, padding, dilation, groups)
        down, across = padding if isinstance(padding, tuple) else (padding, padding)
        padded = F.pad(input, (across, across, down, down)) if down or across else input
        return cast(Tensor, SharedConv2d.apply(padded, weight, bias, self.gradients))


def used_elsewhere(parameters: Mapping[str, Tensor]) -> list[str]:
    """The parameters with an ordinary gradient: an operation that was not replaced uses them."""
    return [name for name, tensor in parameters.items() if tensor.grad is not None]


def _max_pool2d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Max pooling; windows of 2 x 2 by `HalvingPool`."""
    halving = kernel_size in (2, (2, 2)) and stride in (2, (2, 2), None)
    plain = padding in (0, (0, 0)) and dilation in (1, (1, 1)) and not ceil_mode
    if not (halving and plain and not return_indices and input.dim() == 4):
        other: Any = (stride, padding, dilation, ceil_mode, return_indices)
        return F.max_pool2d(input, kernel_size, *other)
    if torch.is_grad_enabled():
        return HalvingPool.apply(input)
    height, width = (side // 2 * 2 for side in input.shape[2:])
    upper, lower = input[:, :, 0:height:2, :width], input[:, :, 1:height:2, :width]
    rows = torch.maximum(upper, lower)
    return torch.maximum(rows[..., 0::2], rows[..., 1::2])


class SharedLinear(torch.autograd.Function):
    """x W^T + b for samples (users * batch, ..., in), ordered by user."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, into: Any) -> Tensor:
        """Multiply all samples by the shared weight."""
        ctx.save_for_backward(x)
        ctx.weight, ctx.bias, ctx.into = weight, bias, into
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:  # type: ignore[override]
        """Return the gradient of x; those of weight and bias go to the rows of users."""
        (x,) = ctx.saved_tensors
        users = len(ctx.into.rows)
        by_user = grad_output.reshape(users, -1, grad_output.shape[-1])
        samples = x.reshape(users, -1, x.shape[-1])
        ctx.into.add_product(ctx.weight, by_user, samples)
        if ctx.bias is not None:
            ctx.into.add(ctx.bias, by_user.sum(dim=1))
        return grad_output @ ctx.weight if ctx.needs_input_grad[0] else None, None, None, None


class SharedConv2d(torch.autograd.Function):
    """Convolution with stride 1 of images (users * batch, in, height, width), ordered by user."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, into: Any) -> Tensor:
        """Convolve all images with the shared weight."""
        images = x.permute(0, 2, 3, 1).contiguous()
        ctx.save_for_backward(images)
        ctx.weight, ctx.bias, ctx.into = weight, bias, into
        return F.conv2d(channels_first(images), _channels_last(weight), bias)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:  # type: ignore[override]
        """Return the gradient of the images; those of weight and bias go to the rows of users."""
        (images,) = ctx.saved_tensors
        weight = ctx.weight
        grad_images = None
        if ctx.needs_input_grad[0]:
            grad_images = F.conv_transpose2d(grad_output, _channels_last(weight))
        users = len(ctx.into.rows)
        grad_weight = np.empty((users, *weight.shape), np.float32)
        grad_bias = np.empty((users, len(weight)), np.float32)
        x, grad = images.numpy(), grad_output.permute(0, 2, 3, 1).contiguous().numpy()

        def run(first: int, last: int) -> None:
            convolution_gradients(x, grad, first, last, grad_weight, grad_bias)

        parallel_for(run, users)
        ctx.into.add(weight, torch.from_numpy(grad_weight))
        if ctx.bias is not None:
            ctx.into.add(ctx.bias, torch.from_numpy(grad_bias))
        return grad_images, None, None, None


def _channels_last(images: Tensor) -> Tensor:
    """The same tensor (..., channels, height, width) with channels-last strides."""
    if images.dim() != 4:
        return images
    return channels_first(images.permute(0, 2, 3, 1).contiguous())


class HalvingPool(torch.autograd.Function):
    """The maximum of each window of 2 x 2 pixels; an odd last row or column is left out."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return the maxima; of equal pixels the first one counts, as in torch."""
        images = x.detach().permute(0, 2, 3, 1).contiguous().numpy()
        samples, height, width, channels = images.shape
        maxima = np.empty((samples, height // 2, width // 2, channels), np.float32)
        positions = np.empty(maxima.shape, np.uint8)
        parallel_for(lambda first, last: pool(images, first, last, maxima, positions), samples)
        ctx.positions, ctx.shape = positions, images.shape
        return channels_first(torch.from_numpy(maxima))

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:  # type: ignore[override]
        """Return the gradient of the images, which is zero except at the maxima."""
        grad = grad_output.permute(0, 2, 3, 1).contiguous().numpy()
        made, positions = np.zeros(ctx.shape, np.float32), ctx.positions
        parallel_for(lambda first, last: unpool(grad, positions, first, last, made), len(grad))
        return channels_first(torch.from_numpy(made))


@njit
def pool(images: Floats, first: int, last: int, maxima: Floats, positions: Bytes) -> None:
    """Fill the maxima of samples first … last-1, and the position of each in its window."""
    _, height, width, channels = maxima.shape
    line = images.shape[2] * channels
    images = images.reshape(images.shape[0], images.shape[1], line)
    for sample in range(first, last):
        for y in range(height):
            upper, lower = images[sample, 2 * y], images[sample, 2 * y + 1]
            for x in range(width):
                at = 2 * x * channels
                for c in range(channels):
                    one, two = upper[at + c], upper[at + channels + c]
                    three, four = lower[at + c], lower[at + channels + c]
                    top = max(max(one, two), max(three, four))
                    # Selections instead of branches, which random pixels would mispredict.
                    later = np.uint8(2) if three == top else np.uint8(3)
                    which = np.uint8(1) if two == top else later
                    maxima[sample, y, x, c] = top
                    positions[sample, y, x, c] = np.uint8(0) if one == top else which


@njit
def unpool(grad: Floats, positions: Bytes, first: int, last: int, images: Floats) -> None:
    """Put the gradients of samples first … last-1 at the positions of the maxima."""
    _, height, width, channels = grad.shape
    for sample in range(first, last):
        for y in range(height):
            for x in range(width):
                for c in range(channels):
                    which = np.int64(positions[sample, y, x, c])
                    down, right = 2 * y + (which >> 1), 2 * x + (which & 1)
                    images[sample, down, right, c] = grad[sample, y, x, c]


@njit
def dense_gradients(
    x: Floats, grad: Floats, begin: int, first: int, last: int, rows: Floats
) -> None:
    """Write grad^T x of users first … last-1 to their rows from column `begin` on."""
    _, size, outer = grad.shape
    inner = x.shape[2]
    for user in range(first, last):
        for o in range(outer):
            at = begin + o * inner
            row = rows[user, at : at + inner]
            row[:] = np.float32(0)
            # Two samples per pass over the row.
            for b in range(0, size - 1, 2):
                one, two = grad[user, b, o], grad[user, b + 1, o]
                left, right = x[user, b], x[user, b + 1]
                for i in range(inner):
                    row[i] = (row[i] + one * left[i]) + two * right[i]
            if size % 2:
                one, left = grad[user, size - 1, o], x[user, size - 1]
                for i in range(inner):
                    row[i] += one * left[i]
