"""Building a run from settings: the parts that they name, and what is refused."""

import numpy as np
import pytest

from hushbit.errors import HushbitError, InvalidInput
from hushbit.lab.sim.optimizers import ConstantRate, DecayingRate
from hushbit.lab.sim.server_steps import MomentumStep
from hushbit.lab.sim.settings import PAPER_TRAINING, Settings
from hushbit.lab.sim.setup import build_setup

BASE = {"mechanism": "fedavg", "users": 10, "rounds": 1}


def test_validation_samples_belong_to_no_user():
    setup = build_setup(Settings(**BASE | {"validation": 400, "partition": "iid"}))
    assert setup.task.validation.size == 400
    assert not np.isin(setup.task.federation.members, setup.task.validation).any()
    held = np.concatenate([setup.task.federation.members, setup.task.validation])
    assert np.array_equal(np.sort(held), np.arange(len(setup.task.data.train_y)))


@pytest.mark.parametrize("partition", ["per-user", "iid", "dirichlet", "shards"])
def test_partitions_depend_on_the_seed_alone(partition):
    options = BASE | {"partition": partition}
    first = build_setup(Settings(**options, seed=1)).task.federation
    again = build_setup(Settings(**options, seed=1)).task.federation
    other = build_setup(Settings(**options, seed=2)).task.federation
    assert first.users == 10
    assert np.array_equal(first.members, again.members)
    assert not np.array_equal(first.members, other.members)


def test_users_hold_samples_per_user_and_may_share_them():
    assert (build_setup(Settings(**BASE, samples_per_user=7)).task.federation.counts == 7).all()
    shared = build_setup(Settings(**BASE | {"users": 2000}, replace=True)).task.federation
    assert shared.users == 2000


def test_mechanisms_share_users_and_initial_model():
    one = build_setup(Settings(**BASE, seed=4))
    two = build_setup(Settings(**BASE | {"mechanism": "cpa"}, epsilon_per_bit=1.0, seed=4))
    assert np.array_equal(one.task.federation.members, two.task.federation.members)
    assert np.array_equal(one.task.model.init(4), two.task.model.init(4))
    assert one.secret == two.secret
    assert one.secret != build_setup(Settings(**BASE, seed=5)).secret


def test_rates_and_servers():
    assert build_setup(Settings(**BASE, rate=0.2)).local.rate == ConstantRate(0.2)
    decaying = build_setup(Settings(**BASE, rate=0.2, schedule="decay", steps=3)).local.rate
    assert isinstance(decaying, DecayingRate)
    assert decaying.at(0) == pytest.approx(0.2)
    assert decaying.at(30) == pytest.approx(0.1)  # after ten rounds of three steps
    server = build_setup(Settings(**BASE, server="momentum", server_momentum=0.5)).server
    assert server == MomentumStep(1.0, 0.5)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"dataset": "imagenet"}, "digits, mnist"),
        ({"model": "transformer"}, "linear"),
        ({"mechanism": "magic"}, "unknown mechanism"),
        ({"users": 300}, "more|need 1500 samples"),
        ({"users": 2000, "partition": "iid"}, "more than the 1437 samples"),
        ({"validation": 1437}, "validation|hold|sample"),
        ({"partition": "writer"}, "does not name the writers"),
        ({"server": "sorcerer"}, "plain"),
        ({"server_momentum": 0.5}, "--server-momentum"),
        ({"optimizer": "lbfgs"}, "sgd"),
        ({"weights_file": "absent.npz"}, "linear|resnet18"),
        ({"momentum": 1.5}, "momentum"),
    ],
)
def test_invalid_settings_are_refused(options, word):
    with pytest.raises(HushbitError, match=word):
        build_setup(Settings(**BASE | options))


def test_attackers_are_marked():
    setup = build_setup(Settings(**BASE, attack="ones", attackers=0.3))
    assert setup.attackers.sum() == 3
    with pytest.raises(InvalidInput):
        Settings(**BASE, attack="ones", attackers=1.0)


def test_by_default_a_step_uses_all_samples_of_a_user_with_pixels_from_0_to_1():
    setup = build_setup(Settings(users=5, samples_per_user=23, mechanism="fedavg"))
    assert setup.local.batch_size == 23
    assert setup.task.model.pixel_range == (0.0, 255.0)
    paper = build_setup(Settings(**PAPER_TRAINING, users=5, mechanism="fedavg"))
    assert paper.local.batch_size == 16
    assert paper.task.model.pixel_range == (127.5, 127.5)
