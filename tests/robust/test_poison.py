"""Poisoned data: attackers' samples change, nobody else's."""

import numpy as np
import pytest

from hushbit.errors import InvalidInput
from hushbit.fl.partition import Federation
from hushbit.robust.poison import TARGET, poisoned, stamped

IMAGES = np.random.default_rng(0).integers(0, 200, (12, 1, 6, 6), dtype=np.uint8)
LABELS = np.arange(12) % 5
PARTS = [np.array([0, 1, 2]), np.array([3, 4, 5, 6]), np.array([7, 8, 9, 10, 11])]
FEDERATION = Federation.of(IMAGES, LABELS, PARTS)
ATTACKERS = np.array([False, True, False])


def test_label_flip_turns_the_classes_of_attackers_around():
    found = poisoned(FEDERATION, ATTACKERS, "label-flip", 5)
    assert found.labels[3:7].tolist() == (4 - LABELS[3:7]).tolist()
    others = np.r_[0:3, 7:12]
    assert (found.labels[others] == LABELS[others]).all()
    assert found.images is FEDERATION.images
    assert (FEDERATION.labels == LABELS).all()


def test_backdoor_stamps_every_other_sample():
    found = poisoned(FEDERATION, ATTACKERS, "backdoor", 5)
    for row in range(12):
        marked = row in (3, 5)
        assert (found.images[row] != IMAGES[row]).any() == marked
        assert found.labels[row] == (TARGET if marked else LABELS[row])
    assert (stamped(IMAGES)[..., -4:, -4:] == 255).all()
    assert (stamped(IMAGES)[..., :2, :2] == IMAGES[..., :2, :2]).all()


def test_other_attacks_leave_data_alone():
    assert poisoned(FEDERATION, ATTACKERS, "directed", 5) is FEDERATION
    nobody = np.zeros(3, dtype=np.bool_)
    assert (poisoned(FEDERATION, nobody, "backdoor", 5).images == IMAGES).all()


def test_shared_samples_cannot_be_poisoned():
    shared = Federation.of(IMAGES, LABELS, [np.array([0, 1]), np.array([1, 2])])
    with pytest.raises(InvalidInput, match="replace"):
        poisoned(shared, np.array([True, False]), "label-flip", 5)
