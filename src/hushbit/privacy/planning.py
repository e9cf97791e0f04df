"""What a budget buys before anything is sent: signal-to-noise ratio, bytes, k, users needed.

The noise of one user and entry is exact for unbiased decoding without overload,

    V = sum over stages of A_s Q_s / beta_s² + cross - x²,     A = (N-1)/N for even N,

times blocks/reported in front of the first term for a subset; SNR = users · signal² / V.
"""

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from hushbit.checks import positive, real, whole
from hushbit.cpa import CPA, NestedCPA
from hushbit.decode import gain_and_shift, noise_power
from hushbit.errors import InvalidInput
from hushbit.keys import RoundKey
from hushbit.mechanism import Mechanism
from hushbit.points import digits
from hushbit.privacy.arguments import failure_probability
from hushbit.privacy.calibration import calibrate
from hushbit.privacy.guarantee import DELTA
from hushbit.rotation import Rotated
from hushbit.subset import Subset

QUANTILES = 2001
MOST_STAGES = 8


@dataclass(frozen=True)
class Assumptions:
    """What a prediction takes for granted; lengths are absolute.

    No entry of an update exceeds `radius` and no norm exceeds `clip`; `signal` is the rms of an
    entry of the mean update, `user_rms` that of one user's.
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
    shrink: float = 1.0

    def lines(self) -> list[str]:
        """The assumptions in words."""
        ratio = self.signal / self.radius
        return [
            f"no entry beyond radius {self.radius:g}, no update beyond l2 norm {self.clip:g}",
            f"rms of an entry: {self.signal:g} in the mean update ({ratio:g} radii), "
            f"{self.user_rms:g} in a user's",
            f"each user takes part in {self.rounds} of {self.rounds} rounds",
            *self._clip_lines(),
        ]

    def _clip_lines(self) -> list[str]:
        if self.shrink == 1:
            return []
        return [
            f"the clip scales updates down to {self.shrink:.1%}; SNR is against the mean of the "
            "clipped updates, which is as much smaller than the true one"
        ]


@dataclass(frozen=True)
class Option:
    """One way to spend the budget, and what it brings."""

    name: str
    mechanism: Mechanism
    snr_db: float
    bits: int
    message_bytes: int
    k: int
    cost_of_k_db: float
    users_needed: int | None

    def row(self, assumptions: Assumptions) -> dict[str, Any]:
        """The figures as plain data."""
        guarantee = self.mechanism.guarantee
        levels = guarantee.levels(assumptions.rounds, delta=assumptions.delta)
        return {
            "option": self.name, "snr_db": self.snr_db, "bits": self.bits,
            "bytes": self.message_bytes, "bits_per_entry": guarantee.bits_per_entry,
            "k": self.k, "cost_of_k_db": self.cost_of_k_db, "users_needed": self.users_needed,
            "epsilon_per_bit": guarantee.epsilon_per_bit,
            "guarantee": [level.row() for level in levels],
            "mechanism": self.mechanism.description,
        }  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """All options, the best signal-to-noise ratio first."""

    assumptions: Assumptions
    options: tuple[Option, ...]

    @property
    def best(self) -> Option:
        """The option of the best ratio."""
        return self.options[0]

    def rows(self) -> list[dict[str, Any]]:
        """Every option as plain data."""
        return [option.row(self.assumptions) for option in self.options]


def plan(
    dim: int, users: int, *, epsilon_per_bit: float | None = None, epsilon: float | None = None,
    delta: float | None = None, radius: float = 1.0, clip: float | None = None,
    signal: float = 0.1, user_rms: float | None = None, k: int = 1,
    bits_per_entry: float | None = None, snr_db: float | None = None, rounds: int = 1,
) -> Plan:  # fmt: skip
    """What `users` users of `dim` entries can learn under a budget per bit or per message.

    Give `epsilon_per_bit`, or `epsilon` with `delta` for a whole message (0 for a pure one).
    `signal` and `user_rms` (default: signal) are in units of radius; `clip` defaults to the norm
    of such an update, user_rms · radius · sqrt(dim); a smaller one scales all of it down. `k`
    asks for k-anonymity of each block and round. `bits_per_entry` below 1 reports a subset of the
    entries, above 1 it nests stages.

    >>> round(plan(7850, 1000, epsilon_per_bit=0.5, signal=0.1).best.snr_db, 2)
    -2.22
    """
    dim, users = whole("dim", dim, 1), whole("users", users, 1)
    edge, share = positive("radius", radius), _fraction("signal", signal)
    rms = share if user_rms is None else _fraction("user_rms", user_rms)
    if rms < share:
        raise InvalidInput(f"user_rms cannot be below signal = {share}; got {rms}")
    natural = edge * rms * math.sqrt(dim)
    norm = natural if clip is None else positive("clip", clip)
    shrink = min(1.0, norm / natural)
    share, rms = share * shrink, rms * shrink
    assumed = Assumptions(
        dim, users, edge, norm, edge * share, edge * rms, whole("rounds", rounds, 1),
        DELTA, None if snr_db is None else _target(snr_db), shrink,
    )  # fmt: skip
    k = whole("k", k, 1, 2048)
    if (epsilon_per_bit is None) == (epsilon is None) or (epsilon is None) != (delta is None):
        raise InvalidInput("plan needs either epsilon_per_bit, or epsilon together with delta")
    if epsilon_per_bit is not None:
        level = positive("epsilon_per_bit", epsilon_per_bit, infinite=True)
        made = _per_bit(assumed, level, k, 1.0 if bits_per_entry is None else bits_per_entry)
    else:
        assumed, made = _per_message(assumed, epsilon, delta, k, bits_per_entry)
    options = [_option(assumed, name, mechanism, base) for name, mechanism, base in made]
    return Plan(assumed, tuple(sorted(options, key=lambda option: -option.snr_db)))


def noise_per_user(mechanism: Mechanism, user_rms: float) -> float:
    """Variance that one user adds to an entry, on average over entries of the given rms.

    Users' entries are taken as Gaussian where the shape matters: the cross term of stages.
    """
    if isinstance(mechanism, Rotated):
        return noise_per_user(mechanism.inner, user_rms)
    inner = mechanism.inner if isinstance(mechanism, Subset) else mechanism
    if not isinstance(inner, CPA) or inner.rounding != "stochastic":
        raise InvalidInput(f"noise is predicted for CPA with stochastic rounding; got {mechanism}")
    weight = inner.blocks / mechanism.report if isinstance(mechanism, Subset) else 1.0
    noise = 0.0
    for stage in inner.stages:
        gain = gain_and_shift("corrected", stage.response.beta, stage.rho)[0]
        noise += weight * float(noise_power(stage.points, gain, stage.rho).mean())
    return noise + _cross_term(inner, user_rms) - user_rms**2


def _cross_term(mechanism: CPA, user_rms: float) -> float:
    """2 sum over pairs of stages of E[q_s q_t]: stages speak of one point, drawn once."""
    if len(mechanism.stages) == 1:
        return 0.0
    if mechanism.block_size != 1:
        raise InvalidInput("noise of nested stages is predicted for scalar points")
    levels = (np.arange(QUANTILES) + 0.5) / QUANTILES
    entries = user_rms * np.array([NormalDist().inv_cdf(level) for level in levels])
    corners = mechanism.quantizer.corners(entries[:, None])
    parts = [
        stage.points.positions[digit, 0]
        for stage, digit in zip(
            mechanism.stages, digits(corners.index, mechanism.counts), strict=True
        )
    ]
    both = sum(parts) ** 2 - sum(part**2 for part in parts)
    return float((corners.weight * both).sum(axis=1).mean())


def _per_bit(
    assumed: Assumptions, level: float, k: int, bits: float
) -> list[tuple[str, Mechanism, Mechanism]]:
    """One mechanism, beside the one without the wish for k."""
    cheapest = _cheapest(assumed, level, k, bits)
    return [(_name(cheapest), cheapest, _cheapest(assumed, level, 1, bits))]


def _cheapest(assumed: Assumptions, level: float, k: int, bits: float) -> Mechanism:
    """The least noisy mechanism of so many bits per entry whose k is at least as wished."""
    number = positive("bits_per_entry", bits)
    if number > 1 and (number != int(number) or number > MOST_STAGES):
        raise InvalidInput(
            f"bits per entry may be at most 1, or a whole number of stages up to {MOST_STAGES}; "
            f"got {bits!r}"
        )
    if number <= 1:
        inner = CPA(assumed.dim, level, assumed.radius, points=2 * k)
        report = max(1, int(number * assumed.dim))
        return inner if report == assumed.dim else Subset(inner, report)
    choices = [
        NestedCPA(assumed.dim, level, assumed.radius, stages=tuple(2 * part for part in parts))
        for parts in _splits(k, int(number))
    ]
    return min(choices, key=lambda mechanism: noise_per_user(mechanism, assumed.user_rms))


def _splits(k: int, stages: int) -> list[tuple[int, ...]]:
    """Ways to write a k of at least the one wished as a product over stages, none wasteful."""
    if stages == 1:
        return [(k,)]
    return [
        (first, *rest)
        for first in sorted({-(-k // part) for part in range(1, k + 1)})
        for rest in _splits(-(-k // first), stages - 1)
    ]


def _per_message(
    assumed: Assumptions, epsilon: float | None, delta: float | None, k: int,
    bits_per_entry: float | None,
) -> tuple[Assumptions, list[tuple[str, Mechanism, Mechanism]]]:  # fmt: skip
    """Both calibrated routes, with and without rotation."""
    if bits_per_entry is not None:
        raise InvalidInput("a whole-message budget sets the bits itself: drop bits_per_entry")
    total, failing = positive("epsilon", epsilon), failure_probability(delta)
    if k > 1:
        raise InvalidInput("whole-message budgets use two points, which have k = 1: drop k")
    dim, clip, radius = assumed.dim, assumed.clip, assumed.radius
    made = []
    for route, cost in (("pure subset", 0.0), ("l2 clip", failing)):
        if route == "l2 clip" and failing == 0:
            continue
        plain = calibrate(dim, total, cost, clip=clip, radius=radius)
        turned = calibrate(dim, total, cost, clip=clip, rotate=True)
        made += [(route, plain, plain), (f"{route}, rotated", turned, turned)]
    return (replace(assumed, delta=failing) if failing else assumed), made


def _option(assumed: Assumptions, name: str, mechanism: Mechanism, base: Mechanism) -> Option:
    noise = noise_per_user(mechanism, assumed.user_rms)
    ratio = assumed.signal**2 / noise if noise > 0 else math.inf
    cost = 0.0 if base is mechanism else _decibels(noise / noise_per_user(base, assumed.user_rms))
    key = RoundKey(secret=bytes(32), round=0).user(0)
    wire = mechanism.encode(np.zeros(assumed.dim, dtype=np.float32), key).to_bytes()
    needed = None
    if assumed.snr_db is not None:
        needed = max(1, math.ceil(10 ** (assumed.snr_db / 10) / ratio * (1 - 1e-12)))
    return Option(
        name=name, mechanism=mechanism, snr_db=_decibels(assumed.users * ratio),
        bits=mechanism.payload_bits, message_bytes=len(wire), k=mechanism.guarantee.k_anonymity,
        cost_of_k_db=cost, users_needed=needed,
    )  # fmt: skip


def _decibels(ratio: float) -> float:
    return 10 * math.log10(ratio) if ratio > 0 else -math.inf


def _target(snr_db: float) -> float:
    if abs(real("snr_db", snr_db)) > 200:
        raise InvalidInput(f"snr_db must lie between -200 and 200; got {snr_db!r}")
    return float(snr_db)


def _fraction(name: str, value: float) -> float:
    number = positive(name, value)
    if number > 1:
        raise InvalidInput(f"{name} is an rms in units of radius, at most 1; got {value!r}")
    return number


def _name(mechanism: Mechanism) -> str:
    inner = mechanism.inner if isinstance(mechanism, Subset) else mechanism
    points = " x ".join(str(count) for count in getattr(inner, "counts", ()))
    subset = f", {mechanism.report} entries each" if isinstance(mechanism, Subset) else ""
    return f"{points} points{subset}"
