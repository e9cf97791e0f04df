"""The result of one experiment as a JSON file, from which reports are made.

OUT/NAME/result.json        cells (one value of one scheme), checks, choices, privacy, command
"""

import dataclasses
import json
import math
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from hushbit.checks import check_choice
from hushbit.errors import DamagedFile, InvalidInput
from hushbit.lab.intervals import MIN_SEEDS
from hushbit.wire.files import write_text

FORMAT = 1
RULE = "one setting for each table and scheme, chosen on seeds 101 and more"
FILE = "result.json"
VARIANTS = ("published", "authors", "corrected", "bound", "exact")
KINDS = ("table", "lines")


@dataclass(frozen=True)
class Metric:
    """The name of a figure in the cells, and its label on an axis."""

    metric: str
    label: str


@dataclass(frozen=True)
class Axes:
    """How the cells are shown: as a table, or as lines over `x`."""

    kind: str
    x: str | None
    x_label: str
    log_x: bool
    y: tuple[Metric, ...]

    def __post_init__(self) -> None:
        check_choice("kind of axes", self.kind, KINDS)


@dataclass(frozen=True)
class PrivacyLine:
    """The guarantee of a scheme per bit, per message and per run, as text."""

    scheme: str
    per_bit: str
    per_message: str
    per_run: str


@dataclass(frozen=True)
class Cell:
    """One metric of one scheme at one place, with its seeds and a 95 % interval.

    An interval that comes from fewer than MIN_SEEDS seeds is dropped: both ends are the mean.

    variant  published (the paper's figure), authors (re-created), corrected, bound or exact
    where    the other coordinates, such as {"users": 1000, "model": "linear"}
    """

    scheme: str
    variant: str
    where: dict[str, str | int | float]
    metric: str
    mean: float
    low: float
    high: float
    seeds: tuple[float, ...]
    x: float | None = None

    def __post_init__(self) -> None:
        check_choice("variant", self.variant, VARIANTS)
        numbers = (self.mean, self.low, self.high, *self.seeds, 0.0 if self.x is None else self.x)
        if not all(math.isfinite(number) for number in numbers):
            raise InvalidInput(f"a cell of {self.scheme} holds a number that is not finite")
        if not self.low <= self.mean <= self.high:
            raise InvalidInput(f"a cell of {self.scheme} has its mean outside [low, high]")
        if 0 < len(self.seeds) < MIN_SEEDS:  # older files hold intervals of two seeds
            for end in ("low", "high"):
                object.__setattr__(self, end, self.mean)


@dataclass(frozen=True)
class Check:
    """A claim, whether it holds, and the figures that decide it.

    `holds` is None and `figure` empty if the experiment is too short to judge the claim.
    """

    claim: str
    holds: bool | None
    figure: str

    @property
    def verdict(self) -> str:
        """Whether the claim holds, in words."""
        return {True: "holds", False: "does not hold", None: "too short to judge"}[self.holds]


@dataclass(frozen=True)
class Result:
    """The findings of one experiment, and the command that runs it again.

    The quick form judges no claim. `rule` is RULE if its settings were chosen by that rule; results
    without it cannot confirm a claim of the paper.
    """

    name: str
    title: str
    paper: str
    quick: bool
    command: str
    seeds: tuple[int, ...]
    about: str
    choices: tuple[str, ...]
    privacy: tuple[PrivacyLine, ...]
    axes: Axes
    cells: tuple[Cell, ...]
    checks: tuple[Check, ...]
    notes: tuple[str, ...]
    environment: dict[str, str]
    seconds: float
    rule: str = ""
    format: int = field(default=FORMAT)

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise InvalidInput(f"result format must be {FORMAT}; got {self.format}")
        if self.quick:
            unjudged = tuple(Check(check.claim, None, "") for check in self.checks)
            object.__setattr__(self, "checks", unjudged)

    def count(self, holds: bool | None) -> int:
        """The number of claims that hold, do not hold (False) or are not judged (None)."""
        return sum(check.holds is holds for check in self.checks)

    def save(self, folder: str | Path) -> Path:
        """Write `folder/NAME/result.json` atomically and return its path."""
        home = Path(folder) / self.name
        try:
            home.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(f"{home} cannot hold a result: {error}") from error
        write_text(home / FILE, self.to_json())
        return home / FILE

    def to_json(self) -> str:
        """The result as JSON text, one cell per line."""
        flat = dataclasses.asdict(self)
        cells = flat.pop("cells")
        lines = ",\n  ".join(json.dumps(cell, ensure_ascii=False) for cell in cells)
        head = json.dumps({"format": flat.pop("format"), **flat}, indent=1, ensure_ascii=False)
        return head.removesuffix("\n}") + f',\n "cells": [\n  {lines}\n ]\n}}\n'


def read_result(path: str | Path) -> Result:
    """Read a result file, or the one in a folder; raise DamagedFile if it is not valid."""
    source = Path(path)
    source = source / FILE if source.is_dir() else source
    try:
        return result_from_json(source.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, InvalidInput) as error:
        raise DamagedFile(f"{source} is not a valid result file: {error}") from error


def result_from_json(text: str) -> Result:
    """The result in a JSON text."""
    try:
        raw = json.loads(text, parse_constant=_no_constant)
    except ValueError as error:
        raise InvalidInput(f"not JSON: {error}") from None
    result: Result = _typed(Result, raw, "result")
    return result


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is not allowed")


def _typed(kind: Any, raw: Any, place: str) -> Any:
    """The value as its declared type; raise InvalidInput if types or names differ."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _record(kind, raw, place)
    origin, inner = get_origin(kind), get_args(kind)
    if origin is tuple and isinstance(raw, list):
        return tuple(_typed(inner[0], part, f"{place}[{n}]") for n, part in enumerate(raw))
    if origin is dict and isinstance(raw, dict):
        return {key: _typed(inner[1], part, f"{place}.{key}") for key, part in raw.items()}
    if origin in (Union, types.UnionType):
        for option in inner:
            if type(raw) is option:
                return raw
        kind = float if float in inner else inner[0]
    if kind is float and type(raw) is int:
        return float(raw)
    if origin is None and type(raw) is kind:
        return raw
    raise InvalidInput(f"{place} must be {getattr(kind, '__name__', kind)}; got {str(raw)[:60]!r}")


def _record(kind: Any, raw: Any, place: str) -> Any:
    if not isinstance(raw, dict):
        raise InvalidInput(f"{place} must be an object; got {type(raw).__name__}")
    hints = get_type_hints(kind)
    missing = [
        f.name
        for f in dataclasses.fields(kind)
        if f.name not in raw and f.default is dataclasses.MISSING
    ]
    unknown = sorted(set(raw) - set(hints))
    if missing or unknown or (kind is Result and "format" not in raw):
        raise InvalidInput(f"{place}: missing names {missing}, unknown names {unknown}")
    return kind(
        **{name: _typed(hints[name], part, f"{place}.{name}") for name, part in raw.items()}
    )
