"""Small runs go faster on one thread; and what the tests of the report start from."""

import pytest
import torch

from hushbit.lab.report.sources import read_sources
from lab.report.report_samples import lines_result, run_folder, table_result


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def small_library(monkeypatch):
    """Most tests look at the page around the plotting library, which is long to read."""
    monkeypatch.setattr("hushbit.lab.report.html.plotting_library", lambda: "var Plotly;")


@pytest.fixture
def sources(tmp_path):
    runs = tmp_path / "runs"
    run_folder(runs / "cpa")
    run_folder(runs / "fedavg", mechanism="fedavg")
    run_folder(runs / "stopped", mechanism="laplace", finished=False)
    table_result().save(tmp_path / "results")
    lines_result(quick=True).save(tmp_path / "results")
    return read_sources([tmp_path / "results", runs])
