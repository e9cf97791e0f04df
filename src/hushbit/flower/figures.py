"""The figures of a round: who voted, what it cost, how clear the answer is."""

import math
from typing import Any

from hushbit.decode import Estimate
from hushbit.flower.count import RoundCount
from hushbit.mechanism import Mechanism


def snr_estimate_db(estimate: Estimate) -> float:
    """Signal over noise in dB from the tally alone: 10 log10((|mean|² - noise) / noise)."""
    noise = float(estimate.variance.sum())
    if noise == 0:
        return math.inf
    signal = float(estimate.mean @ estimate.mean) - noise
    if math.isnan(signal):
        return math.nan
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf


def privacy_figures(mechanism: Mechanism, rounds: int, delta: float) -> dict[str, float]:
    """Epsilon per bit, per message and for a user that took part in every round so far."""
    promise = mechanism.guarantee
    return {
        "epsilon_per_bit": promise.epsilon_per_bit,
        "epsilon_per_message": promise.epsilon_per_message(),
        "epsilon_per_message_at_delta": promise.epsilon_per_message(delta),
        "epsilon_run": promise.epsilon_per_run(rounds),
        "epsilon_run_at_delta": promise.epsilon_per_run(rounds, delta),
        "delta": delta,
    }


def vote_figures(count: RoundCount, asked: int) -> dict[str, Any]:
    """How many were asked, accepted and refused, by reason, and what the users sent."""
    reasons = {f"refused_{reason}": number for reason, number in sorted(count.refused.items())}
    means = {f"users_{name}": value for name, value in count.metrics.means().items()}
    return {
        "asked": asked,
        "accepted": count.accepted,
        "refused": sum(count.refused.values()),
        "silent": asked - len(count.answered),
        "bytes_up": count.bytes_up,
        **reasons,
        **means,
    }
