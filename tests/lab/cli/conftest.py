"""A fixture that runs commands as a shell does, in this process."""

from typing import NamedTuple

import pytest
import torch

from hushbit.lab.cli import main


class Answer(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """Lines on standard error."""
        return self.err.splitlines()


@pytest.fixture
def hushbit(capsys, monkeypatch):
    """Return a function that calls the command line with words."""
    monkeypatch.setenv("COLUMNS", "80")

    def call(*words: object) -> Answer:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        captured = capsys.readouterr()
        return Answer(ended.value.code or 0, captured.out, captured.err)

    return call


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
