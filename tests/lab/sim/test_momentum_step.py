"""The fast step with kept momentum equals the general path, for any chunk size and threads."""

import numpy as np
import pytest

from hushbit.kernels.threads import set_threads
from hushbit.lab.sim import fast_steps, training
from hushbit.lab.sim.models import build_model
from hushbit.lab.sim.optimizers import ConstantRate, Optimizer
from hushbit.lab.sim.partition import Federation
from hushbit.lab.sim.training import LocalSettings, fresh_state, local_updates, store_rows

SHAPE = (1, 9, 7)


def federation(users: int) -> Federation:
    rng = np.random.default_rng(0)
    counts = np.resize([1, 2, 5, 9, 3, 4], users)
    images = rng.integers(0, 256, size=(counts.sum(), *SHAPE), dtype=np.uint8)
    labels = rng.integers(0, 10, counts.sum())
    return Federation.of(images, labels, np.split(np.arange(counts.sum()), np.cumsum(counts)[:-1]))


def two_rounds(name: str, fed: Federation, rate: float, memory_mb: float = 16.0):
    """Updates, losses and velocities of two rounds; the second starts with momentum."""
    model = build_model(name, SHAPE, 10)
    params = np.random.default_rng(1).normal(0, 0.3, model.dim).astype(np.float32)
    optimizer = Optimizer(momentum=0.5, keep_state=True)
    settings = LocalSettings(ConstantRate(rate), 1, 6, optimizer, memory_mb)
    state = fresh_state(model.dim, fed.users, settings)
    rounds = []
    for number in range(2):
        users = np.arange(number, fed.users)
        made = list(
            local_updates(
                model, params, fed, users, settings, round_number=number, seed=5, state=state
            )
        )
        for chunk in made:
            store_rows(state, chunk)
        whole = training.concat_chunks(made)
        rounds.append((whole.updates, whole.losses, state["velocity"].copy()))
        params = params + whole.updates.mean(axis=0)
    return rounds


@pytest.mark.parametrize("rate", [1e-3, 0.5])
@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_equals_the_general_path(monkeypatch, name: str, rate: float) -> None:
    """Sums are taken in another order, so results agree to float32 precision."""
    fed = federation(300)
    fast = two_rounds(name, fed, rate)
    monkeypatch.setattr(fast_steps, "supports_momentum_step", lambda *_: False)
    for (ours, losses, kept), (wanted, mean, velocity) in zip(
        fast, two_rounds(name, fed, rate), strict=True
    ):
        np.testing.assert_allclose(losses, mean, rtol=2e-5)
        np.testing.assert_allclose(kept, velocity, rtol=1e-4, atol=2e-6)
        np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=3e-6 * rate + 2e-7)
        assert np.abs(wanted).max() > 0.01 * rate


def test_same_bits_for_any_chunk_and_threads(monkeypatch) -> None:
    monkeypatch.setattr(training, "MAX_TILE_USERS", 8)
    fed = federation(70)
    once = two_rounds("mlp", fed, 0.3)
    try:
        for memory, threads in ((0.05, 1), (0.2, 3)):
            set_threads(threads)
            for ours, wanted in zip(two_rounds("mlp", fed, 0.3, memory), once, strict=True):
                assert all(np.array_equal(a, b) for a, b in zip(ours, wanted, strict=True))
    finally:
        set_threads(0)


def test_only_kept_momentum_of_dense_models_is_supported() -> None:
    linear, kept = build_model("linear", SHAPE, 10), Optimizer(momentum=0.5, keep_state=True)
    assert fast_steps.supports_momentum_step(linear, 1, kept)
    assert not fast_steps.supports_momentum_step(linear, 2, kept)
    assert not fast_steps.supports_momentum_step(linear, 1, Optimizer(momentum=0.5))
    assert not fast_steps.supports_momentum_step(linear, 1, Optimizer(keep_state=True))
    assert not fast_steps.supports_momentum_step(linear, 1, Optimizer("adam", keep_state=True))
    assert not fast_steps.supports_momentum_step(build_model("cnn2", (1, 28, 28), 10), 1, kept)
