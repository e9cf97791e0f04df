"""The fast Hadamard transform: the bits of its definition, whatever the shape and threads."""

import numpy as np
import pytest

from hushbit.kernels.hadamard import reference_transform, transform, turn_rows
from hushbit.kernels.threads import set_threads
from hushbit.rotation import Rotation

KINDS = (np.float32, np.float64)
SHAPES = [(1, 1), (2, 1), (4, 3), (8, 16), (16, 1), (64, 17), (32, 40), (128, 2), (4096, 1),
          (8192, 3)]  # fmt: skip


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_transform_has_the_bits_of_its_definition(
    rows: int, columns: int, kind: type[np.floating]
) -> None:
    matrix = np.random.default_rng(rows).normal(size=(rows, columns)).astype(kind)
    flat = matrix.reshape(-1).copy()
    transform(flat, rows, columns)
    assert (flat.reshape(rows, columns) == reference_transform(matrix)).all()


@pytest.mark.parametrize("rows", [1, 2, 8, 32, 256])
def test_the_definition_is_the_hadamard_matrix(rows: int) -> None:
    matrix = np.random.default_rng(rows).normal(size=(rows, 3))
    signs = np.array([[(-1) ** (i & j).bit_count() for j in range(rows)] for i in range(rows)])
    assert np.allclose(reference_transform(matrix), signs @ matrix / rows**0.5, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [1, 7, 8, 100, 7850, 25_818])
def test_rows_are_turned_by_signs_and_transforms(dim: int, kind: type[np.floating]) -> None:
    rotation = Rotation(dim, bytes(32))
    vectors = np.random.default_rng(dim).normal(size=(3, dim)).astype(kind)
    even, rows = rotation.rows * rotation.columns, rotation.rows
    wanted = vectors * rotation.signs.astype(kind)
    for row in wanted:
        row[:even] = reference_transform(row[:even].reshape(rows, -1)).reshape(-1)
        if even != dim:
            tail = row[dim - rows :] * rotation.more_signs.astype(kind)
            row[dim - rows :] = reference_transform(tail[:, None])[:, 0]
    turned = rotation.forward(vectors)
    assert turned.dtype == kind
    assert (turned == wanted).all()


def test_same_bits_for_any_number_of_threads() -> None:
    rotation = Rotation(1000, bytes(32))
    vectors = np.random.default_rng(5).normal(size=(9, 1000)).astype(np.float32)
    made = set()
    try:
        for threads in (1, 2, 4):
            set_threads(threads)
            made.add(rotation.forward(vectors).tobytes())
    finally:
        set_threads(0)
    assert len(made) == 1


def test_only_the_users_asked_for_are_turned() -> None:
    vectors = np.ones((4, 4))
    turned = np.zeros((4, 4))
    turn_rows(vectors, np.ones(4), np.empty(0), 4, 1, 1, 3, turned)
    assert (turned == np.array([0, 1, 1, 0])[:, None] * [2.0, 0, 0, 0]).all()
