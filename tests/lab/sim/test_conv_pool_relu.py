"""Convolution, pooling and ReLU in one pass equal the three layers one after the other."""

import pytest
import torch
import torch.nn.functional as F

from hushbit.kernels.threads import set_threads
from hushbit.lab.sim.layers import RELU_ZERO, ConvPoolRelu, supports_conv_pool_relu

USERS, EACH = 3, 2


def random_layer(
    inner: int, outer: int, height: int, width: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(7)
    x = torch.randn(USERS * EACH, inner, height, width, generator=source)
    weight = torch.randn(outer, inner, 5, 5, generator=source) / 5
    return x, weight, torch.randn(outer, generator=source)


def shared(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.expand(USERS, *tensor.shape).requires_grad_()


@pytest.mark.parametrize(
    ("inner", "outer", "height", "width"), [(1, 6, 28, 28), (6, 6, 12, 12), (3, 8, 9, 14)]
)
def test_values_and_gradients_equal_those_of_each_user(
    inner: int, outer: int, height: int, width: int
) -> None:
    x, weight, bias = random_layer(inner, outer, height, width)
    leaf = x.clone().requires_grad_()
    weights, biases = shared(weight), shared(bias)
    made = ConvPoolRelu.apply(leaf, weights, biases)
    grad_output = torch.randn(made.shape, generator=torch.Generator().manual_seed(8))
    grad_output[0, 0] = 0
    computed = torch.autograd.grad(made, (leaf, weights, biases), grad_output)
    for user in range(USERS):
        own = slice(EACH * user, EACH * (user + 1))
        leaves = [t.detach().clone().requires_grad_() for t in (x[own], weight, bias)]
        separate = F.max_pool2d(F.relu(F.conv2d(*leaves)), 2)
        torch.testing.assert_close(made[own], separate, rtol=1e-4, atol=1e-5)
        wanted = torch.autograd.grad(separate, leaves, grad_output[own])
        for ours, theirs in zip(
            (computed[0][own], computed[1][user], computed[2][user]), wanted, strict=True
        ):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_images_without_requires_grad_get_no_gradient() -> None:
    x, weight, bias = random_layer(1, 2, 9, 9)
    weights = shared(weight)
    made = ConvPoolRelu.apply(x, weights, shared(bias))
    (gradient,) = torch.autograd.grad(made.sum(), (weights,))
    assert gradient.shape == (USERS, 2, 1, 5, 5)
    assert gradient.any()


def test_windows_that_relu_sets_to_zero_have_no_gradient() -> None:
    x, weight, _ = random_layer(1, 2, 9, 9)
    weights, biases = shared(weight), shared(torch.full((2,), -1e3))
    made = ConvPoolRelu.apply(x, weights, biases)
    assert not made.any()
    gradient, bias = torch.autograd.grad(made.sum(), (weights, biases))
    assert not gradient.any()
    assert not bias.any()
    assert RELU_ZERO not in range(4)


def test_same_bits_for_any_number_of_threads() -> None:
    x, weight, bias = random_layer(3, 4, 12, 11)
    seen = set()
    try:
        for threads in (1, 2, 3):
            set_threads(threads)
            leaf, weights, biases = x.clone().requires_grad_(), shared(weight), shared(bias)
            made = ConvPoolRelu.apply(leaf, weights, biases)
            parts = torch.autograd.grad(made.square().sum(), (leaf, weights, biases))
            seen.add(b"".join(part.detach().numpy().tobytes() for part in (made, *parts)))
    finally:
        set_threads(0)
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("shape", "supported"),
    [
        ((9, 6, 1, 5, 5), True),
        ((9, 32, 3, 3, 3), False),
        ((9, 16, 6, 5, 5), False),
        ((6, 1, 5, 5), False),
    ],
)
def test_only_shared_weights_with_few_channels_are_supported(
    shape: tuple[int, ...], supported: bool
) -> None:
    assert supports_conv_pool_relu(torch.zeros(shape)) is supported
