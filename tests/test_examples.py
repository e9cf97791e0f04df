"""The example without Flower has the error that it predicts and uses public names only."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import hushbit as hb

EXAMPLE = Path(__file__).parents[1] / "examples" / "mean_estimation.py"


def test_mean_estimation_has_the_predicted_error() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=True
    )
    assert "1000 users, 103 bytes each" in done.stdout
    found = re.search(r"rms error of the estimate ([\d.]+), predicted ([\d.]+)", done.stdout)
    assert found, done.stdout
    error, predicted = float(found[1]), float(found[2])
    # The rms of 500 nearly Gaussian errors has a standard deviation of 1/sqrt(1000) = 3.2 %.
    assert abs(error / predicted - 1) < 0.25
    assert "epsilon 2 per bit" in done.stdout
    assert "1000 per message" in done.stdout


def test_mean_estimation_uses_public_names_only() -> None:
    tree = ast.parse(EXAMPLE.read_text(encoding="utf-8"))
    imported = {
        a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names
    }
    assert imported == {"hushbit", "numpy", "secrets"}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "hb"
    }
    assert used == {"Ballot", "CPA", "RoundKey"}
    assert used <= set(hb.__all__)
