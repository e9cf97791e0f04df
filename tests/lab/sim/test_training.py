"""Local training equals a plain loop over torch modules, with the same bits for any grouping."""

import dataclasses
import gc

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from hushbit.errors import InvalidInput, NotFinite
from hushbit.lab.sim import fast_steps, training
from hushbit.lab.sim.models import Model, build_model
from hushbit.lab.sim.optimizers import ConstantRate, DecayingRate, Optimizer
from hushbit.lab.sim.partition import Federation
from hushbit.lab.sim.training import (
    LocalSettings,
    TrainingDiverged,
    batch_seeds,
    draw_batch,
    evaluate,
    fresh_state,
    local_updates,
    normalised,
    store_rows,
    tile_size,
)


def federation(counts, shape=(1, 8, 8), classes=10, seed=0) -> Federation:
    rng = np.random.default_rng(seed)
    total = int(np.sum(counts))
    images = rng.integers(0, 256, size=(total, *shape), dtype=np.uint8)
    labels = rng.integers(0, classes, total)
    parts = np.split(rng.permutation(total), np.cumsum(counts)[:-1])
    return Federation.of(images, labels, parts)


def gather(model, params, fed, users, settings, round_number=0, seed=5, state=None):
    chunks = list(
        local_updates(
            model, params, fed, users, settings, round_number=round_number, seed=seed, state=state
        )
    )
    return (
        np.concatenate([c.users for c in chunks]),
        np.concatenate([c.updates for c in chunks]),
        np.concatenate([c.losses for c in chunks]),
        chunks,
    )


def plain_loop(model: Model, params, fed, user, settings, round_number, seed, optimizer=None):
    """One user trained by a torch optimizer, one step at a time."""
    flat = torch.tensor(params, requires_grad=True)
    if settings.optimizer.kind == "adam":
        optimizer = torch.optim.Adam([flat], lr=1.0)
    else:
        optimizer = torch.optim.SGD([flat], lr=1.0, momentum=settings.optimizer.momentum)
    seeds = batch_seeds(seed, round_number, np.array([user]))
    for step in range(settings.steps):
        rate = settings.rate.at(round_number * settings.steps + step)
        optimizer.param_groups[0]["lr"] = rate
        size = min(settings.batch_size, int(fed.counts.max()))
        rows, present = draw_batch(fed, np.array([user]), seeds, step, size)
        rows = rows[0][present[0] == 1]
        logits = model.apply(flat, normalised(fed.images[rows], model.pixel_range))
        loss = F.cross_entropy(logits, torch.from_numpy(fed.labels[rows]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return (flat.detach() - torch.from_numpy(params)).numpy()


@pytest.mark.parametrize(
    "optimizer", [Optimizer(), Optimizer(momentum=0.5), Optimizer("adam")], ids=lambda o: o.kind
)
@pytest.mark.parametrize(("name", "pixels"), [("linear", "unit"), ("mlp", "symmetric")])
def test_equals_a_plain_loop_over_ragged_users(
    name: str, pixels: str, optimizer: Optimizer
) -> None:
    fed = federation([1, 3, 7, 4, 9, 2])
    model = dataclasses.replace(build_model(name, (1, 8, 8), 10), pixels=pixels)
    settings = LocalSettings(DecayingRate(2.0, 10.0), 4, batch_size=4, optimizer=optimizer)
    params = model.init(1)
    users, updates, _, _ = gather(model, params, fed, np.arange(6), settings, round_number=2)
    for user, update in zip(users, updates, strict=True):
        expected = plain_loop(model, params, fed, user, settings, 2, 5)
        np.testing.assert_allclose(update, expected, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("rate", [1e-3, 0.5, 30.0])
def test_the_fast_step_of_the_linear_model_equals_the_general_path(
    monkeypatch, rate: float
) -> None:
    """Sums are taken in another order, so results agree to float32 precision."""
    fed = federation([1, 2, 5, 9, 3, 4] * 50, (1, 9, 7))
    model = build_model("linear", (1, 9, 7), 10)
    params = np.random.default_rng(1).normal(0, 0.3, model.dim).astype(np.float32)
    settings = LocalSettings(ConstantRate(rate), 1, batch_size=6)

    def trained() -> training.LocalChunk:
        made = local_updates(model, params, fed, np.arange(300), settings, round_number=3, seed=5)
        return training.concat_chunks(list(made))

    fast = trained()
    monkeypatch.setattr(fast_steps, "supports_linear_sgd", lambda *_: False)
    general = trained()
    spacing = np.spacing(np.abs(params) + rate).max()
    np.testing.assert_allclose(fast.updates, general.updates, rtol=2e-5, atol=2 * spacing)
    np.testing.assert_allclose(fast.losses, general.losses, rtol=1e-5)
    assert np.abs(general.updates).max() > 100 * spacing


def test_padding_does_not_change_batch_statistics_of_resnet() -> None:
    """In float64, since variances over two samples can be tiny."""
    model = build_model("resnet18", (3, 16, 16), 2)
    flat = torch.from_numpy(model.init(1)).double()
    x = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(1)).double()
    present = torch.tensor([1.0, 1.0, 0.0, 0.0]).double()
    fed = federation([4], (3, 16, 16))
    job = training._Job(model, flat, fed, LocalSettings(ConstantRate(0.1)), 4, 0)
    y = torch.tensor([0, 1, 1, 1])
    padded, _ = job.gradients(flat, x[None], y[None], present[None], ())
    unpadded, _ = job.gradients(flat[None], x[None, :2], y[None, :2], present[None, :2], ())
    torch.testing.assert_close(padded, unpadded, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "shape", "count"),
    [
        ("linear", (1, 28, 28), 70),
        ("mlp", (1, 28, 28), 40),
        ("cnn2", (1, 28, 28), 37),
        ("cnn3", (3, 32, 32), 9),
    ],
)
def test_same_bits_for_any_chunk_size_threads_and_order(monkeypatch, name, shape, count) -> None:
    monkeypatch.setattr(training, "MAX_TILE_USERS", 8)
    fed = federation([2 + user % 4 for user in range(count)], shape)
    model = build_model(name, shape, 10)
    params, users = model.init(0), np.arange(count)
    results = []
    threads_before = torch.get_num_threads()
    shuffled = np.random.default_rng(1).permutation(users)
    for threads, memory_mb, order in ((1, 1e-3, users), (2, 1e4, users), (2, 5.0, shuffled)):
        settings = LocalSettings(
            ConstantRate(0.1), 2, 3, Optimizer(momentum=0.5), memory_mb=memory_mb
        )
        torch.set_num_threads(threads)
        try:
            results.append(gather(model, params, fed, order, settings))
        finally:
            torch.set_num_threads(threads_before)
    assert len(results[0][3]) > 1
    assert len(results[1][3]) == 1
    for other in results[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(results[0][:3], other[:3], strict=True))


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_an_update_does_not_depend_on_other_users(name: str) -> None:
    fed = federation([2 + user % 4 for user in range(40)], (1, 28, 28))
    model = build_model(name, (1, 28, 28), 10)
    params, settings = model.init(0), LocalSettings(ConstantRate(0.1), 2, 3)
    everyone = gather(model, params, fed, np.arange(40), settings)[1]
    for some in (np.array([17]), np.array([3, 17, 39])):
        assert np.array_equal(gather(model, params, fed, some, settings)[1], everyone[some])


def test_dropout_is_applied_in_training() -> None:
    fed = federation([3], (3, 32, 32))
    model = build_model("cnn3", (3, 32, 32), 10)
    params = model.init(0)
    settings = LocalSettings(ConstantRate(0.1))
    first = gather(model, params, fed, np.array([0]), settings, seed=1)[1]
    second = gather(model, params, fed, np.array([0]), settings, seed=2)[1]
    assert not np.array_equal(first, second)


@pytest.mark.parametrize(
    "optimizer",
    [Optimizer(momentum=0.5, keep_state=True), Optimizer("adam", keep_state=True)],
    ids=["sgd", "adam"],
)
def test_two_rounds_with_kept_state_equal_one_round_of_two_steps(optimizer: Optimizer) -> None:
    """The server adds the update of the only user between the rounds."""
    fed = federation([4])
    model, user = build_model("linear", (1, 8, 8), 10), np.array([0])
    settings = LocalSettings(ConstantRate(0.05), 1, optimizer=optimizer)
    start = params = model.init(3)
    state = fresh_state(model.dim, fed.users, settings)
    for round_number in range(2):
        *_, chunks = gather(model, params, fed, user, settings, round_number, state=state)
        store_rows(state, chunks[0])
        params = params + chunks[0].updates[0]
    both = LocalSettings(ConstantRate(0.05), 2, optimizer=optimizer)
    once = gather(model, start, fed, user, both, state=fresh_state(model.dim, fed.users, both))[1][
        0
    ]
    np.testing.assert_allclose(params - start, once, rtol=1e-3, atol=1e-6)
    reset = LocalSettings(ConstantRate(0.05), 1, optimizer=Optimizer("sgd", 0.5))
    assert fresh_state(model.dim, fed.users, reset) == {}


def test_training_does_not_change_the_state() -> None:
    fed, model = federation([4, 4]), build_model("linear", (1, 8, 8), 10)
    settings = LocalSettings(ConstantRate(0.05), optimizer=Optimizer("sgd", 0.5, keep_state=True))
    state = fresh_state(model.dim, fed.users, settings)
    chunk = gather(model, model.init(0), fed, np.array([1]), settings, state=state)[3][0]
    assert not state["velocity"].any()
    store_rows(state, chunk)
    assert state["velocity"][1].any()
    assert not state["velocity"][0].any()


def test_a_user_without_samples_has_a_zero_update() -> None:
    fed = Federation.of(
        np.full((2, 1, 8, 8), 9, np.uint8), np.array([1, 2]), [np.array([0, 1]), np.array([], int)]
    )
    model = build_model("linear", (1, 8, 8), 10)
    settings = LocalSettings(ConstantRate(0.1), 2, optimizer=Optimizer(momentum=0.9))
    _, updates, losses, _ = gather(model, model.init(0), fed, np.arange(2), settings)
    assert updates[0].any()
    assert not updates[1].any()
    assert losses[1] == 0.0


def test_the_error_of_divergence_names_round_and_users() -> None:
    fed, model = federation([3, 3]), build_model("mlp", (1, 8, 8), 10)
    settings = LocalSettings(ConstantRate(1e30), 4)
    with pytest.raises(
        TrainingDiverged, match=r"round 8: .* users 0, 1: check their data, or lower --rate"
    ):
        gather(model, model.init(0), fed, np.arange(2), settings, round_number=7)


def test_learning_rates() -> None:
    rate = DecayingRate(6.0, 48.0)
    assert rate.at(0) == 0.125 == 1 / (4 * 2.0)
    assert all(rate.at(t) <= 2 * rate.at(t + 3) for t in range(50))


def test_accuracy_and_loss_by_hand() -> None:
    model = build_model("linear", (1, 1, 1), 2)
    params = np.array([1.0, -1.0, 0.0, 0.0], dtype=np.float32)
    images = np.array([255, 255, 0, 255], np.uint8).reshape(4, 1, 1, 1)
    score = evaluate(model, params, np.tile(images, (300, 1, 1, 1)), np.tile([0, 1, 1, 0], 300))
    assert score.accuracy == 0.75
    assert score.worst_class == 0.5
    expected = (3 * np.log1p(np.exp(-2)) + np.log1p(np.exp(2))) / 4
    assert score.loss == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("value", "classes"), [(np.nan, 10), (0.0, 12)])
def test_wrong_weights_and_labels_are_refused_before_training(value: float, classes: int) -> None:
    model, settings = build_model("linear", (1, 8, 8), 10), LocalSettings(ConstantRate(0.1))
    params, fed = np.full(650, value, np.float32), federation([50, 50], classes=classes)
    with pytest.raises(NotFinite if np.isnan(value) else InvalidInput):
        local_updates(model, params, fed, np.arange(2), settings, round_number=0, seed=0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Optimizer("rmsprop"),
        lambda: Optimizer(momentum=1.0),
        lambda: Optimizer("adam", momentum=0.5),
    ],
)
def test_optimizers_are_checked(make) -> None:
    with pytest.raises(InvalidInput):
        make()


def count_tensors():
    gc.collect()
    return sum(type(one) is torch.Tensor for one in gc.get_objects())


@pytest.mark.parametrize("name", ["linear", "mlp", "cnn2"])
def test_tile_size_keeps_no_tensors(name):
    """A few kept tensors in each round would fill the memory after some hundred runs."""
    model = build_model(name, (1, 28, 28), 10)
    before = count_tensors()
    assert tile_size(model, 16) > 0
    assert count_tensors() == before
