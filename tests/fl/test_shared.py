"""Gradients at shared weights: equal to a gradient for each user alone, for any threads."""

import numpy as np
import pytest
import torch
from torch import Tensor

from hushbit.fl import shared
from hushbit.fl.batches import dropout_masks, user_keys
from hushbit.fl.models import Model, build_model
from hushbit.fl.optimizers import ConstantRate
from hushbit.fl.partition import Federation
from hushbit.fl.per_user import SharedConvolution, SharedDense
from hushbit.fl.training import LocalSettings, _Job
from hushbit.kernels.threads import set_threads

CASES = [("cnn2", (1, 28, 28)), ("cnn2", (3, 16, 18)), ("cnn3", (3, 32, 32))]


def drawn(
    model: Model, users: int, batch: int
) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, ...]]:
    source = torch.Generator().manual_seed(3)
    x = torch.rand(users, batch, *model.input_shape, generator=source) * 2 - 1
    y = torch.randint(0, model.classes, (users, batch), generator=source)
    present = torch.ones(users, batch)
    present[0, 1:] = 0
    present[1] = 0
    keys = user_keys(1, 2, np.arange(users))
    masks = dropout_masks(keys, 0, batch, model.dropout_shapes, model.dropout_rate)
    return x, y, present, tuple(torch.from_numpy(mask) for mask in masks)


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_equal_to_a_gradient_for_each_user(
    monkeypatch: pytest.MonkeyPatch, name: str, shape: tuple[int, int, int]
) -> None:
    model = build_model(name, shape, 10)
    weights = torch.from_numpy(model.init(4))
    x, y, present, masks = drawn(model, 5, 3)
    nobody = Federation.of(np.zeros((1, *shape), np.uint8), np.zeros(1, int), [np.arange(1)])
    job = _Job(model, weights, nobody, LocalSettings(ConstantRate(0.1)), 3, 0)
    assert shared.fits(model)
    quick, losses = job.gradients(weights, x, y, present, masks)
    monkeypatch.setattr(shared, "fits", lambda _: False)
    slow, wanted = job.gradients(weights, x, y, present, masks)
    torch.testing.assert_close(quick, slow, rtol=1e-4, atol=1e-6 * float(slow.abs().max()))
    torch.testing.assert_close(losses, wanted)
    assert float(slow[2:].abs().max()) > 1e-3
    assert not quick[1].any()


@pytest.mark.parametrize(("inner", "outer", "kernel"), [(1, 6, 5), (3, 2, 1), (6, 4, 3)])
def test_a_convolution_and_its_slopes(inner: int, outer: int, kernel: int) -> None:
    source = torch.Generator().manual_seed(1)
    x = torch.randn(6, 9, 8, inner, generator=source).requires_grad_()
    weight = torch.randn(outer, inner, kernel, kernel, generator=source)
    bias = torch.randn(outer, generator=source)
    of_users = weight.expand(3, *weight.shape).requires_grad_()
    biases = bias.expand(3, outer).requires_grad_()
    made = SharedConvolution.apply(x, of_users, biases)
    back = torch.randn(made.shape, generator=source) * (torch.rand(made.shape) < 0.5)
    got = torch.autograd.grad(made, (x, of_users, biases), back)
    for user in range(3):
        own = slice(2 * user, 2 * user + 2)
        leaves = [t.detach().clone().requires_grad_() for t in (x[own], weight, bias)]
        alone = torch.nn.functional.conv2d(leaves[0].permute(0, 3, 1, 2), *leaves[1:])
        alone = alone.permute(0, 2, 3, 1)
        torch.testing.assert_close(made[own], alone, rtol=1e-4, atol=1e-5)
        wanted = torch.autograd.grad(alone, leaves, back[own])
        for mine, theirs in zip((got[0][own], got[1][user], got[2][user]), wanted, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_slopes_are_those_of_small_changes() -> None:
    source = torch.Generator().manual_seed(2)
    x = torch.randn(4, 3, generator=source, dtype=torch.float64).requires_grad_()
    weight = torch.randn(1, 5, 3, generator=source, dtype=torch.float64).requires_grad_()
    bias = torch.randn(1, 5, generator=source, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(SharedDense.apply, (x, weight, bias))


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_same_bits_for_any_number_of_threads(name: str, shape: tuple[int, int, int]) -> None:
    model = build_model(name, shape, 10)
    weights = torch.from_numpy(model.init(4))
    x, y, present, masks = drawn(model, 16, 5)
    before, made = torch.get_num_threads(), set()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            set_threads(threads)
            gradient, losses = shared.shared_gradients(model, weights, x, y, present, masks)
            made.add((gradient.numpy().tobytes(), losses.numpy().tobytes()))
    finally:
        torch.set_num_threads(before)
        set_threads(0)
    assert len(made) == 1


@pytest.mark.parametrize("name", ["linear", "mlp", "resnet18"])
def test_models_that_mix_samples_or_do_not_convolve_go_the_plain_way(name: str) -> None:
    assert not shared.fits(build_model(name, (3, 32, 32), 10))


@pytest.mark.parametrize("name", ["linear", "cnn2", "cnn3"])
def test_logits_are_those_of_the_model(name: str) -> None:
    model = build_model(name, (3, 32, 32), 10)
    weights = torch.from_numpy(model.init(2))
    x = drawn(model, 2, 4)[0].flatten(0, 1)
    torch.testing.assert_close(shared.logits_of(model, weights, x), model.apply(weights, x))
