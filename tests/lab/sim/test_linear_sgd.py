"""The fast SGD step of the linear model: same pixels as the general path, finite updates."""

import numpy as np
import pytest
import torch

from hushbit.lab.sim.fast_steps import read_pixels, weights_stay_finite
from hushbit.lab.sim.models import PIXEL_RANGES, build_model
from hushbit.lab.sim.optimizers import ConstantRate
from hushbit.lab.sim.partition import Federation
from hushbit.lab.sim.training import LocalSettings, TrainingDiverged, local_updates, normalised

IMAGES = np.arange(512, dtype=np.uint8).reshape(8, 1, 8, 8)
LABELS = np.arange(8)


@pytest.mark.parametrize(("name", "ends"), [("unit", (0, 1)), ("symmetric", (-1, 1))])
def test_pixels_equal_those_of_the_general_path(name: str, ends: tuple[int, int]) -> None:
    rows = np.array([[0, 1], [2, 3], [7, 0]])
    pixels = np.full((3, 2, 64), np.nan, np.float32)
    center, scale = map(np.float32, PIXEL_RANGES[name])
    read_pixels(IMAGES.reshape(8, -1), rows, center, scale, 0, 1, pixels)
    read_pixels(IMAGES.reshape(8, -1), rows, center, scale, 1, 3, pixels)
    wanted = normalised(IMAGES[rows.ravel()], PIXEL_RANGES[name]).numpy().reshape(3, 2, 64)
    assert pixels.tobytes() == wanted.tobytes()
    assert (pixels.min(), pixels.max()) == ends


def test_large_weights_or_rates_require_a_check_of_updates() -> None:
    weights = torch.tensor([1.0, -3e37])
    assert weights_stay_finite(weights, 0.1)
    assert not weights_stay_finite(weights, 1e38)
    assert not weights_stay_finite(torch.tensor([1.0, -3e38]), 0.1)
    assert not weights_stay_finite(torch.tensor([1.0, float("nan")]), 0.1)
    assert not weights_stay_finite(torch.tensor([1.0, float("inf")]), 0.1)


def test_losses_that_overflow_raise() -> None:
    model = build_model("linear", (1, 8, 8), 10)
    params = np.full(model.dim, 3e37, np.float32)
    params[::2] *= -1
    federation = Federation.of(IMAGES, LABELS, [np.array([user]) for user in range(8)])
    chunks = local_updates(
        model,
        params,
        federation,
        np.arange(8),
        LocalSettings(ConstantRate(0.1)),
        round_number=0,
        seed=0,
    )
    with pytest.raises(TrainingDiverged):
        list(chunks)
