"""Every command of docs/flower-deployment.md, in order, as one shell session."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from flower.deployment import free_port, listening, until
from flower.flwr_run import flower_home
from flower.test_example import EXAMPLE

pytestmark = pytest.mark.flower
PAGE = Path(__file__).parents[2] / "docs" / "flower-deployment.md"
USERS = ("ann", "bob", "eve")


def blocks(ports: dict[str, int]) -> dict[str, list[str]]:
    """The blocks of commands of each section of the page, by its number, with other ports."""
    found: dict[str, list[str]] = {}
    for section in PAGE.read_text().split("\n## "):
        commands = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
        for old, new in ports.items():
            commands = [block.replace(old, str(new)) for block in commands]
        found[section.partition(".")[0] if section[0].isdigit() else "0"] = commands
    return found


class Shell:
    """One bash that executes the sections of the page."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.folder, self.number = folder, 0
        self.process = subprocess.Popen(
            ["bash", "-e"], cwd=folder, env=env, stdin=subprocess.PIPE, text=True,
            stdout=(folder / "shell.log").open("w"), stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, commands: str) -> None:
        self.number += 1
        mark = self.folder / f"done-{self.number}"
        assert self.process.stdin is not None
        self.process.stdin.write(f"{commands}\ntouch {mark}\n")
        self.process.stdin.flush()
        until(lambda: mark.exists() or self.process.poll() is not None, 180, commands)
        assert mark.exists(), (self.folder / "shell.log").read_text()[-3000:]


def test_every_command_of_the_page(tmp_path: Path) -> None:
    ports = {"8000": free_port(), "9094": free_port()}
    with flower_home() as env:
        shell = Shell(tmp_path, env | {"APP": str(EXAMPLE)})
        try:
            walk_through(tmp_path, shell, blocks(ports), ports["8000"])
        finally:
            shell.process.kill()
            shell.process.wait()


def walk_through(folder: Path, shell: Shell, page: dict[str, list[str]], port: int) -> None:
    assert list(page) == [str(number) for number in range(10)]
    run = folder / "server" / "run" / "run"
    metrics = run / "metrics.jsonl"
    for number in "012":
        shell.run("".join(page[number]))
    superlink, register = page["3"]
    shell.run(superlink)
    until(lambda: listening(port), 60, "the SuperLink does not listen")
    shell.run(register)
    shell.run("".join(page["4"] + page["5"]))
    for user in USERS:
        log = folder / user / "supernode.log"
        until(lambda log=log: "SuperNode ID" in log.read_text(), 120, f"{user} is not online")
    shell.run("".join(page["6"]))
    until(lambda: metrics.exists() and metrics.read_text().count("\n") >= 1, 240, "no round")
    shell.run("".join(page["7"]))
    shell.run("".join(page["8"]))
    before = metrics.read_text().splitlines()
    assert json.loads(before[0])["accepted"] >= 2
    resume, end = page["9"]
    shell.run(resume)
    until((run / "summary.json").exists, 360, "the run was not resumed")
    assert metrics.read_text().splitlines()[: len(before)] == before
    assert len(metrics.read_text().splitlines()) == 4
    shell.run(end)
