"""One round of rotated two-point CPA passes through the files that CONTRIBUTING.md names."""

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import hushbit as hb
from hushbit.encoding.clip_and_rotate import cached_rotation

SOURCES = Path(hb.__file__).parent
CONTRIBUTING = Path(__file__).parents[1] / "CONTRIBUTING.md"
MAX_FILES = 12


def one_round(mechanism: hb.Mechanism, round_key: hb.RoundKey) -> hb.Estimate:
    """Encode, send, count and decode the ballots of two users."""
    tally = mechanism.tally(round_key)
    for user in (1, 2):
        update = np.linspace(-1, 1, mechanism.dim)
        wire = mechanism.encode(update, round_key.user(user)).to_bytes()
        tally.add(hb.Ballot.from_bytes(wire))
    return mechanism.estimate(tally)


def files_of(mechanism: hb.Mechanism, round_key: hb.RoundKey) -> set[str]:
    """The files of the library whose Python functions a round enters; kernels are compiled."""
    seen: set[str] = set()

    def trace(frame: FrameType, event: str, argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        python = "__name__" in frame.f_globals  # Numba reports compiled calls without a module
        if event == "call" and path.is_relative_to(SOURCES) and python:
            seen.add(path.relative_to(SOURCES).as_posix())

    sys.setprofile(trace)
    try:
        one_round(mechanism, round_key)
    finally:
        sys.setprofile(None)
    return seen


def test_a_round_passes_through_the_files_that_contributing_names() -> None:
    one_round(hb.Rotated(hb.CPA(40, 0.5, 1.0)), hb.RoundKey(bytes(32), 1))  # compile the kernels
    cached_rotation.cache_clear()
    mechanism = hb.Rotated(hb.CPA(24, 0.5, 1.0, clip=1.0))
    named = re.findall(r"^\| `([\w/]+\.py)` \|", CONTRIBUTING.read_text(encoding="utf-8"), re.M)
    assert files_of(mechanism, hb.RoundKey(bytes(32), 2)) == set(named)
    assert len(named) == len(set(named)) <= MAX_FILES
