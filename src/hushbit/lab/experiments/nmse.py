"""Mean estimation: CPA beside estimators of other papers, on the same vectors.

    NMSE = |estimate - mean|² / (mean of |x_u|²)

There are three tracks: a fixed epsilon per bit, a fixed number of bits without privacy, and a fixed
epsilon for the whole message. The vectors follow three distributions or are updates of real
training.

`nmse-central` is a second experiment with a fourth track: (epsilon, delta) against those who see
only the sum of all users, at the same budget for every scheme.

Schemes with a free size (radius, scale or step, in units of the vectors' rms entry) have one
candidate for each size, with and without rotation. The candidate of least error on a tuning seed is
measured on the reported seeds: the same rule for all of them.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

import hushbit as hb
from hushbit.baselines.jopeq import JoPEQ
from hushbit.baselines.laplace import Laplace
from hushbit.baselines.mvu import MVU
from hushbit.baselines.signsgd import SignRR
from hushbit.checks import Floats
from hushbit.lab.estimators import MeanEstimate
from hushbit.lab.estimators.compressors import Eden, Qsgd, QuicFl, TopK, UVeQFed
from hushbit.lab.estimators.private_vectors import PrivHS, PrivUnitG, Sqkr
from hushbit.lab.estimators.secure_sums import (
    DiscreteGaussianSum,
    PoissonBinomial,
    SkellamSum,
    count_bits,
)
from hushbit.lab.experiments.experiment import (
    Coordinates,
    ExperimentRunner,
    Findings,
    experiment,
    place_text,
    select,
    stated_cell,
    table_axes,
)
from hushbit.lab.experiments.results import Cell, Check, PrivacyLine
from hushbit.lab.intervals import interval
from hushbit.lab.sim.rounds import initial_state, run_rounds, train_users
from hushbit.lab.sim.settings import PAPER_TRAINING, Settings
from hushbit.lab.sim.setup import build_setup
from hushbit.tuning.calibrate import calibrate, calibrate_gaussian, calibrate_message
from hushbit.wire.coins import SeededCoins

SYNTHETIC_DIM = 7850
SPARSE_SHARE = 0.01
EPSILON_PER_BIT = 0.5
BITS = (1, 2, 3, 4)
EPSILONS = (1.0, 4.0, 8.0)
CENTRAL_EPSILONS = (1.0, 2.0, 4.0, 8.0)
CENTRAL_BITS = (12, 16)
DELTA = 1e-5
SPREADS = 3.0
SIZES = (0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0)
AUTO_ROUNDS = 12
TUNING_SEED = 990_001
CLOSE_FACTOR = 0.15
METRICS = ("nmse", "slope", "bits")

Estimator = Callable[[Floats, int], MeanEstimate]
"""From all users' vectors and a seed to the server's mean and its bits."""

Build = Callable[[int, float], hb.Mechanism]
"""From the dimension and a size to a mechanism."""


@dataclass(frozen=True)
class VectorFamily:
    """A kind of vectors: `draw(users, seed, data)` returns an array of shape (users, dim)."""

    name: str
    about: str
    draw: Callable[[int, int, str | None], Floats]


def gaussian(users: int, seed: int, data: str | None) -> Floats:
    """Normal vectors: half of the power is common to all users."""
    rng = np.random.default_rng([seed, 1])
    common, own = rng.standard_normal(SYNTHETIC_DIM), rng.standard_normal((users, SYNTHETIC_DIM))
    return np.asarray((common + own) / np.sqrt(2))


def log_normal(users: int, seed: int, data: str | None) -> Floats:
    """exp of a standard normal: positive, a common mean, a heavy tail."""
    return np.random.default_rng([seed, 2]).lognormal(0.0, 1.0, (users, SYNTHETIC_DIM))


def sparse(users: int, seed: int, data: str | None) -> Floats:
    """Normal vectors in which all but one entry in a hundred are zero, the same for all users."""
    rng = np.random.default_rng([seed, 3])
    kept = rng.random(SYNTHETIC_DIM) < SPARSE_SHARE
    return gaussian(users, seed, data) * kept


def trained_updates(
    options: dict[str, Any], rounds: int, users: int, seed: int, data: str | None
) -> Floats:
    """The updates of all users in the round after `rounds` rounds of training."""
    settings = Settings(
        users=users,
        mechanism="fedavg",
        rate=0.1,
        rounds=rounds,
        evaluate_every=rounds,
        seed=seed,
        **(PAPER_TRAINING | options),
    )
    setup = build_setup(settings, data)
    state = initial_state(setup)
    for _ in run_rounds(setup, state):
        pass
    chunks = train_users(setup, state.round, np.arange(users), state.params)
    return np.concatenate([chunk.updates.astype(np.float64) for chunk in chunks])


MNIST_TASK = {"dataset": "mnist", "model": "linear"}
CIFAR_TASK = {"dataset": "cifar10", "model": "cnn2", "samples_per_user": 40, "batch_size": 40}
FAMILIES = (
    VectorFamily("gaussian", "normal, half of the power common to all users", gaussian),
    VectorFamily("log-normal", "exp of a normal variable", log_normal),
    VectorFamily("sparse", "one entry in a hundred, normal, the same ones for all", sparse),
    VectorFamily(
        "MNIST updates",
        "linear model, round 10, 5 samples a user",
        partial(trained_updates, MNIST_TASK, 9),
    ),
    VectorFamily(
        "CIFAR-10 updates",
        "CNN2, round 5, 40 samples a user",
        partial(trained_updates, CIFAR_TASK, 4),
    ),
)


@dataclass(frozen=True)
class Entrant:
    """A scheme and its candidates, of which tuning picks one.

    `stated` is the error of one user over its power that theory states, None if there is none.
    """

    name: str
    candidates: tuple[tuple[str, Estimator], ...]
    stated: float | None = None
    variant: str = "corrected"


def run_mechanism(build: Build, vectors: Floats, seed: int) -> MeanEstimate:
    """Encode, tally and estimate with one of our mechanisms, built for (dim, rms of an entry)."""
    mechanism = build(vectors.shape[1], float(np.sqrt(np.mean(vectors**2))))
    return _run_round(mechanism, vectors, seed)[0]


def _run_round(
    mechanism: hb.Mechanism, vectors: Floats, seed: int
) -> tuple[MeanEstimate, hb.Tally]:
    users, dim = vectors.shape
    secret = hashlib.sha256(f"field {seed}".encode()).digest()
    round_key = hb.RoundKey(secret, 0)
    tally = mechanism.tally(round_key, histogram=False)
    keys = round_key.users(np.arange(users))
    tally.add_many(mechanism.encode_many(vectors, keys, SeededCoins(seed)))
    coins = {"coins": SeededCoins(seed)} if mechanism.server_noise else {}
    estimate = mechanism.estimate(tally, **coins)
    return MeanEstimate(estimate.mean, mechanism.payload_bits / dim), tally


def run_auto(epsilon: float, vectors: Floats, seed: int) -> MeanEstimate:
    """`AutoCPA` after several rounds on the same vectors."""
    users, dim = vectors.shape
    mechanism = hb.AutoCPA(dim, users, epsilon_per_bit=epsilon)
    for number in range(AUTO_ROUNDS):
        estimate, tally = _run_round(mechanism, vectors, seed * 1000 + number)
        mechanism = mechanism.next_round(tally)
    return estimate


def private_entrants(dim: int, epsilon: float) -> Iterator[Entrant]:
    """One bit per entry (Laplace: a float) at epsilon per bit."""
    as_published = _sized(
        lambda dim, size: hb.CPA(dim, epsilon, size, preset="authors"), rotations=(False,)
    )
    yield Entrant("CPA", as_published, variant="authors")
    yield Entrant("CPA", _sized(lambda dim, size: hb.CPA(dim, epsilon, size)))
    yield Entrant("CPA auto", (("", partial(run_auto, epsilon)),))
    yield Entrant("MVU", _sized(lambda dim, size: MVU(dim, epsilon, size)))
    yield Entrant("JoPEQ", _sized(lambda dim, size: JoPEQ(dim, epsilon, size, levels=2)))
    yield Entrant("Laplace", _sized(lambda dim, size: Laplace(dim, epsilon, size)))
    yield Entrant(
        "signSGD + RR", _sized(lambda dim, size: SignRR(dim, epsilon, size), rotations=(False,))
    )


def compressed_entrants(dim: int, bits: int) -> Iterator[Entrant]:
    """No privacy, `bits` per entry."""
    candidates = [
        (f"{rounding}, {text}", estimate)
        for rounding in ("stochastic", "subtractive")
        for text, estimate in _sized(partial(_plain_cpa, bits, rounding), rotations=(True,))
    ]
    yield Entrant("CPA w/o RR", tuple(candidates))
    eden, quicfl = Eden(bits), QuicFl(bits)
    yield _seeded("EDEN", 7, eden.mean_estimate, eden.error)
    yield _seeded("QUIC-FL", 7, quicfl.mean_estimate, quicfl.table.error)
    yield _seeded("QSGD", 8, lambda rows, rng: Qsgd.fitting(rows, bits).mean_estimate(rows, rng))
    yield _seeded(
        "UVeQFed", 9, lambda rows, rng: UVeQFed.fitting(rows, bits, rng).mean_estimate(rows, rng)
    )
    yield Entrant(
        "top-k", (("", lambda rows, _: TopK.fitting(rows.shape[1], bits).mean_estimate(rows)),)
    )


def whole_message_entrants(dim: int, epsilon: float) -> Iterator[Entrant]:
    """epsilon for the whole vector, whose l2 norm is at most 1."""
    for name, scheme in (
        ("PrivUnitG", PrivUnitG(epsilon)),
        ("PrivHS", PrivHS(epsilon)),
        ("SQKR", Sqkr(epsilon)),
    ):
        yield _seeded(name, 7, scheme.mean_estimate, scheme.error(dim))
    for name, delta in (("CPA subset", 0.0), (f"CPA clip, delta {DELTA:g}", DELTA)):
        for text, radius in (("", None), (f", {SPREADS:g} spreads", SPREADS / math.sqrt(dim))):
            build = partial(_calibrated, epsilon, delta, radius)
            yield Entrant(name + text, (("", partial(run_mechanism, build)),))


def central_entrants(dim: int, users: int, epsilon: float) -> Iterator[Entrant]:
    """(epsilon, delta) against those who see only the sum; the l2 norm is at most 1."""
    yield Entrant("Gaussian", (("", partial(run_mechanism, partial(_gaussian, epsilon))),))
    for text, radius in (("", None), (f", {SPREADS:g} spreads", SPREADS / math.sqrt(dim))):
        run = partial(run_mechanism, partial(_central_cpa, users, epsilon, radius))
        yield Entrant(f"CPA{text}", (("", run),))
        yield Entrant(f"CPA{text}, secure sum", (("", partial(_as_secure_sum, run)),))
    for bits in CENTRAL_BITS:
        for name, kind in (("discrete Gaussian", DiscreteGaussianSum), ("Skellam", SkellamSum)):
            scheme = kind(users, dim, bits, epsilon, DELTA)
            yield _seeded(f"{name}, {bits} bits", 7, scheme.mean_estimate)
    coins = PoissonBinomial(users, dim, epsilon, DELTA)
    yield _seeded("Poisson-binomial", 7, coins.mean_estimate)


def _sized(
    build: Build, rotations: tuple[bool, ...] = (False, True)
) -> tuple[tuple[str, Estimator], ...]:
    """A candidate for each size and rotation."""

    def build_scaled(size: float, rotate: bool, dim: int, rms: float) -> hb.Mechanism:
        mechanism = build(dim, size * rms)
        return hb.Rotated(mechanism) if rotate else mechanism

    return tuple(
        (
            f"size {size:g} rms" + (", rotated" if rotate else ""),
            partial(run_mechanism, partial(build_scaled, size, rotate)),
        )
        for rotate in rotations
        for size in SIZES
    )


def _seeded(
    name: str,
    stream: int,
    estimate: Callable[[Floats, np.random.Generator], MeanEstimate],
    stated: float | None = None,
) -> Entrant:
    """An estimator of another paper, with generator [seed, stream] and nothing to tune."""

    def run(vectors: Floats, seed: int) -> MeanEstimate:
        return estimate(vectors, np.random.default_rng([seed, stream]))

    return Entrant(name, (("", run),), stated)


def _plain_cpa(bits: int, rounding: str, dim: int, size: float) -> hb.Mechanism:
    if bits == 1:
        return hb.CPA(dim, math.inf, size, rounding=rounding)
    return hb.NestedCPA(dim, math.inf, size, stages=(2,) * bits, rounding=rounding)


def _calibrated(
    epsilon: float, delta: float, radius: float | None, dim: int, rms: float
) -> hb.Mechanism:
    return calibrate_message(dim, epsilon, delta, clip=1.0, radius=radius, rotate=True)


def _gaussian(epsilon: float, dim: int, rms: float) -> hb.Mechanism:
    return calibrate_gaussian(dim, _central_budget(epsilon), clip=1.0)


@lru_cache(maxsize=64)
def _calibrated_cpa(dim: int, users: int, epsilon: float, radius: float | None) -> hb.Mechanism:
    return calibrate(dim, _central_budget(epsilon), honest=users, clip=1.0, radius=radius)


def _central_cpa(
    users: int, epsilon: float, radius: float | None, dim: int, rms: float
) -> hb.Mechanism:
    return _calibrated_cpa(dim, users, epsilon, radius)


def _central_budget(epsilon: float) -> hb.Budget:
    return hb.Budget(epsilon, DELTA, per="message", against="model", accountant="tightest")


def _as_secure_sum(run: Estimator, vectors: Floats, seed: int) -> MeanEstimate:
    """The same votes behind secure aggregation, whose modulus must count all users."""
    return MeanEstimate(run(vectors, seed).mean, count_bits(len(vectors)))


@dataclass(frozen=True)
class Track:
    """One kind of guarantee: coordinates of its cells, number of users, entrants for a dimension.

    With `unit_ball` the vectors are scaled so that the longest has norm 1.
    """

    where: Coordinates
    users: int
    entrants: Callable[[int], Iterable[Entrant]]
    unit_ball: bool = False


def tracks(quick: bool) -> list[Track]:
    """All tracks of the full or the quick form."""
    users = 200 if quick else 1000
    where: Coordinates = {"promise": "per bit", "epsilon": EPSILON_PER_BIT, "users": users}
    made = [Track(where, users, partial(private_entrants, epsilon=EPSILON_PER_BIT))]
    for bits in BITS[:2] if quick else BITS:
        where = {"promise": "none", "bits": bits, "users": 10}
        made.append(Track(where, 10, partial(compressed_entrants, bits=bits)))
    users = 20 if quick else 100
    for epsilon in EPSILONS[1:2] if quick else EPSILONS:
        where = {"promise": "whole message", "epsilon": epsilon, "users": users}
        entrants = partial(whole_message_entrants, epsilon=epsilon)
        made.append(Track(where, users, entrants, unit_ball=True))
    return made


def central_tracks(quick: bool) -> list[Track]:
    """The tracks of `nmse-central`."""
    users = 20 if quick else 1000
    made = []
    for epsilon in CENTRAL_EPSILONS[2:3] if quick else CENTRAL_EPSILONS:
        where: Coordinates = {"promise": "central", "epsilon": epsilon, "users": users}
        entrants = partial(central_entrants, users=users, epsilon=epsilon)
        made.append(Track(where, users, entrants, unit_ball=True))
    return made


def find(runner: ExperimentRunner) -> Findings:
    """The cells of all families in all tracks but the central one."""
    families = [one for one in FAMILIES if not runner.quick or "CIFAR" not in one.name]
    cells, notes = _measure_all(runner, families, tracks(runner.quick))
    return Findings(
        table_axes(*METRICS), tuple(cells), nmse_checks(cells), (), PRIVACY, tuple(notes)
    )


def find_central(runner: ExperimentRunner) -> Findings:
    """The cells of the central track.

    The error is that of the noise, whatever the vectors, so one family is enough.
    """
    name = "gaussian" if runner.quick else "MNIST updates"
    families = [one for one in FAMILIES if one.name == name]
    cells, notes = _measure_all(runner, families, central_tracks(runner.quick))
    return Findings(
        table_axes(*METRICS), tuple(cells), central_checks(cells), (), CENTRAL_PRIVACY, tuple(notes)
    )


def _measure_all(
    runner: ExperimentRunner, families: Sequence[VectorFamily], all_tracks: Sequence[Track]
) -> tuple[list[Cell], list[str]]:
    """Draw each family once; tune and measure every entrant on it."""
    cells: list[Cell] = []
    notes: list[str] = []
    for number, family in enumerate(families, 1):
        vectors = family.draw(
            max(track.users for track in all_tracks), runner.seeds[0], runner.data
        )
        notes.append(_family_note(family, vectors))
        for track in all_tracks:
            made, chosen = _measure(track, family, vectors[: track.users], runner.seeds)
            cells += made
            notes += chosen
        runner.watch("families", number, len(families))
    return cells, notes


def _measure(
    track: Track, family: VectorFamily, vectors: Floats, seeds: tuple[int, ...]
) -> tuple[list[Cell], list[str]]:
    """Cells of all entrants of a track, and a note on each tuned size."""
    if track.unit_ball:
        vectors = vectors / (np.linalg.norm(vectors, axis=1).max() * (1 + 1e-6))
    where = {**track.where, "vectors": family.name}
    cells, notes = [], []
    for one in track.entrants(vectors.shape[1]):
        text, estimate = one.candidates[0]
        if len(one.candidates) > 1:
            text, estimate = min(
                one.candidates,
                key=lambda candidate: _figures(candidate[1](vectors, TUNING_SEED), vectors)[0],
            )
            notes.append(f"{one.name} ({one.variant}; {place_text(where)}): {text}")
        found = [_figures(estimate(vectors, seed), vectors) for seed in seeds]
        for metric, values in zip(METRICS, zip(*found, strict=True), strict=True):
            place = one.name, one.variant, where, metric
            cells.append(Cell(*place, *interval(values), values))
        if one.stated is not None:
            # Theory states the error of unit vectors in the unit ball, else a relative error.
            power = float((vectors**2).sum(axis=1).mean()) if track.unit_ball else 1.0
            value = one.stated / track.users / power
            cells.append(stated_cell(one.name, "exact", where, "nmse", value))
    return cells, notes


def _figures(estimate: MeanEstimate, vectors: Floats) -> tuple[float, float, float]:
    """NMSE, slope of the estimate on the true mean, bits per entry."""
    mean = vectors.mean(axis=0)
    error = float(((estimate.mean - mean) ** 2).sum()) / float((vectors**2).sum(axis=1).mean())
    return error, float(estimate.mean @ mean) / float(mean @ mean), estimate.bits_per_entry


def _family_note(family: VectorFamily, vectors: Floats) -> str:
    power = (vectors**2).sum(axis=1).mean()
    share = float((vectors.mean(axis=0) ** 2).sum() / power)
    return (
        f"{family.name}: {family.about}; {vectors.shape[1]} entries; the mean of "
        f"{len(vectors)} users holds {share:.3f} of a user's power (the NMSE of sending nothing)"
    )


def nmse_checks(cells: Sequence[Cell]) -> tuple[Check, ...]:
    """Measured errors equal the stated ones; CPA has no larger error than its rivals."""
    own = select(cells, metric="nmse")
    table = {(cell.scheme, cell.variant, str(cell.where)): cell for cell in own}
    return (
        _stated_check(table),
        _compare_cpa(table, "CPA", "authors"),
        _compare_cpa(table, "Laplace", "corrected"),
        _compare_cpa(table, "JoPEQ", "corrected"),
    )


Table = dict[tuple[str, str, str], Cell]


def _stated_check(table: Table) -> Check:
    """Measured against stated errors, for vectors that are not sparse."""
    worst, figure, count = 0.0, "", 0
    for (scheme, variant, place), stated in table.items():
        if variant != "exact" or stated.where["vectors"] not in ("gaussian", "log-normal"):
            continue
        measured = table[scheme, "corrected", place]
        gap = abs(measured.mean / stated.mean - 1)
        count += 1
        if gap >= worst:
            worst = gap
            figure = f"{scheme}: {measured.mean:.4g} against {stated.mean:.4g}"
    return Check(
        f"schemes from papers: NMSE within {CLOSE_FACTOR:.0%} of the stated one "
        "(gaussian, log-normal)",
        count > 0 and worst <= CLOSE_FACTOR,
        f"{count} cells; largest gap {worst:.1%}: {figure}",
    )


def _compare_cpa(table: Table, other: str, variant: str) -> Check:
    """Corrected CPA against another scheme at the same epsilon per bit."""
    pairs = [
        (cell, table[other, variant, place])
        for (scheme, own, place), cell in table.items()
        if (scheme, own, cell.where["promise"]) == ("CPA", "corrected", "per bit")
    ]
    figures = [
        f"{ours.where['vectors']} {ours.mean:.4g} against {theirs.mean:.4g}"
        for ours, theirs in pairs
    ]
    return Check(
        f"CPA (corrected) has no larger NMSE than {other} ({variant}) at the same epsilon",
        bool(pairs) and all(ours.mean <= theirs.mean for ours, theirs in pairs),
        "; ".join(figures),
    )


def central_checks(cells: Sequence[Cell]) -> tuple[Check, ...]:
    """One bit of CPA against the mechanisms that need secure aggregation or a trusted server."""
    own = select(cells, metric="nmse")
    table = {(cell.scheme, str(cell.where)): cell for cell in own}
    ours = f"CPA, {SPREADS:g} spreads"
    made = []
    for other, factor in (("Gaussian", 1.5), ("Poisson-binomial", 1.0), ("Skellam, 12 bits", 1.0)):
        ratios = [
            (cell.mean / table[other, place].mean, place_text(cell.where))
            for (scheme, place), cell in table.items()
            if scheme == ours
        ]
        worst, where = max(ratios)
        made.append(
            Check(
                f"{ours}: NMSE at most {factor:g} times that of {other} at the same budget",
                worst <= factor,
                f"{len(ratios)} cells; largest ratio {worst:.3g}: {where}",
            )
        )
    return tuple(made)


CENTRAL_MESSAGE = "eps = 1, 2, 4, 8 at delta 1e-5 against those who see only the sum"
CENTRAL_PRIVACY = (PrivacyLine("central", "-", CENTRAL_MESSAGE, "one round"),)
PRIVACY = (
    PrivacyLine("per bit", "eps = 0.5", "0.5 times the bits (pure)", "one round"),
    PrivacyLine("none", "none", "none", "none"),
    PrivacyLine("whole message", "-", "eps = 1, 4, 8 (pure; CPA clip: delta 1e-5)", "one round"),
)
EXPERIMENTS = (
    experiment("nmse", find, auto_rounds=AUTO_ROUNDS),
    experiment("nmse-central", find_central, spreads=f"{SPREADS:g}"),
)
