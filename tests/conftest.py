"""Shared fixtures, and the profile of Hypothesis."""

from collections.abc import Iterator

import hypothesis
import pytest

import hushbit as hb
from hushbit.kernels import threads

# No deadline: the first call of a kernel takes seconds to compile.
hypothesis.settings.register_profile("hushbit", deadline=None, max_examples=50)
hypothesis.settings.load_profile("hushbit")


@pytest.fixture
def round_key() -> hb.RoundKey:
    return hb.RoundKey(secret=bytes(range(32)), round=3)


@pytest.fixture
def usual_threads() -> Iterator[None]:
    """Restores the number of threads after a test that changes it."""
    before = threads._setting["threads"]
    yield
    threads.set_threads(before)
