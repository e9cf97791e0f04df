"""Attack and defence in a run, from its settings to its results."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest

from hushbit.errors import InvalidInput
from hushbit.lab.cli import main
from hushbit.lab.sim.defences import defence_arrays, defence_warnings, load_state, needs_full_round
from hushbit.lab.sim.robust_means import ROBUST_MEANS
from hushbit.lab.sim.run import run
from hushbit.lab.sim.settings import PAPER_TRAINING, Settings
from hushbit.lab.sim.setup import build_setup

BASE = {
    **PAPER_TRAINING,
    "users": 250,
    "rounds": 8,
    "mechanism": "cpa",
    "epsilon_per_bit": 1.0,
    "rotate": True,
    "clip": 0.5,
    "radius": 0.04,
    "evaluate_every": 8,
    "seed": 3,
}


def outcome(**options):
    """The test accuracy of a run, and the last row of its history."""
    summary = run(Settings(**{**BASE, **options}))
    return summary["test_accuracy"], summary["history"][-1]


def test_the_defence_stops_a_directed_attack():
    clean, row = outcome()
    assert row["removed_honest"] is None
    defended, row = outcome(defence="scores")
    assert abs(defended - clean) < 0.02  # nobody is removed
    assert row["removed_honest"] == 0.0
    attacked, _ = outcome(attack="directed", attackers=0.3)
    assert attacked < 0.3 < clean - 0.3
    defended, row = outcome(attack="directed", attackers=0.3, defence="scores")
    assert defended > clean - 0.1
    assert row["removed_attackers"] == 1.0
    assert row["removed_honest"] == 0.0


def test_identities_that_are_new_in_every_round_are_not_counted():
    _, row = outcome(attack="fresh-identities", attackers=0.3, defence="scores", rounds=3)
    assert row["removed_attackers"] == 1.0
    assert row["removed_honest"] == 0.0


def test_the_summary_has_the_shares_of_removed_users():
    options = {**BASE, "rounds": 2, "defence": "scores"}
    plain = run(Settings(**options))
    assert plain["removed_honest"] == 0.0
    assert plain["removed_attackers"] is None
    assert run(Settings(**{**options, "defence": "none"}))["removed_honest"] is None
    attacked = run(Settings(**options, attack="ones", attackers=0.3))
    assert attacked["removed_attackers"] == 1.0


def test_the_defence_works_with_automatic_points():
    auto = {"mechanism": "cpa-auto", "rotate": False, "clip": None, "radius": None}
    clean, _ = outcome(**auto)
    for attack in ("directed", "sybils", "ones"):
        defended, row = outcome(**auto, attack=attack, attackers=0.3, defence="scores")
        assert defended > clean - 0.1
        assert row["removed_attackers"] == 1.0
        assert row["removed_honest"] == 0.0


@pytest.mark.parametrize("attack", ["directed", "scaled", "little", "adaptive", "label-flip"])
def test_runs_do_not_depend_on_chunks(attack):
    rows = [
        outcome(
            attack=attack,
            attackers=0.2,
            defence="scores",
            rounds=2,
            evaluate_every=2,
            memory_mb=memory,
        )[1]
        for memory in (0.5, 128.0)
    ]
    same = [{k: v for k, v in row.items() if "seconds" not in k} for row in rows]
    assert same[0] == same[1]


@pytest.mark.parametrize("mechanism", ["fedavg", "laplace", "signsgd", "mvu", "nested", "jopeq"])
@pytest.mark.parametrize("attack", ["directed", "sybils", "inner-product"])
def test_every_mechanism_can_be_attacked(mechanism, attack):
    options = {"mechanism": mechanism, "clip": None, "rounds": 1, "evaluate_every": 1}
    options |= (
        {"epsilon_per_bit": None, "radius": None, "rotate": False} if mechanism == "fedavg" else {}
    )
    options |= {"radius": None, "sign_step": 0.01} if mechanism == "signsgd" else {}
    score, row = outcome(**options, users=30)
    attacked_score, attacked_row = outcome(**options, users=30, attack=attack, attackers=0.4)
    assert attacked_row["mse"] > row["mse"]
    assert attacked_score < score


def test_the_backdoor_rate_is_measured():
    options = {
        "mechanism": "fedavg",
        "epsilon_per_bit": None,
        "clip": None,
        "radius": None,
        "rotate": False,
        "rounds": 30,
        "evaluate_every": 30,
    }
    _, row = outcome(**options, attack="backdoor", attackers=0.4)
    assert row["backdoor_rate"] > 0.5
    _, row = outcome(**options, attack="label-flip", attackers=0.4)
    assert row["backdoor_rate"] is None


@pytest.mark.parametrize(
    "defence",
    ROBUST_MEANS,
)
def test_robust_means_run_without_privacy(defence):
    options = {
        "mechanism": "fedavg",
        "epsilon_per_bit": None,
        "clip": None,
        "radius": None,
        "rotate": False,
        "users": 60,
        "rounds": 3,
    }
    attacked, _ = outcome(**options, attack="directed", attackers=0.2)
    defended, _ = outcome(**options, attack="directed", attackers=0.2, defence=defence)
    assert attacked < 0.13
    assert defended > attacked + 0.03


def test_median_and_trimmed_mean_are_read_from_the_private_histogram():
    options = {"rotate": False, "points": 4, "clip": None, "users": 40, "rounds": 2}
    rows = [outcome(**options, defence=name)[1] for name in ("none", "median", "trimmed-mean")]
    assert len({row["mse"] for row in rows}) == 3
    assert all(row["test_accuracy"] > 0.25 for row in rows)


@pytest.mark.parametrize(
    "wrong",
    [
        {"defence": "multi-krum"},
        {"defence": "median"},
        {"defence": "luck"},
        {"defence": "spectral"},
        {"attack": "luck", "attackers": 0.1},
        {"attack": "directed"},
        {"defence": "scores", "mechanism": "laplace", "rotate": False, "clip": None},
    ],
)
def test_unknown_or_unsuitable_attacks_and_defences_are_refused(wrong):
    with pytest.raises(InvalidInput):
        build_setup(Settings(**{**BASE, **wrong}))


def test_a_model_that_is_not_finite_is_refused():
    settings, params = Settings(**BASE, defence="scores"), np.ones(5, dtype=np.float32)
    state = defence_arrays(settings, 3, params)
    assert load_state(state, np.arange(3), params).direction is None  # has not moved
    moved = load_state(state, np.arange(3), 2 * params)
    assert moved.direction == pytest.approx([2 / 5**0.5] * 5)
    for name in ("first model", "previous model"):
        with pytest.raises(InvalidInput, match=f"the {name} of the checkpoint is not finite"):
            load_state({**state, name: np.full(5, np.nan)}, np.arange(3), params)


def test_only_crafted_attacks_and_defences_need_the_full_round():
    assert not needs_full_round(Settings(**BASE))
    assert not needs_full_round(Settings(**BASE, attack="flip", attackers=0.1))
    assert needs_full_round(Settings(**BASE, attack="sybils", attackers=0.1))
    assert needs_full_round(Settings(**BASE, defence="scores"))


def test_warnings_name_settings_under_which_the_defence_protects_little():
    good = Settings(**BASE, defence="scores")
    assert defence_warnings(good) == []
    assert defence_warnings(Settings(**{**BASE, "clip": None})) == []
    for change, word in (
        ({"users": 30, "participation": 0.5}, "15 users take part in a round: too few"),
        ({"attack": "flip", "attackers": 0.5}, "majority"),
        ({"clip": None, "rotate": False}, "cpa-auto"),
    ):
        (line,) = defence_warnings(dataclasses.replace(good, **change))
        assert word in line
    assert defence_warnings(dataclasses.replace(good, users=60, participation=0.5)) == []


def test_the_run_command_takes_attack_and_defence(capsys):
    words = [
        "run",
        "--users",
        "40",
        "--rounds",
        "1",
        "--epsilon-per-bit",
        "1",
        "--attack",
        "directed",
        "--attackers",
        "0.3",
        "--defence",
        "scores",
        "--json",
    ]
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert not stopped.value.code
    printed = capsys.readouterr()
    assert "test_accuracy" in json.loads(printed.out)
    assert "--mechanism cpa-auto" in printed.err


def test_settings_accept_every_attack_and_defence_without_compiled_code():
    program = """
import sys
from hushbit.lab.attacks import ATTACKS
from hushbit.lab.sim.settings import DEFENCES, Settings
for name in ATTACKS:
    Settings(attack=name, attackers=0.1)
for name in DEFENCES:
    Settings(defence=name)
print(len(ATTACKS), len(DEFENCES), {"numba", "torch", "scipy"} & set(sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["21", "6", "set()"]
