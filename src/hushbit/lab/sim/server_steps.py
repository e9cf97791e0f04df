"""Server steps: pure functions from an estimated mean update and a state to the next of both.

State is a dict of arrays, so that a checkpoint (npz) resumes to the same bits. Sums run in
float64; the model itself stays float32.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import check_float, check_positive
from hushbit.errors import InvalidInput, NotFinite

Params = NDArray[np.float32]
State = dict[str, NDArray[np.float64]]


class ServerStep(Protocol):
    """How an estimate moves the model."""

    def start(self, dim: int) -> State:
        """Return the state before the first round."""

    def step(self, params: Params, estimate: NDArray[Any], state: State) -> tuple[Params, State]:
        """Return the next params and state; the arguments are not changed."""


@dataclass(frozen=True)
class PlainStep:
    """w <- w + rate * estimate; rate 1 is federated averaging."""

    rate: float = 1.0

    def __post_init__(self) -> None:
        check_positive("server rate", self.rate)

    def start(self, dim: int) -> State:
        """Return the empty state."""
        return {}

    def step(self, params: Params, estimate: NDArray[Any], state: State) -> tuple[Params, State]:
        """Add the scaled estimate."""
        return _moved(params, self.rate * _estimate(params, estimate)), {}


@dataclass(frozen=True)
class MomentumStep:
    """FedAvgM: v <- momentum v + estimate, w <- w + rate v."""

    rate: float = 1.0
    momentum: float = 0.9

    def __post_init__(self) -> None:
        check_positive("server rate", self.rate)
        _fraction("server momentum", self.momentum)

    def start(self, dim: int) -> State:
        """Return zero velocity."""
        return {"velocity": np.zeros(dim)}

    def step(self, params: Params, estimate: NDArray[Any], state: State) -> tuple[Params, State]:
        """Add the scaled velocity."""
        velocity = self.momentum * _array(state, "velocity", params) + _estimate(params, estimate)
        return _moved(params, self.rate * velocity), {"velocity": velocity}


@dataclass(frozen=True)
class FilterStep:
    """Low-pass filter: v <- memory v + (1 - memory) estimate, w <- w + rate v.

    Noise that is independent between rounds keeps (1 - memory) / (1 + memory) of its power, and a
    signal that is constant over rounds stays: 12.8 dB more signal to noise for memory 0.9.
    """

    rate: float = 1.0
    memory: float = 0.9

    def __post_init__(self) -> None:
        check_positive("server rate", self.rate)
        _fraction("server memory", self.memory)

    def start(self, dim: int) -> State:
        """Return a filter at rest."""
        return {"filtered": np.zeros(dim)}

    def step(self, params: Params, estimate: NDArray[Any], state: State) -> tuple[Params, State]:
        """Add the filtered estimate."""
        fresh = (1.0 - self.memory) * _estimate(params, estimate)
        filtered = self.memory * _array(state, "filtered", params) + fresh
        return _moved(params, self.rate * filtered), {"filtered": filtered}


@dataclass(frozen=True)
class AdaptiveStep:
    """FedAdam and FedYogi (Reddi et al. 2021): w <- w + rate m / (sqrt(v) + adaptivity).

    m <- b1 m + (1 - b1) d; Adam: v <- b2 v + (1 - b2) d^2;
    Yogi: v <- v - (1 - b2) d^2 sign(v - d^2); v starts at adaptivity^2.
    """

    kind: str
    rate: float
    betas: tuple[float, float] = (0.9, 0.99)
    adaptivity: float = 1e-3

    def __post_init__(self) -> None:
        if self.kind not in ("adam", "yogi"):
            raise InvalidInput(f"adaptive server step {self.kind!r}; choose adam or yogi")
        check_positive("server rate", self.rate)
        check_positive("adaptivity", self.adaptivity)
        if len(self.betas) != 2:
            raise InvalidInput(f"betas are {self.betas!r}; give two numbers")
        for beta in self.betas:
            _fraction("beta", beta)

    def start(self, dim: int) -> State:
        """Return zero first and adaptivity^2 second moments."""
        return {"first": np.zeros(dim), "second": np.full(dim, self.adaptivity**2)}

    def step(self, params: Params, estimate: NDArray[Any], state: State) -> tuple[Params, State]:
        """Add the estimate's running mean, scaled entry by entry."""
        change = _estimate(params, estimate)
        square = change * change
        first_beta, second_beta = self.betas
        first = first_beta * _array(state, "first", params) + (1.0 - first_beta) * change
        second = _array(state, "second", params)
        if self.kind == "adam":
            second = second_beta * second + (1.0 - second_beta) * square
        else:
            second = second - (1.0 - second_beta) * square * np.sign(second - square)
        move = self.rate * first / (np.sqrt(second) + self.adaptivity)
        return _moved(params, move), {"first": first, "second": second}


def server_step(name: str, rate: float = 1.0, **options: Any) -> ServerStep:
    """Return the server step of that name: plain, filter, momentum, adam or yogi."""
    known = {"plain": PlainStep, "filter": FilterStep, "momentum": MomentumStep}
    if name not in (*known, "adam", "yogi"):
        raise InvalidInput(
            f"unknown server step {name!r}; choose plain, filter, momentum, adam or yogi"
        )
    try:
        if name in ("adam", "yogi"):
            return AdaptiveStep(name, rate, **options)
        step: ServerStep = known[name](rate=rate, **options)
        return step
    except TypeError as error:
        raise InvalidInput(f"server step {name} does not take {sorted(options)}: {error}") from None


@dataclass(frozen=True)
class WeightAverage:
    """Average of the models of all rounds: Polyak's equal weights, or a moving average by `decay`.

    a <- a + (w - a) / n for equal weights; otherwise a <- decay a + (1 - decay) w, starting at the
    first w.
    """

    decay: float | None = None

    def __post_init__(self) -> None:
        if self.decay is not None:
            _fraction("decay", self.decay)

    def start(self, dim: int) -> State:
        """Return the state before the first model."""
        return {"average": np.zeros(dim), "count": np.zeros(1)}

    def include(self, params: Params, state: State) -> State:
        """Return the state with one more model in the average."""
        count = state["count"] + 1.0
        weight = 1.0 / count[0]
        if self.decay is not None and count[0] > 1.0:
            weight = 1.0 - self.decay
        average = _array(state, "average", params)
        change = _estimate(params, params) - average
        return {"average": average + weight * change, "count": count}

    def params(self, state: State) -> Params:
        """Return the averaged model."""
        if state["count"][0] == 0.0:
            raise InvalidInput("no model was averaged yet; call include first")
        return state["average"].astype(np.float32)


def _estimate(params: Params, estimate: NDArray[Any]) -> NDArray[np.float64]:
    array = np.asarray(estimate)
    if array.shape != params.shape or array.dtype.kind != "f":
        raise InvalidInput(
            f"estimate is {array.shape} of {array.dtype}; the model takes {params.shape} floats"
        )
    if not np.isfinite(array).all():
        raise NotFinite("the estimate holds NaN or infinite values; the model was not moved")
    return array.astype(np.float64)


def _moved(params: Params, move: NDArray[np.float64]) -> Params:
    with np.errstate(over="ignore"):  # the evaluation of the round refuses infinite weights
        return (params.astype(np.float64) + move).astype(np.float32)


def _array(state: State, name: str, params: Params) -> NDArray[np.float64]:
    if name not in state or state[name].shape != params.shape:
        raise InvalidInput(f"server state lacks {name!r} of shape {params.shape}; use start(dim)")
    return state[name]


def _fraction(name: str, value: float) -> None:
    if not 0.0 <= check_float(name, value) < 1.0:
        raise InvalidInput(f"{name} is {value}; give a number from 0 to below 1")
