"""What the golden wire vectors hold. `write()` makes them anew, after a change on purpose only."""

import json
from pathlib import Path
from typing import Any

import numpy as np

import hushbit as hb
from hushbit.words import draw_words

FOLDER = Path(__file__).parent / "golden"
SECRET = bytes(range(32))
ROUND, USER, SEED = 3, 17, 5
Z = {"epsilon_per_bit": 0.5, "radius": 1.0}

MECHANISMS: dict[str, hb.Mechanism] = {
    "two points": hb.CPA(dim=21, **Z),
    "two points, no flips": hb.CPA(dim=21, epsilon_per_bit=float("inf"), radius=1.0),
    "four points": hb.CPA(dim=21, points=4, **Z),
    "eight points": hb.CPA(dim=21, points=8, **Z),
    "uniform words": hb.CPA(dim=21, points=4, words="uniform", **Z),
    "odd": hb.CPA(dim=21, points=5, **Z),
    "dithered": hb.CPA(dim=21, points=4, rounding="dithered", **Z),
    "subtractive": hb.CPA(dim=21, points=4, rounding="subtractive", **Z),
    "authors": hb.CPA(dim=21, preset="authors", **Z),
    "E8": hb.CPA(dim=50, lattice="E8", points=16, **Z),
    "nested": hb.NestedCPA(dim=21, stages=(2, 4), **Z),
    "rotated": hb.Rotated(hb.CPA(dim=21, **Z)),
    "subset": hb.Subset(hb.CPA(dim=21, points=4, **Z), report=9),
    "clipped": hb.CPA(dim=21, clip=0.5, **Z),
}
WORDS = [("hadamard", 2), ("hadamard", 4), ("hadamard", 8), ("uniform", 4), ("uniform", 5)]


def update(dim: int) -> list[float]:
    """Sixteenths, so that the decimal text in the file is exact."""
    return [float((7 * i) % 33 - 16) / 16 for i in range(dim)]


def ballot_case(mechanism: hb.Mechanism) -> dict[str, Any]:
    """One user's ballot and what its inputs were."""
    key = hb.RoundKey(SECRET, ROUND).user(USER)
    ballot = mechanism.encode(np.array(update(mechanism.dim)), key, hb.SeededCoins(SEED))
    return {
        "mechanism": mechanism.description,
        "update": update(mechanism.dim),
        "overloaded": ballot.overloaded,
        "wire": ballot.to_bytes().hex(),
    }


def word_case(family: str, points: int) -> dict[str, Any]:
    """Forty words of the user's key in stage 1, + as 1 and - as 0."""
    key = hb.RoundKey(SECRET, ROUND).users([USER]).keys[0]
    words = draw_words(key, 1, 40, points, family)
    return {
        "family": family,
        "points": points,
        "words": ["".join("01"[int(sign > 0)] for sign in word) for word in words],
    }


def keys_case() -> dict[str, str]:
    """Derived keys."""
    round_key = hb.RoundKey(SECRET, ROUND)
    return {
        "secret": SECRET.hex(),
        "mark": round_key.mark.hex(),
        "user key": round_key.user(USER).to_bytes().hex(),
        "seeded coin": hb.SeededCoins(SEED).keys(round_key.users([USER])).tobytes().hex(),
        "simulation coin": hb.SimulationCoins(SEED).keys(round_key.users([USER])).tobytes().hex(),
    }


def cases() -> dict[str, Any]:
    """Everything, by file."""
    return {
        "ballots": {name: ballot_case(mechanism) for name, mechanism in MECHANISMS.items()},
        "words": [word_case(*kind) for kind in WORDS],
        "keys": keys_case(),
    }


def write() -> None:
    """Replace the golden files by what the code does now."""
    for name, content in cases().items():
        text = json.dumps(content, indent=1, sort_keys=True)
        (FOLDER / f"{name}.json").write_text(text + "\n")
