"""Policies: files, limits, names of mechanisms, and the secret of the server."""

import math
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import hushbit as hb
from flower.parts import context, policy
from hushbit import baselines
from hushbit.cpa import StagedCPA
from hushbit.errors import AlreadyCharged, HushbitError, InvalidInput, TooManyRequests
from hushbit.flower.node_policy import node_policy
from hushbit.flower.policy import ALLOWED_MECHANISMS, DEFAULT_MECHANISMS, Policy
from hushbit.flower.refusals import RequestInvalid, RequestRefused, VersionMismatch
from hushbit.privacy.accountant import Limit, within_limit
from hushbit.registry import BY_DESCRIPTION, WRAPPERS
from hushbit.wire.keys import load_secret
from hushbit.wrappers import NormVote

TEXT = """
epsilon_per_bit = 0.5
epsilon_per_message = inf
budget = 100.0
delta = 1e-5
l2_clip = 1.0
ledger = "mine.db"
"""
ANY = {
    "epsilon_per_bit": math.inf,
    "mechanisms": (
        *("CPA", "NestedCPA", "FedAvg", "Laplace", "WholeLaplace", "SignRR", "JoPEQ", "MVU"),
        *("Rotated/CPA", "NormVote/CPA", "NormVote/Rotated/CPA", "Subset/CPA"),
    ),
    "presets": ("corrected", "honest", "paper", "authors"),
    "roundings": ("stochastic", "dithered", "subtractive", "nearest"),
    "lattices": ("Z", "A2", "D4", "E8"),
    "max_points": 4096,
    "allow_unproven": True,
}


def test_the_ledger_path_is_relative_to_the_policy_file(tmp_path: Path) -> None:
    place = tmp_path / "policy.toml"
    place.write_text(TEXT)
    found = node_policy(context(**{"hushbit-policy": str(place)}))
    assert found.ledger == tmp_path / "mine.db"
    assert found.mechanisms == ("CPA", "Rotated/CPA", "NormVote/CPA", "NormVote/Rotated/CPA")
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
    with pytest.raises(RequestInvalid, match="no policy"):
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
        {"mechanisms": ["Rotated/"]},
        {"presets": ["paper"]},
        {"presets": ["best"], "allow_unproven": True},
        {"roundings": ["up"]},
        {"lattices": ["Leech"]},
        {"max_points": 1},
        {"max_dim": 0},
        {"max_dim": 1e6},
        {"requests_per_day": 0},
        {"allow_unproven": 1},
        {"simulation": "yes"},
        {"metrics": [3]},
        {"metrics": ["loss"]},
        {"metrics": ["loss"], "metric_replies_per_day": 0},
        {"metric_replies_per_day": -1},
        {"answer_after_seconds": 0},
        {"answer_after_seconds": math.inf},
        {"l2_clip": 1e-31},
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


def test_every_field_of_a_policy_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "flower.md").read_text()
    for field in fields(Policy):
        assert f"| `{field.name}` |" in page, field.name
        assert re.search(rf"^    {field.name} ", str(Policy.__doc__), re.MULTILINE), field.name


BUILT = [
    hb.CPA(16, 0.5, 0.05),
    hb.CPA(16, math.inf, 0.05, rounding="nearest", clip=1.0),
    hb.CPA(16, 0.5, 0.05, points=16, lattice="E8"),
    hb.CPA(16, 0.5, 0.05, preset="paper"),
    hb.CPA(16, 0.5, 0.05, preset="authors"),
    hb.NestedCPA(16, (0.5, 0.25), 0.05, stages=(2, 8)),
    hb.Rotated(hb.CPA(16, 0.5, 0.05)),
    hb.Subset(hb.CPA(16, 0.5, 0.05), 3),
    NormVote(hb.Rotated(hb.CPA(16, 0.5, 0.05)), 1.0, 0.5),
    baselines.FedAvg(16),
    baselines.Laplace(16, 0.5, 0.05),
    baselines.Laplace(16, 0.5, preset="authors", layers=(8, 8)),
    baselines.WholeLaplace(16, 4.0, 1.0),
    baselines.SignRR(16, 0.5, 0.05),
    baselines.JoPEQ(16, 0.5, 0.05),
    baselines.MVU(16, 0.5, 0.05),
]


@pytest.mark.parametrize("mechanism", BUILT, ids=repr)
def test_a_policy_can_allow_every_mechanism(tmp_path: Path, mechanism: hb.Mechanism) -> None:
    policy(tmp_path, **ANY).check(mechanism)


def test_default_limits_allow_what_auto_cpa_requests_and_no_other_parameters(
    tmp_path: Path,
) -> None:
    limits = {"mechanisms": DEFAULT_MECHANISMS, "epsilon_per_bit": math.inf}
    mine = policy(tmp_path, **limits)
    auto = (
        hb.AutoCPA(16, 100, epsilon_per_bit=0.5),
        hb.AutoCPA(3000, 100, epsilon_per_bit=0.5),  # several answers to the norm vote
        hb.AutoCPA(16, 100, budget=hb.Budget(4.0, 1e-5, per="message", against="server")),
    )
    for mechanism in (BUILT[0], BUILT[6], BUILT[8], *auto):
        mine.check(mechanism)
    for mechanism in (*BUILT[1:6], BUILT[7], *BUILT[9:], NormVote(BUILT[8], 1.0, 0.5)):
        with pytest.raises(RequestRefused):
            mine.check(mechanism)


@pytest.mark.parametrize(
    ("index", "limit"),
    [
        (1, {"roundings": ("stochastic",)}),
        (1, {"allow_unproven": False, "presets": ("corrected",)}),
        (2, {"lattices": ("Z",)}),
        (2, {"max_points": 15}),
        (2, {"max_dim": 15}),
        (3, {"presets": ("corrected",)}),
        (4, {"presets": ("corrected", "paper")}),
        (5, {"max_points": 15}),
        (7, {"max_dim": 15}),
        (9, {"allow_unproven": False, "presets": ("corrected",)}),
        (14, {"max_points": 3}),
    ],
)
def test_each_limit_refuses_by_itself(tmp_path: Path, index: int, limit: dict[str, Any]) -> None:
    policy(tmp_path, **ANY).check(BUILT[index])
    with pytest.raises(RequestRefused):
        policy(tmp_path, **(ANY | limit)).check(BUILT[index])


def nested(depth: int) -> dict[str, Any]:
    inner = BUILT[0].description
    for _ in range(depth):
        inner = {"mechanism": "Rotated", "inner": inner}
    return inner


HOSTILE: list[Any] = [
    {},
    {"mechanism": ["CPA"]},
    {"mechanism": {"mechanism": "CPA"}},
    nested(2),
    nested(900),
    *(
        BUILT[0].description | change
        for change in (
            {"dim": 10**4000},
            {"dim": -1},
            {"dim": "16"},
            {"dim": 16.0},
            {"dim": True},
            {"dim": [16]},
            {"points": [10**300]},
            {"points": [2] * 65},
            {"points": []},
            {"points": [[[[2]]]]},
            {"points": ["2"]},
            {"epsilon_per_bit": [math.nan]},
            {"epsilon_per_bit": ["0.5"]},
            {"epsilon_per_bit": [10**400]},
            {"epsilon_per_bit": [-0.5]},
            {"epsilon_per_bit": [[0.5]]},
            {"epsilon_per_bit": [0.5] * 10**5},
            {"radius": math.nan},
            {"radius": "inf"},
            {"radius": 1e31},
            {"radius": 1e-31},
            {"radius": [0.05]},
            {"clip": 0},
            {"lattice": [[1.0] * 300] * 300},
            {"lattice": "E8"},
            {"lattice": None},
            {"words": ["uniform"] * 65},
            {"words": ["morse"]},
            {"preset": ["corrected"]},
            {"rounding": None},
            {"more": 1},
            {"a" * 10**6: 1},
        )
    ),
]


@pytest.mark.parametrize("at", range(len(HOSTILE)))
def test_hostile_descriptions_are_refused_before_anything_is_built(
    tmp_path: Path, monkeypatch: Any, at: int
) -> None:
    monkeypatch.setattr(StagedCPA, "_build", lambda *_: pytest.fail("a mechanism was built"))
    for mine in (policy(tmp_path), policy(tmp_path, mechanisms=("CPA", "Rotated/CPA"))):
        with pytest.raises((RequestRefused, VersionMismatch)) as error:
            mine.check_description(HOSTILE[at])
        assert len(str(error.value)) < 10_000


def test_the_clip_of_the_policy_counts_in_the_cost(tmp_path: Path) -> None:
    plain = hb.CPA(7850, 0.5, 0.05)
    for mechanism in (plain, hb.Rotated(plain), hb.CPA(7850, 0.5, 0.05, clip=3.0)):
        mine = policy(tmp_path, l2_clip=1.0)
        clipped = hb.CPA(7850, 0.5, 0.05, clip=1.0).guarantee
        assert mine.guarantee(mechanism).cost == clipped.cost
        # The documented example: about 96 instead of more than 1000.
        assert mine.guarantee(mechanism).epsilon_per_message(1e-5) < 100
        assert plain.guarantee.epsilon_per_message(1e-5) > 1000
    tight = hb.CPA(7850, 0.5, 0.05, clip=0.5)
    assert policy(tmp_path, l2_clip=1.0).guarantee(tight) == tight.guarantee
    assert policy(tmp_path, l2_clip=math.inf).guarantee(plain) == plain.guarantee
    for other in (baselines.SignRR(16, 0.5, 0.05), baselines.WholeLaplace(16, 4.0, 1.0)):
        assert policy(tmp_path, l2_clip=1.0).guarantee(other) == other.guarantee
    limits = {"l2_clip": 1.0, "epsilon_per_message": 100.0}
    policy(tmp_path, **limits).check(plain)
    with pytest.raises(RequestRefused, match="ballot of epsilon"):
        policy(tmp_path, **(limits | {"l2_clip": math.inf})).check(plain)


def test_the_documented_policy_allows_the_documented_mechanism(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "flower.md").read_text()
    place = tmp_path / "policy.toml"
    place.write_text(page.split("```toml\n")[1].split("```")[0])
    mine, mechanism = Policy.load(place), hb.CPA(7850, 0.5, 0.05)
    mine.check(mechanism)
    assert not mine.metrics
    text = " ".join(page.split())
    stated = re.search(r"costs epsilon (\d+) at delta 1e-5.* (\d+) rounds", text)
    assert stated
    message = mine.guarantee(mechanism).epsilon_per_message(1e-5)
    assert round(message) == int(stated[1])
    cost, limit = mine.guarantee(mechanism).cost, Limit(mine.budget, mine.delta)
    rounds = int(stated[2])
    assert within_limit([cost.times(rounds)], limit)
    assert not within_limit([cost.times(rounds + 1)], limit)


def test_a_round_is_answered_once_and_charges_are_limited_per_day(tmp_path: Path) -> None:
    mine = policy(tmp_path, requests_per_day=3)
    mechanism = BUILT[0]
    key = hb.RoundKey(bytes(32), 1, b"a").user(1)
    mine.charge(mechanism, key)
    with pytest.raises(AlreadyCharged):
        mine.charge(mechanism, key)
    mine.charge(mechanism, hb.RoundKey(bytes(32), 2, b"a").user(1))
    mine.charge(mechanism, hb.RoundKey(bytes(32), 1, b"b").user(1))
    with pytest.raises(TooManyRequests):
        mine.charge(mechanism, hb.RoundKey(bytes(32), 3, b"a").user(1))


def test_a_secret_is_created_once_with_private_permissions(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "secret.key"
    first = load_secret(place)
    assert len(first) == 32
    assert load_secret(place) == first
    assert place.stat().st_mode & 0o077 == 0
    place.write_bytes(b"short")
    with pytest.raises(HushbitError):
        load_secret(place)
