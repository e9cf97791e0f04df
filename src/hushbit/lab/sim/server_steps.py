"""Server steps: pure functions from an estimated mean update and a state to the next of both.

State is a dict of arrays, so that a checkpoint (npz) resumes to the same bits. Sums run in
float64; the model itself stays float32.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import check_choice, check_float
from hushbit.errors import InvalidInput, NotFinite

Params = NDArray[np.float32]
State = dict[str, NDArray[np.float64]]

SERVER_STEPS = ("plain", "filter", "momentum", "adam", "yogi")
MOMENTUM = 0.9  # of "filter", and of "momentum" by default
BETAS = (0.9, 0.99)
ADAPTIVITY = 1e-3


class ServerStep(Protocol):
    """How an estimate moves the model."""

    @property
    def rate(self) -> float:
        """The learning rate of the server."""

    def start(self, dim: int) -> State:
        """Return the state before the first round."""

    def step(self, params: Params, estimate: NDArray[Any], state: State) -> tuple[Params, State]:
        """Return the next params and state; the arguments are not changed."""


@dataclass(frozen=True)
class PlainStep:
    """w <- w + rate * estimate; rate 1 is federated averaging."""

    rate: float = 1.0

    def start(self, dim: int) -> State:
        """Return the empty state."""
        return {}

    def step(self, params: Params, estimate: NDArray[Any], state: State) -> tuple[Params, State]:
        """Add the scaled estimate."""
        return _moved(params, self.rate * _finite(estimate)), {}


@dataclass(frozen=True)
class MomentumStep:
    """v <- momentum v + gain * estimate, w <- w + rate v; FedAvgM has gain 1.

    Gain 1 - momentum makes a low-pass filter. Noise that is independent between rounds keeps
    (1 - momentum) / (1 + momentum) of its power, and a signal that is constant over rounds stays:
    12.8 dB more signal to noise for momentum 0.9.
    """

    rate: float = 1.0
    momentum: float = MOMENTUM
    gain: float = 1.0

    def start(self, dim: int) -> State:
        """Return zero velocity."""
        return {"velocity": np.zeros(dim)}

    def step(self, params: Params, estimate: NDArray[Any], state: State) -> tuple[Params, State]:
        """Add the scaled velocity."""
        velocity = self.momentum * state["velocity"] + self.gain * _finite(estimate)
        return _moved(params, self.rate * velocity), {"velocity": velocity}


@dataclass(frozen=True)
class AdaptiveStep:
    """FedAdam and FedYogi (Reddi et al. 2021): w <- w + rate m / (sqrt(v) + adaptivity).

    m <- b1 m + (1 - b1) d; Adam: v <- b2 v + (1 - b2) d^2;
    Yogi: v <- v - (1 - b2) d^2 sign(v - d^2); v starts at adaptivity^2.
    """

    kind: str
    rate: float

    def start(self, dim: int) -> State:
        """Return zero first and adaptivity^2 second moments."""
        return {"first": np.zeros(dim), "second": np.full(dim, ADAPTIVITY**2)}

    def step(self, params: Params, estimate: NDArray[Any], state: State) -> tuple[Params, State]:
        """Add the estimate's running mean, scaled entry by entry."""
        change = _finite(estimate)
        square = change * change
        first_beta, second_beta = BETAS
        first = first_beta * state["first"] + (1.0 - first_beta) * change
        second = state["second"]
        if self.kind == "adam":
            second = second_beta * second + (1.0 - second_beta) * square
        else:
            second = second - (1.0 - second_beta) * square * np.sign(second - square)
        move = self.rate * first / (np.sqrt(second) + ADAPTIVITY)
        return _moved(params, move), {"first": first, "second": second}


def server_step(name: str, rate: float = 1.0, momentum: float | None = None) -> ServerStep:
    """Return the server step of that name; only "momentum" takes a momentum."""
    check_choice("server", name, SERVER_STEPS)
    if momentum is None:
        momentum = MOMENTUM
    elif name != "momentum":
        raise InvalidInput("--server-momentum applies to --server momentum only; leave it out")
    elif not 0.0 <= check_float("server momentum", momentum) < 1.0:
        raise InvalidInput(f"server momentum must lie in [0, 1); got {momentum}")
    if name == "plain":
        return PlainStep(rate)
    if name in ("adam", "yogi"):
        return AdaptiveStep(name, rate)
    return MomentumStep(rate, momentum, 1.0 - momentum if name == "filter" else 1.0)


def start_average(dim: int) -> State:
    """Return the state of the average of all rounds' models before the first one."""
    return {"average": np.zeros(dim), "count": np.zeros(1)}


def include_model(params: Params, state: State) -> State:
    """Return the state with one more model in the average (Polyak's): a <- a + (w - a) / n."""
    count, average = state["count"] + 1.0, state["average"]
    change = _finite(params) - average
    return {"average": average + (1.0 / count[0]) * change, "count": count}


def _finite(estimate: NDArray[Any]) -> NDArray[np.float64]:
    if not np.isfinite(estimate).all():
        raise NotFinite("the estimate holds NaN or infinite values; the model was not moved")
    return estimate.astype(np.float64)


def _moved(params: Params, move: NDArray[np.float64]) -> Params:
    with np.errstate(over="ignore"):  # the evaluation of the round refuses infinite weights
        return (params.astype(np.float64) + move).astype(np.float32)
