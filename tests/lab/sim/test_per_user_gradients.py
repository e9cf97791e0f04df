"""Layers for shared weights equal torch's, and unknown uses of weights are detected."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hushbit.lab.sim.per_user_gradients import (
    FastLayers,
    PerUserGradientMode,
    UserGradients,
    used_elsewhere,
)

USERS = 3


def by_user(
    module: nn.Module, x: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Gradients of the sum of squares by user: in one pass, by a loop; and the parameters."""
    parameters = {n: p.detach().clone().requires_grad_() for n, p in module.named_parameters()}
    columns, begin = {}, 0
    for tensor in parameters.values():
        columns[id(tensor)] = slice(begin, begin + tensor.numel())
        begin += tensor.numel()
    made = UserGradients(torch.full((USERS, begin), torch.nan), columns)
    with PerUserGradientMode(made):
        out = torch.func.functional_call(module, parameters, (x.flatten(0, 1),))
    (out**2).sum().backward()
    rows = []
    for one in x:
        module.zero_grad()
        (module(one) ** 2).sum().backward()
        rows.append(torch.cat([p.grad.flatten() for p in module.parameters()]))
    return made.finish(), torch.stack(rows), parameters


MODULES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "dense": (lambda: nn.Linear(6, 4), (5, 6)),
    "dense, one sample": (lambda: nn.Linear(6, 4), (1, 6)),
    "dense, many samples": (lambda: nn.Linear(6, 4, bias=False), (40, 6)),
    "dense on sequences": (lambda: nn.Sequential(nn.Linear(6, 4), nn.Tanh()), (2, 7, 6)),
    "convolution": (lambda: nn.Conv2d(2, 3, 3), (2, 2, 7, 6)),
    "padded convolutions": (
        lambda: nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 2, 5)),
        (2, 1, 8, 8),
    ),
    "pooling with an odd side": (
        lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 2)),
        (2, 1, 7, 9),
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_gradients_equal_those_of_each_user(name: str) -> None:
    make, shape = MODULES[name]
    torch.manual_seed(0)
    found, expected, parameters = by_user(make(), torch.randn(USERS, *shape))
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert used_elsewhere(parameters) == []


def test_a_layer_used_twice_adds_its_gradients() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(5, 5)
    twice = nn.Sequential(layer, nn.Tanh(), layer)
    found, expected, _ = by_user(twice, torch.randn(USERS, 4, 5))
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "module", [nn.LayerNorm(6), nn.Conv2d(1, 2, 3, stride=2), nn.Conv2d(2, 2, 3, groups=2)]
)
def test_other_uses_of_weights_are_detected(module: nn.Module) -> None:
    shape = (2, 6) if isinstance(module, nn.LayerNorm) else (2, module.in_channels, 7, 7)
    _, _, parameters = by_user(module, torch.randn(USERS, *shape))
    assert used_elsewhere(parameters)


@pytest.mark.parametrize("options", [(2,), (2, 2), (3,), (2, 1), (2, 2, 1), (2, 2, 0, 1, True)])
def test_pooling_equals_torch(options: tuple[Any, ...]) -> None:
    torch.manual_seed(0)
    # Rounded values have ties: torch follows the first of equal pixels.
    x = (2 * torch.randn(2, 3, 7, 9)).round().requires_grad_()
    with FastLayers():
        found = F.max_pool2d(x, *options)
        with torch.no_grad():
            without = F.max_pool2d(x, *options)
    expected = F.max_pool2d(x, *options)
    assert torch.equal(found, expected)
    assert torch.equal(without, expected)
    weights = torch.randn_like(expected)
    (grad,) = torch.autograd.grad((found * weights).sum(), x)
    (wanted,) = torch.autograd.grad((expected * weights).sum(), x)
    assert np.allclose(grad, wanted)


def test_convolutions_without_gradients_equal_torch() -> None:
    torch.manual_seed(0)
    module, x = nn.Conv2d(2, 3, 3, stride=2, padding=1), torch.randn(4, 2, 9, 9)
    with torch.no_grad():
        with FastLayers():
            found = module(x)
        assert torch.allclose(found, module(x), atol=1e-6)
