"""Small runs go faster on one thread, above all on a busy machine; results are the same."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
