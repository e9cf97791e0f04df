"""Local optimizers for many users at once, and the learning-rate schedules."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hushbit.checks import choice, positive, real, whole
from hushbit.errors import InvalidInput

LocalState = dict[str, Tensor]
ADAM_EPSILON = 1e-8


class Rate(Protocol):
    """A learning rate per local step, counted over all rounds from 0."""

    def at(self, step: int) -> float:
        """Return the rate of one step."""


@dataclass(frozen=True)
class ConstantRate:
    """The same rate in every step."""

    rate: float

    def __post_init__(self) -> None:
        positive("rate", self.rate)

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

    def __post_init__(self) -> None:
        positive("scale", self.scale)
        positive("offset", self.offset)

    def at(self, step: int) -> float:
        """Return the rate of one step."""
        return self.scale / (step + self.offset)


def theorem_rate(steps: int, convexity: float, smoothness: float) -> DecayingRate:
    """Return Theorem 2's eta_t = tau / (rho_c (t + phi)), phi = tau max(1, 4 rho_s / rho_c).

    >>> theorem_rate(steps=2, convexity=1.0, smoothness=3.0)
    DecayingRate(scale=2.0, offset=24.0)
    """
    steps = whole("steps", steps, 1)
    convexity, smoothness = positive("convexity", convexity), positive("smoothness", smoothness)
    return DecayingRate(steps / convexity, steps * max(1.0, 4.0 * smoothness / convexity))


@dataclass(frozen=True)
class Optimizer:
    """How a user follows its gradient: "sgd" with heavy-ball momentum, or "adam".

    `keep_state` lets momentum (or Adam's moments) live on into the user's next round.
    """

    kind: str = "sgd"
    momentum: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    keep_state: bool = False

    def __post_init__(self) -> None:
        choice("optimizer", self.kind, ("sgd", "adam"))
        if len(self.betas) != 2:
            raise InvalidInput(f"betas are {self.betas!r}; give two numbers")
        for name, value in (("momentum", self.momentum), *(("beta", b) for b in self.betas)):
            if not 0.0 <= real(name, value) < 1.0:
                raise InvalidInput(f"{name} is {value}; give a number from 0 to below 1")
        if self.kind == "adam" and self.momentum:
            raise InvalidInput("momentum fits sgd only; adam has betas")
        if not isinstance(self.keep_state, bool):
            raise InvalidInput(f"keep_state is {self.keep_state!r}; give True or False")

    def widths(self, dim: int) -> dict[str, int]:
        """Return the state arrays that one user needs, name to length."""
        if self.kind == "adam":
            return {"first": dim, "second": dim, "count": 1}
        return {"velocity": dim} if self.momentum else {}

    def fresh(self, users: int, dim: int) -> LocalState:
        """Return the state of users that have not trained yet: zeros."""
        return {name: torch.zeros(users, width) for name, width in self.widths(dim).items()}

    def advance(self, weights: Tensor, gradient: Tensor, state: LocalState, rate: float) -> Tensor:
        """Return weights (users, dim) one step on; state is updated, the gradient used up.

        sgd: v <- momentum v + g, w <- w - rate v; adam: with bias-corrected moments. All users
        may start from the same weights (dim,).
        """
        if self.kind == "adam":
            return self._adam(weights, gradient, state, rate)
        direction = gradient
        if self.momentum:
            direction = state["velocity"].mul_(self.momentum).add_(gradient)
        return torch.add(weights, direction, alpha=-rate, out=gradient)

    def _adam(self, weights: Tensor, gradient: Tensor, state: LocalState, rate: float) -> Tensor:
        first_beta, second_beta = self.betas
        count = state["count"].add_(1.0)
        first = state["first"].mul_(first_beta).add_(gradient, alpha=1.0 - first_beta)
        second = state["second"].mul_(second_beta)
        second.addcmul_(gradient, gradient, value=1.0 - second_beta)
        steps = count.double()
        first_scale = (rate / (1.0 - first_beta**steps)).float()
        second_scale = (1.0 / (1.0 - second_beta**steps)).float()
        return weights - first * first_scale / ((second * second_scale).sqrt_() + ADAM_EPSILON)
