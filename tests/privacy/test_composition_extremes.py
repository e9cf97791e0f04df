"""Exact composition at its numerical limits: tiny deltas, fine grids and the Fourier transform."""

import numpy as np
import pytest

from hushbit.privacy import composition
from hushbit.privacy.composition import epsilon_of_bits, epsilon_of_groups


@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-30, 1e-200])
def test_more_bits_never_cost_less(delta: float) -> None:
    """The tails of the law decide at tiny deltas; a law that is cut off there loses epsilon."""
    alone = epsilon_of_bits(0.5, 20_000, delta)
    together = epsilon_of_groups([(0.5, 20_000), (0.001, 20_000)], delta)
    assert alone <= together <= alone + 20.0


def test_the_transform_is_used_for_many_products_and_rounds_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(2)
    a, b = (composition._LossGap(first, rng.random(50)) for first in (3, -7))
    exact = composition._convolve(a, b)
    assert np.allclose(exact.mass, np.convolve(a.mass, b.mass))
    for most, uses_transform in ((2500, False), (2499, True)):
        monkeypatch.setattr(composition, "_MAX_PRODUCTS", most)
        found = composition._convolve(a, b)
        assert found.first == exact.first == -4
        assert found.mass.size == exact.mass.size == 99
        assert np.allclose(found.mass, exact.mass, rtol=1e-9)
        assert bool((found.mass > exact.mass).all()) == uses_transform
