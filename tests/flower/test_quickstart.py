"""Three plain Flower apps, built like Flower's quickstarts, before and after the documented change.

The change is the one at the start of docs/flower.md.
"""

import difflib
import re
import shutil
from pathlib import Path

import pytest

from flower.flwr_run import flower_home, flwr_run

APPS = Path(__file__).with_name("plain_apps")
NAMES = ("quickstart-pytorch", "quickstart-sklearn", "quickstart-numpyclient")
USERS = 10
CLIENT = (
    "from flwr.clientapp import ClientApp\n",
    "from hushbit.flower import ClientApp\n",
)
SERVER_IMPORT = "from hushbit.flower import Budget, HushbitStrategy\n"
SERVER = (
    "    strategy = HushbitStrategy(budget=Budget(8, 1e-5, per='run', against='model'), "
    f"rounds=rounds, honest={USERS}, optimizer=strategy)\n"
)


def changed_app(name: str, folder: Path) -> Path:
    """A copy of a plain app with the documented change."""
    app = folder / name
    shutil.copytree(APPS / name, app, ignore=shutil.ignore_patterns("__pycache__"))
    [client] = app.glob("*/client_app.py")
    client.write_text(client.read_text().replace(*CLIENT))
    [server] = app.glob("*/server_app.py")
    text = server.read_text().replace("\napp = ServerApp()", f"{SERVER_IMPORT}\napp = ServerApp()")
    # The line follows the statement that makes Flower's strategy.
    text = re.sub(
        r"(    strategy = FedAvg\((?:[^\n]*|\n.*?\n    )\)\n)",
        rf"\1{SERVER}",
        text,
        count=1,
        flags=re.S,
    )
    server.write_text(text)
    return app


def changed_lines(before: Path, after: Path) -> list[str]:
    """The lines that are new or different after the change."""
    found = []
    for place in sorted(before.rglob("*.py")):
        new = (after / place.relative_to(before)).read_text().splitlines()
        lines = difflib.ndiff(place.read_text().splitlines(), new)
        found += [line[2:] for line in lines if line.startswith("+ ")]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_change_is_three_lines(name: str, tmp_path: Path) -> None:
    lines = changed_lines(APPS / name, changed_app(name, tmp_path))
    assert [line + "\n" for line in lines] == [CLIENT[1], SERVER_IMPORT, SERVER]


@pytest.mark.flower
@pytest.mark.parametrize("name", NAMES)
def test_the_changed_app_runs_in_a_simulation(name: str, tmp_path: Path) -> None:
    app = changed_app(name, tmp_path)
    with flower_home() as env:
        output = flwr_run(app, env, USERS)
        ledgers = list(Path(env["TMPDIR"]).glob("hushbit-simulation-*/run-*/partition-*.db"))
    accepted = "10 of 10 ballots accepted (0 refused, 0 lost, 0 unanswered), 0 late"
    assert output.count(accepted) == 3, output[-5000:]
    assert "test_accuracy" in output
    assert len(ledgers) == USERS
    stated = (
        r"([0-9.]+) per message and .*, ([0-9.]+) in 3 rounds against those who see only models"
    )
    epsilons = re.search(stated, output)
    assert epsilons is not None
    assert float(epsilons[1]) > float(epsilons[2])
    assert 7.9 < float(epsilons[2]) <= 8
