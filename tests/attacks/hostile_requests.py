"""A reproducible stream of hostile requests to a Flower client.

A request is a recipe for a message, so that every client gets an equal message of its own. `stream`
draws requests from a seed: hostile weights, rounds at their limits, every mechanism with parameters
at their edges, damaged descriptions and keys, repeated and expired requests.
"""

import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)

import hushbit as hb
from flower.parts import record
from hushbit.baselines import MVU, FedAvg, JoPEQ, Laplace, SignRR, WholeLaplace
from hushbit.errors import HushbitError
from hushbit.flower.records import (
    FROZEN_KEY,
    MECHANISM_KEY,
    USER_KEY,
    dimension,
    encoded_layout,
)
from hushbit.registry import description_text
from hushbit.wrappers import NormVote

PIXELS, CLASSES = 6, 2
DIM = CLASSES * PIXELS + CLASSES
SECRET = bytes(range(32))
REMOVED = "removed"  # stands for a field that is left out
HUGE = 3e38

Weights = dict[str, np.ndarray]


def model(value: float = 0.0, kind: Any = np.float32) -> Weights:
    """The weights of a linear model, all equal."""
    with np.errstate(over="ignore"):
        return {
            "w": np.full((CLASSES, PIXELS), value, kind),
            "b": np.full(CLASSES, value, kind),
        }


def threshold(pixel: int, level: float) -> Weights:
    """Weights whose first logit overflows exactly if the pixel exceeds the level."""
    made = model()
    made["w"][0, pixel] = HUGE
    made["b"][0] = float(np.finfo(np.float32).max) - HUGE * level
    return made


FLOAT32 = (0.0, 1.0, math.inf, -math.inf, math.nan, HUGE, -HUGE, 1e-45, -1e-40, 1e30, 1e19)
FLOAT64 = (0.5, 1e308, -1e308, 1e154, 5e-324, math.nan, math.inf, -math.inf, HUGE)
FLOAT16 = (0.5, 65504.0, math.inf, math.nan, 6e-8)
HOSTILE_WEIGHTS: list[Weights] = [
    *(model(value) for value in FLOAT32),
    *(model(value, np.float64) for value in FLOAT64),
    *(model(value, np.float16) for value in FLOAT16),
    *(threshold(pixel, level) for pixel in range(PIXELS) for level in (0.1, 0.5, 0.9)),
    {"w": model()["w"].astype(">f4"), "b": model()["b"]},
    {"w": model()["w"], "b": model(1e308, np.float64)["b"]},
    {"w": model()["w"].T.copy(), "b": model()["b"]},
    {"w": np.asfortranarray(model(1.0)["w"]), "b": model()["b"]},
    {"w": np.zeros(CLASSES * PIXELS, np.float32), "b": model()["b"]},
    {"w": np.zeros((1, CLASSES, 1, PIXELS), np.float32), "b": model()["b"]},
    {"w": model()["w"], "b": np.float32(1.0) * np.ones(())},
    {"w": model()["w"]},
    {"b": model()["b"]},
    model() | {"more": np.ones(3, np.float32)},
    model() | {"steps": np.array(2**62)},
    model() | {"mask": np.ones(3, np.bool_), "bytes": np.arange(9, dtype=np.uint8)},
    model() | {"bfloat16": np.arange(4, dtype=np.uint16)},
    model() | {"empty": np.zeros((0, 5), np.float32)},
    model() | {"": np.ones(1, np.float32), "\n\x00é*[": np.ones(1, np.float32)},
    model() | {"long" * 1000: np.ones(1, np.float32)},
    model() | {"many": np.ones(3000, np.float32)},
    model(1, np.int64),
    model(1, np.complex64),
    model() | {"words": np.array(["a", "b"])},
    {},
]

DAMAGED_ARRAYS = (
    Array("float32", (2,), "numpy.ndarray", b""),
    Array("float32", (2,), "numpy.ndarray", b"\x93NUMPY"),
    Array("float32", (2,), "torch.Tensor", b"abc"),
    Array("bfloat16", (2,), "numpy.ndarray", b"\x00\x00\x80\x3f"),
    # A header of 2^60 entries without the entries.
    Array(
        "float32",
        (2**60,),
        "numpy.ndarray",
        b"\x93NUMPY\x01\x00v\x00"
        + b"{'descr': '<f4', 'fortran_order': False, 'shape': (1152921504606846976,), }".ljust(117)
        + b"\n",
    ),
    # Python objects need pickle, which could run code.
    Array(
        "object", (1,), "numpy.ndarray", b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '|O'}".ljust(118)
    ),
)


def mechanisms(dim: int) -> list[hb.Mechanism]:
    """Every mechanism and composition that can be built for `dim` entries, at several edges."""
    plain = hb.CPA(dim, 1.0, 0.05)
    half = max(1, dim // 2)
    recipes: list[Callable[[], hb.Mechanism]] = [
        lambda: plain,
        lambda: hb.CPA(dim, 1.0, 0.05, clip=0.5),
        lambda: hb.CPA(dim, 1e-12, 1e-30, clip=1e-30),
        lambda: hb.CPA(dim, 700.0, 1e30, clip=1e30),
        lambda: hb.CPA(dim, math.inf, 0.05),
        lambda: FedAvg(dim),
        lambda: Laplace(dim, 1.0, 0.05),
        lambda: Laplace(dim, 1e-3, 1e-30),
        lambda: Laplace(dim, math.inf, 1e30),
        lambda: Laplace(dim, 1.0, preset="authors", layers=(dim,)),
        lambda: WholeLaplace(dim, 1.0, 0.5),
        lambda: WholeLaplace(dim, 50.0, 1e30),
        lambda: SignRR(dim, 1.0, 0.05),
        lambda: SignRR(dim, 1.0, 0.05, vote="majority"),
        lambda: SignRR(dim, 1.0, 1e-30, stochastic=True),
        lambda: SignRR(dim, 1.0, preset="authors"),
        lambda: JoPEQ(dim, 1.0, 0.05),
        lambda: JoPEQ(dim, 1.0, 0.75, levels=3, gamma=4.0),
        lambda: JoPEQ(dim, 1.0, 0.75, mode="moment"),
        lambda: JoPEQ(dim, 1.0, 0.75, preset="authors"),
        lambda: MVU(dim, 1.0, 0.05),
        lambda: MVU(dim, 1.0, 1e30),
        lambda: hb.NestedCPA(dim, 1.0, 0.05, stages=(2, 2)),
        lambda: hb.NestedCPA(dim, (0.5, math.inf), 1e30, stages=(2, 4)),
        lambda: hb.NestedCPA(dim, 1.0, 0.05, stages=(2, 4), preset="paper"),
        lambda: hb.NestedCPA(dim, 1.0, 0.05, preset="authors"),
        lambda: hb.NestedCPA(dim, 1.0, 0.05, lattice="A2", stages=(8, 2)),
        lambda: hb.Subset(plain, half),
        lambda: hb.Subset(hb.CPA(dim, 1.0, 0.05, points=4, clip=0.5), 1),
        lambda: hb.Rotated(plain),
        lambda: hb.Rotated(hb.CPA(dim, 1.0, 1e30)),
        lambda: hb.Rotated(hb.Subset(plain, half)),
        lambda: hb.Rotated(Laplace(dim, 1.0, 0.05)),
        lambda: hb.Rotated(FedAvg(dim)),
        lambda: hb.Rotated(hb.Rotated(plain)),
        lambda: NormVote(plain, 0.5, 1.0),
        lambda: NormVote(plain, 1e-30, math.inf, answers=255),
        lambda: NormVote(hb.Rotated(plain), 1e30, 1e-9, answers=3),
        lambda: NormVote(hb.Rotated(hb.Subset(plain, half)), 0.5, 1.0),
        lambda: NormVote(NormVote(plain, 0.5, 1.0), 0.25, 0.5),
        lambda: hb.Rotated(NormVote(plain, 0.5, 1.0)),
        lambda: NormVote(WholeLaplace(dim, 1.0, 0.5), 0.5, 1.0),
        *(
            lambda points=points, rounding=rounding, preset=preset: hb.CPA(
                dim, 1.0, 0.05, points=points, rounding=rounding, preset=preset
            )
            for points in (2, 3, 4, 16)
            for rounding in ("stochastic", "dithered", "subtractive", "nearest")
            for preset in ("corrected", "paper", "authors")
        ),
        *(
            lambda lattice=lattice: hb.CPA(dim, 1.0, 0.05, lattice=lattice, points=16)
            for lattice in ("A2", "D4", "E8")
        ),
        lambda: hb.CPA(dim, 1.0, 0.05, points=4, words="uniform"),
    ]
    made = []
    for recipe in recipes:
        try:
            made.append(recipe())
        except HushbitError:  # this combination does not exist for this dimension
            continue
    return made


FIELD_VALUES: tuple[Any, ...] = (
    *(REMOVED, None, True, "", "x", "inf", "é" * 300, "Z", "corrected"),
    *(-1, 0, 1, 2, 3, 16, 17, 2**31, 2**63, 10**30, 10**400),
    *(-0.0, 0.5, 1e-320, 1e-30, 1e30, 1e308, math.nan, math.inf, -math.inf),
    *([], [2], [2, 2], [16, 16], [1.0] * 65, [[]], {}, {"mechanism": "CPA"}),
)
ODD_TEXTS: tuple[Any, ...] = (
    *("", "{}", "[]", "null", "3", '"CPA"', "{", "\x00", "é" * 10_000, " " * 10_001),
    '{"inner":' * 1000 + "1" + "}" * 1000,
    "[" * 5000,
    '{"mechanism":' * 600 + "1" + "}" * 600,
    '{"mechanism":"CPA","mechanism":"FedAvg","dim":14}',
    '{"mechanism":"CPA","dim":' + "9" * 5000 + "}",
    *(b"{}", 7, 1.5, True, ["a"]),
)


def nodes(description: Any) -> Iterator[dict[str, Any]]:
    """The description and its inner descriptions."""
    while isinstance(description, dict):
        yield description
        description = description.get("inner")


@cache
def description_fields() -> list[tuple[str, int, str]]:
    """Description, depth and name of each field of each composition, and of unknown fields."""
    names = {"/".join(n["mechanism"] for n in nodes(m.description)): m for m in mechanisms(DIM)}
    return [
        (description_text(mechanism), depth, name)
        for mechanism in names.values()
        for depth, node in enumerate(nodes(mechanism.description))
        for name in (*node, "unknown", "overload")
    ]


def with_field(text: str, depth: int, name: str, value: Any) -> str:
    """The description with one field changed or removed."""
    changed = json.loads(text)
    node = list(nodes(changed))[depth]
    node[name] = value
    if value == REMOVED:
        del node[name]
    return json.dumps(changed)


KEY = hb.RoundKey(SECRET, 5, b"run").user(3).to_bytes()
DAMAGED_KEYS: tuple[Any, ...] = (
    *(REMOVED, b"", KEY[:-1], KEY[:80], KEY[:79], KEY[:1], KEY + b"\x00", KEY[:80] + b"\x00"),
    *(KEY[:80] + b"\xff" + KEY[81:], KEY[:80] + b"\x21" + b"r" * 33, b"\x02" + KEY),
    *("text", 3, 0.5, True, [1, 2]),
    hb.RoundKey(SECRET, 5).user(3).to_bytes(),
)
ROUNDS = (0, 1, 2**31, 2**32, 2**53 + 1, 2**63 - 2, 2**63 - 1, 2**63, 2**64 - 1)
USERS = (0, 1, 2**63, 2**64 - 1)
FROZEN: tuple[Any, ...] = (
    *(["b"], ["w"], ["w*", "b"], ["*"], ["["], ["[!"], ["?"], [""], ["*a" * 128], ["x" * 257]),
    *(["x"] * 256, ["x"] * 257, "b", 3, [1, 2], [True], b"b", "[", "{}", "[" * 10**4, "null"),
)
TIMES_TO_LIVE = (-1.0, 0.0, -1e300, math.nan, -math.inf, math.inf, 1e300)
MESSAGE_TYPES = (
    *(MessageType.EVALUATE, MessageType.QUERY, "evaluate.other", "query.other", "train.other"),
)
KINDS = (
    *("weights",) * 9,
    *("description",) * 5,
    *("text", "key", "round", "frozen", "repeated", "expired", "type", "type", "records"),
    "arrays",
)


@dataclass(frozen=True)
class HostileRequest:
    """What a server sends; `build` makes a new and equal message at every call."""

    kind: str
    number: int
    weights: Weights = field(repr=False)
    entries: dict[str, Any] = field(repr=False)
    message_type: str = MessageType.TRAIN
    ttl: float = 1e6
    records: str = ""
    damage: Array | None = field(default=None, repr=False)

    def build(self) -> Message:
        """The message, created now."""
        arrays = record(self.weights)
        if self.damage is not None:
            arrays = ArrayRecord({**arrays, "damaged": self.damage})
        content: dict[str, Any] = {"arrays": arrays, "config": ConfigRecord(self.entries)}
        more = {
            "two models": {"more": record(model())},
            "two requests": {"more": ConfigRecord(self.entries)},
            "metrics": {"more": MetricRecord({"loss": 0.5})},
            "other config": {"more": ConfigRecord({"lr": 0.5})},
        }
        content |= more.get(self.records, {})
        for name in {"no model": ["arrays"], "no config": ["config"], "nothing": list(content)}.get(
            self.records, []
        ):
            del content[name]
        message = Message(RecordDict(content), 1, self.message_type, group_id="3")
        message.metadata.ttl = self.ttl
        return message


RECORDS = (
    *("two models", "two requests", "metrics", "other config"),
    *("no model", "no config", "nothing"),
)


class Draw:
    """Draws hostile requests from a seed; the lists are gone through before they repeat."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.number = 0
        self.sent: list[HostileRequest] = []
        self.known: dict[int, list[str]] = {}
        self.lists: dict[str, list[Any]] = {}

    def next_of(self, name: str, values: Any) -> Any:
        """The next value of a list in random order."""
        left = self.lists.setdefault(name, [])
        if not left:
            left += self.random.sample(list(values), len(values))
        return left.pop()

    def texts(self, dim: int) -> list[str]:
        """Valid descriptions for `dim` entries."""
        if dim not in self.known:
            self.known[dim] = [description_text(made) for made in mechanisms(dim)]
        return self.known[dim]

    def valid(self, kind: str, weights: Weights, **changes: Any) -> HostileRequest:
        """A request that a permissive policy accepts, if the weights can be encoded."""
        frozen = changes.pop("frozen", [])
        try:
            dim = dimension(encoded_layout(weights, frozen))
        except (HushbitError, TypeError, AttributeError):
            dim = DIM
        number = changes.pop("round", self.number)
        user = self.next_of("user", USERS)
        key = hb.RoundKey(SECRET, number, self.number.to_bytes(8)).user(user)
        entries = {
            MECHANISM_KEY: self.next_of(f"mechanism {dim}", self.texts(dim)),
            USER_KEY: key.to_bytes(),
            "lr": 0.5,
        }
        if frozen or not isinstance(frozen, list):
            entries[FROZEN_KEY] = json.dumps(frozen) if isinstance(frozen, list) else frozen
        entries |= changes.pop("entries", {})
        left = {name: value for name, value in entries.items() if value is not REMOVED}
        return HostileRequest(kind, self.number, weights, left, **changes)

    def request(self) -> HostileRequest:
        """One more request."""
        self.number += 1
        kind = self.next_of("kind", KINDS)
        made = self.of_kind(kind)
        self.sent.append(made)
        return made

    def of_kind(self, kind: str) -> HostileRequest:
        """A request that is hostile in one respect, with hostile weights in every case."""
        weights = self.next_of("weights", HOSTILE_WEIGHTS)
        usual = self.random.choice(HOSTILE_WEIGHTS[:26])
        if kind == "description":
            where = self.next_of("field", description_fields())
            text = with_field(*where, self.next_of("value", FIELD_VALUES))
            return self.valid(kind, usual, entries={MECHANISM_KEY: text})
        if kind == "text":
            text = self.next_of(kind, ODD_TEXTS)
            return self.valid(kind, usual, entries={MECHANISM_KEY: text})
        if kind == "key":
            return self.valid(kind, usual, entries={USER_KEY: self.next_of(kind, DAMAGED_KEYS)})
        if kind == "round":
            return self.valid(kind, usual, round=self.next_of(kind, ROUNDS))
        if kind == "frozen":
            return self.valid(kind, usual, frozen=self.next_of(kind, FROZEN))
        if kind == "repeated" and self.sent:
            return self.random.choice(self.sent[-20:])
        if kind == "expired":
            return self.valid(kind, usual, ttl=self.next_of(kind, TIMES_TO_LIVE))
        if kind == "type":
            return self.valid(kind, usual, message_type=self.next_of(kind, MESSAGE_TYPES))
        if kind == "records":
            return self.valid(kind, usual, records=self.next_of(kind, RECORDS))
        if kind == "arrays":
            return self.valid(kind, usual, damage=self.next_of(kind, DAMAGED_ARRAYS))
        return self.valid(kind, weights)


def stream(seed: int, count: int) -> Iterator[HostileRequest]:
    """Hostile requests, the same ones for the same seed."""
    draw = Draw(seed)
    for _ in range(count):
        yield draw.request()
