"""The contestants: every one takes all users' vectors and gives the server's mean and its bits.

Schemes with a free size (radius, scale or step, in units of the vectors' rms entry) have one
candidate for each size, and with and without rotation; the candidate of least error on a seed of
its own is measured on the others. That is the same rule for all of them.
"""

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

import hushbit as hb
from hushbit.arrays import Floats
from hushbit.baselines import MVU, JoPEQ, Laplace, SignRR
from hushbit.coins import SeededCoins
from hushbit.field import eden, privhs, privunit, qsgd, quicfl, sqkr, topk, uveqfed
from hushbit.field.carried import Carried

SIZES = (0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0)
AUTO_ROUNDS = 12
DELTA = 1e-5
SPREADS = 3.0

Carry = Callable[[Floats, int], Carried]


@dataclass(frozen=True)
class Contestant:
    """A scheme with the ways in which it may be run, of which tuning picks one."""

    name: str
    variant: str
    candidates: tuple[tuple[str, Carry], ...]
    stated: float | None = None
    """Error of one user over its power that theory states, where it does."""


def through(build: Callable[[int, float], hb.Mechanism], vectors: Floats, seed: int) -> Carried:
    """Cast, tally and estimate with one of our mechanisms, built for (dim, rms of an entry)."""
    mechanism = build(vectors.shape[1], float(np.sqrt(np.mean(vectors**2))))
    return _counted(mechanism, vectors, seed)[0]


def _counted(mechanism: hb.Mechanism, vectors: Floats, seed: int) -> tuple[Carried, hb.Tally]:
    users, dim = vectors.shape
    secret = hashlib.sha256(f"field {seed}".encode()).digest()
    round_key = hb.RoundKey(secret, 0)
    tally = mechanism.tally(round_key, histogram=False)
    keys = round_key.users(np.arange(users))
    tally.add_many(mechanism.encode_many(vectors, keys, SeededCoins(seed)))
    return Carried(mechanism.estimate(tally).mean, mechanism.payload_bits / dim), tally


def followed(epsilon: float, vectors: Floats, seed: int) -> Carried:
    """`CPA.auto` after it has followed the same vectors for a few rounds."""
    users, dim = vectors.shape
    mechanism = hb.CPA.auto(dim, users, epsilon_per_bit=epsilon)
    for number in range(AUTO_ROUNDS):
        carried, tally = _counted(mechanism, vectors, seed * 1000 + number)
        mechanism = mechanism.after(tally)
    return carried


def private(epsilon: float) -> Iterator[Contestant]:
    """One bit for each entry (Laplace: floats) at epsilon for each bit."""
    yield Contestant("CPA", "authors", _sized(
        lambda dim, size: hb.CPA(dim, epsilon, size, preset="authors"), rotations=(False,)
    ))  # fmt: skip
    yield Contestant("CPA", "corrected", _sized(lambda dim, size: hb.CPA(dim, epsilon, size)))
    yield Contestant("CPA auto", "corrected", (("", partial(followed, epsilon)),))
    yield Contestant("MVU", "corrected", _sized(lambda dim, size: MVU(dim, epsilon, size)))
    yield Contestant(
        "JoPEQ", "corrected", _sized(lambda dim, size: JoPEQ(dim, epsilon, size, levels=2))
    )
    yield Contestant("Laplace", "corrected", _sized(lambda dim, size: Laplace(dim, epsilon, size)))
    yield Contestant(
        "signSGD + RR", "corrected",
        _sized(lambda dim, size: SignRR(dim, epsilon, size), rotations=(False,)),
    )  # fmt: skip


def compressed(bits: int) -> Iterator[Contestant]:
    """No privacy, `bits` for each entry."""
    roundings = ("stochastic", "subtractive")
    yield Contestant("CPA w/o RR", "corrected", tuple(
        (f"{rounding}, {text}", carry)
        for rounding in roundings
        for text, carry in _sized(partial(_plain_cpa, bits, rounding), rotations=(True,))
    ))  # fmt: skip
    yield Contestant("EDEN", "corrected", _only(partial(_seeded, eden.mean_estimate, bits)),
                     eden.error(bits))  # fmt: skip
    yield Contestant("QUIC-FL", "corrected", _only(partial(_seeded, quicfl.mean_estimate, bits)),
                     quicfl.quicfl_table(bits).error)  # fmt: skip
    yield Contestant("QSGD", "corrected", _only(partial(_qsgd, bits)))
    yield Contestant("UVeQFed", "corrected", _only(partial(_uveqfed, bits)))
    yield Contestant("top-k", "corrected", _only(partial(_topk, bits)))


def whole_message(dim: int, epsilon: float) -> Iterator[Contestant]:
    """epsilon for the whole vector, whose l2 norm is at most 1."""
    for name, module, stated in (
        ("PrivUnitG", privunit.mean_estimate, privunit.optimal_mse(dim, epsilon)),
        ("PrivHS", privhs.mean_estimate, privhs.error(dim, epsilon)),
        ("SQKR", sqkr.mean_estimate, sqkr.error(dim, epsilon)),
    ):
        yield Contestant(name, "corrected", _only(partial(_seeded, module, epsilon)), stated)
    for name, delta in (("CPA subset", 0.0), (f"CPA clip, delta {DELTA:g}", DELTA)):
        for text, radius in (("", None), (f", {SPREADS:g} spreads", SPREADS / math.sqrt(dim))):
            carry = partial(through, partial(_calibrated, epsilon, delta, radius))
            yield Contestant(name + text, "corrected", _only(carry))


def _sized(
    build: Callable[[int, float], hb.Mechanism], rotations: tuple[bool, ...] = (False, True)
) -> tuple[tuple[str, Carry], ...]:
    """A candidate for each size and rotation."""

    def made(size: float, rotate: bool, dim: int, rms: float) -> hb.Mechanism:
        mechanism = build(dim, size * rms)
        return hb.Rotated(mechanism) if rotate else mechanism

    return tuple(
        (
            f"size {size:g} rms" + (", rotated" if rotate else ""),
            partial(through, partial(made, size, rotate)),
        )
        for rotate in rotations
        for size in SIZES
    )


def _only(carry: Carry) -> tuple[tuple[str, Carry], ...]:
    return (("", carry),)


def _plain_cpa(bits: int, rounding: str, dim: int, size: float) -> hb.Mechanism:
    if bits == 1:
        return hb.CPA(dim, math.inf, size, rounding=rounding)
    return hb.NestedCPA(dim, math.inf, size, stages=(2,) * bits, rounding=rounding)


def _calibrated(
    epsilon: float, delta: float, radius: float | None, dim: int, rms: float
) -> hb.Mechanism:
    return hb.calibrate(dim, epsilon, delta, clip=1.0, radius=radius, rotate=True)


def _seeded(
    estimate: Callable[..., Carried], setting: float,
    vectors: Floats, seed: int,
) -> Carried:  # fmt: skip
    return estimate(vectors, setting, np.random.default_rng([seed, 7]))


def _qsgd(bits: int, vectors: Floats, seed: int) -> Carried:
    steps = qsgd.steps_for(vectors, bits)
    return qsgd.mean_estimate(vectors, steps, np.random.default_rng([seed, 8]))


def _uveqfed(bits: int, vectors: Floats, seed: int) -> Carried:
    rng = np.random.default_rng([seed, 9])
    return uveqfed.mean_estimate(vectors, uveqfed.grid_for(vectors, bits, rng), rng)


def _topk(bits: int, vectors: Floats, seed: int) -> Carried:
    return topk.mean_estimate(vectors, topk.kept_for(vectors.shape[1], bits))
