"""Export of a run to the event language of the dp-accounting package."""

import math
from typing import Any

from hushbit.checks import positive, whole
from hushbit.errors import MissingExtra


def run_events(epsilon_per_bit: float, bits: int, rounds: int) -> Any:
    """A run as a `dp_accounting.SelfComposedDpEvent` of binary randomized response.

    The package's noise parameter is the probability of replacing a bit by a uniform one, so it is
    2 (1 - p) = 2 / (1 + e^epsilon) and not 1 - p; the count is bits * rounds. A bit without noise
    (epsilon_per_bit = math.inf) is a `NonPrivateDpEvent`.

    Give it to `dp_accounting.rdp.RdpAccountant`. For privacy loss distributions use
    `from_randomized_response(noise, 2).self_compose(count)`: version 0.6.0 of `PLDAccountant`
    composes randomized response once, whatever the count.
    """
    per_bit = positive("epsilon_per_bit", epsilon_per_bit, infinite=True)
    count = whole("bits", bits, 1) * whole("rounds", rounds, 1)
    try:
        from dp_accounting import dp_event
    except ImportError:
        raise MissingExtra(
            "Export of events needs dp-accounting; run: pip install 'hushbit[lab]'"
        ) from None
    if math.isinf(per_bit):
        return dp_event.NonPrivateDpEvent()
    noise = 2 * math.exp(-per_bit) / (1 + math.exp(-per_bit))
    return dp_event.SelfComposedDpEvent(dp_event.RandomizedResponseDpEvent(noise, 2), count)
