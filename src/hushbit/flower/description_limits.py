"""Limits on the description of a requested mechanism, checked before anything is built.

A description comes from the server as JSON. Every name, type and size in it is compared with the
limits of the client first, so that no request causes work that the client has not allowed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hushbit.checks import check_choice, check_int, check_positive
from hushbit.encoding.words import FAMILIES
from hushbit.errors import HushbitError, InvalidInput
from hushbit.wrappers import MAX_ANSWERS

MIN_LENGTH, MAX_LENGTH = 1e-30, 1e30
"""Range of a radius, clip or level: rounding in float32 is far below these lengths."""

MAX_LIST = 64
EPSILONS = ("epsilon_per_bit", "epsilon_per_entry", "epsilon_per_message", "epsilon")
LENGTHS = ("radius", "clip", "level", "scale", "l1_clip", "step", "gamma")
OPTIONAL = ("clip", "scale", "layers", "inputs", "alphabet")
SYMBOLS = ("points", "levels")


class RequestRefused(HushbitError):
    """The policy of the client does not allow a request; nothing was sent or charged."""


@dataclass(frozen=True)
class DescriptionLimits:
    """What a server may choose.

    mechanisms  names of mechanisms, outermost first, as in "Rotated/CPA"
    presets     presets of mechanisms that have them
    roundings   rounding rules of CPA
    lattices    lattices by name
    max_points  largest number of points of a block, over all stages; also of levels and symbols
    max_dim     largest number of encoded entries
    """

    mechanisms: tuple[str, ...]
    presets: tuple[str, ...]
    roundings: tuple[str, ...]
    lattices: tuple[str, ...]
    max_points: int
    max_dim: int

    def check(self, description: Any) -> None:
        """Refuse a description that is not within the limits."""
        name = nested_name(description)
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
        """Check one parameter; a name that no mechanism has is refused."""
        if value is None and field in OPTIONAL:
            return
        values = value if isinstance(value, list) else [value]
        if not 1 <= len(values) <= MAX_LIST:
            raise InvalidInput(f"{field} must have 1 to {MAX_LIST} values; got {len(values)}")
        if field in SYMBOLS:
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
        elif field in EPSILONS:
            for epsilon in values:
                check_positive(field, math.inf if epsilon == "inf" else epsilon, infinite=True)
        elif field in LENGTHS:
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
        elif field != "stochastic" or not isinstance(value, bool):
            raise InvalidInput(f"{field[:40]!r} is not a parameter of this type in this version")


def nested_name(description: Any) -> str:
    """The names of a mechanism and its inner mechanisms, as in Rotated/CPA."""
    names: list[str] = []
    while isinstance(description, Mapping) and len(names) < 8:
        names.append(str(description.get("mechanism"))[:40])
        description = description.get("inner")
    return "/".join(names)
