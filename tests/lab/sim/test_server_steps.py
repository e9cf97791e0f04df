"""Server steps against their formulas, and resuming from stored state."""

import io

import numpy as np
import pytest

from hushbit.errors import InvalidInput, NotFinite
from hushbit.lab.sim import server_steps
from hushbit.lab.sim.server_steps import (
    AdaptiveStep,
    MomentumStep,
    PlainStep,
    include_model,
    server_step,
    start_average,
)

W = np.array([1.0, -2.0], dtype=np.float32)
D = np.array([0.5, 0.25])


def test_plain_adds_the_scaled_estimate() -> None:
    assert PlainStep().step(W, D, {})[0].tolist() == [1.5, -1.75]
    assert PlainStep(2.0).step(W, D, {})[0].tolist() == [2.0, -1.5]


def test_momentum_formula() -> None:
    step = MomentumStep(rate=2.0, momentum=0.5)
    params, state = step.step(W, D, step.start(2))
    params, state = step.step(params, D, state)
    # v1 = d, v2 = 1.5 d; w2 = w + 2 (1 + 1.5) d = w + 5 d
    assert params.tolist() == [3.5, -0.75]
    assert state["velocity"].tolist() == (1.5 * D).tolist()


def test_filter_formula() -> None:
    step = MomentumStep(rate=2.0, momentum=0.5, gain=0.5)
    params, state = step.step(W, D, step.start(2))
    params, state = step.step(params, D, state)
    # v1 = d / 2, v2 = 3 d / 4; w2 = w + 2 (1/2 + 3/4) d = w + 2.5 d
    assert params.tolist() == [2.25, -1.375]
    assert state["velocity"].tolist() == (0.75 * D).tolist()


def test_the_filter_reduces_independent_noise_as_stated() -> None:
    """Fed one unit pulse, its answers' squares add up to (1 - momentum) / (1 + momentum)."""
    step, params = server_step("filter"), np.zeros(1, np.float32)
    state, pulse, power = step.start(1), np.ones(1), 0.0
    for _ in range(400):
        params, state = step.step(params, pulse, state)
        power += float(state["velocity"][0]) ** 2
        pulse = np.zeros(1)
    assert power == pytest.approx(0.1 / 1.9)
    assert params[0] == pytest.approx(1.0)


@pytest.mark.parametrize("kind", ["adam", "yogi"])
def test_adaptive_formula(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_steps, "BETAS", (0.5, 0.75))
    monkeypatch.setattr(server_steps, "ADAPTIVITY", 0.5)
    step = AdaptiveStep(kind, rate=0.1)
    params, state = W, step.start(2)
    first, second, expected = 0.0, 0.25, 1.0
    for change in (0.5, -0.75, 0.125):
        params, state = step.step(params, np.array([change, 0.0]), state)
        first = 0.5 * first + 0.5 * change
        gap = second - change**2
        second = (
            0.75 * second + 0.25 * change**2
            if kind == "adam"
            else (second - 0.25 * change**2 * np.sign(gap))
        )
        expected += 0.1 * first / (second**0.5 + 0.5)
    assert params[0] == pytest.approx(expected, rel=1e-6)
    assert params[1] == W[1]


def test_all_models_have_the_same_weight_in_the_average() -> None:
    state = start_average(1)
    for value in (1.0, 2.0, 6.0):
        state = include_model(np.array([value], dtype=np.float32), state)
    assert state["average"][0] == pytest.approx(3.0, abs=1e-6)


@pytest.mark.parametrize("name", ["plain", "filter", "momentum", "adam", "yogi"])
def test_a_stored_state_resumes_to_the_same_bits(name: str) -> None:
    rng = np.random.default_rng(1)
    estimates = rng.normal(size=(6, 50)).astype(np.float32)
    step = server_step(name, 0.3)
    params, state = rng.normal(size=50).astype(np.float32), step.start(50)
    for index, estimate in enumerate(estimates):
        if index == 3:
            stored = io.BytesIO()
            np.savez(stored, params=params, **state)
            stored.seek(0)
            with np.load(stored) as file:
                resumed = file["params"]
                resumed_state = {key: file[key] for key in file.files if key != "params"}
        before = params.copy(), {key: value.copy() for key, value in state.items()}
        after = step.step(params, estimate, state)
        assert np.array_equal(params, before[0])
        assert all(np.array_equal(state[key], before[1][key]) for key in state)
        params, state = after
    for estimate in estimates[3:]:
        resumed, resumed_state = step.step(resumed, estimate, resumed_state)
    assert resumed.dtype == np.float32
    assert np.array_equal(resumed, params)


@pytest.mark.parametrize(
    "call",
    [
        lambda: server_step("newton"),
        lambda: server_step("plain", 1.0, momentum=0.9),
        lambda: server_step("filter", 1.0, momentum=0.9),
        lambda: server_step("momentum", 1.0, momentum=1.0),
        lambda: server_step("momentum", 1.0, momentum=float("nan")),
    ],
)
def test_invalid_arguments_are_refused(call) -> None:
    with pytest.raises(InvalidInput):
        call()


def test_an_estimate_that_is_not_finite_has_an_error_class_of_its_own() -> None:
    with pytest.raises(NotFinite, match="not moved"):
        PlainStep().step(W, np.array([1.0, np.inf]), {})
