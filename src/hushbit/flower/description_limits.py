"""Limits on the description of a requested mechanism, checked before anything is built.

A description comes from the server as JSON. Every name, type and size in it is compared with the
client's limits before a mechanism is built, so a request cannot cause computation that the client
does not allow.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hushbit.checks import check_choice, check_int, check_positive
from hushbit.encoding.words import FAMILIES
from hushbit.errors import InvalidInput
from hushbit.flower.refusals import RequestRefused, VersionMismatch
from hushbit.registry import BY_DESCRIPTION
from hushbit.wrappers import MAX_ANSWERS

MIN_LENGTH, MAX_LENGTH = 1e-30, 1e30
"""Range of a radius, clip or level, far from underflow and overflow in float32."""

MAX_VALUES = 64
EPSILON_FIELDS = ("epsilon_per_bit", "epsilon_per_entry", "epsilon_per_message", "epsilon")
LENGTH_FIELDS = ("radius", "clip", "level", "scale", "l1_clip", "step", "gamma")
OPTIONAL_FIELDS = ("clip", "scale", "layers", "inputs", "alphabet")
POINT_COUNT_FIELDS = ("points", "levels")


@dataclass(frozen=True)
class DescriptionLimits:
    """The mechanisms and parameters that a server may request.

    mechanisms  names of mechanisms, outermost first, as in "Rotated/CPA"
    presets     allowed presets, for mechanisms that have presets
    roundings   rounding rules of CPA
    lattices    names of lattices
    max_points  largest number of points of a block (product over stages), of levels and of symbols
    max_dim     largest number of encoded entries
    """

    mechanisms: tuple[str, ...]
    presets: tuple[str, ...]
    roundings: tuple[str, ...]
    lattices: tuple[str, ...]
    max_points: int
    max_dim: int

    def check(self, description: Any) -> None:
        """Raise RequestRefused if the description is not within the limits.

        Names of mechanisms and parameters that this version does not have raise VersionMismatch.
        """
        name = nested_name(description)
        for unknown in sorted(set(name.split("/")) - set(BY_DESCRIPTION)):
            if unknown.isidentifier() and unknown != "None":
                raise VersionMismatch(f"this client has no mechanism named {unknown}")
        if name not in self.mechanisms:
            allowed = ", ".join(self.mechanisms)
            raise RequestRefused(f"the server requested {name}; the policy allows {allowed}")
        part = description
        try:
            for _ in name.split("/"):
                for field, value in part.items():
                    if field not in ("mechanism", "inner"):
                        self._check_field(field, value)
                part = part.get("inner")
        except InvalidInput as error:
            raise RequestRefused(f"the server requested {name}: {error}") from None

    def _check_field(self, field: str, value: Any) -> None:
        """Check one parameter; an unknown parameter is refused."""
        if value is None and field in OPTIONAL_FIELDS:
            return
        values = value if isinstance(value, list) else [value]
        if not 1 <= len(values) <= MAX_VALUES:
            raise InvalidInput(f"{field} must have 1 to {MAX_VALUES} values; got {len(values)}")
        if field in POINT_COUNT_FIELDS:
            counts = [check_int(field, count, 2, self.max_points) for count in values]
            check_int(f"the product of {field}", math.prod(counts), 2, self.max_points)
        elif field == "bits":
            check_int("2^bits", 2 ** check_int("bits", value, 1, 16), 2, self.max_points)
        elif field == "answers":
            check_int(field, value, 1, MAX_ANSWERS)
        elif field in ("dim", "report"):
            check_int(field, value, 1, self.max_dim)
        elif field == "layers":
            check_int("the sum of layers", sum(check_int(field, n, 1) for n in values), 1)
        elif field == "inputs":
            check_int(field, value, 2, 64)
        elif field in EPSILON_FIELDS:
            for epsilon in values:
                check_positive(field, math.inf if epsilon == "inf" else epsilon, infinite=True)
        elif field in LENGTH_FIELDS:
            length = check_positive(field, value)
            if not MIN_LENGTH <= length <= MAX_LENGTH:
                raise InvalidInput(f"{field} must be from {MIN_LENGTH:g} to {MAX_LENGTH:g}")
        elif field == "alphabet":
            if not all(isinstance(symbol, float) and math.isfinite(symbol) for symbol in values):
                raise InvalidInput("alphabet must list finite numbers")
        elif field == "words":
            for family in values:
                check_choice(field, family, FAMILIES)
        elif field in ("preset", "rounding", "lattice"):
            check_choice(field, value, getattr(self, f"{field}s"))
        elif field in ("vote", "mode"):
            if not isinstance(value, str):
                raise InvalidInput(f"{field} must be a name")
        elif field != "stochastic":
            raise VersionMismatch(f"this client has no parameter named {field[:40]!r}")
        elif not isinstance(value, bool):
            raise InvalidInput("stochastic must be true or false")


def nested_name(description: Any) -> str:
    """The names of a mechanism and its inner mechanisms, as in Rotated/CPA."""
    names: list[str] = []
    while isinstance(description, Mapping) and len(names) < 8:
        names.append(str(description.get("mechanism"))[:40])
        description = description.get("inner")
    return "/".join(names)
