"""How large an update will be, before anybody has trained: a rehearsal on made-up images.

Users who never were train once on random blocks of black and white with random labels. No data of
anyone's are looked at, so what it tells is public. On MNIST and CIFAR-10 the median norm of the
first real updates was 0.5 to 1.1 times the rehearsed one, for four models (`docs/signal.md`).
"""

import dataclasses

import numpy as np

from hushbit.fl.models import Model
from hushbit.fl.partition import Federation
from hushbit.fl.training import LocalSettings, TrainingDiverged, local_updates

USERS = 8
BLOCK = 4
"""Side of a block: images vary by shapes, not by single pixels."""

SMALLEST, LARGEST = 1e-20, 1e10
"""Norms that `CPA.auto` takes. A run beyond them says itself what is wrong with its rate."""


def rehearsed_norm(model: Model, local: LocalSettings, samples: int, seed: int) -> float:
    """The median norm of the update of a user who holds so many samples."""
    rng = np.random.default_rng([seed, 0x4EA])
    count, (channels, height, width) = USERS * samples, model.input_shape
    blocks = rng.integers(0, 2, (count, channels, -(-height // BLOCK), -(-width // BLOCK)))
    images = np.kron(blocks, np.full((BLOCK, BLOCK), 255))[:, :, :height, :width]
    labels = rng.integers(0, model.classes, count)
    parts = np.arange(count).reshape(USERS, samples)
    optimizer = dataclasses.replace(local.optimizer, keep_state=False)
    chunks = local_updates(
        model, model.init(seed), Federation.of(images.astype(np.uint8), labels, parts),
        np.arange(USERS), dataclasses.replace(local, optimizer=optimizer), round_number=0,
        seed=seed,
    )  # fmt: skip
    try:
        norms = [np.linalg.norm(row) for chunk in chunks for row in chunk.updates]
    except TrainingDiverged:
        return LARGEST
    return min(max(float(np.median(norms)), SMALLEST), LARGEST)
