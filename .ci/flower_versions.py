"""Test hushbit.flower in clean environments with the oldest and the newest Flower.

The oldest version is the lower bound in pyproject.toml; the newest is what pip installs without a
constraint. Each environment gets hushbit and its extra `flower`, but no torch: the unit tests of
hushbit.flower and the quickstart with a NumPyClient do not need it.

python .ci/flower_versions.py [oldest|newest]
"""

import os
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("pytest", "hypothesis", "cryptography", "scikit-learn")


def requirements() -> dict[str, str]:
    """What to install in addition to the extra `flower`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [extra] = project["optional-dependencies"]["flower"]
    lower = re.search(r">=([0-9.]+)", extra)
    if lower is None:
        sys.exit(f"no lower bound in {extra!r}")
    return {"oldest": f"flwr=={lower[1]}.*", "newest": "flwr"}


def test(name: str, flower: str) -> None:
    """Make an environment and run the tests in it."""
    with tempfile.TemporaryDirectory(prefix="flower-", ignore_cleanup_errors=True) as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, f"{ROOT}[flower]", flower, *TOOLS], check=True)
        version = "import flwr; print(flwr.__version__)"
        found = subprocess.run([python, "-c", version], check=True, capture_output=True, text=True)
        print(f"{name}: Flower {found.stdout.strip()}", flush=True)
        # The tests are run from the repository, but with the installed package.
        pytest = [python, "-m", "pytest", "-p", "no:cacheprovider", "tests/flower"]
        env = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
        subprocess.run(pytest, check=True, cwd=ROOT, env=env)
        run = [*pytest, "-m", "flower", "-k", "changed_app_runs and numpyclient"]
        subprocess.run(run, check=True, cwd=ROOT, env=env)


if __name__ == "__main__":
    for name, flower in requirements().items():
        if not sys.argv[1:] or name in sys.argv[1:]:
            test(name, flower)
