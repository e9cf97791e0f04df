"""One step of softmax regression in one pass: the same pixels, and nothing infinite passes."""

import numpy as np
import pytest
import torch

from hushbit.fl.models import build_model
from hushbit.fl.optimizers import ConstantRate
from hushbit.fl.partition import Federation
from hushbit.fl.softmax import read_samples, stays_finite
from hushbit.fl.training import LocalSettings, TrainingDiverged, local_updates, normalised

IMAGES = np.arange(512, dtype=np.uint8).reshape(8, 1, 8, 8)
LABELS = np.arange(8)


def test_pixels_have_the_bits_of_the_other_way() -> None:
    rows = np.array([[0, 1], [2, 3], [7, 0]])
    samples = np.full((3, 2, 64), np.nan, np.float32)
    read_samples(IMAGES.reshape(8, -1), rows, 0, 1, samples)
    read_samples(IMAGES.reshape(8, -1), rows, 1, 3, samples)
    wanted = normalised(IMAGES[rows.ravel()]).numpy().reshape(3, 2, 64)
    assert samples.tobytes() == wanted.tobytes()


def test_what_stays_finite_is_known_beforehand() -> None:
    weights = torch.tensor([1.0, -3e37])
    assert stays_finite(weights, 0.1)
    assert not stays_finite(weights, 1e38)
    assert not stays_finite(torch.tensor([1.0, -3e38]), 0.1)
    assert not stays_finite(torch.tensor([1.0, float("nan")]), 0.1)
    assert not stays_finite(torch.tensor([1.0, float("inf")]), 0.1)


def test_losses_that_overflow_are_refused() -> None:
    model = build_model("linear", (1, 8, 8), 10)
    params = np.full(model.dim, 3e37, np.float32)
    params[::2] *= -1
    federation = Federation.of(IMAGES, LABELS, [np.array([user]) for user in range(8)])
    chunks = local_updates(
        model, params, federation, np.arange(8), LocalSettings(ConstantRate(0.1)),
        round_number=0, seed=0,
    )  # fmt: skip
    with pytest.raises(TrainingDiverged):
        list(chunks)
