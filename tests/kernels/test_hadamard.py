"""The fast Hadamard transform equals its definition for every shape and number of threads."""

import numpy as np
import pytest

from hushbit.encoding.clip_and_rotate import Rotation
from hushbit.kernels.hadamard import reference_transform, rotate_rows, transform
from hushbit.kernels.threads import set_threads

KINDS = (np.float32, np.float64)
SHAPES = [
    (1, 1),
    (2, 1),
    (4, 3),
    (8, 16),
    (16, 1),
    (64, 17),
    (32, 40),
    (128, 2),
    (4096, 1),
    (8192, 3),
]


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_transform_equals_its_definition(rows: int, columns: int, kind: type[np.floating]) -> None:
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
def test_rotation_applies_signs_and_transforms(dim: int, kind: type[np.floating]) -> None:
    rotation = Rotation(dim, bytes(32))
    vectors = np.random.default_rng(dim).normal(size=(3, dim)).astype(kind)
    even, rows = rotation.rows * rotation.columns, rotation.rows
    wanted = vectors * rotation.signs.astype(kind)
    for row in wanted:
        row[:even] = reference_transform(row[:even].reshape(rows, -1)).reshape(-1)
        if even != dim:
            tail = row[dim - rows :] * rotation.tail_signs.astype(kind)
            row[dim - rows :] = reference_transform(tail[:, None])[:, 0]
    rotated = rotation.apply(vectors)
    assert rotated.dtype == kind
    assert (rotated == wanted).all()


def test_same_bits_for_any_number_of_threads() -> None:
    rotation = Rotation(1000, bytes(32))
    vectors = np.random.default_rng(5).normal(size=(9, 1000)).astype(np.float32)
    made = set()
    try:
        for threads in (1, 2, 4):
            set_threads(threads)
            made.add(rotation.apply(vectors).tobytes())
    finally:
        set_threads(0)
    assert len(made) == 1


def test_only_the_given_rows_are_rotated() -> None:
    vectors = np.ones((4, 4))
    rotated = np.zeros((4, 4))
    rotate_rows(vectors, np.ones(4), np.empty(0), 4, 1, 1, 3, rotated)
    assert (rotated == np.array([0, 1, 1, 0])[:, None] * [2.0, 0, 0, 0]).all()
