"""FedAvg as a plain PyTorch loop, and small modules and data to compare it with."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Pair = tuple[Tensor, Tensor]
TOKENS, CLASSES = 20, 3


class TextLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 8)
        self.lstm = nn.LSTM(8, 16, batch_first=True)
        self.out = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(self.embedding(x))[0][:, -1])


class TextTransformer(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.out = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.encoder(self.embedding(x)).mean(dim=1))


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class BatchNormCNN(nn.Module):
    def __init__(self, momentum: float | None = 0.1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4, momentum=momentum)
        self.out = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.max_pool2d(F.relu(self.norm(self.conv(x))), 2).flatten(1))


class CNN(nn.Module):
    def __init__(self, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1, stride=stride)
        self.out = nn.Linear(64 // stride**2, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.max_pool2d(F.relu(self.conv(x)), 2).flatten(1))


def text(count: int) -> Pair:
    return torch.randint(0, TOKENS, (count, 7)), torch.randint(0, CLASSES, (count,))


def images(count: int) -> Pair:
    return torch.randn(count, 1, 8, 8), torch.randint(0, CLASSES, (count,))


def table(count: int) -> Pair:
    x = torch.randn(count, 5)
    return x, x.sum(dim=1, keepdim=True) + 0.1 * torch.randn(count, 1)


def fedavg(
    model: nn.Module,
    loss: Callable[[Any, Tensor], Tensor],
    clients: Sequence[Pair],
    *,
    rounds: int,
    steps: int,
    rate: float,
    momentum: float = 0.0,
) -> dict[str, Tensor]:
    """The state of the model after some rounds; floating-point entries are averaged."""
    model = copy.deepcopy(model)
    for _ in range(rounds):
        start = {name: value.clone() for name, value in model.state_dict().items()}
        sums = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in start.items()}
        for x, y in clients:
            model.load_state_dict(start)
            model.train()
            trained = [one for one in model.parameters() if one.requires_grad]
            optimizer = torch.optim.SGD(trained, rate, momentum=momentum)
            for _ in range(steps):
                optimizer.zero_grad()
                loss(model(x), y).backward()
                optimizer.step()
            for name, value in model.state_dict().items():
                sums[name] += value
        for name, value in start.items():
            if value.is_floating_point():
                start[name] = (sums[name] / len(clients)).to(value.dtype)
        model.load_state_dict(start)
    return model.state_dict()
