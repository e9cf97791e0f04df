"""Data poisoning: attackers train honestly, on wrong samples."""

import numpy as np
from numpy.typing import NDArray

from hushbit.errors import InvalidInput
from hushbit.fl.partition import Federation

POISONS = ("label-flip", "backdoor")
PATCH = 4
TARGET = 0


def stamped(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Copies with a bright square in the last corner: the trigger of the backdoor."""
    marked = images.copy()
    marked[..., -PATCH:, -PATCH:] = 255
    return marked


def poisoned(
    federation: Federation, attackers: NDArray[np.bool_], attack: str, classes: int
) -> Federation:
    """The federation with attackers' samples changed; images and labels are copied.

    label-flip: class c becomes classes - 1 - c. backdoor: every other sample gets the trigger
    and class 0.
    """
    if attack not in POISONS:
        return federation
    rows = np.concatenate(
        [federation.held_by(int(user)) for user in np.flatnonzero(attackers)]
        or [np.empty(0, dtype=np.int64)]
    )
    honest = np.concatenate(
        [federation.held_by(int(user)) for user in np.flatnonzero(~attackers)]
        or [np.empty(0, dtype=np.int64)]
    )
    if np.intersect1d(rows, honest).size:
        raise InvalidInput(f"{attack} would change honest users' samples: leave --replace out")
    images, labels = federation.images, federation.labels.copy()
    if attack == "label-flip":
        labels[rows] = classes - 1 - labels[rows]
    else:
        images = images.copy()
        images[rows[::2]] = stamped(images[rows[::2]])
        labels[rows[::2]] = TARGET
    return Federation(images, labels, federation.members, federation.starts)
