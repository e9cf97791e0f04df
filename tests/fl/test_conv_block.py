"""Convolution, pooling and ReLU in one pass: equal to the three layers one after the other."""

import pytest
import torch
import torch.nn.functional as F

from hushbit.fl.conv_block import CUT, PooledConvolution, fits
from hushbit.kernels.threads import set_threads

USERS, EACH = 3, 2


def drawn(
    inner: int, outer: int, height: int, width: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(7)
    x = torch.randn(USERS * EACH, inner, height, width, generator=source)
    weight = torch.randn(outer, inner, 5, 5, generator=source) / 5
    return x, weight, torch.randn(outer, generator=source)


def of_users(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.expand(USERS, *tensor.shape).requires_grad_()


@pytest.mark.parametrize(
    ("inner", "outer", "height", "width"), [(1, 6, 28, 28), (6, 6, 12, 12), (3, 8, 9, 14)]
)
def test_values_and_slopes_of_each_user(inner: int, outer: int, height: int, width: int) -> None:
    x, weight, bias = drawn(inner, outer, height, width)
    leaf = x.clone().requires_grad_()
    weights, biases = of_users(weight), of_users(bias)
    made = PooledConvolution.apply(leaf, weights, biases)
    back = torch.randn(made.shape, generator=torch.Generator().manual_seed(8))
    back[0, 0] = 0
    got = torch.autograd.grad(made, (leaf, weights, biases), back)
    for user in range(USERS):
        own = slice(EACH * user, EACH * (user + 1))
        leaves = [t.detach().clone().requires_grad_() for t in (x[own], weight, bias)]
        alone = F.max_pool2d(F.relu(F.conv2d(*leaves)), 2)
        torch.testing.assert_close(made[own], alone, rtol=1e-4, atol=1e-5)
        wanted = torch.autograd.grad(alone, leaves, back[own])
        for mine, theirs in zip((got[0][own], got[1][user], got[2][user]), wanted, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_images_that_are_data_get_no_slopes() -> None:
    x, weight, bias = drawn(1, 2, 9, 9)
    weights = of_users(weight)
    made = PooledConvolution.apply(x, weights, of_users(bias))
    (gradient,) = torch.autograd.grad(made.sum(), (weights,))
    assert gradient.shape == (USERS, 2, 1, 5, 5)
    assert gradient.any()


def test_windows_that_are_cut_have_no_slope() -> None:
    x, weight, _ = drawn(1, 2, 9, 9)
    weights, biases = of_users(weight), of_users(torch.full((2,), -1e3))
    made = PooledConvolution.apply(x, weights, biases)
    assert not made.any()
    gradient, bias = torch.autograd.grad(made.sum(), (weights, biases))
    assert not gradient.any()
    assert not bias.any()
    assert CUT not in range(4)


def test_same_bits_for_any_number_of_threads() -> None:
    x, weight, bias = drawn(3, 4, 12, 11)
    seen = set()
    try:
        for threads in (1, 2, 3):
            set_threads(threads)
            leaf, weights, biases = x.clone().requires_grad_(), of_users(weight), of_users(bias)
            made = PooledConvolution.apply(leaf, weights, biases)
            parts = torch.autograd.grad(made.square().sum(), (leaf, weights, biases))
            seen.add(b"".join(part.detach().numpy().tobytes() for part in (made, *parts)))
    finally:
        set_threads(0)
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("shape", "small"),
    [((9, 6, 1, 5, 5), True), ((9, 32, 3, 3, 3), False), ((9, 16, 6, 5, 5), False)],
)
def test_only_few_channels_go_this_way(shape: tuple[int, ...], small: bool) -> None:
    assert fits(torch.zeros(shape)) is small
