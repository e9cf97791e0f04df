"""Pooling of 2 x 2 windows gives the library's values and gradients, ties included."""

import pytest
import torch

from hushbit.fl.layers import max_pool, pool_pairs


@pytest.mark.parametrize("shape", [(7, 24, 24, 6), (3, 5, 9, 2), (2, 2, 3, 1)])
@pytest.mark.parametrize("coarse", [False, True])
def test_same_values_and_gradients_as_the_library(shape: tuple[int, ...], coarse: bool) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    x = (x.round() if coarse else x).requires_grad_()
    slopes = torch.randn(max_pool(x, 2, 2).shape, generator=torch.Generator().manual_seed(2))
    ours, theirs = pool_pairs(x), max_pool(x, 2, 2)
    assert torch.equal(ours, theirs)
    (mine,) = torch.autograd.grad(ours, x, slopes)
    (wanted,) = torch.autograd.grad(theirs, x, slopes)
    assert torch.equal(mine, wanted)


def test_images_that_are_not_contiguous() -> None:
    x = torch.randn(3, 6, 8, 8).permute(0, 2, 3, 1)
    with torch.inference_mode():
        assert torch.equal(pool_pairs(x), max_pool(x, 2, 2))
