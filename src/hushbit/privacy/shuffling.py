"""The central guarantee when ballots pass an anonymous shuffler.

It holds only if each message that the shuffler mixes is a single bit of local level epsilon0, the
users' messages cannot be told apart (a word drawn from a user's own key names its sender, so the
seed of the word must be fresh and travel inside the message), and each bit of a user goes through
a shuffle of its own. A whole ballot shuffled as one message has level bits * epsilon0, far outside
the theorem.
"""

import math

from hushbit.checks import positive, whole
from hushbit.errors import InvalidInput
from hushbit.privacy.arguments import failure_probability
from hushbit.privacy.bits import epsilon_of


def shuffled_epsilon(epsilon0: float, users: int, delta: float) -> float:
    """Central epsilon of one shuffled bit per user (Feldman, McMillan, Talwar 2021; conservative).

    With a = 8 sqrt(e^eps0 ln(4/delta) / n), c = 8 e^eps0 / n and e = ln(1 + a + c),
    epsilon = ln(1 + (1 - e^-eps0) / (1 + e^(-eps0-e)) (a + c)), valid if
    eps0 <= ln(n / (16 ln(4/delta))). Never more than eps0 itself.

    >>> round(shuffled_epsilon(0.5, 10_000, 6.4e-11), 3)
    0.135
    """
    epsilon0 = positive("epsilon0", epsilon0)
    users = whole("users", users, 1)
    delta = failure_probability(delta, zero=False)
    log_term = math.log(4) - math.log(delta)
    if users <= 16 * log_term or epsilon0 > math.log(users / (16 * log_term)):
        needed = math.inf if epsilon0 > 600 else math.ceil(16 * log_term * math.exp(epsilon0))
        raise InvalidInput(
            f"epsilon0 is {epsilon0:g} for {users} users at delta {delta:g}; the shuffling bound "
            f"needs at least {needed:g} users. Use the local guarantee, or lower epsilon0."
        )
    growth = math.exp(epsilon0)
    blanket = 8 * math.sqrt(growth * log_term / users) + 8 * growth / users
    inner = math.log1p(blanket)
    factor = -math.expm1(-epsilon0) / (1 + math.exp(-epsilon0 - inner))
    return min(epsilon0, math.log1p(factor * blanket))


def shuffled_message(
    epsilon0: float, users: int, bits: int, delta: float, *, delta_per_bit: float
) -> float:
    """Central epsilon at `delta` of `bits` bits per user, each through a shuffle of its own.

    An (e, d)-private release is never worse than one that fails with probability d and otherwise
    is randomized response at e (Kairouz, Oh, Viswanath 2015), so the whole is
    (E, 1 - (1-d)^bits (1 - D(E)))-private with D the exact delta of `bits` bits at e.
    `delta_per_bit` is d; bits * d must stay below delta, and half of it is a fair choice.
    """
    bits = whole("bits", bits, 1)
    delta = failure_probability(delta, zero=False)
    per_bit = shuffled_epsilon(epsilon0, users, delta_per_bit)
    # 1 - (1 - delta) / (1 - d)^bits without cancellation
    left = -math.expm1(math.log1p(-delta) - bits * math.log1p(-delta_per_bit))
    if left <= 0:
        raise InvalidInput(
            f"{bits} bits at delta_per_bit {delta_per_bit:g} already fail with more than delta "
            f"{delta:g}; give a delta_per_bit below {delta / bits:g}."
        )
    return epsilon_of(per_bit, bits, left)
