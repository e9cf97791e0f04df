"""Policies: files, limits, names of mechanisms, and the secret of the server."""

import math
from pathlib import Path
from typing import Any

import pytest

from flower.parts import context, policy
from hushbit.errors import HushbitError, InvalidInput
from hushbit.flower.policy import ALLOWED_MECHANISMS, Policy, RequestRefused, node_policy
from hushbit.registry import BY_DESCRIPTION, WRAPPERS
from hushbit.wire.keys import load_secret

TEXT = """
epsilon_per_bit = 0.5
epsilon_per_message = inf
budget = 100.0
delta = 1e-5
l2_clip = 1.0
mechanisms = ["CPA", "Rotated/CPA"]
ledger = "mine.db"
"""


def test_the_ledger_path_is_relative_to_the_policy_file(tmp_path: Path) -> None:
    place = tmp_path / "policy.toml"
    place.write_text(TEXT)
    found = node_policy(context(**{"hushbit-policy": str(place)}))
    assert found.ledger == tmp_path / "mine.db"
    assert found.mechanisms == ("CPA", "Rotated/CPA")
    assert found.epsilon_per_message == math.inf
    assert found.metrics == ()


@pytest.mark.parametrize("name", [line.split(" =")[0] for line in TEXT.strip().splitlines()])
def test_no_limit_has_a_default(tmp_path: Path, name: str) -> None:
    place = tmp_path / "policy.toml"
    place.write_text("\n".join(line for line in TEXT.splitlines() if not line.startswith(name)))
    with pytest.raises(InvalidInput):
        Policy.load(place)


@pytest.mark.parametrize("text", ["", "x = ", TEXT + "more = 1", TEXT.replace("0.5", '"much"')])
def test_invalid_policy_files_are_refused(tmp_path: Path, text: str) -> None:
    place = tmp_path / "policy.toml"
    place.write_text(text)
    with pytest.raises(InvalidInput):
        Policy.load(place)


def test_a_node_without_a_policy_refuses(tmp_path: Path) -> None:
    with pytest.raises(RequestRefused, match="no policy"):
        node_policy(context())
    with pytest.raises(InvalidInput):
        node_policy(context(**{"hushbit-policy": str(tmp_path / "absent.toml")}))


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon_per_bit": 0},
        {"epsilon_per_bit": math.nan},
        {"budget": True},
        {"delta": 1.0},
        {"l2_clip": -1},
        {"mechanisms": ()},
        {"mechanisms": "CPA"},
        {"mechanisms": ["cpa"]},
        {"mechanisms": ["CPA/Rotated"]},
        {"mechanisms": ["Magic/CPA"]},
        {"mechanisms": [""]},
        {"metrics": [3]},
        {"ledger": ""},
        {"ledger": 3},
        {"user": ""},
    ],
)
def test_invalid_limits_are_refused(tmp_path: Path, changes: Any) -> None:
    with pytest.raises(InvalidInput):
        policy(tmp_path, **changes)


def test_allowed_names_are_those_of_the_registry_and_of_the_docs(tmp_path: Path) -> None:
    assert sorted([*ALLOWED_MECHANISMS, *WRAPPERS]) == sorted(BY_DESCRIPTION)
    page = (Path(__file__).parents[2] / "docs" / "flower.md").read_text()
    for name in (*ALLOWED_MECHANISMS, *WRAPPERS):
        assert f"`{name}`" in page, name
    assert policy(tmp_path, mechanisms=["Rotated/Subset/CPA"]).mechanisms == ("Rotated/Subset/CPA",)


def test_a_secret_is_created_once_with_private_permissions(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "secret.key"
    first = load_secret(place)
    assert len(first) == 32
    assert load_secret(place) == first
    assert place.stat().st_mode & 0o077 == 0
    place.write_bytes(b"short")
    with pytest.raises(HushbitError):
        load_secret(place)
