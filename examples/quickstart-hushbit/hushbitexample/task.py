"""Model, data and local training in plain PyTorch, without hushbit."""

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

TEST_SAMPLES = 360


class Net(nn.Module):
    """A linear classifier for 8x8 digits."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x)


def _digits() -> tuple[torch.Tensor, torch.Tensor]:
    """All digits in one fixed random order; they are part of scikit-learn."""
    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    images = torch.tensor(bunch.data[order] / 8.0 - 1.0, dtype=torch.float32)
    return images, torch.tensor(bunch.target[order])


def load_part(partition: int, partitions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The training samples of one user."""
    images, labels = _digits()
    mine = slice(TEST_SAMPLES + partition, None, partitions)
    return images[mine], labels[mine]


def random_part() -> tuple[torch.Tensor, torch.Tensor]:
    """Random images and labels in place of the samples of a user."""
    return torch.rand(10, 64) * 2 - 1, torch.arange(10)


def load_test() -> tuple[torch.Tensor, torch.Tensor]:
    """The server's test samples."""
    images, labels = _digits()
    return images[:TEST_SAMPLES], labels[:TEST_SAMPLES]


def train(net: nn.Module, images: torch.Tensor, labels: torch.Tensor, rate: float) -> float:
    """One step of gradient descent; returns the mean loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    loss = F.cross_entropy(net(images), labels)
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def test(net: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    """Accuracy and mean loss."""
    with torch.inference_mode():
        logits = net(images)
    loss = F.cross_entropy(logits, labels)
    return float((logits.argmax(1) == labels).float().mean()), float(loss)
