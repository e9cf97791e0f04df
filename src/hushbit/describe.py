"""From a mechanism's description, or its name, back to the mechanism: strict in both directions.

A description travels as JSON. Whoever reads one gets a mechanism that describes itself in just
the same words, or an error: a name or parameter that is not known is never passed over.
"""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from hushbit import baselines
from hushbit.checks import whole
from hushbit.cpa import CPA, NestedCPA
from hushbit.errors import HushbitError, InvalidInput
from hushbit.mechanism import Mechanism
from hushbit.rotation import Rotated
from hushbit.subset import Subset
from hushbit.tuning.norm_vote import NormVote

DEEPEST = 4
NAMED: dict[str, Callable[..., Mechanism]] = {
    "cpa": CPA,
    "nested": NestedCPA,
    "whole-laplace": baselines.WholeLaplace,
    **baselines.mechanisms_by_name,
}
Fields = dict[str, Any]


def mechanism_by_name(name: str, dim: int, *, rotate: bool = False, **options: Any) -> Mechanism:
    """The mechanism of that name for updates of `dim` entries; options are its own parameters.

    >>> mechanism_by_name("cpa", 10, epsilon_per_bit=0.5, radius=0.05).payload_bits
    10
    """
    if not isinstance(name, str) or name not in NAMED:
        raise InvalidInput(f"unknown mechanism {name!r}; choose one of {', '.join(NAMED)}")
    try:
        made = NAMED[name](dim, **options)
    except TypeError as error:
        raise InvalidInput(f"mechanism {name} cannot be made of {sorted(options)}: {error}") from (
            None
        )
    return Rotated(made) if rotate else made


def description_text(mechanism: Mechanism) -> str:
    """The description as canonical JSON."""
    return json.dumps(mechanism.description, sort_keys=True, separators=(",", ":"))


def described_dim(description: Any) -> int:
    """How many entries a described mechanism takes, without building it."""
    for _ in range(DEEPEST):
        if not isinstance(description, Mapping):
            break
        if "inner" not in description:
            return whole("dim", description.get("dim"), 1)
        description = description["inner"]
    raise InvalidInput("a description names a mechanism, at most three wrappings deep")


def mechanism_from_description(description: Any) -> Mechanism:
    """The mechanism whose `description` is exactly this.

    >>> made = CPA(dim=10, epsilon_per_bit=0.5, radius=0.05)
    >>> mechanism_from_description(made.description) == made
    True
    """
    described_dim(description)
    fields = {str(key): value for key, value in description.items()}
    name = fields.pop("mechanism", None)
    if not isinstance(name, str) or name not in _READERS:
        raise InvalidInput(f"unknown mechanism {name!r}; known are {', '.join(_READERS)}")
    wanted, build = _READERS[name]
    if set(fields) != set(wanted):
        wrong = sorted(set(fields) ^ set(wanted))
        raise InvalidInput(f"mechanism {name} has parameters {', '.join(wanted)}; check {wrong}")
    try:
        made = build(fields)
    except HushbitError:
        raise
    except (TypeError, ValueError, KeyError, OverflowError, AttributeError) as error:
        raise InvalidInput(f"mechanism {name} cannot be read: {error}") from error
    if _canonical(made.description) != _canonical(description):
        raise InvalidInput(
            f"the description of {name} does not describe any mechanism of this version: "
            f"it would be read as {made.description}"
        )
    return made


def mechanism_from_text(text: Any) -> Mechanism:
    """The mechanism of a description in JSON."""
    return mechanism_from_description(description_from_text(text))


def description_from_text(text: Any) -> Fields:
    """A description read from JSON."""
    if not isinstance(text, str):
        raise InvalidInput(f"a description is JSON text; got {type(text).__name__}")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"a description is JSON text: {error}") from None
    if not isinstance(found, dict):
        raise InvalidInput(f"a description is a JSON object; got {type(found).__name__}")
    return found


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=repr)


def _number(value: Any) -> Any:
    return math.inf if value == "inf" else value


def _alone(name: str, values: Any) -> Any:
    if not isinstance(values, list) or len(values) != 1:
        raise InvalidInput(f"{name} lists one value for the one stage of a CPA; got {values!r}")
    return values[0]


def _cpa(fields: Fields) -> Mechanism:
    return CPA(
        fields["dim"], _number(_alone("epsilon_per_bit", fields["epsilon_per_bit"])),
        fields["radius"], points=_alone("points", fields["points"]), lattice=fields["lattice"],
        rounding=fields["rounding"], words=_alone("words", fields["words"]),
        preset=fields["preset"], clip=fields["clip"],
    )  # fmt: skip


def _nested(fields: Fields) -> Mechanism:
    families = set(fields["words"])
    return NestedCPA(
        fields["dim"], tuple(_number(value) for value in fields["epsilon_per_bit"]),
        fields["radius"], stages=tuple(fields["points"]), lattice=fields["lattice"],
        rounding=fields["rounding"], words=families.pop() if len(families) == 1 else None,
        preset=fields["preset"], clip=fields["clip"],
    )  # fmt: skip


def _rotated(fields: Fields) -> Mechanism:
    return Rotated(mechanism_from_description(fields["inner"]))


def _norm_vote(fields: Fields) -> Mechanism:
    inner = mechanism_from_description(fields["inner"])
    return NormVote(inner, fields["level"], _number(fields["epsilon"]))


def _subset(fields: Fields) -> Mechanism:
    inner = mechanism_from_description(fields["inner"])
    if not isinstance(inner, CPA):
        raise InvalidInput(f"Subset wraps a CPA; got {inner!r}")
    return Subset(inner, fields["report"])


def _laplace(fields: Fields) -> Mechanism:
    layers = fields["layers"]
    return baselines.Laplace(
        fields["dim"], _number(fields["epsilon_per_entry"]), fields["scale"],
        preset=fields["preset"], layers=None if layers is None else tuple(layers),
    )  # fmt: skip


def _whole_laplace(fields: Fields) -> Mechanism:
    return baselines.WholeLaplace(
        fields["dim"], _number(fields["epsilon_per_message"]), fields["l1_clip"]
    )


def _sign(fields: Fields) -> Mechanism:
    given = {key: fields[key] for key in ("vote", "stochastic", "preset")}
    step = None if fields["preset"] == "authors" else fields["step"]
    return baselines.SignRR(fields["dim"], _number(fields["epsilon_per_bit"]), step, **given)


def _jopeq(fields: Fields) -> Mechanism:
    given = {key: fields[key] for key in ("levels", "mode", "lattice", "preset")}
    basis = (fields["dim"], fields["epsilon_per_entry"], fields["scale"])
    usual = baselines.JoPEQ(*basis, **given)
    # A described gamma is rounded; where it is the usual one, the unrounded one is meant.
    if usual.description["gamma"] == fields["gamma"]:
        return usual
    return baselines.JoPEQ(*basis, gamma=fields["gamma"], **given)


def _mvu(fields: Fields) -> Mechanism:
    given = {} if fields["inputs"] is None else {"inputs": fields["inputs"]}
    return baselines.MVU(
        fields["dim"], _number(fields["epsilon_per_entry"]), fields["scale"],
        bits=fields["bits"], **given,
    )  # fmt: skip


_STAGED = ("dim", "epsilon_per_bit", "radius", "points", "lattice", "rounding", "words", "preset",
           "clip")  # fmt: skip
_READERS: dict[str, tuple[tuple[str, ...], Callable[[Fields], Mechanism]]] = {
    "CPA": (_STAGED, _cpa),
    "NestedCPA": (_STAGED, _nested),
    "Rotated": (("inner",), _rotated),
    "NormVote": (("level", "epsilon", "inner"), _norm_vote),
    "Subset": (("report", "inner"), _subset),
    "FedAvg": (("dim",), lambda fields: baselines.FedAvg(fields["dim"])),
    "Laplace": (("dim", "epsilon_per_entry", "scale", "preset", "layers"), _laplace),
    "WholeLaplace": (("dim", "epsilon_per_message", "l1_clip"), _whole_laplace),
    "SignRR": (("dim", "epsilon_per_bit", "step", "vote", "stochastic", "preset"), _sign),
    "JoPEQ": (
        ("dim", "epsilon_per_entry", "scale", "mode", "lattice", "levels", "gamma", "preset"),
        _jopeq,
    ),
    "MVU": (("dim", "epsilon_per_entry", "scale", "bits", "inputs", "alphabet"), _mvu),
}
