"""The quickstart example with `flwr run`, as its README states."""

from pathlib import Path

import pytest

from flower.flwr_run import flower_home, flwr_run

pytestmark = pytest.mark.flower
EXAMPLE = Path(__file__).parents[2] / "examples" / "quickstart-hushbit"


def test_the_example_runs_in_a_simulation(tmp_path: Path) -> None:
    with flower_home() as env:
        config = f'num-server-rounds=3 honest=5 run-folder="{tmp_path}"'
        output = flwr_run(EXAMPLE, env, 5, "--run-config", config)
    assert output.count("5 of 5 ballots accepted (0 refused, 0 lost, 0 unanswered)") == 3, output
    assert (tmp_path / "run" / "summary.json").exists()
