"""Mechanisms by name: each is built, accepts its own options only, and requires its epsilon."""

import math

import pytest

from hushbit import baselines
from hushbit.cpa import CPA, NestedCPA
from hushbit.errors import InvalidInput
from hushbit.lab.sim.clip_and_rate import private_clip
from hushbit.lab.sim.datasets import DATASET_NAMES
from hushbit.lab.sim.models import MODEL_NAMES
from hushbit.lab.sim.optimizers import ConstantRate, Optimizer
from hushbit.lab.sim.server_steps import SERVER_STEPS
from hushbit.lab.sim.settings import CHOICES, FIELDS, MECHANISMS, Settings, mechanism_name
from hushbit.lab.sim.setup import (
    ACCEPTED_OPTIONS,
    OPTIONS,
    build_mechanism,
    build_setup,
    parse_ints,
)
from hushbit.lab.sim.training import LocalSettings
from hushbit.tuning.auto import AutoCPA
from hushbit.wrappers import Rotated

TASK = build_setup(Settings(mechanism="fedavg")).task
LOCAL = LocalSettings(ConstantRate(0.1))
NEEDED = {
    "signsgd": {"sign_step": 0.01},
    "gaussian": {"noise_multiplier": 3.0, "clip": 0.5},
}
VALUES = {
    "epsilon_per_bit": 0.5,
    "radius": 0.1,
    "points": 4,
    "stages": "2,4",
    "lattice": "A2",
    "rounding": "dithered",
    "words": "uniform",
    "preset": "authors",
    "rotate": True,
    "clip": 1.0,
    "noise_multiplier": 2.0,
    "sign_step": 0.5,
    "mode": "moment",
    "levels": 5,
    "k": 2,
    "bits_per_weight": 0.5,
}


def built(name, **options):
    private = (
        {"epsilon_per_bit": 0.5}
        if "epsilon_per_bit" in ACCEPTED_OPTIONS[mechanism_name(name)]
        else {}
    )
    needed = NEEDED.get(mechanism_name(name), {})
    return build_mechanism(Settings(mechanism=name, **private | needed | options), TASK, LOCAL)


def test_each_name_gives_its_own_mechanism():
    kinds = {
        "fedavg": baselines.FedAvg,
        "gaussian": baselines.Gaussian,
        "cpa": CPA,
        "cpa-no-rr": CPA,
        "nested": NestedCPA,
        "cpa-auto": AutoCPA,
        "laplace": baselines.Laplace,
        "signsgd": baselines.SignRR,
        "mvu": baselines.MVU,
    }
    for name in ACCEPTED_OPTIONS:
        made = built(name)
        assert made.dim == TASK.dim
        assert isinstance(made, kinds.get(name, object))
    assert built("vanilla") == built("fedavg")
    assert built("nested-cpa") == built("nested")
    assert built("signsgd-rr") == built("signsgd")


def test_every_option_reaches_the_mechanism():
    assert built("cpa", radius=0.1) != built("cpa")
    assert built("cpa", points=4) == CPA(TASK.dim, 0.5, 0.05, points=4)
    assert built("cpa", clip=1.0) == CPA(TASK.dim, 0.5, 0.05, clip=1.0)
    assert built("cpa", lattice="A2", points=4) == CPA(TASK.dim, 0.5, 0.05, lattice="A2", points=4)
    assert built("nested", stages="2,8") == NestedCPA(TASK.dim, 0.5, 0.05, stages=(2, 8))
    assert built("cpa", rotate=True) == Rotated(built("cpa"))


def option_cases():
    """Every option of every mechanism, with what it needs beside it."""
    beside = {option: {"points": 4, "stages": "4,4"} for option in ("lattice", "words", "rounding")}
    for name, takes in ACCEPTED_OPTIONS.items():
        for option in sorted(takes - {"epsilon_per_bit", "preset"}):
            needed = {key: value for key, value in beside.get(option, {}).items() if key in takes}
            yield pytest.param(name, {option: VALUES[option]}, needed, id=f"{name} {option}")


@pytest.mark.parametrize(("name", "option", "needed"), list(option_cases()))
def test_every_option_changes_the_mechanism(name, option, needed):
    assert built(name, **option, **needed) != built(name, **needed)


@pytest.mark.parametrize(
    "name", [n for n, takes in ACCEPTED_OPTIONS.items() if "epsilon_per_bit" in takes]
)
def test_privacy_has_no_default(name):
    with pytest.raises(InvalidInput, match="--epsilon-per-bit"):
        build_mechanism(Settings(mechanism=name, **NEEDED.get(name, {})), TASK, LOCAL)


@pytest.mark.parametrize("name", list(ACCEPTED_OPTIONS))
def test_options_of_other_mechanisms_are_refused(name):
    for option in set(OPTIONS) - ACCEPTED_OPTIONS[name]:
        flag = "--" + option.replace("_", "-")
        with pytest.raises(InvalidInput, match=f"{name} does not take {flag}"):
            built(name, **{option: VALUES[option]})


@pytest.mark.parametrize(
    "options",
    [
        {"epsilon_per_bit": 0.0},
        {"epsilon_per_bit": -1.0},
        {"epsilon_per_bit": math.nan},
        {"radius": 0.0},
        {"radius": math.inf},
        {"points": 0},
        {"points": 1},
        {"clip": 0.0},
        {"lattice": "A7"},
        {"rounding": "up"},
        {"words": ""},
        {"preset": "best"},
    ],
)
def test_zero_and_invalid_values_are_refused_and_not_treated_as_unset(options):
    with pytest.raises(InvalidInput):
        built("cpa", **options)


def test_more_zeros_are_refused():
    for name, options in (
        ("jopeq", {"levels": 0}),
        ("signsgd", {"sign_step": 0.0}),
        ("nested", {"stages": ""}),
    ):
        with pytest.raises(InvalidInput):
            built(name, **options)


def test_no_randomized_response_means_infinite_epsilon():
    assert built("cpa-no-rr").guarantee.epsilon_per_bit == math.inf


PURE = {"delta": 0.0, "per": "message", "against": "server"}
PER_BIT = PURE | {"epsilon": 0.5, "per": "bit"}
PER_RUN = {"epsilon": 4.0, "delta": 1e-5, "per": "run", "against": "model"}
EVERY_BUDGET = [
    PER_BIT,
    PURE | {"epsilon": 4.0},
    PURE | {"epsilon": 40.0, "per": "run"},
    PURE | {"epsilon": 4.0, "delta": 1e-5},
    PER_RUN | {"epsilon": 50.0, "against": "server"},
    PER_RUN,
    PER_RUN | {"epsilon": 1.0, "per": "message"},
]


def budgeted(name, budget, **options):
    settings = Settings(mechanism=name, users=100, rounds=5, **budget | options)
    return build_mechanism(settings, TASK, LOCAL)


@pytest.mark.parametrize("parts", EVERY_BUDGET)
def test_cpa_spends_every_budget(parts):
    made = budgeted("cpa", parts, clip=0.5)
    budget = Settings(**parts).budget
    spent = budget.spent(made.guarantee, rounds=5, honest=100).epsilon
    assert 0.99 * budget.epsilon <= spent <= budget.epsilon
    assert isinstance(made, Rotated)


@pytest.mark.parametrize("parts", EVERY_BUDGET)
def test_cpa_auto_stays_within_every_budget(parts):
    made = budgeted("cpa-auto", parts)
    budget = Settings(**parts).budget
    spent = budget.spent(made.guarantee, rounds=5, honest=100).epsilon
    assert 0.9 * budget.epsilon <= spent <= budget.epsilon


def test_cpa_under_a_budget_has_a_public_clip_unless_one_is_given():
    norm = TASK.public_norm(LOCAL, 5, 0)
    assert budgeted("cpa", PER_BIT).clip == pytest.approx(private_clip(norm))
    assert budgeted("cpa", PER_BIT, clip=0.25).clip == 0.25
    assert budgeted("cpa", PER_BIT, radius=0.125).inner.radius == 0.125


def test_a_budget_per_bit_is_the_epsilon_per_bit_of_every_mechanism():
    for name in ACCEPTED_OPTIONS.keys() - {"fedavg", "gaussian", "cpa", "cpa-auto", "cpa-no-rr"}:
        assert budgeted(name, PER_BIT, **NEEDED.get(name, {})) == build_mechanism(
            Settings(mechanism=name, users=100, epsilon_per_bit=0.5, **NEEDED.get(name, {})),
            TASK,
            LOCAL,
        )


@pytest.mark.parametrize("per", ["run", "message"])
def test_gaussian_spends_budgets_against_the_model(per):
    parts = PER_RUN | {"per": per}
    made = budgeted("gaussian", parts, clip=0.25)
    spent = Settings(**parts).budget.spent(made.guarantee, rounds=5, honest=100).epsilon
    assert made.clip == 0.25
    assert 4.0 * (1 - 1e-6) <= spent <= 4.0
    assert budgeted("gaussian", parts).clip == budgeted("cpa", PER_BIT).clip
    with pytest.raises(InvalidInput, match="against='model'"):
        budgeted("gaussian", PER_BIT)
    with pytest.raises(InvalidInput, match="--noise-multiplier under a budget"):
        budgeted("gaussian", parts, noise_multiplier=1.0)


def test_laplace_spends_a_pure_budget_per_message():
    made = budgeted("laplace", PURE | {"epsilon": 4.0}, clip=0.5)
    assert isinstance(made, baselines.WholeLaplace)
    assert made.guarantee.epsilon_per_message() == 4.0
    assert made.l1_clip == 0.5 * math.sqrt(TASK.dim)


@pytest.mark.parametrize("name", ["nested", "laplace", "signsgd", "jopeq", "mvu", "cpa-no-rr"])
def test_other_budgets_are_refused_with_what_is_allowed(name):
    allowed = "no budget" if name == "cpa-no-rr" else "budget per bit"
    with pytest.raises(InvalidInput, match=f"mechanism {name} takes .*{allowed}.*got epsilon 4"):
        budgeted(name, PER_RUN, **NEEDED.get(name, {}))


def test_options_that_a_budget_determines_are_refused():
    with pytest.raises(InvalidInput, match="cpa does not take --points under a budget per run"):
        budgeted("cpa", PER_RUN, points=4)


def test_updates_under_a_budget_are_rotated_unless_told_otherwise():
    assert isinstance(budgeted("cpa", PER_RUN), Rotated)
    assert isinstance(budgeted("cpa", PER_RUN, rotate=True), Rotated)
    plain = budgeted("cpa", PER_RUN, rotate=False)
    assert isinstance(plain, CPA)
    assert plain.radius == plain.clip  # without a rotation, one entry may have the whole norm


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"defence": "scores"}, "the defence scores reads single ballots"),
        ({"attack": "little", "attackers": 0.1}, "attack little read the updates of honest users"),
    ],
)
def test_a_budget_against_the_model_covers_sums_only(options, reason):
    with pytest.raises(InvalidInput, match=reason):
        budgeted("cpa", PER_RUN, **options)
    budgeted("cpa", PER_RUN | {"against": "server"}, **options)


def test_signsgd_requires_its_step():
    with pytest.raises(InvalidInput, match="--sign-step"):
        build_mechanism(Settings(mechanism="signsgd", epsilon_per_bit=0.5), TASK, LOCAL)
    build_mechanism(
        Settings(mechanism="signsgd", epsilon_per_bit=0.5, preset="authors"), TASK, LOCAL
    )


@pytest.mark.parametrize("left", ["noise_multiplier", "clip"])
def test_gaussian_requires_noise_and_clip(left):
    options = {name: value for name, value in NEEDED["gaussian"].items() if name != left}
    with pytest.raises(InvalidInput, match="--noise-multiplier and --clip"):
        build_mechanism(Settings(mechanism="gaussian", **options), TASK, LOCAL)


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(InvalidInput, match=r"unknown mechanism 'magic'.*fedavg"):
        mechanism_name("magic")


def test_stages_are_integers():
    assert parse_ints("2,8") == (2, 8)
    for text in ("2;8", "2,", "two", "", "2.5"):
        with pytest.raises(InvalidInput, match="2,8"):
            parse_ints(text)


def test_names_that_settings_know_are_those_of_the_simulator():
    assert set(MECHANISMS) == set(ACCEPTED_OPTIONS)
    assert CHOICES["dataset"] == DATASET_NAMES
    assert CHOICES["model"] == MODEL_NAMES
    assert CHOICES["server"] == SERVER_STEPS
    for kind in CHOICES["optimizer"]:
        Optimizer(kind)


def test_options_are_settings():
    assert set(OPTIONS) <= set(FIELDS)
    assert set(OPTIONS) == set(VALUES)
