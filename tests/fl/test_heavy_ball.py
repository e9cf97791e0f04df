"""One step with kept momentum in one pass: equal to its definition, however users are cut."""

import numpy as np
import pytest

from hushbit.fl import heavy_ball, tiles, training
from hushbit.fl.models import build_model
from hushbit.fl.optimizers import ConstantRate, Optimizer
from hushbit.fl.partition import Federation
from hushbit.fl.training import LocalSettings, fresh_state, keep_rows, local_updates
from hushbit.kernels.threads import set_threads

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
    state = fresh_state(model, fed, settings)
    rounds = []
    for number in range(2):
        users = np.arange(number, fed.users)
        made = list(
            local_updates(
                model, params, fed, users, settings, round_number=number, seed=5, state=state
            )
        )
        for chunk in made:
            keep_rows(state, chunk)
        whole = training.joined(made)
        rounds.append((whole.updates, whole.losses, state["velocity"].copy()))
        params = params + whole.updates.mean(axis=0)
    return rounds


@pytest.mark.parametrize("rate", [1e-3, 0.5])
@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_equals_the_generic_way(monkeypatch, name: str, rate: float) -> None:
    """Sums are taken in another order, so to float32."""
    fed = federation(300)
    quick = two_rounds(name, fed, rate)
    monkeypatch.setattr(heavy_ball, "fits", lambda *_: False)
    for (ours, losses, kept), (wanted, mean, velocity) in zip(
        quick, two_rounds(name, fed, rate), strict=True
    ):
        np.testing.assert_allclose(losses, mean, rtol=2e-5)
        np.testing.assert_allclose(kept, velocity, rtol=1e-4, atol=2e-6)
        np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=3e-6 * rate + 2e-7)
        assert np.abs(wanted).max() > 0.01 * rate


def test_same_bits_for_any_chunk_and_threads(monkeypatch) -> None:
    monkeypatch.setattr(tiles, "MOST_USERS", 8)
    fed = federation(70)
    once = two_rounds("mlp", fed, 0.3)
    try:
        for memory, threads in ((0.05, 1), (0.2, 3)):
            set_threads(threads)
            for ours, wanted in zip(two_rounds("mlp", fed, 0.3, memory), once, strict=True):
                assert all(np.array_equal(a, b) for a, b in zip(ours, wanted, strict=True))
    finally:
        set_threads(0)


def test_only_kept_momentum_of_dense_models_takes_it() -> None:
    linear, kept = build_model("linear", SHAPE, 10), Optimizer(momentum=0.5, keep_state=True)
    assert heavy_ball.fits(linear, 1, kept)
    assert not heavy_ball.fits(linear, 2, kept)
    assert not heavy_ball.fits(linear, 1, Optimizer(momentum=0.5))
    assert not heavy_ball.fits(linear, 1, Optimizer(keep_state=True))
    assert not heavy_ball.fits(linear, 1, Optimizer("adam", keep_state=True))
    assert not heavy_ball.fits(build_model("cnn2", (1, 28, 28), 10), 1, kept)
