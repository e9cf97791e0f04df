"""Membership attack on trained models: did a run use the data of one user, the target?

Many runs are trained with the target's canary (random black and white images of one class) and
as many with ordinary samples in its place. The attacker knows the data of all other users, both
data sets of the target, and the model after every round. It computes the update that the target
would send with either data set, a and b after the clip, and adds up over rounds

    < estimate - (sum of the others' updates + (a + b)/2) / users,  a - b >

which is positive if the estimate is closer to a run with the canary. Under Gaussian noise it is the
log likelihood ratio. Runs differ in coins only.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from hushbit.checks import Floats, Ints, check_float, check_int
from hushbit.encoding.clip_and_rotate import clip_l2
from hushbit.errors import InvalidInput
from hushbit.lab.attacks.audit import AuditFinding
from hushbit.lab.attacks.tally_audit import tally_sentence
from hushbit.lab.sim.image_task import ImageTask
from hushbit.lab.sim.partition import Federation
from hushbit.lab.sim.rounds import ballots, initial_state, one_round, train_users
from hushbit.lab.sim.settings import Settings
from hushbit.lab.sim.setup import Setup, build_setup, simulation_secret
from hushbit.lab.sim.training import LocalChunk
from hushbit.privacy.accountant import Bound, delta_text
from hushbit.privacy.binomial import lower_rate, upper_rate
from hushbit.privacy.guarantee import Guarantee

TARGET = 0
LOW_RATE = 0.05
"""The rate of false alarms at which the rate of hits is stated."""

DELTAS = (1e-5, 1e-3, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5)
"""The claim limits the attack at each of these deltas; the smallest limit is used."""

CANARY_CLIP, CANARY_SAMPLES = 0.3, 5
"""The l2 clip, which the first updates exceed, and the samples of a user in `attacked_run`."""


def attacked_run(
    dataset: str, epsilon_per_bit: float, users: int, rounds: int, delta: float, seed: int
) -> Settings:
    """A small private run: a linear model, full local gradients, and a clip below most updates."""
    return Settings(
        dataset=dataset,
        users=users,
        samples_per_user=CANARY_SAMPLES,
        batch_size=CANARY_SAMPLES,
        rounds=rounds,
        epsilon_per_bit=epsilon_per_bit,
        clip=CANARY_CLIP,
        rotate=True,
        delta=delta,
        seed=seed,
    )


@dataclass(frozen=True)
class MembershipResult:
    """How well the attack tells runs with the canary from runs without, beside the claim.

    runs         runs of each kind
    auc          area under the ROC curve, with an interval
    hit_rate     share of runs with the canary that are recognized at the level that
                 LOW_RATE of the runs without it reach, with an interval
    limit_auc    the largest AUC that the claim allows
    limit_rate   the largest hit rate that the claim allows
    """

    runs: int
    auc: float
    auc_interval: tuple[float, float]
    hit_rate: float
    hit_interval: tuple[float, float]
    claim: float
    delta: float
    limit_auc: float
    limit_rate: float
    confidence: float

    @property
    def passed(self) -> bool:
        """Whether the interval of the AUC contains a value that the claim allows."""
        return self.auc_interval[0] <= self.limit_auc

    def row(self) -> dict[str, Any]:
        """The figures with the verdict."""
        return asdict(self) | {"passed": self.passed}

    def sentence(self) -> str:
        """The result in one sentence, also for a privacy note."""
        low, high = self.auc_interval
        verdict = "the claim was not broken" if self.passed else "THE CLAIM IS BROKEN"
        return (
            f"AUC {self.auc:.3f} ({low:.3f} to {high:.3f} at {100 * self.confidence:g} % "
            f"confidence; 0.5 is guessing), at most {self.limit_auc:.3f} under the claimed epsilon "
            f"{self.claim:.3g} at delta {delta_text(self.delta)}: {verdict}; "
            f"{self.hit_rate:.0%} of the runs recognized at {LOW_RATE:.0%} false alarms"
        )


def largest_auc(epsilon: float, delta: float) -> float:
    """The largest AUC of any test between neighbours under (epsilon, delta).

    The area above the trade-off curve max(0, 1 - delta - e^epsilon x, e^-epsilon (1 - delta - x)).

    >>> round(largest_auc(1.0, 0.0), 4)
    0.7311
    """
    return 1 - (1 - delta) ** 2 * math.exp(-epsilon) / (1 + math.exp(-epsilon))


def largest_hit_rate(false_alarms: float, epsilon: float, delta: float) -> float:
    """The largest hit rate of any test with this rate of false alarms under (epsilon, delta)."""
    steep = math.inf if epsilon > 700 else delta + math.exp(epsilon) * false_alarms
    return min(1.0, steep, 1 - math.exp(-epsilon) * (1 - delta - false_alarms))


def with_canary(setup: Setup) -> Setup:
    """The same run in which the samples of the target are canaries."""
    task = setup.task
    if not isinstance(task, ImageTask):
        raise InvalidInput(
            "the membership attack replaces images by canaries; this task has no images: choose a "
            "built-in data set and model"
        )
    federation = task.federation
    rows = federation.samples_of(TARGET)
    rng = np.random.default_rng([setup.settings.seed, 0xCA9A])
    images, labels = federation.images.copy(), federation.labels.copy()
    images[rows] = 255 * rng.integers(0, 2, images[rows].shape, dtype=np.uint8)
    labels[rows] = task.model.classes - 1
    changed = Federation(federation.members, federation.starts, images, labels)
    return dataclasses.replace(setup, task=dataclasses.replace(task, federation=changed))


def membership(
    settings: Settings,
    runs: int,
    *,
    confidence: float = 0.95,
    progress: Callable[[float], None] | None = None,
) -> MembershipResult:
    """Attack `runs` runs of these settings with the canary of one user, and as many without it.

    All users must take part in every round with all their samples.
    """
    check_int("runs", runs, 2)
    if not 0 < check_float("confidence", confidence) < 1:
        raise InvalidInput(f"confidence must lie between 0 and 1; got {confidence!r}")
    if settings.participation < 1 or settings.attack != "none" or settings.defence != "none":
        raise InvalidInput(
            "the membership attack needs all users in every round, without attack and defence"
        )
    ordinary = build_setup(settings)
    if settings.replace or ordinary.local.batch_size < ordinary.task.largest:
        raise InvalidInput("the membership attack needs batches of all samples of a user")
    worlds = (with_canary(ordinary), ordinary)
    scores = np.empty((2, runs))
    for run in range(runs):
        for which in (0, 1):
            scores[which, run] = _score(worlds, which, settings.seed + 1 + 2 * run + which)
        if progress is not None:
            progress((run + 1) / runs)
    claims = _claims(ordinary.mechanism.guarantee, settings)
    return compare_scores(scores[0], scores[1], claims, confidence)


def evidence(
    tally: AuditFinding | None = None, membership: MembershipResult | None = None
) -> dict[str, str]:
    """The results of attacks for a privacy note, by the name of the attack."""
    found = {}
    if tally is not None:
        found["tally audit"] = tally_sentence(tally)
    if membership is not None:
        found["membership"] = membership.sentence()
    return found


def _score(worlds: tuple[Setup, Setup], which: int, seed: int) -> float:
    """The attacker's score of one run; the coins follow from the seed."""
    settings, start = worlds[0].settings, worlds[0].task.init(worlds[0].settings.seed)
    setup = dataclasses.replace(
        worlds[which],
        settings=dataclasses.replace(settings, seed=seed, evaluate_every=settings.rounds),
        secret=simulation_secret(seed),
    )
    clip, users, target = setup.mechanism.clip, setup.task.users, np.array([TARGET])
    state, total = initial_state(setup), 0.0
    state.params = start
    others = np.zeros(setup.task.dim)

    def observe(number: int, chunk: LocalChunk) -> None:
        others[:] += clip_l2(chunk.updates[chunk.users != TARGET], clip).sum(axis=0)

    while state.round < settings.rounds:
        others[:] = 0.0
        first, second = (
            clip_l2(_update(world, state.round, target, state.params), clip)[0] for world in worlds
        )
        made = one_round(setup, state, aggregator=partial(ballots, observer=observe))
        middle = (others + (first + second) / 2) / users
        total += float((made.estimate.mean - middle) @ (first - second))
    return total


def _update(world: Setup, number: int, users: Ints, params: Any) -> Any:
    return next(train_users(world, number, users, params)).updates


def _claims(guarantee: Guarantee, settings: Settings) -> list[Bound]:
    """The claims against those who see only models, that of the settings first."""
    deltas = (settings.shown_delta, *DELTAS)
    if isinstance(guarantee.sums, str):
        return [Bound(math.inf, delta, "none") for delta in deltas]
    return [guarantee.of_tally(settings.users, settings.rounds, delta=d) for d in deltas]


def compare_scores(
    first: Floats, second: Floats, claims: list[Bound], confidence: float
) -> MembershipResult:
    """Rates of scores with the canary (`first`) and without it (`second`).

    The interval of the AUC is that of the share of pairs, one run of each kind, in which the run
    with the canary scores higher: pairs are independent, so Clopper-Pearson is exact.
    """
    runs, each = len(first), 1 - (1 - confidence) / 2
    below = np.searchsorted(np.sort(second), first, side="left")
    up_to = np.searchsorted(np.sort(second), first, side="right")
    higher = int((first > second).sum())
    level = np.sort(second)[-1 - int(LOW_RATE * runs)]
    hits = int((first > level).sum())
    return MembershipResult(
        runs=runs,
        auc=float((below + up_to).mean() / (2 * runs)),
        auc_interval=(lower_rate(higher, runs, each), upper_rate(higher, runs, each)),
        hit_rate=hits / runs,
        hit_interval=(lower_rate(hits, runs, each), upper_rate(hits, runs, each)),
        claim=claims[0].epsilon,
        delta=claims[0].delta,
        limit_auc=min(largest_auc(claim.epsilon, claim.delta) for claim in claims),
        limit_rate=min(largest_hit_rate(LOW_RATE, c.epsilon, c.delta) for c in claims),
        confidence=confidence,
    )
