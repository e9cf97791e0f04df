"""One federated round as in the published code, in plain torch.

Every user has a model object, an optimizer and a data loader. For each user and layer, the words of
all entries come from an argsort of uniform numbers, and the votes of all users are one dense tensor
of shape (entries, points, users). Points, rounding and privacy are those of the compared round.
"""

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class User:
    """A user who keeps model, optimizer and data between rounds, as in the published code."""

    def __init__(self, images: Tensor, labels: Tensor, rate: float, batch: int) -> None:
        self.model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate)
        self.loader = DataLoader(TensorDataset(images, labels), batch_size=batch, shuffle=True)

    def train(self, start: dict[str, Tensor]) -> dict[str, Tensor]:
        """Make one local step from the global weights; return the update of each layer."""
        self.model.load_state_dict(start)
        self.model.train()
        for images, labels in self.loader:
            self.optimizer.zero_grad()
            F.cross_entropy(self.model(images), labels).backward()
            self.optimizer.step()
            break
        return {name: after - start[name] for name, after in self.model.state_dict().items()}


def users_of(federation: Any, rate: float, batch: int) -> list[User]:
    """The users of a simulated federation."""
    made = []
    for user in range(federation.users):
        rows = federation.samples_of(user)
        images = torch.from_numpy(federation.images[rows].astype(np.float32) / 127.5 - 1)
        made.append(User(images, torch.from_numpy(federation.labels[rows]), rate, batch))
    return made


def aggregate(updates: list[dict[str, Tensor]], codebook: Tensor, epsilon: float) -> dict[str, Any]:
    """Encode the layers of every user, collect the dense votes, decode the mean of each layer."""
    keep = 1 / (1 + math.exp(-epsilon))
    means = {}
    for name, like in updates[0].items():
        votes = torch.zeros(like.numel(), len(codebook), len(updates))
        for user, update in enumerate(updates):
            votes[:, :, user] = encode(update[name].flatten(), codebook, keep)
        shares = 1 / len(codebook) + votes.mean(dim=2) / 2 / (2 * keep - 1)
        means[name] = (shares @ codebook).reshape(like.shape)
    return means


def decode(bits: dict[str, Tensor], codebook: Tensor, epsilon: float) -> dict[str, Tensor]:
    """The work of the server: from bits (entries, users) of each layer to its mean."""
    keep = 1 / (1 + math.exp(-epsilon))
    means = {}
    for name, sent in bits.items():
        votes = torch.zeros(sent.shape[0], len(codebook), sent.shape[1])
        for user in range(sent.shape[1]):
            words = draw_words(sent.shape[0], len(codebook))
            votes[:, :, user] = sent[:, user, None] * words
        shares = 1 / len(codebook) + votes.mean(dim=2) / 2 / (2 * keep - 1)
        means[name] = shares @ codebook
    return means


def draw_words(entries: int, points: int) -> Tensor:
    """A balanced word for every entry."""
    signs = torch.cat([torch.ones(points // 2), -torch.ones(points - points // 2)])
    return signs[torch.argsort(torch.rand(entries, points), dim=1)]


def encode(values: Tensor, codebook: Tensor, keep: float) -> Tensor:
    """The sent bit times the word of every entry, shape (entries, points)."""
    points = len(codebook)
    step = codebook[1] - codebook[0]
    place = (values.clamp(codebook[0], codebook[-1]) - codebook[0]) / step
    quantized = codebook[torch.floor(place + torch.rand_like(place)).clamp(0, points - 1).long()]
    chosen = quantized[:, None] == codebook[None, :]
    words = draw_words(len(values), points)
    bits = words[chosen]
    kept = torch.from_numpy(np.random.default_rng().binomial(1, keep, len(values)))
    bits = torch.where(kept == 1, bits, -bits)
    return bits[:, None] * words
