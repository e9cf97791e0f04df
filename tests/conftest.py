"""Fixtures that the core's tests share."""

from collections.abc import Iterator

import hypothesis
import pytest

import hushbit as hb
from hushbit.kernels import threads

# Compiling a kernel the first time takes seconds; a deadline would only measure that.
hypothesis.settings.register_profile("hushbit", deadline=None, max_examples=50)
hypothesis.settings.load_profile("hushbit")


@pytest.fixture
def round_key() -> hb.RoundKey:
    return hb.RoundKey(secret=bytes(range(32)), round=3)


@pytest.fixture
def usual_threads() -> Iterator[None]:
    """Puts the number of threads back after a test that changes it."""
    before = threads._setting["threads"]
    yield
    threads.set_threads(before)
