"""Attack and defence inside the round loop, from the options of a run to its figures."""

import dataclasses
import json

import numpy as np
import pytest

from hushbit.cli import main
from hushbit.errors import InvalidInput
from hushbit.fl.settings import Settings
from hushbit.fl.setup import prepare
from hushbit.lab.runs import run
from hushbit.robust.advice import advice
from hushbit.robust.round import defence_state, needs_everyone, recalled

BASE = {
    "users": 250, "rounds": 8, "mechanism": "cpa", "epsilon_per_bit": 1.0, "rotate": True,
    "clip": 0.5, "radius": 0.04, "evaluate_every": 8, "seed": 3,
}  # fmt: skip


def last(**options):
    summary = run(Settings(**{**BASE, **options}))
    return summary["test_accuracy"], summary["history"][-1]


def test_the_filter_undoes_a_directed_attack():
    clean, row = last()
    assert row["removed_honest"] is None
    filtered, row = last(defence="spectral")
    assert abs(filtered - clean) < 0.02  # nobody is removed; medians stand for a few means
    assert row["removed_honest"] == 0.0
    attacked, _ = last(attack="directed", attackers=0.3)
    assert attacked < 0.3 < clean - 0.3
    defended, row = last(attack="directed", attackers=0.3, defence="spectral")
    assert defended > clean - 0.1
    assert row["removed_attackers"] == 1.0
    assert row["removed_honest"] == 0.0


def test_the_summary_says_who_was_removed():
    options = {**BASE, "rounds": 2, "defence": "spectral"}
    plain = run(Settings(**options))
    assert plain["removed_honest"] == 0.0
    assert plain["removed_attackers"] is None
    assert run(Settings(**{**options, "defence": "none"}))["removed_honest"] is None
    attacked = run(Settings(**options, attack="ones", attackers=0.3))
    assert attacked["removed_attackers"] == 1.0


def test_points_that_find_themselves_are_filtered_as_well():
    auto = {"mechanism": "cpa-auto", "rotate": False, "clip": None, "radius": None}
    clean, _ = last(**auto)
    for attack in ("directed", "sybils", "ones"):
        defended, row = last(**auto, attack=attack, attackers=0.3, defence="spectral")
        assert defended > clean - 0.1
        assert row["removed_attackers"] == 1.0
        assert row["removed_honest"] == 0.0


@pytest.mark.parametrize("attack", ["directed", "scaled", "little", "adaptive", "label-flip"])
def test_runs_do_not_depend_on_chunks(attack):
    rows = [
        last(attack=attack, attackers=0.2, defence="spectral", rounds=2, evaluate_every=2,
             memory_mb=memory)[1]
        for memory in (0.5, 128.0)
    ]  # fmt: skip
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
    score, _ = last(**options, users=30, attack=attack, attackers=0.4)
    assert np.isfinite(score)


def test_backdoors_are_measured():
    options = {"mechanism": "fedavg", "epsilon_per_bit": None, "clip": None, "radius": None,
               "rotate": False, "rounds": 30, "evaluate_every": 30}  # fmt: skip
    _, row = last(**options, attack="backdoor", attackers=0.4)
    assert row["backdoor_rate"] > 0.5
    _, row = last(**options, attack="label-flip", attackers=0.4)
    assert row["backdoor_rate"] is None


@pytest.mark.parametrize("defence", [
    "median", "trimmed-mean", "norm-clipping", "krum", "multi-krum", "bulyan", "sign-majority",
])  # fmt: skip
def test_comparators_run_without_privacy(defence):
    options = {"mechanism": "fedavg", "epsilon_per_bit": None, "clip": None, "radius": None,
               "rotate": False, "users": 60, "rounds": 3}  # fmt: skip
    score, _ = last(**options, attack="directed", attackers=0.2, defence=defence)
    assert np.isfinite(score)


def test_the_histogram_serves_median_and_trimmed_mean_with_privacy():
    for defence in ("median", "trimmed-mean"):
        score, _ = last(rotate=False, points=4, clip=None, users=40, rounds=2, defence=defence)
        assert np.isfinite(score)


@pytest.mark.parametrize("wrong", [
    {"defence": "krum"}, {"defence": "median"}, {"defence": "luck"},
    {"attack": "luck", "attackers": 0.1}, {"attack": "directed"},
    {"defence": "spectral", "mechanism": "laplace", "rotate": False, "clip": None},
])  # fmt: skip
def test_what_does_not_fit_is_refused(wrong):
    with pytest.raises(InvalidInput):
        prepare(Settings(**{**BASE, **wrong}))


def test_a_first_model_that_is_no_number_is_refused():
    settings, params = Settings(**BASE, defence="spectral"), np.ones(5, dtype=np.float32)
    state = defence_state(settings, 3, params)
    assert recalled(state, np.arange(3), params).way.tolist() == [0.25] * 5
    with pytest.raises(InvalidInput, match="not finite"):
        recalled({**state, "first model": np.full(5, np.nan)}, np.arange(3), params)


def test_only_colluders_and_defences_need_everyone():
    assert not needs_everyone(Settings(**BASE))
    assert not needs_everyone(Settings(**BASE, attack="flip", attackers=0.1))
    assert needs_everyone(Settings(**BASE, attack="sybils", attackers=0.1))
    assert needs_everyone(Settings(**BASE, defence="spectral"))


def test_a_filter_that_sees_little_is_told_of():
    good = Settings(**BASE, defence="spectral")
    assert advice(good) == []
    assert advice(Settings(**{**BASE, "clip": None})) == []
    for change, word in (
        ({"users": 30, "participation": 0.5}, "fewer than 20"),
        ({"attack": "flip", "attackers": 0.5}, "majority"),
        ({"clip": None, "rotate": False}, "cpa-auto"),
    ):
        (line,) = advice(dataclasses.replace(good, **change))
        assert word in line
    assert advice(dataclasses.replace(good, users=39, participation=0.5)) == []  # 20 take part


def test_the_command_line_knows_attack_and_defence(capsys):
    words = ["run", "--users", "40", "--rounds", "1", "--epsilon-per-bit", "1", "--attack",
             "directed", "--attackers", "0.3", "--defence", "spectral", "--json"]  # fmt: skip
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert not stopped.value.code
    printed = capsys.readouterr()
    assert "test_accuracy" in json.loads(printed.out)
    assert "--mechanism cpa-auto" in printed.err


def test_the_plan_prints_the_worst_shift(capsys):
    words = ["plan", "--dim", "1000", "--users", "100", "--epsilon-per-bit", "0.5"]
    for more in ([], ["--json"]):
        with pytest.raises(SystemExit):
            main([*words, *more])
        printed = capsys.readouterr().out
        assert ("worst_shift" if more else "Worst shift") in printed
    rows = json.loads(printed)["worst_shift"]
    assert all(row["filtered"] <= row["open"] for row in rows)
