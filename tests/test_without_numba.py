"""Without Numba the package is slower, warns once and has the same bytes."""

import json
import subprocess
import sys
from pathlib import Path

import golden_cases

PROGRAM = """
import sys, warnings, json
sys.modules["numba"] = None
sys.path[:0] = {path!r}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import golden_cases, numpy as np, hushbit as hb
    from hushbit.kernels import HAVE_NUMBA
    key = hb.RoundKey(golden_cases.SECRET, golden_cases.ROUND)
    means = {{}}
    for name, mechanism in golden_cases.MECHANISMS.items():
        updates = np.array([golden_cases.update(mechanism.dim)] * 3)
        tally = mechanism.tally(key)
        tally.add_many(mechanism.encode_many(updates, key.users([1, 2, 3]), hb.SeededCoins(1)))
        means[name] = mechanism.estimate(tally).mean.tolist()
    cases = golden_cases.cases()
warned = [str(w.message) for w in caught]
print(json.dumps([HAVE_NUMBA, warned, cases, means]))
"""


def test_same_bytes_and_one_warning() -> None:
    import numpy as np

    import hushbit as hb

    folder = str(Path(__file__).parent)
    program = PROGRAM.format(path=[folder, *sys.path])
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    have_numba, warned, cases, means = json.loads(run.stdout)
    assert have_numba is False
    assert len(warned) == 1
    assert "pip install numba" in warned[0]
    for name in ("ballots", "words", "keys"):
        assert cases[name] == json.loads((golden_cases.FOLDER / f"{name}.json").read_text())
    key = hb.RoundKey(golden_cases.SECRET, golden_cases.ROUND)
    for name, mechanism in golden_cases.MECHANISMS.items():
        updates = np.array([golden_cases.update(mechanism.dim)] * 3)
        tally = mechanism.tally(key)
        tally.add_many(mechanism.encode_many(updates, key.users([1, 2, 3]), hb.SeededCoins(1)))
        assert np.allclose(mechanism.estimate(tally).mean, means[name], rtol=1e-12, atol=1e-13)
