"""Data poisoning: attackers train honestly on changed samples."""

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import Ints
from hushbit.errors import InvalidInput
from hushbit.kernels import Flags
from hushbit.lab.attacks import POISONING
from hushbit.lab.sim.partition import Federation, UserRows

TRIGGER_SIZE = 4
TARGET = 0


def with_trigger(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Copies of images with the trigger of the backdoor: a white square in the lower right."""
    marked = images.copy()
    marked[..., -TRIGGER_SIZE:, -TRIGGER_SIZE:] = 255
    return marked


def poison_data(federation: Federation, attackers: Flags, attack: str, classes: int) -> Federation:
    """The federation with changed samples of attackers; images and labels are copied.

    label-flip: class c becomes classes - 1 - c. backdoor: every other sample gets the trigger and
    class 0. targeted: every sample of an attacker shows class 0 and is labelled as another class.
    """
    if attack not in POISONING:
        return federation
    rows, honest = (rows_of(federation, users) for users in (attackers, ~attackers))
    if np.intersect1d(rows, honest).size:
        raise InvalidInput(f"{attack} would change honest users' samples: leave --replace out")
    images, labels = federation.images, federation.labels.copy()
    if attack == "label-flip":
        labels[rows] = classes - 1 - labels[rows]
    elif attack == "targeted":
        shown = rows_of(federation, np.ones(federation.users, dtype=np.bool_))
        shown = shown[federation.labels[shown] == TARGET]
        images = images.copy()
        images[rows] = federation.images[np.resize(shown, rows.size)]
        labels[rows] = 1 + np.arange(rows.size) % (classes - 1)
    else:
        images = images.copy()
        images[rows[::2]] = with_trigger(images[rows[::2]])
        labels[rows[::2]] = TARGET
    return Federation(federation.members, federation.starts, images, labels)


def rows_of(rows: UserRows, users: Flags) -> Ints:
    """The rows of the marked users."""
    parts = [rows.samples_of(int(user)) for user in np.flatnonzero(users)]
    return np.concatenate(parts or [np.empty(0, dtype=np.int64)])
