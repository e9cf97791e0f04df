"""CPA without knobs: rotated, with points that follow the updates by private votes.

The mechanism of a round is immutable; `after(tally)` gives the next round's, from what a server
sees and nothing else:

    belief  about the median norm, moved by the votes (`belief.py`)
    signal  power of the mean, from the tally: |mean|² less the known noise (post-processing)
    ratio   how far out the points lie, by the smallest predicted error (`ratio.py`)
    ceiling how far the norm may rise in one round, once the search for it is over
"""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import length
from hushbit.decode import Estimate
from hushbit.errors import InvalidInput
from hushbit.mechanism import Mechanism
from hushbit.tally import Tally
from hushbit.tuning.belief import NormBelief
from hushbit.tuning.budget import Budget
from hushbit.tuning.norm_vote import COUNTER, NormVote
from hushbit.tuning.ratio import best_ratio, predicted

State = dict[str, NDArray[np.float64]]

CAREFUL = 0.25
"""Points follow this quantile of the belief: too small costs little, too large is all noise."""

SETTLED = 1.5
"""Ratio of the belief's quartiles below which the search for the norm is over."""

RISE, FALL = 2 ** (1 / 8), 0.97
"""Once settled, points rise by at most an eighth of an octave a round, or to where they were.

The ceiling falls slowly. Without it a leap of the gradients takes the points, the steps and so
the next gradients along, and training blows up.
"""

FIRST_SIGNAL = 0.1
SIGNAL_MEMORY = 0.7


class AutoCPA(NormVote):
    """The mechanism of one round of `CPA.auto`; `after` gives the next one.

    The estimate undoes on average what the points cut off; it is not unbiased for every user, and
    says so.
    """

    def __init__(
        self, budget: Budget, belief: NormBelief, signal: float, ceiling: float = math.inf
    ) -> None:
        self.budget = budget
        self.belief = belief
        self.signal = signal
        self.ceiling = ceiling
        self.choice = best_ratio(budget.users, budget.noise, signal, budget.clips)
        self.norm = min(belief.quantile(CAREFUL), ceiling)
        inner = budget.mechanism(self.norm, self.choice.ratio)
        super().__init__(inner, belief.quantile(0.5), budget.vote_epsilon)

    def estimate(self, tally: Tally) -> Estimate:
        """The mean, enlarged by the gain that fits the norm which this round's votes tell of."""
        plain = super().estimate(tally)
        drift = self._believed(tally).quantile(0.5) / self.norm
        # A few votes may be far off, and the noise grows with the gain: two octaves at most.
        most = 4.0 if math.isinf(self.ceiling) else RISE**2
        ratio = self.choice.ratio / min(max(drift, 0.25), most)
        budget = self.budget
        gain = predicted(ratio, budget.users, budget.noise, self.signal, budget.clips).gain
        noise = None if plain.noise is None else plain.noise * gain**2
        return Estimate(
            plain.mean * gain, plain.variance * gain**2, plain.count, unbiased=False, noise=noise
        )

    def after(self, tally: Tally) -> "AutoCPA":
        """The mechanism of the next round, given this round's tally."""
        estimate, belief = self.estimate(tally), self._believed(tally)
        noise = float(estimate.variance.mean()) if estimate.noise is None else estimate.noise
        power = max(0.0, float(np.mean(estimate.mean**2)) - noise)
        seen = min(1.0, power * self.dim / belief.quantile(0.5) ** 2)
        signal = SIGNAL_MEMORY * self.signal + (1 - SIGNAL_MEMORY) * seen
        return AutoCPA(self.budget, belief, signal, self._next_ceiling())

    def _next_ceiling(self) -> float:
        doubt = self.belief.quantile(0.75) / self.belief.quantile(0.25)
        if math.isinf(self.ceiling) and doubt > SETTLED:
            return math.inf
        lately = 0.0 if math.isinf(self.ceiling) else self.ceiling * FALL
        return max(self.norm * RISE, lately)

    def _believed(self, tally: Tally) -> NormBelief:
        """The belief after this round's votes."""
        yes = (tally.count + int(tally.counters[COUNTER][0])) // 2
        return self.belief.learned(self.level, yes, tally.count, float(self.response.beta))

    @property
    def state(self) -> State:
        """All that changes from round to round, as arrays for a checkpoint."""
        numbers = {"signal": self.signal, "ceiling": self.ceiling}
        return {"belief": self.belief.weights} | {n: np.array([v]) for n, v in numbers.items()}

    def resumed(self, state: State) -> "AutoCPA":
        """The mechanism of the same budget in a state that `state` gave."""
        if not isinstance(state, Mapping) or set(state) != {"belief", "signal", "ceiling"}:
            raise InvalidInput("a tuning state holds belief, signal and ceiling, as state gives it")
        numbers = [state["signal"], state["ceiling"]]
        if not all(isinstance(v, np.ndarray) and v.shape == (1,) and v.dtype.kind in "fiu"
                   for v in numbers):  # fmt: skip
            raise InvalidInput("signal and ceiling of a tuning state are arrays of one number")
        signal, ceiling = (float(value[0]) for value in numbers)
        if not (0 <= signal <= 1 and ceiling > 0):
            raise InvalidInput(
                f"a tuning state has a signal from 0 to 1 and a ceiling above 0; got {signal!r} "
                f"and {ceiling!r}"
            )
        return AutoCPA(self.budget, NormBelief(state["belief"]), signal, ceiling)


def auto(budget: Budget, first_norm: float, first_octaves: float) -> AutoCPA:
    """The first round's mechanism, from a public guess of an update's norm and its doubt."""
    if not 1e-20 <= length("first_norm", first_norm) <= 1e10:
        raise InvalidInput(f"first_norm must be from 1e-20 to 1e10; got {first_norm!r}")
    return AutoCPA(budget, NormBelief.around(first_norm, first_octaves), FIRST_SIGNAL)


def tuned(mechanism: Mechanism, state: State) -> Mechanism:
    """The mechanism as the state left it; one that does not tune itself as it is."""
    return mechanism.resumed(state) if isinstance(mechanism, AutoCPA) else mechanism


def tuning_state(mechanism: Mechanism, tally: Tally | None = None) -> State:
    """What a checkpoint keeps of a mechanism, after a round's tally if one is given."""
    if not isinstance(mechanism, AutoCPA):
        return {}
    return (mechanism if tally is None else mechanism.after(tally)).state
