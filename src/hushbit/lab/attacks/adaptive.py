"""The attack `adaptive`: as far against the mean as a defence that sums scores does not detect.

It assumes this defence, with the limits below, and was built against an earlier defence of hushbit.
Stored results depend on it, so it does not follow later defences.

- The defence scores each ballot on the mean of the others and on the direction of model drift. It
  sums each score over rounds, with a factor of DECAY per round. A user whose normalized sum is
  LIMIT_SIGMAS below zero is removed, if more than TOLERATED_SHARE of all users are there; on the
  drift, if more are there than training leaves behind without attackers (`lagging_share`).
- It removes the smaller of two groups of users where scores or sums are bimodal, if the group has
  more than NATURAL_SHARE of the users.
- It does not compare fewer than MIN_USERS users.
"""

import math
from statistics import NormalDist

import numpy as np

from hushbit.checks import Floats
from hushbit.lab.attacks.view import AttackerView, Rows, scale_of
from hushbit.mechanism import Mechanism

MIN_USERS = 20
DECAY, LIMIT_SIGMAS, TOLERATED_SHARE, NATURAL_SHARE = 0.95, 3.0, 0.03, 0.15
# Users of an MLP whom training leaves behind: NATURAL_SHARE where the entries of a decoded ballot
# reach REFERENCE_ENTRY noises (epsilon 0.5 per bit), and more where they are larger.
REFERENCE_ENTRY, LAGGING_EXPONENT = math.tanh(0.25), 0.6
SPLIT_RATE = 0.01 / 12  # probability that a test of unimodal scores finds a split by chance
SPLIT_WIDTHS, MAX_BINS = (4, 8, 16), 4096


def adaptive_attack(
    updates: Rows, mechanism: Mechanism, view: AttackerView, seed: int
) -> Rows | None:
    """The largest shift against the honest mean m that the assumed defence does not detect.

    In units of the noise: along the drift direction, the score per round is the one whose sum over
    rounds exceeds the limit by noise for no more of the coalition than the defence tolerates
    (`allowed_score`). Orthogonal to it, the coalition shifts by L against m, with the spread of
    honest users, as long as the scores stay unimodal and the score on the mean of all users,
    (1-f) m + f a, stays within the allowed one. Both together are reduced until the sums over
    rounds are unimodal. Returns None where the expected mean is unknown or users are too few for
    a defence.
    """
    scale = scale_of(mechanism)
    if scale is None or view.users < MIN_USERS or view.honest_mean is None:
        return None
    sigma, share = scale.noise, min(view.attackers / view.users, 0.49)
    honest = mean = view.honest_mean.mean / sigma
    drift = np.zeros_like(mean)
    if view.drift_direction is not None:
        drift = view.drift_direction / float(np.linalg.norm(view.drift_direction))
        mean = mean - (mean @ drift) * drift
    back = -allowed_score(share, lagging_share(scale.largest_entry)) * drift
    length = float(np.linalg.norm(mean)) or 1.0
    honest_spread = view.honest_mean.honest_spread / sigma
    shift = largest_hidden_shift(length, honest_spread, share, view.users, mechanism.dim)
    attack = back - shift / length * mean
    attack *= undetected_fraction(honest, attack, drift, honest_spread, view)
    rng = np.random.default_rng([seed, view.round, 0xADA])
    spread = honest_spread * rng.normal(size=(len(updates), 1)) / length * mean
    return np.asarray((attack - spread) * sigma, dtype=np.float32)


def lagging_share(largest_entry: float) -> float:
    """Share of honest users whom training leaves in the tail of the drift sum.

    `largest_entry` is the largest entry of an honest update in units of the noise.
    """
    return float(NATURAL_SHARE * max(1.0, largest_entry / REFERENCE_ENTRY) ** LAGGING_EXPONENT)


def undetected_fraction(
    honest: Floats,
    attack: Floats,
    drift: Floats,
    honest_spread: float,
    view: AttackerView,
) -> float:
    """The fraction of an attack that leaves the sums on mean and drift together unimodal."""
    share = view.attackers / view.users
    scale = math.sqrt((1 + DECAY) / (1 - DECAY) / 2)
    for part in np.linspace(1.0, 0.0, 9):
        gap, total = honest - part * attack, (1 - share) * honest + share * part * attack
        on_mean = gap @ total / math.sqrt(total @ total + honest.size / view.users)
        if is_unimodal(scale * (on_mean + gap @ drift), scale * honest_spread, share, view.users):
            return float(part)
    return 0.0


def allowed_score(share: float, tolerated: float = TOLERATED_SHARE) -> float:
    """Score per round against the other users, in units of noise, that the sums tolerate.

    Of a share f, the part tolerated / f may exceed the limit by noise:
    n^1/2 score >= -LIMIT_SIGMAS + its quantile.
    """
    noise = NormalDist().inv_cdf(1 - min(tolerated / max(share, tolerated), 0.5))
    return (LIMIT_SIGMAS - noise) * math.sqrt((1 - DECAY) / (1 + DECAY))


def largest_hidden_shift(
    length: float, honest_spread: float, share: float, users: int, dim: int
) -> float:
    """The largest shift L that neither a split of the scores nor the mean of all users reveals."""
    tried = np.linspace(0.0, 10 * math.hypot(1, honest_spread), 200)
    left = (1 - share) * length - share * tried
    scores = -tried * left / np.sqrt(left**2 + dim / users)
    hidden = (
        shift
        for shift in tried[scores >= -allowed_score(share)][::-1]
        if is_unimodal(length + shift, honest_spread, share, users)
    )
    return float(next(hidden, 0.0))


def is_unimodal(
    distance: float, honest_spread: float, share: float, users: int, trials: int = 5
) -> bool:
    """Whether there is no split if a share of the users is shifted by `distance`.

    Both groups have the honest spread and the noise; no trial may find a split.
    """
    moved = distance * (np.arange(users) < share * users)
    for trial in range(trials):
        noise = np.random.default_rng(trial).normal(size=users) * math.hypot(1, honest_spread)
        if is_split(noise - moved):
            return False
    return True


def is_split(scores: Floats) -> bool:
    """Whether a split cuts off a minority of more than NATURAL_SHARE of the users.

    A split is a window of 4, 8 or 16 sigma with fewer users than a window of the same width on
    either side. For counts n in the middle and m at the side, Hoeffding's inequality gives
    P(m - n > z sqrt(n + m)) <= exp(-z² / 2); z is chosen such that any pair of windows of unimodal
    scores shows such a gap with probability of at most SPLIT_RATE.
    """
    users, low, length = scores.size, scores.min(), scores.max() - scores.min()
    natural_size = int(NATURAL_SHARE * users)
    if 2 * natural_size >= users or length < 3 * SPLIT_WIDTHS[0]:
        return False
    step = max(1.0, length / MAX_BINS)
    counts = np.bincount(((scores - low) / step).astype(np.int64))
    counts_below = np.concatenate([[0], np.cumsum(counts)])
    limit = math.sqrt(2 * math.log(len(SPLIT_WIDTHS) * counts.size**2 / SPLIT_RATE))
    for width in SPLIT_WIDTHS:
        window = counts_below[width:] - counts_below[:-width]
        middles = window.size - 2 * width
        if middles <= 0:
            break
        inside = window[width : width + middles]
        below = np.maximum.accumulate(window)[:middles]
        above = np.maximum.accumulate(window[::-1])[::-1][-middles:]
        smaller = np.minimum(below, above)
        cut_off = counts_below[width + width // 2 :][:middles]
        depth = (smaller - inside) / np.sqrt(np.maximum(smaller + inside, 1))
        if (depth[np.minimum(cut_off, users - cut_off) > natural_size] > limit).any():
            return True
    return False
