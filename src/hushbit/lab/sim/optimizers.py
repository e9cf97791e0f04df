"""Local optimizers for many users at once, and learning-rate schedules."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hushbit.checks import check_choice, check_float
from hushbit.errors import InvalidInput

LocalState = dict[str, Tensor]
ADAM_BETAS = (0.9, 0.999)
ADAM_EPSILON = 1e-8


class Rate(Protocol):
    """A learning rate for each local step, counted from 0 over all rounds."""

    def at(self, step: int) -> float:
        """Return the rate of one step."""


@dataclass(frozen=True)
class ConstantRate:
    """The same rate in every step."""

    rate: float

    def at(self, step: int) -> float:
        """Return the rate of one step.

        >>> ConstantRate(0.1).at(7)
        0.1
        """
        return self.rate


@dataclass(frozen=True)
class DecayingRate:
    """The rate eta_t = scale / (t + offset) of Theorem 2."""

    scale: float
    offset: float

    def at(self, step: int) -> float:
        """Return the rate of one step."""
        return self.scale / (step + self.offset)


@dataclass(frozen=True)
class Optimizer:
    """The local optimizer: "sgd" with heavy-ball momentum, or "adam".

    With `keep_state`, momentum (or Adam's moments) are kept until the user's next round.
    """

    kind: str = "sgd"
    momentum: float = 0.0
    keep_state: bool = False

    def __post_init__(self) -> None:
        check_choice("optimizer", self.kind, ("sgd", "adam"))
        if not 0.0 <= check_float("momentum", self.momentum) < 1.0:
            raise InvalidInput(f"momentum must lie in [0, 1); got {self.momentum}")
        if self.kind == "adam" and self.momentum:
            raise InvalidInput("momentum applies to sgd only; leave it out for adam")

    def widths(self, dim: int) -> dict[str, int]:
        """Return the state arrays that one user needs, name to length."""
        if self.kind == "adam":
            return {"first": dim, "second": dim, "count": 1}
        return {"velocity": dim} if self.momentum else {}

    def fresh(self, users: int, dim: int) -> LocalState:
        """Return the state of users that have not trained yet: all zeros."""
        return {name: torch.zeros(users, width) for name, width in self.widths(dim).items()}

    def advance(self, weights: Tensor, gradient: Tensor, state: LocalState, rate: float) -> Tensor:
        """Return weights (users, dim) after one step; overwrites state and gradient.

        sgd: v <- momentum v + g, w <- w - rate v; adam: with bias-corrected moments. Weights
        that all users share may have shape (dim,).
        """
        if self.kind == "adam":
            return self._adam(weights, gradient, state, rate)
        direction = gradient
        if self.momentum:
            direction = state["velocity"].mul_(self.momentum).add_(gradient)
        return torch.add(weights, direction, alpha=-rate, out=gradient)

    def _adam(self, weights: Tensor, gradient: Tensor, state: LocalState, rate: float) -> Tensor:
        first_beta, second_beta = ADAM_BETAS
        count = state["count"].add_(1.0)
        first = state["first"].mul_(first_beta).add_(gradient, alpha=1.0 - first_beta)
        second = state["second"].mul_(second_beta)
        second.addcmul_(gradient, gradient, value=1.0 - second_beta)
        steps = count.double()
        first_scale = (rate / (1.0 - first_beta**steps)).float()
        second_scale = (1.0 / (1.0 - second_beta**steps)).float()
        return weights - first * first_scale / ((second * second_scale).sqrt_() + ADAM_EPSILON)
