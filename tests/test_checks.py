"""Array checks: values that are not finite have an error class of their own."""

import numpy as np
import pytest

from hushbit.checks import check_finite, check_float, check_int, check_updates
from hushbit.errors import InvalidInput, NotFinite


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_raise_not_finite(value: float) -> None:
    with pytest.raises(NotFinite, match="must be finite"):
        check_finite("points", [0.0, value])
    with pytest.raises(NotFinite, match="row 1 holds NaN or infinity"):
        check_updates("updates", [[0.0, 1.0], [value, 0.0]], 2, many=True)


def test_wrong_shapes_and_types_are_other_errors() -> None:
    for wrong in (["a", "b"], [1.0], [[np.nan, 0.0]]):
        with pytest.raises(InvalidInput) as failure:
            check_updates("update", wrong, 2, many=False)
        assert not isinstance(failure.value, NotFinite)


@pytest.mark.parametrize("check", [check_float, lambda name, value: check_int(name, value, 0)])
def test_bytes_and_arrays_are_not_repeated_in_errors(check) -> None:
    for value in (b"a secret", bytearray(b"a secret"), np.full(3, 41.5)):
        with pytest.raises(InvalidInput) as failure:
            check("seed", value)
        assert type(value).__name__ in str(failure.value)
        assert "secret" not in str(failure.value)
        assert "41.5" not in str(failure.value)
