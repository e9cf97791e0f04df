"""The content of the golden files; use `write()` only after an intended change.

ballots       one user's ballot of every mechanism in `MECHANISMS`
estimates     what a server decodes from twelve users, for every mechanism in `MECHANISMS`
fingerprints  of the same mechanisms and of those in `OTHERS`
words, keys   what is drawn and derived from a secret
runs          keys of a run, and ballots with a MAC under them (version 2)
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hushbit as hb
from hushbit import baselines
from hushbit.kernels.words import draw_words
from hushbit.wrappers import NormVote

FOLDER = Path(__file__).parent / "golden"
SECRET = bytes(range(32))
ROUND, USER, SEED = 3, 17, 5
RUN = b"golden run"
VOTERS = 12
KEPT = 4
Z = {"epsilon_per_bit": 0.5, "radius": 1.0}
MESSAGE = hb.Budget(4.0, 1e-5, per="message", against="server")


def auto_cpa(dim: int, users: int, **options: Any) -> Any:
    """The AutoCPA of the golden tests."""
    return hb.AutoCPA(dim, users, **options)


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
    "norm vote": NormVote(hb.CPA(dim=21, **Z), level=2.0, epsilon=0.5),
    "norm vote, whole bytes": NormVote(hb.CPA(dim=24, points=4, **Z), level=3.0, epsilon=0.5),
    "norm vote, rotated": hb.Rotated(NormVote(hb.CPA(dim=21, **Z), level=2.0, epsilon=0.5)),
    "auto": auto_cpa(21, VOTERS, epsilon_per_bit=0.5, first_norm=2.0),
    "auto, whole message": auto_cpa(
        21, VOTERS, budget=hb.Budget(4.0, 1e-5, per="message", against="server")
    ),
    "FedAvg": baselines.FedAvg(21),
    "Laplace": baselines.Laplace(21, 0.5, 0.75),
    "Laplace, no noise": baselines.Laplace(21, float("inf"), 0.75),
    "Laplace, authors": baselines.Laplace(21, 0.5, preset="authors", layers=(14, 7)),
    "WholeLaplace": baselines.WholeLaplace(21, 4.0, 2.0),
    "SignRR": baselines.SignRR(21, 0.5, 0.01),
    "SignRR, majority": baselines.SignRR(21, 0.5, 0.01, vote="majority"),
    "SignRR, stochastic": baselines.SignRR(21, 0.5, 0.75, stochastic=True),
    "SignRR, authors": baselines.SignRR(21, 0.5, preset="authors"),
    "JoPEQ": baselines.JoPEQ(21, 0.5, 0.75),
    "JoPEQ, three levels": baselines.JoPEQ(21, 0.5, 0.75, levels=3, gamma=4.0),
    "JoPEQ, moment": baselines.JoPEQ(21, 0.5, 0.75, mode="moment"),
    "JoPEQ, authors": baselines.JoPEQ(21, 0.5, 0.75, preset="authors"),
    "MVU": baselines.MVU(21, 0.5, 0.75),
}
TIERS = hb.Tiers(hb.CPA(dim=21, **Z), hb.NestedCPA(dim=21, stages=(2, 4), **Z))
OTHERS: dict[str, hb.Mechanism] = {
    "paper": hb.CPA(dim=21, preset="paper", **Z),
    "nested, paper": hb.NestedCPA(dim=21, stages=(2, 4), preset="paper", **Z),
    "nested, authors": hb.NestedCPA(dim=21, preset="authors", **Z),
    "A2": hb.CPA(dim=21, lattice="A2", points=8, **Z),
    "D4": hb.CPA(dim=21, lattice="D4", points=16, **Z),
    "A2, nested": hb.NestedCPA(dim=21, lattice="A2", stages=(8, 4), **Z),
    "generator matrix": hb.CPA(dim=21, lattice=[[1.0, 0.0], [0.5, 1.0]], points=8, **Z),
    "nearest": hb.CPA(dim=21, rounding="nearest", **Z),
    "uniform words of two": hb.CPA(dim=21, words="uniform", **Z),
    "other clip": hb.CPA(dim=21, clip=0.25, **Z),
    "three stages": hb.NestedCPA(dim=21, stages=(2, 2, 4), **Z),
    "stages of their own epsilon": hb.NestedCPA(21, (0.5, 1.5), 1.0, stages=(2, 4)),
    "last stage without flips": hb.NestedCPA(21, (0.5, float("inf")), 1.0, stages=(2, 4)),
    "two points, scaled": hb.CPA(dim=21, **Z).scaled(0.5),
    "rotated subset": hb.Rotated(hb.Subset(hb.CPA(dim=21, **Z), report=5)),
    "norm vote on a rotated subset": NormVote(
        hb.Rotated(hb.Subset(hb.CPA(dim=21, **Z), report=5)), level=2.0, epsilon=0.5
    ),
    "norm vote without flips": NormVote(hb.CPA(dim=21, **Z), level=2.0, epsilon=float("inf")),
    "rotated Laplace": hb.Rotated(baselines.Laplace(21, 0.5, 0.75)),
    "auto, with a budget of bits": auto_cpa(21, VOTERS, epsilon_per_bit=0.5, k=2),
}
EXACT = {
    "two points",
    "two points, no flips",
    "rotated",
    "clipped",
    "norm vote",
    "norm vote, rotated",
    "FedAvg",
    "SignRR",
    "SignRR, majority",
    "SignRR, stochastic",
    "SignRR, authors",
}
"""Decoded without matrix products or logarithms, hence equal on every machine."""

WORDS = [("hadamard", 2), ("hadamard", 4), ("hadamard", 8), ("uniform", 4), ("uniform", 5)]


def update(dim: int) -> list[float]:
    """Sixteenths, so that the decimal text in the file is exact."""
    return [float((7 * i) % 33 - 16) / 16 for i in range(dim)]


def ballot_case(mechanism: hb.Mechanism) -> dict[str, Any]:
    """The ballot of one user, and its inputs."""
    key = hb.RoundKey(SECRET, ROUND).user(USER)
    ballot = mechanism.encode(np.array(update(mechanism.dim)), key, hb.SeededCoins(SEED))
    return {
        "mechanism": mechanism.description,
        "update": update(mechanism.dim),
        "overloaded": ballot.overloaded,
        "wire": ballot.to_bytes().hex(),
    }


def electorate(dim: int) -> NDArray[np.float64]:
    """Updates of the twelve voters: one update, shifted cyclically and scaled for each voter."""
    one = np.array(update(dim))
    return np.array([np.roll(one, 5 * n) * (16 - n) / 16 for n in range(VOTERS)])


def counted(mechanism: Any) -> Any:
    """A tally of the twelve voters, of one mechanism or of tiers that take turns."""
    key = hb.RoundKey(SECRET, ROUND)
    tiers = mechanism if isinstance(mechanism, hb.Tiers) else (mechanism,)
    tally = mechanism.tally(key)
    updates, users = electorate(tiers[0].dim), np.arange(1, VOTERS + 1)
    for tier in range(len(tiers)):
        own = slice(tier, None, len(tiers))
        keys = key.users(users[own].tolist())
        tally.add_many(tiers[tier].encode_many(updates[own], keys, hb.SeededCoins(SEED)))
    return tally


def estimate_case(estimate: hb.Estimate) -> dict[str, Any]:
    """Digests of all bits of mean and variance, and the first few entries as text."""
    parts = {"mean": estimate.mean, "variance": estimate.variance}
    return {
        name: {
            "sha256": hashlib.sha256(values.astype("<f8").tobytes()).hexdigest(),
            "first": [repr(float(value)) for value in values[:KEPT]],
        }
        for name, values in parts.items()
    } | {"count": estimate.count, "unbiased": estimate.unbiased}


def estimates() -> dict[str, Any]:
    """The estimates of all golden mechanisms and of the tiers from the twelve voters."""
    made = {name: one.estimate(counted(one)) for name, one in MECHANISMS.items()}
    made |= {
        f"tiers, by {weighting}": TIERS.estimate(counted(TIERS), weighting)
        for weighting in ("users", "precision")
    }
    return {name: estimate_case(estimate) for name, estimate in made.items()}


def fingerprints() -> dict[str, str]:
    """Fingerprints in hex; for AutoCPA also that of the next round."""
    auto = MECHANISMS["auto"]
    after = {"auto, next round": auto.next_round(counted(auto))}
    return {name: one.fingerprint.hex() for name, one in (MECHANISMS | OTHERS | after).items()}


def word_case(family: str, points: int) -> dict[str, Any]:
    """Forty words of the key of the user in stage 1, with 1 for + and 0 for -."""
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
        "mark": round_key.key_id.hex(),
        "user key": round_key.user(USER).to_bytes().hex(),
        "seeded coin": hb.SeededCoins(SEED).keys(round_key.users([USER])).tobytes().hex(),
        "simulation coin": hb.SimulationCoins(SEED).keys(round_key.users([USER])).tobytes().hex(),
    }


def run_case() -> dict[str, Any]:
    """Keys that are derived with a run, and ballots with a MAC under them."""
    round_key = hb.RoundKey(SECRET, ROUND, RUN)
    key = round_key.user(USER)
    chosen = ("two points", "nested", "rotated", "norm vote, whole bytes")
    mechanisms = {name: MECHANISMS[name] for name in chosen}
    return {
        "run": RUN.hex(),
        "mark": round_key.key_id.hex(),
        "user key": key.to_bytes().hex(),
        "wires": {
            name: one.encode(np.array(update(one.dim)), key, hb.SeededCoins(SEED))
            .to_bytes(key)
            .hex()
            for name, one in mechanisms.items()
        },
    }


def cases() -> dict[str, Any]:
    """Ballots, words and keys of one user, by file."""
    return {
        "ballots": {name: ballot_case(mechanism) for name, mechanism in MECHANISMS.items()},
        "words": [word_case(*kind) for kind in WORDS],
        "keys": keys_case(),
        "runs": run_case(),
    }


def server_cases() -> dict[str, Any]:
    """Estimates and fingerprints, by file."""
    return {"estimates": estimates(), "fingerprints": fingerprints()}


def write() -> None:
    """Replace the golden files by the current results."""
    for name, content in (cases() | server_cases()).items():
        text = json.dumps(content, indent=1, sort_keys=True)
        (FOLDER / f"{name}.json").write_text(text + "\n")
