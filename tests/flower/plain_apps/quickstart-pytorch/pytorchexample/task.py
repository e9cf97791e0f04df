"""Model, data and training of the app."""

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

TEST_SAMPLES = 360


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(64, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(torch.relu(self.fc1(x)))


def load_digits_in_order() -> tuple[torch.Tensor, torch.Tensor]:
    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    images = torch.tensor(bunch.data[order] / 16, dtype=torch.float32)
    return images, torch.tensor(bunch.target[order])


def load_data(partition: int, partitions: int) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = load_digits_in_order()
    mine = slice(TEST_SAMPLES + partition, None, partitions)
    return images[mine], labels[mine]


def train(net: nn.Module, images: torch.Tensor, labels: torch.Tensor, lr: float) -> float:
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    for _ in range(5):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def test(net: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    with torch.inference_mode():
        logits = net(images)
    accuracy = (logits.argmax(1) == labels).float().mean()
    return float(F.cross_entropy(logits, labels)), float(accuracy)
