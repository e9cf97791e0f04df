"""How many users would reach a smaller epsilon against the model at the noise of a run."""

import math

from hushbit.checks import check_delta, check_int, check_positive
from hushbit.tuning.calibrate import zcdp_for


def users_for_epsilon(
    target: float, *, users: int, epsilon: float, delta: float, epsilon_per_bit: float
) -> int:
    """The number of users whose mean has the noise of a run, at epsilon `target`.

    target, epsilon  per run against the model: the wanted one and that of the run, both at `delta`
    users            in each round of the run; the share of honest ones stays the same
    epsilon_per_bit  of the run; infinite if the server adds the noise (Gaussian)

    Rounds and clip stay the same; the budget of each bit shrinks with the number of users. The
    accuracy follows from the noise in the mean, so it is that of the run, except that the mean of
    more users also has a smaller sampling error.

    Derivation. A bit tells the truth with bias β = tanh(epsilon_per_bit / 2). The mean of K users
    has noise of variance proportional to 1 / (K β²), and the sum of their bits has a zCDP parameter
    rho proportional to β² / (K (1 - β²)), in the Gaussian limit of many voters. With u K users and
    β² / u the noise is the same, and rho becomes smaller by the factor
    (1 - β²) / (u (u - β²)). Setting it to q = rho of `target` / rho of `epsilon` gives
    u = (β² + sqrt(β⁴ + 4 (1 - β²) / q)) / 2. For the Gaussian mechanism β = 0: the noise in the
    mean of K users is that of the sum divided by K, and u = 1 / sqrt(q).

    >>> users_for_epsilon(1, users=1000, epsilon=4, delta=1e-5, epsilon_per_bit=0.374)
    3452
    """
    target, epsilon = check_positive("target", target), check_positive("epsilon", epsilon)
    users, delta = check_int("users", users, 1), check_delta(delta, zero=False)
    bias = math.tanh(epsilon_per_bit / 2) if math.isfinite(epsilon_per_bit) else 0.0
    ratio = zcdp_for(target, delta) / zcdp_for(epsilon, delta)
    square = bias**2
    factor = (square + math.sqrt(square**2 + 4 * (1 - square) / ratio)) / 2
    return max(users, math.ceil(users * factor))
