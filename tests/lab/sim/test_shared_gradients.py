"""Gradients at shared weights equal a separate gradient for each user, for any threads."""

import numpy as np
import pytest
import torch
from torch import Tensor

from hushbit.kernels.threads import set_threads
from hushbit.lab.sim import training
from hushbit.lab.sim.layers import SharedConvolution, SharedDense
from hushbit.lab.sim.models import Model, build_model
from hushbit.lab.sim.optimizers import ConstantRate
from hushbit.lab.sim.partition import Federation
from hushbit.lab.sim.training import LocalSettings, _Job, batch_seeds, dropout_masks

CASES = [("cnn2", (1, 28, 28)), ("cnn2", (3, 16, 18)), ("cnn3", (3, 32, 32))]


def random_batch(
    model: Model, users: int, batch: int
) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, ...]]:
    source = torch.Generator().manual_seed(3)
    x = torch.rand(users, batch, *model.input_shape, generator=source) * 2 - 1
    y = torch.randint(0, model.classes, (users, batch), generator=source)
    present = torch.ones(users, batch)
    present[0, 1:] = 0
    present[1] = 0
    seeds = batch_seeds(1, 2, np.arange(users))
    masks = dropout_masks(seeds, 0, batch, model.dropout_shapes, model.dropout_rate)
    return x, y, present, tuple(torch.from_numpy(mask) for mask in masks)


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_equal_to_a_separate_gradient_for_each_user(
    monkeypatch: pytest.MonkeyPatch, name: str, shape: tuple[int, int, int]
) -> None:
    model = build_model(name, shape, 10)
    weights = torch.from_numpy(model.init(4))
    x, y, present, masks = random_batch(model, 5, 3)
    federation = Federation.of(np.zeros((1, *shape), np.uint8), np.zeros(1, int), [np.arange(1)])
    job = _Job(model, weights, federation, LocalSettings(ConstantRate(0.1)), 3, 0)
    assert training.supports_shared_gradients(model)
    fast, losses = job.gradients(weights, x, y, present, masks)
    monkeypatch.setattr(training, "supports_shared_gradients", lambda _: False)
    slow, wanted = job.gradients(weights, x, y, present, masks)
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-6 * float(slow.abs().max()))
    torch.testing.assert_close(losses, wanted)
    assert float(slow[2:].abs().max()) > 1e-3
    assert not fast[1].any()


@pytest.mark.parametrize(("inner", "outer", "kernel"), [(1, 6, 5), (3, 2, 1), (6, 4, 3)])
def test_a_convolution_and_its_gradients(inner: int, outer: int, kernel: int) -> None:
    source = torch.Generator().manual_seed(1)
    x = torch.randn(6, 9, 8, inner, generator=source).requires_grad_()
    weight = torch.randn(outer, inner, kernel, kernel, generator=source)
    bias = torch.randn(outer, generator=source)
    weights = weight.expand(3, *weight.shape).requires_grad_()
    biases = bias.expand(3, outer).requires_grad_()
    made = SharedConvolution.apply(x, weights, biases)
    grad_output = torch.randn(made.shape, generator=source) * (torch.rand(made.shape) < 0.5)
    computed = torch.autograd.grad(made, (x, weights, biases), grad_output)
    for user in range(3):
        own = slice(2 * user, 2 * user + 2)
        leaves = [t.detach().clone().requires_grad_() for t in (x[own], weight, bias)]
        separate = torch.nn.functional.conv2d(leaves[0].permute(0, 3, 1, 2), *leaves[1:])
        separate = separate.permute(0, 2, 3, 1)
        torch.testing.assert_close(made[own], separate, rtol=1e-4, atol=1e-5)
        wanted = torch.autograd.grad(separate, leaves, grad_output[own])
        for ours, theirs in zip(
            (computed[0][own], computed[1][user], computed[2][user]), wanted, strict=True
        ):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_dense_gradients_equal_finite_differences() -> None:
    source = torch.Generator().manual_seed(2)
    x = torch.randn(4, 3, generator=source, dtype=torch.float64).requires_grad_()
    weight = torch.randn(1, 5, 3, generator=source, dtype=torch.float64).requires_grad_()
    bias = torch.randn(1, 5, generator=source, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(SharedDense.apply, (x, weight, bias))


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_same_bits_for_any_number_of_threads(name: str, shape: tuple[int, int, int]) -> None:
    model = build_model(name, shape, 10)
    weights = torch.from_numpy(model.init(4))
    x, y, present, masks = random_batch(model, 16, 5)
    before, made = torch.get_num_threads(), set()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            set_threads(threads)
            gradient, losses = training.shared_gradients(model, weights, x, y, present, masks)
            made.add((gradient.numpy().tobytes(), losses.numpy().tobytes()))
    finally:
        torch.set_num_threads(before)
        set_threads(0)
    assert len(made) == 1


@pytest.mark.parametrize("name", ["linear", "mlp", "resnet18"])
def test_models_without_convolutions_or_with_batch_norm_are_not_supported(name: str) -> None:
    assert not training.supports_shared_gradients(build_model(name, (3, 32, 32), 10))


@pytest.mark.parametrize("name", ["linear", "cnn2", "cnn3"])
def test_logits_equal_those_of_the_model(name: str) -> None:
    model = build_model(name, (3, 32, 32), 10)
    weights = torch.from_numpy(model.init(2))
    x = random_batch(model, 2, 4)[0].flatten(0, 1)
    torch.testing.assert_close(training.shared_logits(model, weights, x), model.apply(weights, x))
