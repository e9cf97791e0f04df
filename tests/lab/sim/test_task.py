"""Tasks of own modules: equal to a plain PyTorch loop, reproducible, with clear errors."""

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from hushbit.errors import InvalidInput  # noqa: E402
from hushbit.lab import Task  # noqa: E402
from hushbit.lab.sim import module_training  # noqa: E402
from hushbit.lab.sim.optimizers import ConstantRate, Optimizer  # noqa: E402
from hushbit.lab.sim.training import LocalSettings, TrainingDiverged  # noqa: E402
from plain_fedavg import (  # noqa: E402
    CNN,
    BatchNormCNN,
    Regression,
    TextLSTM,
    TextTransformer,
    fedavg,
    images,
    table,
    text,
)

SIZES = (4, 6, 4, 4, 6, 1, 4)
CASES: dict[str, tuple[Any, Any, Any, str]] = {
    "LSTM on text": (TextLSTM, text, F.cross_entropy, "loop"),
    "transformer": (TextTransformer, text, F.cross_entropy, "vmap"),
    "tabular regression": (Regression, table, F.mse_loss, "shared"),
    "BatchNorm CNN": (BatchNormCNN, images, F.cross_entropy, "vmap"),
    "BatchNorm with a batch count": (lambda: BatchNormCNN(None), images, F.cross_entropy, "vmap"),
    "CNN": (CNN, images, F.cross_entropy, "shared"),
    "CNN with stride 2": (lambda: CNN(2), images, F.cross_entropy, "vmap"),
}


def clients_of(draw: Any, sizes: tuple[int, ...] = SIZES) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    return [draw(size) for size in sizes]


def updates(
    task: Task,
    params: Any,
    users: Any = None,
    *,
    steps: int = 1,
    rate: float = 0.1,
    round_number: int = 0,
    seed: int = 0,
    **settings: Any,
) -> Any:
    chosen = np.arange(task.users) if users is None else np.asarray(users)
    local = LocalSettings(ConstantRate(rate), steps, settings.pop("batch", 64), **settings)
    chunks = list(task.local_updates(params, chosen, local, round_number=round_number, seed=seed))
    assert np.array_equal(np.concatenate([chunk.users for chunk in chunks]), np.sort(chosen))
    return np.concatenate([chunk.updates for chunk in chunks])


@pytest.mark.parametrize("name", CASES)
def test_training_equals_a_plain_fedavg_loop(name: str) -> None:
    make, draw, loss, method = CASES[name]
    torch.manual_seed(0)
    model, clients = make(), clients_of(draw)
    task = Task(model, loss, clients, draw(30))
    assert task.gradient_methods.first == method
    params = task.init(0)
    for number in range(2):
        rows = updates(
            task, params, steps=3, round_number=number, optimizer=Optimizer(momentum=0.5)
        )
        params = (params + rows.mean(axis=0, dtype=np.float64)).astype(np.float32)
    expected = fedavg(model, loss, clients, rounds=2, steps=3, rate=0.1, momentum=0.5)
    found = task.state_dict(params)
    assert list(found) == list(expected)
    for key, value in expected.items():
        assert torch.allclose(found[key].double(), value.double(), atol=1e-6), key
    fresh = make()
    fresh.load_state_dict(found)
    x = clients[0][0]
    assert task.evaluate(params)["loss"] > 0
    with torch.no_grad():
        assert torch.allclose(fresh.eval()(x), task.module(params)(x))


def test_adam_and_minibatches_equal_a_plain_loop() -> None:
    torch.manual_seed(0)
    model, clients = Regression(), clients_of(table, (5, 5))
    task = Task(model, F.mse_loss, clients, table(8))
    rows = updates(task, task.init(0), steps=4, batch=2, optimizer=Optimizer("adam"))
    # Four steps of batches 2, 2, 1 and then 2 of a new order: the same samples, one by one.
    from hushbit.lab.sim.training import batch_seeds, draw_batch

    seeds = batch_seeds(0, 0, np.arange(2))
    for user in range(2):
        own = Regression()
        own.load_state_dict(model.state_dict())
        optimizer = torch.optim.Adam(own.parameters(), 0.1)
        for step in range(4):
            chosen, present = draw_batch(task.rows, np.array([user]), seeds[[user]], step, 2)
            taken = torch.from_numpy(chosen[0][present[0] > 0]) - 5 * user
            optimizer.zero_grad()
            F.mse_loss(own(clients[user][0][taken]), clients[user][1][taken]).backward()
            optimizer.step()
        after = torch.cat([one.detach().flatten() for one in own.parameters()])
        before = torch.cat([one.detach().flatten() for one in model.parameters()])
        assert np.allclose(rows[user], (after - before).numpy(), atol=1e-6)


@pytest.mark.parametrize("name", ["LSTM on text", "transformer", "BatchNorm CNN", "CNN"])
def test_bits_do_not_depend_on_memory(name: str, monkeypatch: Any) -> None:
    make, draw, loss, _ = CASES[name]
    task = Task(make, loss, clients_of(draw), draw(5))
    monkeypatch.setattr("hushbit.lab.sim.module_training.MAX_TILE_USERS", 2)
    few = updates(task, task.init(3), steps=2, memory_mb=1e-6)
    assert np.array_equal(few, updates(task, task.init(3), steps=2))
    assert np.array_equal(few, updates(task, task.init(3), steps=2))


def test_dropout_depends_on_seed_round_and_user_alone() -> None:
    task = Task(lambda: TextTransformer(0.5), F.cross_entropy, clients_of(text), text(5))
    params = task.init(0)
    first = updates(task, params)
    torch.manual_seed(77)
    assert np.array_equal(first, updates(task, params))
    assert not np.array_equal(first, updates(task, params, seed=1))
    assert not np.array_equal(first, updates(task, params, round_number=1))
    before = torch.get_rng_state()
    updates(task, params)
    assert torch.equal(before, torch.get_rng_state())


def test_users_have_dropout_of_their_own() -> None:
    x, y = text(4)
    task = Task(lambda: TextTransformer(0.5), F.cross_entropy, [(x, y), (x, y)], (x, y))
    rows = updates(task, task.init(0))
    assert not np.allclose(rows[0], rows[1])


def test_frozen_tensors_and_integers_do_not_travel() -> None:
    torch.manual_seed(0)
    model = BatchNormCNN()
    model.conv.weight.requires_grad_(False)
    clients = clients_of(images, (4, 4))
    task = Task(model, F.cross_entropy, clients, images(5), frozen=["*running_*"])
    names = [slot.name for slot in task.slots]
    assert names == ["conv.bias", "norm.weight", "norm.bias", "out.weight", "out.bias"]
    params = task.init(0) + updates(task, task.init(0), steps=2).mean(axis=0)
    state = task.state_dict(params)
    for name in ("conv.weight", "norm.running_mean", "norm.num_batches_tracked"):
        assert torch.equal(state[name], model.state_dict()[name])
    assert not torch.equal(state["out.bias"], model.state_dict()["out.bias"])


def test_running_variances_stay_nonnegative() -> None:
    task = Task(BatchNormCNN, F.cross_entropy, clients_of(images), images(5))
    params = task.init(0) - 10
    corrected = task.corrected(params)
    for slot in task.slots:
        part = slice(slot.start, slot.stop)
        if slot.name == "norm.running_var":
            assert (corrected[part] == 0).all()
        else:
            assert np.array_equal(corrected[part], params[part])


def test_tied_weights_travel_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(5, 5), nn.Linear(5, 5)
            self.outer.weight = self.inner.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.outer(torch.tanh(self.inner(x))).sum(dim=1, keepdim=True)

    torch.manual_seed(0)
    model, clients = Tied(), clients_of(table)
    task = Task(model, F.mse_loss, clients, table(5))
    assert task.dim == 35
    params = task.init(0) + updates(task, task.init(0), steps=2).mean(axis=0)
    expected = fedavg(model, F.mse_loss, clients, rounds=1, steps=2, rate=0.1)
    for name, value in task.state_dict(params).items():
        assert torch.allclose(value, expected[name], atol=1e-6)


def test_a_function_makes_initial_weights_from_the_seed() -> None:
    task = Task(Regression, F.mse_loss, clients_of(table), table(5))
    assert np.array_equal(task.init(1), task.init(1))
    assert not np.array_equal(task.init(1), task.init(2))


def test_metrics() -> None:
    torch.manual_seed(0)
    tx, ty = table(700)
    task = Task(
        Regression(),
        F.mse_loss,
        clients_of(table),
        (tx, ty),
        metrics={"mae": lambda out, y: (out - y).abs().mean(), "worst": lambda o, y: (o - y).max()},
    )
    params = task.init(0)
    with torch.no_grad():
        out = task.module(params)(tx)
    scores = task.evaluate(params)
    assert set(scores) == {"loss", "mae", "worst"}
    assert scores["loss"] == pytest.approx(float(F.mse_loss(out, ty)), rel=1e-5)
    assert scores["mae"] == pytest.approx(float((out - ty).abs().mean()), rel=1e-5)
    assert scores["worst"] == pytest.approx(float((out - ty).max()), rel=1e-5)
    x, y = images(600)
    classes = Task(CNN(), F.cross_entropy, clients_of(images), (x, y))
    found = classes.evaluate(classes.init(0))
    with torch.no_grad():
        right = classes.module(classes.init(0))(x)
    assert found["accuracy"] == float((right.argmax(1) == y).double().mean())
    by_class = [float((right.argmax(1) == y)[y == c].double().mean()) for c in y.unique()]
    assert found["worst_class_accuracy"] == min(by_class)
    scores = classes.scores(classes.init(0))
    assert set(scores) == {"test_loss", "test_accuracy", "worst_class_accuracy"}


def test_inputs_of_several_arguments() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(5, 1)

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return self.linear(left - right)

    torch.manual_seed(0)
    x, y = table(4)
    z = torch.randn(4, 5)
    pairs = Task(Two(), F.mse_loss, [((x, z), y)], ((x, z), y))
    named = Task(
        pairs.model, F.mse_loss, [({"right": z, "left": x}, y)], ({"right": z, "left": x}, y)
    )
    one = Task(pairs.model.linear, F.mse_loss, [(x - z, y)], (x - z, y))
    for task in (pairs, named):
        assert np.allclose(updates(task, task.init(0)), updates(one, one.init(0)), atol=1e-7)


def test_rows_of_one_data_set() -> None:
    torch.manual_seed(0)
    model, (x, y) = Regression(), table(12)
    rows = np.array([[0, 1, 2], [3, 4, 5], [3, 4, 0]])
    by_rows = Task(model, F.mse_loss, rows, (x, y), data=(x, y))
    by_pairs = Task(model, F.mse_loss, [(x[row], y[row]) for row in rows], (x, y))
    assert np.array_equal(updates(by_rows, by_rows.init(0)), updates(by_pairs, by_pairs.init(0)))


def test_digest_identifies_data_and_structure_but_not_initial_weights() -> None:
    clients, test = clients_of(table), table(5)
    digests = {
        Task(Regression(), F.mse_loss, clients, test).digest,
        Task(Regression(), F.mse_loss, clients, test).digest,
    }
    assert len(digests) == 1
    digests.add(Task(Regression(), F.mse_loss, clients[:-1], test).digest)
    digests.add(Task(nn.Linear(5, 1), F.mse_loss, clients, test).digest)
    moved = [(clients[0][0] + 1, clients[0][1]), *clients[1:]]
    digests.add(Task(Regression(), F.mse_loss, moved, test).digest)
    assert len(digests) == 4


def test_the_record_states_how_gradients_are_computed() -> None:
    looped = Task(TextLSTM, F.cross_entropy, clients_of(text), text(5))
    assert "one user after the other" in looped.describe()["training"]
    assert "mkldnn_rnn_layer" in looped.describe()["training"]
    together = Task(Regression, F.mse_loss, clients_of(table), table(5))
    assert together.describe()["training"] == "many users at once"
    assert "Regression: 57 weights, 7 clients" in repr(together)


def test_a_model_that_mixes_samples_is_not_trained_in_one_pass() -> None:
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(5, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x - x.mean(dim=0))

    torch.manual_seed(0)
    model, clients = Centred(), clients_of(table)
    task = Task(model, F.mse_loss, clients, table(5))
    assert task.gradient_methods.first == "vmap"
    params = task.init(0) + updates(task, task.init(0)).mean(axis=0)
    expected = fedavg(model, F.mse_loss, clients, rounds=1, steps=1, rate=0.1)
    for name, value in task.state_dict(params).items():
        assert torch.allclose(value, expected[name], atol=1e-6)


class RunningMean(nn.Module):
    """A module that assigns its buffers anew, which only the loop follows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 1)
        self.register_buffer("mean", torch.zeros(5))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.5 * self.mean + 0.5 * x.detach().mean(dim=0)
        self.steps = self.steps + 1
        return self.linear(x - self.mean) / self.steps


def test_buffers_that_are_assigned_anew() -> None:
    torch.manual_seed(0)
    model, clients = RunningMean(), clients_of(table)
    task = Task(model, F.mse_loss, clients, table(5))
    assert task.gradient_methods.first == "loop"
    params = task.init(0)
    for number in range(2):
        rows = updates(task, params, steps=3, round_number=number)
        params = (params + rows.mean(axis=0, dtype=np.float64)).astype(np.float32)
        assert task.evaluate(params) == task.evaluate(params)
    expected = fedavg(model, F.mse_loss, clients, rounds=2, steps=3, rate=0.1)
    for name, value in task.state_dict(params).items():
        assert torch.allclose(value.double(), expected[name].double(), atol=1e-6), name


def test_diverging_training_is_reported() -> None:
    task = Task(Regression, F.mse_loss, clients_of(table), table(5))
    with pytest.raises(TrainingDiverged, match="or lower --rate"):
        updates(task, task.init(0), rate=1e30, steps=4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clients": []}, "at least one client"),
        ({"clients": None}, "a list with one pair .* got NoneType"),
        ({"clients": {"a": (np.ones((2, 5)), np.ones((2, 1)))}}, "one pair .* got dict"),
        (
            {"clients": [(np.ones((0, 5)), np.ones((0, 1)))]},
            "client 0 has no samples: give it at least one, or leave it out",
        ),
        (
            {"test": (np.ones((0, 5)), np.ones((0, 1)))},
            "test has no samples: give it at least one$",
        ),
        ({"test": None}, r"test must be a pair \(x, y\); got None"),
        ({"prepare": lambda pair: 1 / 0}, "prepare failed for client 0: ZeroDivisionError"),
        ({"model": nn.Linear}, "must be callable without arguments"),
        ({"loss": "mse"}, "loss must be a function of outputs and targets, .* got 'mse'"),
        ({"loss": nn.MSELoss}, "loss must be a function of outputs and targets, .*MSELoss"),
        ({"clients": [(np.ones((2, 5)), np.ones((3, 1)))]}, "equally many"),
        (
            {"clients": [(np.ones((2, 5)), np.ones((2, 1))), (np.ones((2, 4)), np.ones((2, 1)))]},
            "same shapes",
        ),
        ({"clients": [(["a", "b"], [0, 1])]}, "tokenizer"),
        ({"clients": [([[1, 2], [1]], [0, 1])]}, "pad"),
        ({"clients": [np.ones((2, 5))]}, "pair"),
        ({"clients": [{"text": 1}]}, "prepare"),
        ({"clients": [[9]], "data": (np.ones((2, 5)), np.ones((2, 1)))}, "0..1"),
        ({"clients": [[]], "data": (np.ones((2, 5)), np.ones((2, 1)))}, "leave it out"),
        ({"clients": [[0.5]], "data": (np.ones((2, 5)), np.ones((2, 1)))}, "row numbers"),
        ({"loss": lambda out, y: (out - y) ** 2}, "one number"),
        ({"model": nn.Linear(4, 1)}, "two test samples failed"),
        ({"model": nn.Linear(5, 1).double()}, "float32"),
        ({"model": nn.Flatten()}, "no parameter to train"),
        ({"model": lambda: 3}, "torch.nn.Module"),
        (
            {"frozen": ["*bias", "*running_mean"]},
            "'\\*running_mean' matches no tensor.*weight, bias",
        ),
        ({"frozen": "*bias"}, "list of patterns"),
        ({"test": (np.ones((2, 5)), [[1], [np.nan]])}, "test set: NaN or infinite values"),
        ({"test": (np.full((2, 5), np.inf), [[1], [1]])}, "test set: NaN or infinite values"),
        ({"test": (np.ones((2, 5)), np.ones(2))}, "Using a target size .* broadcasting"),
        ({"model": lambda: nn.LazyLinear(1)}, "weight has no shape yet: call the model once"),
        ({"frozen": ["*"]}, "freeze fewer"),
        ({"metrics": [F.l1_loss]}, "functions by name, .* got list"),
        ({"metrics": {"loss": F.l1_loss}}, "another name than loss"),
        ({"metrics": {"worst_class_accuracy": F.l1_loss}}, "another name than worst_class"),
    ],
)
def test_errors_say_what_to_do(change: dict[str, Any], message: str) -> None:
    given = {
        "model": nn.Linear(5, 1),
        "loss": F.mse_loss,
        "clients": [(np.ones((2, 5)), np.ones((2, 1)))],
        "test": (np.ones((2, 5)), np.ones((2, 1))),
    }
    with pytest.raises(InvalidInput, match=message):
        Task(**(given | change))


def test_a_metric_that_would_broadcast_is_refused() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs.squeeze(1), targets)

    pair = (np.ones((3, 5)), np.ones(3))
    task = Task(nn.Linear(5, 1), loss, [pair], pair, metrics={"mae": F.l1_loss})
    with pytest.raises(InvalidInput, match=r"metric mae .* Using a target size"):
        task.evaluate(task.init(0))


def test_a_failure_on_the_test_set_is_not_blamed_on_a_client() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(8, 2))

    x, y = np.zeros((30, 2), dtype=np.int64), np.zeros(30, dtype=np.int64)
    wrong = x.copy()
    wrong[25] = 99
    task = Task(model, F.cross_entropy, [(x, y)], (wrong, y))
    with pytest.raises(InvalidInput, match="computed from the test set: IndexError"):
        task.public_norm(LocalSettings(ConstantRate(0.1), batch_size=30), 30, 0)


def test_clients_with_values_that_are_no_numbers_are_named() -> None:
    x, y = np.ones((6, 5)), np.ones((6, 1))
    x[4, 3] = np.nan
    pairs = [(x[:2], y[:2]), (x[2:3], y[2:3]), (x[3:], y[3:])]
    with pytest.raises(InvalidInput, match="client 2: NaN or infinite values in the data: remove"):
        Task(nn.Linear(5, 1), F.mse_loss, pairs, (x[:2], y[:2]))
    held = [[0, 1], [4], [3, 4, 2]]
    with pytest.raises(InvalidInput, match="clients 1, 2: NaN"):
        Task(nn.Linear(5, 1), F.mse_loss, held, (x[:2], y[:2]), data=(x, y))
    unused = Task(nn.Linear(5, 1), F.mse_loss, [[0], [1, 5]], (x[:2], y[:2]), data=(x, y))
    assert unused.users == 2


@pytest.mark.parametrize("label", [3, -1])
def test_clients_with_labels_that_the_loss_refuses_are_named(label: int) -> None:
    pairs = [(np.ones((2, 5)), np.array([0, 2])), (np.ones((2, 5)), np.array([1, label]))]
    message = "client 1: labels that the loss does not accept.* 3 outputs, for labels from 0 to 2"
    with pytest.raises(InvalidInput, match=message):
        Task(nn.Linear(5, 3), F.cross_entropy, pairs, pairs[0])
    test = (np.ones((5, 5)), np.array([0, 0, 0, 0, label]))
    with pytest.raises(InvalidInput, match="test set: labels"):
        Task(nn.Linear(5, 3), F.cross_entropy, pairs[:1], test)


def test_labels_that_the_loss_ignores_are_accepted() -> None:
    pairs = [(np.ones((2, 5)), np.array([0, -100])), (np.ones((2, 5)), np.array([1, 2]))]
    assert Task(nn.Linear(5, 3), F.cross_entropy, pairs, pairs[1]).classes == 3


def test_an_error_of_torch_in_training_names_the_clients() -> None:
    """A token that the embedding lacks."""
    pairs = [(np.zeros((2, 4), int), np.array([0, 1])), (np.full((2, 4), 9), np.array([0, 1]))]
    model = nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(8, 2))
    task = Task(model, F.cross_entropy, pairs, pairs[0])
    with pytest.raises(InvalidInput, match="one of the clients 0, 1: IndexError: index out of"):
        updates(task, task.init(0))


def test_small_groups_of_users_train_with_one_thread(monkeypatch: Any) -> None:
    used: list[int] = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        used.append(torch.get_num_threads())
        return F.mse_loss(outputs, targets)

    task = Task(Regression, loss, clients_of(table), table(10))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for smallest, expected in ((1 << 30, 1), (1, 2)):
            monkeypatch.setattr(module_training, "MIN_FLOATS_FOR_THREADS", smallest)
            used.clear()
            updates(task, task.init(0))
            assert set(used) == {expected}
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("given", [None, "ACTIVE"])
def test_threads_do_not_spin_unless_the_user_wants_it(given: str | None) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    code = "import os, hushbit.lab; print(os.environ['OMP_WAIT_POLICY'])"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=environment | ({"OMP_WAIT_POLICY": given} if given else {}),
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == (given or "PASSIVE")


def test_labels_of_any_whole_type_are_accepted() -> None:
    pairs = [(np.ones((2, 5)), np.array([0, 2], dtype=np.int32))]
    task = Task(nn.Linear(5, 3), F.cross_entropy, pairs, pairs[0])
    assert task.classes == 3


@pytest.mark.parametrize("metric", [lambda out, y: 1 / 0, lambda out, y: out])
def test_a_metric_that_fails_is_named(metric: Any) -> None:
    pair = (np.ones((2, 5)), np.ones((2, 2)))
    task = Task(nn.Linear(5, 2), F.mse_loss, [pair], pair, metrics={"mine": metric})
    with pytest.raises(InvalidInput, match=r"metric mine must return one number .*Error: "):
        task.evaluate(task.init(0))
