"""Layers as plain functions of channels-last images, the same code for one user and under vmap.

A convolution is one matrix product over gathered patches: batched over users this becomes one
batched product, whose result does not depend on the number of threads (the library's grouped
convolution does). Weights with a leading dimension of users are those of `per_user`.
"""

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from hushbit.fl import conv_block
from hushbit.fl.per_user import SharedConvolution, SharedDense
from hushbit.fl.pooling import PairPool

BATCH_NORM_EPSILON = 1e-5


def dense(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return x W^T + b for x of shape (batch, in) and W of shape (out, in)."""
    if weight.dim() == 3:
        return cast(Tensor, SharedDense.apply(x, weight, bias))
    return F.linear(x, weight, bias)


def output_size(size: int, kernel: int, stride: int = 1, padding: int = 0) -> int:
    """Return the side of an image after a convolution or a pooling window."""
    return (size + 2 * padding - kernel) // stride + 1


def convolve_all(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Convolve images (batch, height, width, in) at every place, and add a bias of shape (out,)."""
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
    """Take the largest value of each window of channels-last images."""
    pooled = F.max_pool2d(x.permute(0, 3, 1, 2), kernel, stride, padding)
    return pooled.permute(0, 2, 3, 1)


def pool_pairs(x: Tensor) -> Tensor:
    """As `max_pool` of 2 x 2 windows, for images of many users who share their weights."""
    return cast(Tensor, PairPool.apply(x))


def block_fits(weight: Tensor) -> bool:
    """Whether `convolve_pool_cut` takes a weight: shared by users, with few channels."""
    return weight.dim() == 5 and conv_block.fits(weight)


def convolve_pool_cut(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Convolution, pooling of 2 x 2 windows and ReLU of channels-last images in one pass."""
    made = conv_block.PooledConvolution.apply(x.permute(0, 3, 1, 2), weight, bias)
    return cast(Tensor, made).permute(0, 2, 3, 1)


def drop(x: Tensor, kept: Tensor, rate: float) -> Tensor:
    """Apply dropout with a mask drawn beforehand: x * kept / (1 - rate)."""
    return x * kept * (1.0 / (1.0 - rate))


def batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    present: Tensor | None,
    frozen: Sequence[Tensor] | None,
) -> Tensor:
    """Normalise each channel by frozen (mean, variance), or by those of the samples present.

    `present` holds 1 for a real sample and 0 for padding; None means that all are real.
    """
    if frozen is not None:
        mean, variance = frozen
    else:
        share = _shares(x, present)
        mean = (x * share).sum(dim=(0, 1, 2))
        variance = ((x - mean) ** 2 * share).sum(dim=(0, 1, 2))
    scale = weight * torch.rsqrt(variance + BATCH_NORM_EPSILON)
    return (x - mean) * scale + bias


def _shares(x: Tensor, present: Tensor | None) -> Tensor:
    """Return the weight of each sample's pixels, summing to one over batch, height and width."""
    area = x.shape[1] * x.shape[2]
    ones = torch.ones_like(x[:, :1, :1, :1]) if present is None else present.reshape(-1, 1, 1, 1)
    return ones / (ones.sum().clamp(min=1.0) * area)
