"""Gradients of many users at weights that all of them share, as in the first step of a round.

Images go forwards and slopes backwards as one large batch; only the gradients of weights are
formed user by user. Equal to a gradient for each user alone, up to rounding, and several times
faster for convolutions: no patches are written out, and the slopes that pooling and ReLU leave
at zero (seven of eight) are skipped.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from hushbit.fl.models import Model


def fits(model: Model) -> bool:
    """Whether the model convolves, and treats every sample on its own."""
    return model.name in ("cnn2", "cnn3")


def logits_of(model: Model, weights: Tensor, x: Tensor) -> Tensor:
    """Logits of images without dropout, the quick way where it fits."""
    if not fits(model):
        return model.apply(weights, x)
    alone = {name: tensor[None] for name, tensor in model.tensors(weights).items()}
    return model.forward(alone, x, (), None)


def shared_gradients(
    model: Model, weights: Tensor, x: Tensor, y: Tensor, present: Tensor,
    masks: tuple[Tensor, ...],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients (users, dim) of each user's mean loss, and the losses.

    x holds images (users, batch, ...), y and present (users, batch), masks (users, batch, ...).
    """
    users = len(x)
    own = {
        name: tensor.expand(users, *tensor.shape).requires_grad_()
        for name, tensor in model.tensors(weights).items()
    }
    flat_masks = tuple(mask.flatten(0, 1) for mask in masks)
    logits = model.forward(own, x.flatten(0, 1), flat_masks, None)
    losses = F.cross_entropy(logits, y.flatten(), reduction="none").reshape(y.shape)
    means = (losses * present).sum(dim=1) / present.sum(dim=1).clamp(min=1.0)
    slopes = torch.autograd.grad(means.sum(), list(own.values()))
    return torch.cat([slope.flatten(1) for slope in slopes], dim=1), means.detach()
