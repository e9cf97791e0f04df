"""Data poisoning changes the samples of attackers alone."""

import numpy as np
import pytest

from hushbit.errors import InvalidInput
from hushbit.lab.attacks.poisoning import TARGET, poison_data, with_trigger
from hushbit.lab.sim.partition import Federation

IMAGES = np.random.default_rng(0).integers(0, 200, (12, 1, 6, 6), dtype=np.uint8)
LABELS = np.arange(12) % 5
PARTS = [np.array([0, 1, 2]), np.array([3, 4, 5, 6]), np.array([7, 8, 9, 10, 11])]
FEDERATION = Federation.of(IMAGES, LABELS, PARTS)
ATTACKERS = np.array([False, True, False])


def test_label_flip_reverses_the_classes_of_attackers():
    found = poison_data(FEDERATION, ATTACKERS, "label-flip", 5)
    assert found.labels[3:7].tolist() == (4 - LABELS[3:7]).tolist()
    others = np.r_[0:3, 7:12]
    assert (found.labels[others] == LABELS[others]).all()
    assert found.images is FEDERATION.images
    assert (FEDERATION.labels == LABELS).all()


def test_backdoor_adds_the_trigger_to_every_other_sample():
    found = poison_data(FEDERATION, ATTACKERS, "backdoor", 5)
    for row in range(12):
        marked = row in (3, 5)
        assert (found.images[row] != IMAGES[row]).any() == marked
        assert found.labels[row] == (TARGET if marked else LABELS[row])
    assert (with_trigger(IMAGES)[..., -4:, -4:] == 255).all()
    assert (with_trigger(IMAGES)[..., :2, :2] == IMAGES[..., :2, :2]).all()


def test_a_targeted_attacker_shows_one_class_under_other_labels():
    found = poison_data(FEDERATION, ATTACKERS, "targeted", 5)
    shown = IMAGES[LABELS == TARGET]
    for row in range(3, 7):
        assert (found.images[row] == shown).all(axis=(1, 2, 3)).any()
    assert found.labels[3:7].tolist() == [1, 2, 3, 4]
    others = np.r_[0:3, 7:12]
    assert (found.images[others] == IMAGES[others]).all()
    assert (found.labels[others] == LABELS[others]).all()


def test_other_attacks_do_not_change_data():
    assert poison_data(FEDERATION, ATTACKERS, "directed", 5) is FEDERATION
    nobody = np.zeros(3, dtype=np.bool_)
    assert (poison_data(FEDERATION, nobody, "backdoor", 5).images == IMAGES).all()


def test_poisoning_of_shared_samples_is_refused():
    shared = Federation.of(IMAGES, LABELS, [np.array([0, 1]), np.array([1, 2])])
    with pytest.raises(InvalidInput, match="replace"):
        poison_data(shared, np.array([True, False]), "label-flip", 5)
