"""Try the wheel of a folder in clean virtual environments, as a user would install it.

    python .ci/smoke_wheel.py dist

First the wheel alone, with the dependencies of the core, then the extra [cli] on top.
"""

import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "hushbit"
EXTRAS = ("torch", "typer", "rich", "flwr", "ray", "pyarrow", "plotly", "matplotlib", "jinja2")

ROUND = """
import importlib.util
import sys

import numpy as np

import hushbit as hb

extras = sys.argv[1].split(",")
installed = [name for name in extras if importlib.util.find_spec(name)]
assert not installed, f"the core installed {installed}"

mechanism = hb.CPA(dim=1000, epsilon_per_bit=2.0, radius=1.0)
round_key = hb.RoundKey(secret=bytes(range(32)), round=1)
updates = np.full((400, mechanism.dim), 0.5, dtype=np.float32)
tally = mechanism.tally(round_key)
ballots = mechanism.encode_many(updates, round_key.users(range(400)), hb.SeededCoins(1))
tally.add_many(ballots)
estimate = mechanism.estimate(tally)
assert estimate.count == 400
assert abs(estimate.mean.mean() - 0.5) < 0.02, estimate.mean.mean()
print("hushbit", hb.__version__, "estimates", round(float(estimate.mean.mean()), 3))
"""


def check_contents(wheel: Path) -> None:
    """Every file of the package, data included, is in the wheel, and nothing else is."""
    source = {
        path.relative_to(PACKAGE.parent).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert "hushbit/py.typed" in source
    assert any(name.endswith(".css") for name in source), "the report's style sheet is missing"
    assert packed == source, f"wheel and source differ in {sorted(packed ^ source)}"
    data = sorted(name for name in packed if not name.endswith(".py"))
    print(f"{wheel.name}: {len(packed)} files, data: {', '.join(data)}")


class CleanEnvironment:
    """A virtual environment without anything of this project or of the user."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=True)
        self.folder = folder
        dropped = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        self.variables = {key: value for key, value in os.environ.items() if key not in dropped}

    def run(self, program: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment outside the source tree."""
        return subprocess.run(
            [self.folder / "bin" / program, *words],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self.variables,
        )

    def must(self, program: str, *words: str) -> str:
        """The standard output of a program that has to succeed."""
        done = self.run(program, *words)
        assert done.returncode == 0, f"{program} {words} failed:\n{done.stdout}{done.stderr}"
        return done.stdout


def check_core(environment: CleanEnvironment, wheel: Path) -> None:
    """One round works, and the command names the extra that it needs in one line."""
    environment.must("python", "-m", "pip", "install", "--quiet", str(wheel))
    print(environment.must("python", "-c", ROUND, ",".join(EXTRAS)).strip())
    for words in (["hushbit", "--help"], ["python", "-m", "hushbit", "--help"]):
        done = environment.run(*words)
        lines = (done.stdout + done.stderr).strip().splitlines()
        assert done.returncode == 2, f"{words} without [cli] ended with {done.returncode}: {lines}"
        assert len(lines) == 1, f"{words} without [cli] printed {lines}"
        assert "hushbit[cli]" in lines[0], f"{words} without [cli] printed {lines}"
    print(f"without [cli]: {lines[0]}")


def check_command(environment: CleanEnvironment, wheel: Path) -> None:
    """The command line works with [cli] alone; a command of the lab names the extra [lab]."""
    environment.must("python", "-m", "pip", "install", "--quiet", f"{wheel}[cli]")
    help_text = environment.must("hushbit", "--help")
    commands = ("run", "compare", "reproduce", "plan", "audit", "tally", "bench", "report", "data")
    absent = [name for name in commands if name not in help_text]
    assert not absent, f"hushbit --help does not list {absent}"
    version = wheel.name.split("-")[1]
    asked = environment.run("hushbit", "--version")
    if asked.returncode == 0:
        assert version in asked.stdout, f"hushbit --version printed {asked.stdout!r}"
    plan = ("plan", "--dim", "7850", "--users", "1000", "--epsilon-per-bit", "0.5")
    assert environment.must("hushbit", *plan).strip()
    lacking = environment.run("hushbit", "demo")
    assert lacking.returncode == 2, lacking.stdout + lacking.stderr
    assert "hushbit[lab]" in lacking.stderr, lacking.stderr
    print(f"with [cli]: --help and plan work; demo: {lacking.stderr.strip()}")


def main(folder: str) -> None:
    """Check the one wheel of a folder."""
    (wheel,) = Path(folder).resolve().glob("*.whl")
    check_contents(wheel)
    with tempfile.TemporaryDirectory() as place:
        environment = CleanEnvironment(Path(place) / "venv")
        check_core(environment, wheel)
        check_command(environment, wheel)


if __name__ == "__main__":
    main(*sys.argv[1:])
