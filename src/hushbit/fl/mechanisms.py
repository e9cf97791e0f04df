"""Mechanisms by name, from the options of a run."""

import math
from collections.abc import Callable
from typing import Any

from hushbit import baselines
from hushbit.baselines.entries import PRESETS
from hushbit.checks import choice
from hushbit.cpa import CPA, NestedCPA
from hushbit.errors import InvalidInput
from hushbit.fl.models import Model
from hushbit.fl.rehearsal import rehearsed_norm
from hushbit.fl.settings import Settings
from hushbit.fl.training import LocalSettings
from hushbit.mechanism import Mechanism
from hushbit.rotation import Rotated

RADIUS = 0.05
SHARED = {"epsilon_per_bit", "radius", "preset", "rotate"}
TAKES: dict[str, set[str]] = {
    "fedavg": set(),
    "cpa": SHARED | {"points", "lattice", "rounding", "words", "clip"},
    "cpa-auto": {"epsilon_per_bit", "epsilon_per_message", "message_delta", "k", "bits_per_weight"},
    "cpa-no-rr": (SHARED | {"points", "lattice", "rounding", "words"}) - {"epsilon_per_bit"},
    "nested": SHARED | {"stages", "lattice", "rounding", "words"},
    "laplace": SHARED,
    "signsgd": {"epsilon_per_bit", "sign_step", "preset", "rotate"},
    "jopeq": SHARED | {"mode", "levels", "lattice"},
    "mvu": (SHARED | {"bits"}) - {"preset"},
}
FIRST_OCTAVES = 0.5
"""Doubt about the norm that a rehearsal tells: half of the belief within so many octaves."""

ALIASES = {"vanilla": "fedavg", "nested-cpa": "nested", "signsgd-rr": "signsgd"}
OPTIONS = sorted(set().union(*TAKES.values()))


def mechanism_name(name: str) -> str:
    """The canonical name of a mechanism."""
    known = ALIASES.get(name, name)
    if known not in TAKES:
        raise InvalidInput(f"unknown mechanism {name!r}; choose one of {', '.join(TAKES)}")
    return known


def build_mechanism(settings: Settings, model: Model, local: LocalSettings) -> Mechanism:
    """The mechanism that the settings ask for, sized for a model and for how users train it."""
    name = mechanism_name(settings.mechanism)
    options = {key: getattr(settings, key) for key in OPTIONS}
    given = {key: value for key, value in options.items() if value is not None}
    if not settings.rotate:
        given.pop("rotate")
    wrong = sorted(set(given) - TAKES[name])
    if wrong:
        listed = ", ".join("--" + key.replace("_", "-") for key in wrong)
        raise InvalidInput(f"mechanism {name} does not take {listed}; leave it out")
    by_message = "epsilon_per_message" in given
    if "epsilon_per_bit" in TAKES[name] and settings.epsilon_per_bit is None and not by_message:
        other = " or --epsilon-per-message" if "epsilon_per_message" in TAKES[name] else ""
        raise InvalidInput(
            f"mechanism {name} needs --epsilon-per-bit{other}: privacy has no default"
        )
    rotate = given.pop("rotate", False)
    if name == "cpa-auto":
        return _auto(settings, model, local)
    made = _BUILDERS[name](model, given)
    return Rotated(made) if rotate else made


def _radius(given: dict[str, Any]) -> float:
    return float(given.get("radius", RADIUS))


def _pick(given: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: given[name] for name in names if name in given}


def _cpa(model: Model, given: dict[str, Any]) -> Mechanism:
    more = _pick(given, "points", "lattice", "rounding", "words", "preset", "clip")
    made = CPA(model.dim, given["epsilon_per_bit"], _radius(given), **more)
    if "clip" in given and made.guarantee.rho is None:
        raise InvalidInput("--clip gives a guarantee for two points on Z with stochastic rounding")
    return made


def _auto(settings: Settings, model: Model, local: LocalSettings) -> Mechanism:
    fewer = settings.partition == "per-user"
    samples = min(local.batch_size, settings.samples_per_user) if fewer else local.batch_size
    users = max(1, round(settings.participation * settings.users))
    return CPA.auto(
        model.dim, users, epsilon_per_bit=settings.epsilon_per_bit,
        epsilon_per_message=settings.epsilon_per_message, delta=settings.message_delta,
        k=settings.k, bits_per_weight=settings.bits_per_weight,
        first_norm=rehearsed_norm(model, local, samples, settings.seed),
        first_octaves=FIRST_OCTAVES,
    )  # fmt: skip


def _no_rr(model: Model, given: dict[str, Any]) -> Mechanism:
    return _cpa(model, given | {"epsilon_per_bit": math.inf})


def _nested(model: Model, given: dict[str, Any]) -> Mechanism:
    more = _pick(given, "lattice", "rounding", "words", "preset")
    if "stages" in given:
        more["stages"] = whole_numbers(given["stages"])
    elif given.get("preset") != "authors":
        more["stages"] = (2, 2)
    return NestedCPA(model.dim, given["epsilon_per_bit"], _radius(given), **more)


def _authors(given: dict[str, Any], fixes: str) -> bool:
    """Whether the published variant of a baseline is asked for, which fixes one option itself."""
    if choice("preset", given.get("preset", "honest"), PRESETS) == "honest":
        return False
    if fixes in given:
        listed = "--" + fixes.replace("_", "-")
        raise InvalidInput(f"preset authors sets {listed} itself; leave it out")
    return True


def _laplace(model: Model, given: dict[str, Any]) -> Mechanism:
    if _authors(given, "radius"):
        sizes = tuple(slot.stop - slot.start for slot in model.shapes)
        return baselines.Laplace(
            model.dim, given["epsilon_per_bit"], preset="authors", layers=sizes
        )
    return baselines.Laplace(model.dim, given["epsilon_per_bit"], _radius(given))


def _signsgd(model: Model, given: dict[str, Any]) -> Mechanism:
    if _authors(given, "sign_step"):
        return baselines.SignRR(model.dim, given["epsilon_per_bit"], preset="authors")
    if "sign_step" not in given:
        raise InvalidInput("signsgd needs --sign-step: its signs carry no size of their own")
    return baselines.SignRR(model.dim, given["epsilon_per_bit"], given["sign_step"])


def _jopeq(model: Model, given: dict[str, Any]) -> Mechanism:
    more = _pick(given, "mode", "levels", "lattice", "preset")
    return baselines.JoPEQ(model.dim, given["epsilon_per_bit"], _radius(given), **more)


def _mvu(model: Model, given: dict[str, Any]) -> Mechanism:
    return baselines.MVU(
        model.dim, given["epsilon_per_bit"], _radius(given), **_pick(given, "bits")
    )


def whole_numbers(text: str) -> tuple[int, ...]:
    """Whole numbers from a text such as 2,8."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InvalidInput(f"stages must look like 2,8; got {text!r}") from None


_BUILDERS: dict[str, Callable[[Model, dict[str, Any]], Mechanism]] = {
    "fedavg": lambda model, given: baselines.FedAvg(model.dim),
    "cpa": _cpa,
    "cpa-no-rr": _no_rr,
    "nested": _nested,
    "laplace": _laplace,
    "signsgd": _signsgd,
    "jopeq": _jopeq,
    "mvu": _mvu,
}
