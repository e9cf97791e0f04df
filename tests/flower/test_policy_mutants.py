"""Policies that change between requests, and names of mechanisms inside several wrappers."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hushbit as hb
from flower.parts import context, policy, shifting_app, train_message
from hushbit.errors import HushbitError
from hushbit.flower.client import HushbitMod
from hushbit.flower.records import request_entries
from hushbit.registry import description_text

CPA = hb.CPA(14, 1.0, 0.05)  # pure epsilon 14 per ballot
MODEL = {"w": np.zeros((3, 4), np.float32), "b": np.ones(2, np.float32)}


def votes(folder: Path, round: int, **changes: Any) -> bool:
    """Whether a client answers a request with a ballot."""
    app = shifting_app(lambda arrays: arrays, [HushbitMod(policy(folder, **changes))])
    key = hb.RoundKey(bytes(32), round, b"run").user(9)
    message = train_message(MODEL, request_entries(description_text(CPA), key, ()))
    return not app(message, context()).has_error()


def charged(folder: Path) -> int:
    return len(hb.Ledger.open(folder / "ledger.db").entries())


def test_a_raised_budget_is_used_and_a_lowered_one_too(tmp_path: Path) -> None:
    small, large = {"budget": 30.0, "delta": 0.0}, {"budget": 45.0, "delta": 0.0}
    assert [votes(tmp_path, number, **small) for number in range(3)] == [True, True, False]
    assert [votes(tmp_path, number, **large) for number in range(3, 5)] == [True, False]
    assert charged(tmp_path) == 3
    for budget in (30.0, 42.0, 55.9):
        assert not votes(tmp_path, 6, budget=budget, delta=0.0)
    assert charged(tmp_path) == 3
    assert votes(tmp_path, 7, budget=56.0, delta=0.0)
    assert hb.Ledger.open(tmp_path / "ledger.db").limit("me").epsilon == 56.0


def test_a_raised_delta_is_used(tmp_path: Path) -> None:
    assert not votes(tmp_path, 0, budget=13.0, delta=0.0)
    assert votes(tmp_path, 1, budget=13.9, delta=0.1)


SUBSET = hb.Rotated(hb.Subset(hb.CPA(14, 1.0, 0.05), 5))
TWICE = hb.Rotated(hb.Rotated(CPA))
NESTED = hb.Rotated(hb.Rotated(hb.NestedCPA(14, 1.0, 0.05, stages=(2, 2))))


@pytest.mark.parametrize(
    ("name", "mechanism"),
    [
        ("Rotated/Subset/CPA", SUBSET),
        ("Rotated/Rotated/CPA", TWICE),
        ("Rotated/Rotated/NestedCPA", NESTED),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_name_has_all_wrappers_of_a_mechanism(
    tmp_path: Path, name: str, mechanism: hb.Mechanism
) -> None:
    others = {"CPA", "NestedCPA", "Rotated/CPA", "Rotated/NestedCPA", "Subset/CPA"}
    others |= {"Rotated/Subset/CPA", "Rotated/Rotated/CPA", "Rotated/Rotated/NestedCPA"}
    limits = {"epsilon_per_bit": math.inf, "max_points": 4}
    policy(tmp_path, mechanisms=[name], **limits).check(mechanism)
    with pytest.raises(HushbitError, match="policy allows"):
        policy(tmp_path, mechanisms=sorted(others - {name}), **limits).check(mechanism)
