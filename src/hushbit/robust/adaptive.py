"""The attacker who knows the filter and its memory, and spends as much as they let pass."""

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from hushbit.cpa import CPA
from hushbit.mechanism import Mechanism
from hushbit.robust.filter import FEWEST_USERS
from hushbit.robust.humps import NOWHERE, valley
from hushbit.robust.layers import bare
from hushbit.robust.pulls import edge_of, noise_size
from hushbit.robust.rules import STEPS_BACK, TOLERATED, Rule
from hushbit.robust.view import Rows, View


def adaptive(updates: Rows, mechanism: Mechanism, view: View, seed: int) -> Rows | None:
    """Against the honest pull m, and no further than the filter lets pass.

    In noises: along the way that the model has come, a score of `allowed` against it a round keeps
    the sum over rounds where noise trips no more of the coalition than is tolerated. Off the way
    it pushes by L against m: as far as leaves one hump, each of the coalition spread around L like
    honest users are, and as its score on the mean of all, (1-f) m + f a, stays within `allowed`.
    Of both together it does as much as leaves one hump in the sums over rounds. None where it is
    not known what ballots decode to, or users are so few that there is no filter.
    """
    inner = bare(mechanism)
    if not isinstance(inner, CPA) or view.users < FEWEST_USERS or view.pull is None:
        return None
    sigma, share = noise_size(inner), min(view.attackers / view.users, 0.49)
    honest = pull = view.pull.mean / sigma
    way = np.zeros_like(pull)
    if view.way is not None:
        way = view.way / float(np.linalg.norm(view.way))
        pull = pull - (pull @ way) * way
    back = -allowed_score(share, Rule().set_back(edge_of(inner))) * way
    length, natural = float(np.linalg.norm(pull)) or 1.0, view.pull.natural / sigma
    push = hidden_push(length, natural, share, view.users, inner.dim)
    attack = back - push / length * pull
    attack *= unseen_part(honest, attack, way, natural, view)
    rng = np.random.default_rng([seed, view.round, 0xADA])
    spread = natural * rng.normal(size=(len(updates), 1)) / length * pull
    return np.asarray((attack - spread) * sigma, dtype=np.float32)


def unseen_part(
    honest: NDArray[np.float64], attack: NDArray[np.float64], way: NDArray[np.float64],
    natural: float, view: View,
) -> float:  # fmt: skip
    """How much of an attack leaves one hump in the sums on mean and way taken together."""
    share, memory = view.attackers / view.users, Rule().memory
    scale = math.sqrt((1 + memory) / (1 - memory) / 2)
    for part in np.linspace(1.0, 0.0, 9):
        apart, total = honest - part * attack, (1 - share) * honest + share * part * attack
        on_mean = apart @ total / math.sqrt(total @ total + honest.size / view.users)
        if one_hump(scale * (on_mean + apart @ way), scale * natural, share, view.users):
            return float(part)
    return 0.0


def allowed_score(share: float, tolerated: float = TOLERATED) -> float:
    """Score against the others a round, in noises, that the memory of rounds forgives.

    Of a share f a part tolerated / f may trip on noise: n^1/2 score >= -STEPS_BACK + its quantile.
    """
    memory = Rule().memory
    noise = NormalDist().inv_cdf(1 - min(tolerated / max(share, tolerated), 0.5))
    return (STEPS_BACK - noise) * math.sqrt((1 - memory) / (1 + memory))


def hidden_push(length: float, natural: float, share: float, users: int, dim: int) -> float:
    """The largest L that neither a valley nor the score on the mean of all tells, in noises."""
    tried = np.linspace(0.0, 10 * math.hypot(1, natural), 200)
    left = (1 - share) * length - share * tried
    scores = -tried * left / np.sqrt(left**2 + dim / users)
    unseen = (push for push in tried[scores >= -allowed_score(share)][::-1]
              if one_hump(length + push, natural, share, users))  # fmt: skip
    return float(next(unseen, 0.0))


def one_hump(apart: float, natural: float, share: float, users: int, trials: int = 5) -> bool:
    """Whether the filter sees one group where a share of the users stands that far from the rest.

    Both are spread by the natural spread and the noise; no trial may find a valley.
    """
    rule, everyone = Rule(), np.ones(users, dtype=np.bool_)
    moved = apart * (np.arange(users) < share * users)
    for trial in range(trials):
        noise = np.random.default_rng(trial).normal(size=users) * math.hypot(1, natural)
        least = int(rule.share * users)
        if valley(noise - moved, everyone, least, rule.hump_rate, np.inf) != NOWHERE:
            return False
    return True
