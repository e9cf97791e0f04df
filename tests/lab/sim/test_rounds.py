"""The round loop: equal bits for any threads and chunks, federated averaging by hand."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from hushbit.errors import NotFinite
from hushbit.kernels import threads
from hushbit.lab.sim.rounds import ballots, initial_state, one_round, run_rounds, sample_users
from hushbit.lab.sim.settings import Settings
from hushbit.lab.sim.setup import build_setup
from hushbit.lab.sim.training import local_updates

MANY = {"users": 600, "samples_per_user": 2, "rounds": 2, "seed": 7, "evaluate_every": 2}
VARIED = {
    "cpa": {"mechanism": "cpa", "epsilon_per_bit": 0.5, "momentum": 0.5, "keep_momentum": True},
    "nested, attacked": {
        "mechanism": "nested",
        "epsilon_per_bit": 2.0,
        "stages": "2,4",
        "rotate": True,
        "attack": "flip",
        "attackers": 0.3,
        "participation": 0.9,
    },
    "laplace, attacked": {
        "mechanism": "laplace",
        "epsilon_per_bit": 1.0,
        "attack": "flip",
        "attackers": 0.2,
        "server": "adam",
        "server_rate": 0.01,
    },
    "auto": {"mechanism": "cpa-auto", "epsilon_per_bit": 0.5},
    "auto, attacked": {
        "mechanism": "cpa-auto",
        "epsilon_per_bit": 0.5,
        "bits_per_weight": 0.5,
        "attack": "ones",
        "attackers": 0.2,
    },
    "fedavg, averaged": {
        "mechanism": "fedavg",
        "model": "mlp",
        "steps": 3,
        "batch_size": 1,
        "optimizer": "adam",
        "rate": 0.01,
        "average_weights": True,
    },
}


def final(options):
    setup = build_setup(Settings(**options))
    state = initial_state(setup)
    made = list(run_rounds(setup, state))
    return state, made


def same(one, two):
    (left, left_rounds), (right, right_rounds) = one, two
    assert left.params.tobytes() == right.params.tobytes()
    for group in ("server", "local", "average", "tuning"):
        states = getattr(left, group), getattr(right, group)
        assert states[0].keys() == states[1].keys()
        assert all(states[0][k].tobytes() == states[1][k].tobytes() for k in states[0])
    for a, b in zip(left_rounds, right_rounds, strict=True):
        rows = [{k: v for k, v in r.row().items() if "seconds" not in k} for r in (a, b)]
        assert rows[0] == rows[1]


@pytest.fixture
def _two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    threads.set_threads(2)
    yield
    torch.set_num_threads(before)
    threads.set_threads(0)


@pytest.mark.parametrize("name", VARIED)
@pytest.mark.usefixtures("_two_threads")
def test_the_same_bits_on_one_and_two_threads_and_for_any_memory(name):
    options = MANY | VARIED[name]
    reference = final(options)
    torch.set_num_threads(1)
    threads.set_threads(1)
    same(reference, final(options | {"memory_mb": 0.001}))


def test_another_seed_gives_another_model():
    options = MANY | VARIED["cpa"]
    assert (final(options)[0].params != final(options | {"seed": 8})[0].params).any()


def test_plain_averaging_is_the_mean_of_local_updates():
    setup = build_setup(Settings(mechanism="fedavg", users=30, rounds=1, seed=2))
    state = initial_state(setup)
    before = state.params.copy()
    chunks = list(
        local_updates(
            setup.task.model,
            before,
            setup.task.federation,
            np.arange(30),
            setup.local,
            round_number=0,
            seed=2,
        )
    )
    mean = np.concatenate([c.updates for c in chunks]).astype(np.float64).mean(axis=0)
    made = one_round(setup, state)
    assert np.abs(state.params - (before + mean)).max() < 1e-6
    assert made.distortion.snr_db > 60
    assert made.training_loss == pytest.approx(np.concatenate([c.losses for c in chunks]).mean())


def test_figures_of_a_round():
    setup = build_setup(
        Settings(
            mechanism="cpa",
            epsilon_per_bit=1.0,
            users=40,
            participation=0.5,
            rounds=2,
            validation=50,
            evaluate_every=2,
            radius=1e-4,
        )
    )
    state = initial_state(setup)
    first, second = run_rounds(setup, state)
    assert (first.number, first.users) == (1, 20)
    assert first.bytes_up == 20 * (40 + math.ceil(setup.task.model.dim / 8))
    assert first.bytes_down == 20 * (4 * setup.task.model.dim + 80)
    assert 0.5 < first.overload_rate <= 1
    assert first.test_accuracy is None
    assert 0 <= second.test_accuracy <= 1
    assert 0 <= second.validation_accuracy <= 1
    assert {"train", "encode", "tally", "estimate"} <= first.seconds.keys()
    assert first.row()["round"] == 1
    assert first.row()["seconds_train"] >= 0


def test_attackers_are_left_out_of_the_true_mean():
    options = {"users": 20, "rounds": 1, "mechanism": "fedavg", "seed": 3}
    honest = final(options)[1][0]
    attacked = final(options | {"attack": "ones", "attackers": 0.5})[1][0]
    assert honest.distortion.snr_db > 60
    assert attacked.distortion.snr_db < 10


def test_a_round_of_attackers_only_has_no_snr():
    state, made = final(
        {
            "users": 2,
            "rounds": 1,
            "mechanism": "cpa",
            "epsilon_per_bit": 1.0,
            "attack": "ones",
            "attackers": 0.9,
        }
    )
    assert math.isnan(made[0].distortion.snr_db)
    assert np.isfinite(state.params).all()


def test_users_of_a_round():
    setup = build_setup(Settings(mechanism="fedavg", users=50, participation=0.3, rounds=1))
    drawn = [sample_users(setup, number) for number in range(200)]
    assert all(users.size == 15 and (np.diff(users) > 0).all() for users in drawn)
    assert len(np.unique(np.concatenate(drawn))) == 50
    assert (sample_users(setup, 3) == drawn[3]).all()
    lone = build_setup(Settings(mechanism="fedavg", users=5, participation=0.01, rounds=1))
    assert sample_users(lone, 0).size == 1


@pytest.mark.parametrize(
    "mechanism", [{"mechanism": "fedavg"}, {"mechanism": "cpa", "epsilon_per_bit": 1.0}]
)
def test_a_run_that_diverges_raises_and_keeps_the_last_state(mechanism):
    options = {"users": 20, "rounds": 5, "rate": 1e38, "steps": 3, **mechanism}
    setup = build_setup(Settings(**options))
    state = initial_state(setup)
    before = state.params.copy()
    with pytest.raises(NotFinite, match=r"rate|clip"):
        list(run_rounds(setup, state))
    assert state.round == 0
    assert (state.params == before).all()


def test_an_observer_receives_every_update_and_changes_nothing():
    options = MANY | VARIED["cpa"] | {"memory_mb": 0.25}
    setup = build_setup(Settings(**options))
    reference, seen = final(options), []

    def observe(number, chunk):
        seen.append((number, chunk.users, chunk.updates.astype(np.float64).sum(axis=0)))

    state = initial_state(setup)
    made = list(run_rounds(setup, state, aggregator=partial(ballots, observer=observe)))
    same(reference, (state, made))
    for number, one in enumerate(made):
        users = np.concatenate([users for at, users, _ in seen if at == number])
        assert np.array_equal(users, np.arange(600))
        total = sum(total for at, _, total in seen if at == number)
        assert total / 600 == pytest.approx(one.true_mean, abs=1e-9)
    assert len(seen) > len(made)
