"""Mechanisms by name, and from descriptions.

A description is sent as JSON. Reading one returns a mechanism with exactly that description, or
raises an error: unknown names and parameters are never ignored.
"""

import json
from collections.abc import Mapping
from typing import Any

from hushbit.baselines import MVU, FedAvg, Gaussian, JoPEQ, Laplace, SignRR, WholeLaplace
from hushbit.checks import check_int
from hushbit.cpa import CPA, NestedCPA
from hushbit.errors import HushbitError, InvalidInput
from hushbit.mechanism import Mechanism
from hushbit.wrappers import NormVote, Rotated, Subset

MECHANISMS: tuple[type[Mechanism], ...] = (
    CPA,
    NestedCPA,
    FedAvg,
    Gaussian,
    Laplace,
    WholeLaplace,
    SignRR,
    JoPEQ,
    MVU,
    Rotated,
    Subset,
    NormVote,
)
MAX_DEPTH = 4
BY_NAME = {kind.name: kind for kind in MECHANISMS if kind.name is not None}
BY_DESCRIPTION = {kind.__name__: kind for kind in MECHANISMS}
WRAPPERS = tuple(kind.__name__ for kind in MECHANISMS if kind.name is None)


def mechanism_by_name(name: str, dim: int, *, rotate: bool = False, **options: Any) -> Mechanism:
    """The mechanism with a name, for updates of `dim` entries; `options` are its parameters.

    >>> mechanism_by_name("cpa", 10, epsilon_per_bit=0.5, radius=0.05).payload_bits
    10
    """
    if not isinstance(name, str) or name not in BY_NAME:
        raise InvalidInput(f"unknown mechanism {name!r}; choose one of {', '.join(BY_NAME)}")
    kind: Any = BY_NAME[name]
    try:
        made: Mechanism = kind(dim, **options)
    except TypeError as error:
        raise InvalidInput(f"wrong options for mechanism {name}: {error}") from None
    return Rotated(made) if rotate else made


def description_text(mechanism: Mechanism) -> str:
    """The description as canonical JSON."""
    return json.dumps(mechanism.description, sort_keys=True, separators=(",", ":"))


def described_dim(description: Any) -> int:
    """`dim` of a described mechanism, without building it."""
    for _ in range(MAX_DEPTH):
        if not isinstance(description, Mapping):
            break
        if "inner" not in description:
            return check_int("dim", description.get("dim"), 1)
        description = description["inner"]
    raise InvalidInput(f"a description must be a mechanism inside at most {MAX_DEPTH - 1} wrappers")


def mechanism_from_description(description: Any) -> Mechanism:
    """The mechanism whose `description` is exactly this.

    >>> made = CPA(dim=10, epsilon_per_bit=0.5, radius=0.05)
    >>> mechanism_from_description(made.description) == made
    True
    """
    described_dim(description)
    fields = {str(key): value for key, value in description.items()}
    name = fields.pop("mechanism", None)
    if not isinstance(name, str) or name not in BY_DESCRIPTION:
        raise InvalidInput(f"unknown mechanism {name!r}; choose one of {', '.join(BY_DESCRIPTION)}")
    if "inner" in fields:
        fields["inner"] = mechanism_from_description(fields["inner"])
    try:
        made = BY_DESCRIPTION[name].from_description(fields)
    except HushbitError:
        raise
    except KeyError as error:
        raise InvalidInput(f"the description of {name} lacks {error}") from None
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        message = f"mechanism {name} cannot be built from {sorted(fields)}: {error}"
        raise InvalidInput(message) from error
    if _canonical(made.description) != _canonical(description):
        raise InvalidInput(
            f"no mechanism of this version has this description of {name}; "
            f"the one with these parameters has {made.description}"
        )
    return made


def mechanism_from_text(text: Any) -> Mechanism:
    """The mechanism of a description in JSON text."""
    return mechanism_from_description(description_from_text(text))


def description_from_text(text: Any) -> dict[str, Any]:
    """The description in JSON text."""
    if not isinstance(text, str):
        raise InvalidInput(f"a description must be JSON text; got {type(text).__name__}")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"a description must be JSON text: {error}") from None
    if not isinstance(found, dict):
        raise InvalidInput(f"a description must be a JSON object; got {type(found).__name__}")
    return found


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=repr)
