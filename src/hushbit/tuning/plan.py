"""Predictions for a privacy budget: signal-to-noise ratio, bytes, k and the users needed.

The variance of one user and entry is exact for unbiased decoding without overload,

    V = sum over stages of A_s Q_s / beta_s² + cross - x²,     A = (N-1)/N for even N,

where a subset multiplies the first term by blocks / reported; SNR = users · signal² / V.
"""

import math
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hushbit.budget import Budget, check_budget, honest_voters
from hushbit.checks import check_float, check_int, check_positive
from hushbit.cpa import CPA, NestedCPA
from hushbit.errors import InvalidInput
from hushbit.mechanism import Mechanism
from hushbit.privacy.guarantee import DELTA
from hushbit.statement import PrivacyStatement, privacy_statement
from hushbit.tuning.calibrate import calibrate, calibrate_message
from hushbit.wire.keys import RoundKey
from hushbit.wrappers import Subset

MAX_STAGES = 8


@dataclass(frozen=True)
class Assumptions:
    """The assumptions of a prediction, in absolute units.

    No entry of an update exceeds `radius` and no l2 norm exceeds `clip`. `signal` is the rms of the
    entries of the mean update, `user_rms` that of one user's update. `clip_factor` is the factor by
    which the clip scales updates down. `honest` is the number of voters in each tally whose coins
    stay secret, None if nothing is assumed; `delta` that of the statement.
    """

    dim: int
    users: int
    radius: float
    clip: float
    signal: float
    user_rms: float
    rounds: int
    delta: float
    snr_db: float | None
    honest: int | None = None
    budget: Budget | None = None
    clip_factor: float = 1.0

    def row(self) -> dict[str, Any]:
        """The assumptions as a dictionary for JSON."""
        return asdict(self)

    def lines(self, *, rounds: bool = True) -> list[str]:
        """The assumptions in words, with or without the number of rounds."""
        ratio = self.signal / self.radius
        lines = [
            f"no entry beyond radius {self.radius:g}, no update beyond l2 norm {self.clip:.4g}",
            f"rms of an entry: {self.signal:g} in the mean update ({ratio:g} radii), "
            f"{self.user_rms:g} in a user's",
            f"each user takes part in {self.rounds} of {self.rounds} rounds"
            if rounds
            else "each user takes part in every round",
        ]
        if self.clip_factor != 1:
            lines.append(
                f"the clip scales updates down to {self.clip_factor:.1%}; the SNR refers to the "
                "mean of the clipped updates, which is smaller than the true mean by the same "
                "factor"
            )
        return lines


@dataclass(frozen=True)
class PlanOption:
    """One way to spend the budget, and its predicted figures."""

    name: str
    mechanism: Mechanism
    assumptions: Assumptions
    snr_db: float
    bits: int
    message_bytes: int
    k: int
    cost_of_k_db: float
    users_needed: int | None

    @cached_property
    def statement(self) -> PrivacyStatement:
        """What the option reveals to the server and by the model."""
        assumed = self.assumptions
        return privacy_statement(
            self.mechanism.guarantee,
            rounds=assumed.rounds,
            delta=assumed.delta,
            honest=assumed.honest,
            users=assumed.users,
            budget=assumed.budget,
        )

    def note(self) -> str:
        """A page of Markdown for the person who approves the plan."""
        assumed = self.assumptions
        details = [
            f"plan for {assumed.users:,} users and updates of {assumed.dim:,} entries",
            f"mechanism: {self.name}; {self.mechanism.guarantee.bits_per_entry:.4g} bits for each "
            f"entry, {self.message_bytes:,} bytes for each message",
            f"predicted signal-to-noise ratio of one round: {self.snr_db:.1f} dB",
        ]
        return self.statement.note("Privacy note of a plan", details=details)

    def row(self) -> dict[str, Any]:
        """The figures as a dictionary for JSON."""
        guarantee, assumed = self.mechanism.guarantee, self.assumptions
        levels = guarantee.levels(assumed.rounds, delta=assumed.delta)
        return {
            "option": self.name,
            **self.statement.row(),
            "epsilon_spent": self.statement.spent,
            "snr_db": self.snr_db,
            "bits": self.bits,
            "bytes": self.message_bytes,
            "bits_per_entry": guarantee.bits_per_entry,
            "k": self.k,
            "cost_of_k_db": self.cost_of_k_db,
            "users_needed": self.users_needed,
            "guarantee": [level.row() for level in levels],
            "mechanism": self.mechanism.description,
        }


@dataclass(frozen=True)
class Plan:
    """All options, the best signal-to-noise ratio first."""

    assumptions: Assumptions
    options: tuple[PlanOption, ...]

    @property
    def best(self) -> PlanOption:
        """The option with the best signal-to-noise ratio."""
        return self.options[0]

    def rows(self) -> list[dict[str, Any]]:
        """All options as dictionaries for JSON."""
        return [option.row() for option in self.options]


def plan(
    dim: int,
    users: int,
    *,
    budget: Budget | None = None,
    epsilon_per_bit: float | None = None,
    radius: float = 1.0,
    clip: float | None = None,
    signal: float = 0.1,
    user_rms: float | None = None,
    k: int = 1,
    bits_per_entry: float | None = None,
    snr_db: float | None = None,
    rounds: int | None = None,
    honest: float | None = None,
) -> Plan:
    """Predict how well `users` users estimate a mean of `dim` entries under a privacy budget.

    Give a `budget` or, as the paper does, `epsilon_per_bit`. `rounds` is the number of rounds in
    which a user takes part (default: 1; required for a budget per run). `honest` is the number of
    voters in each tally whose coins stay secret, or (a float) a share of the users: 1 is one voter,
    1.0 all users. It is required for a budget against the model; without it no figure against the
    model is stated.

    `signal` and `user_rms` (default: signal) are in units of radius. `clip` defaults to the norm of
    such an update, user_rms · radius · sqrt(dim); a smaller clip scales updates and signal down.
    `k` is the least k-anonymity of each block and round. `bits_per_entry` below 1 reports a subset
    of the entries; above 1 it is the number of nested stages.

    >>> round(plan(7850, 1000, epsilon_per_bit=0.5, signal=0.1).best.snr_db, 2)
    -2.22
    """
    dim, users = check_int("dim", dim, 1), check_int("users", users, 1)
    if (epsilon_per_bit is None) == (budget is None):
        raise InvalidInput("plan needs either a budget or epsilon_per_bit")
    budget = None if budget is None else check_budget(budget)
    radius, signal = check_positive("radius", radius), _check_rms("signal", signal)
    user_rms = signal if user_rms is None else _check_rms("user_rms", user_rms)
    if user_rms < signal:
        raise InvalidInput(f"user_rms must be at least signal = {signal}; got {user_rms}")
    if snr_db is not None and abs(check_float("snr_db", snr_db)) > 200:
        raise InvalidInput(f"snr_db must lie between -200 and 200; got {snr_db!r}")
    unclipped = radius * user_rms * math.sqrt(dim)
    clip = unclipped if clip is None else check_positive("clip", clip)
    clip_factor = min(1.0, clip / unclipped)
    assumed = Assumptions(
        dim=dim,
        users=users,
        radius=radius,
        clip=clip,
        signal=radius * (signal * clip_factor),
        user_rms=radius * (user_rms * clip_factor),
        rounds=1 if rounds is None else check_int("rounds", rounds, 1),
        delta=DELTA if budget is None or not budget.delta else budget.delta,
        snr_db=None if snr_db is None else float(snr_db),
        honest=honest_voters(honest, users),
        budget=budget,
        clip_factor=clip_factor,
    )
    k = check_int("k", k, 1, 2048)
    if budget is None or budget.per == "bit":
        given = epsilon_per_bit if budget is None else budget.epsilon
        per_bit = check_positive("epsilon_per_bit", given, infinite=True)
        number = 1.0 if bits_per_entry is None else bits_per_entry
        name, chosen = _least_noise(assumed, per_bit, k, number)
        made = [(name, chosen, _least_noise(assumed, per_bit, 1, number)[1])]
    else:
        if bits_per_entry is not None or k > 1:
            raise InvalidInput(
                f"a budget per {budget.per} determines the bits, with k = 1: leave out "
                "bits_per_entry and k"
            )
        if rounds is None and budget.per == "run":
            raise InvalidInput("a budget per run needs the number of rounds: pass rounds=...")
        made = [(name, mechanism, mechanism) for name, mechanism in _calibrated(assumed, budget)]
    options = [_option(assumed, name, mechanism, base) for name, mechanism, base in made]
    return Plan(assumed, tuple(sorted(options, key=lambda option: -option.snr_db)))


def _least_noise(
    assumed: Assumptions, per_bit: float, k: int, bits_per_entry: float
) -> tuple[str, Mechanism]:
    """Name and mechanism of least noise with so many bits per entry and at least this k."""
    number = check_positive("bits_per_entry", bits_per_entry)
    if number > 1 and (number != int(number) or number > MAX_STAGES):
        raise InvalidInput(
            f"bits_per_entry must be at most 1, or a whole number of stages up to {MAX_STAGES}; "
            f"got {bits_per_entry!r}"
        )
    if number <= 1:
        inner = CPA(assumed.dim, per_bit, assumed.radius, points=2 * k)
        report = max(1, int(number * assumed.dim))
        if report == assumed.dim:
            return f"{2 * k} points", inner
        return f"{2 * k} points, {report} entries each", Subset(inner, report)
    choices = [
        NestedCPA(
            assumed.dim, per_bit, assumed.radius, stages=tuple(2 * factor for factor in factors)
        )
        for factors in _factorizations(k, int(number))
    ]
    best = min(choices, key=lambda mechanism: mechanism.noise_per_user(assumed.user_rms))
    return f"{' x '.join(map(str, best.points_per_stage))} points", best


def _factorizations(k: int, stages: int) -> list[tuple[int, ...]]:
    """Tuples of one factor for each stage, none larger than needed for a product of at least k."""
    if stages == 1:
        return [(k,)]
    return [
        (first, *rest)
        for first in sorted({-(-k // part) for part in range(1, k + 1)})
        for rest in _factorizations(-(-k // first), stages - 1)
    ]


def _calibrated(assumed: Assumptions, budget: Budget) -> list[tuple[str, Mechanism]]:
    """Mechanisms that spend the budget, each with and without rotation.

    A budget with a delta against the server can also be spent by a pure mechanism.
    """
    dim, clip, radius = assumed.dim, assumed.clip, assumed.radius
    times = assumed.rounds if budget.per == "run" else 1
    if budget.against == "model":
        options: dict[str, Any] = {"honest": assumed.honest, "clip": clip}
        options["rounds"] = assumed.rounds if budget.per == "run" else None
        return [
            ("l2 clip", calibrate(dim, budget, radius=radius, rotate=False, **options)),
            ("l2 clip, rotated", calibrate(dim, budget, **options)),
        ]
    made: list[tuple[str, Mechanism]] = []
    for name, delta in [("pure subset", 0.0), ("l2 clip", budget.delta)][
        : 2 if budget.delta else 1
    ]:
        options = {"messages": times, "clip": clip}
        plain = calibrate_message(dim, budget.epsilon, delta, radius=radius, **options)
        rotated = calibrate_message(dim, budget.epsilon, delta, rotate=True, **options)
        made += [(name, plain), (f"{name}, rotated", rotated)]
    return made


def _option(assumed: Assumptions, name: str, mechanism: Mechanism, base: Mechanism) -> PlanOption:
    noise = mechanism.noise_per_user(assumed.user_rms)
    ratio = assumed.signal**2 / noise if noise > 0 else math.inf
    cost = 0.0 if base is mechanism else _decibels(noise / base.noise_per_user(assumed.user_rms))
    key = RoundKey(secret=bytes(32), round=0).user(0)
    wire = mechanism.encode(np.zeros(assumed.dim, dtype=np.float32), key).to_bytes()
    needed = None
    if assumed.snr_db is not None:
        needed = max(1, math.ceil(10 ** (assumed.snr_db / 10) / ratio * (1 - 1e-12)))
    return PlanOption(
        name=name,
        mechanism=mechanism,
        assumptions=assumed,
        snr_db=_decibels(assumed.users * ratio),
        bits=mechanism.payload_bits,
        message_bytes=len(wire),
        k=mechanism.guarantee.k_anonymity,
        cost_of_k_db=cost,
        users_needed=needed,
    )


def _decibels(ratio: float) -> float:
    return 10 * math.log10(ratio) if ratio > 0 else -math.inf


def _check_rms(name: str, value: float) -> float:
    number = check_positive(name, value)
    if number > 1:
        raise InvalidInput(f"{name} is an rms in units of radius, at most 1; got {value!r}")
    return number
