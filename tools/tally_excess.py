"""Write src/hushbit/lab/report/tally_excess.json, the table from which the page of a plan predicts.

For each number of voters, epsilon per bit and Renyi order the table holds ln(r - 1), where r is the
divergence of a tally (`tally_curve`) divided by that of Gaussian noise of the same variance. It
takes some minutes:

    python tools/tally_excess.py
"""

import json
import math
from pathlib import Path

from hushbit.privacy.central import ORDERS, splits, tally_curve

TARGET = Path(__file__).parents[1] / "src/hushbit/lab/report/tally_excess.json"
VOTERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 257, 360, 520, 740, 1100, 2100)
VOTERS = (*VOTERS, 4300)
EPSILONS = (0.01, 0.05, 0.1, 0.14, 0.2, 0.28, 0.4, 0.57, 0.8, 1.0, 1.19, 1.41, 1.68, 2.0, 2.4, 2.8)
EPSILONS = (*EPSILONS, 3.4, 4.0, 4.8, 5.7, 6.7, 8.0)
LEAST = 1e-5
"""Smaller excesses are below the accuracy of the curves."""


def counted_voters(honest: int) -> int:
    """The voters of the smallest split that `tally_curve` considers, the target included."""
    return 1 + min(plus + minus for plus, minus in splits(honest - 1, 128))


def log_excesses(honest: int, epsilon: float) -> list[float | None]:
    """ln(r - 1) of every order; None where no bound is proved."""
    curve = tally_curve(honest, epsilon)
    variance = counted_voters(honest) * (1 - math.tanh(epsilon / 2) ** 2) / 4
    ratios = curve.per_square * 2 * variance / curve.orders
    return [
        round(math.log(max(ratio - 1, LEAST)), 2) if math.isfinite(ratio) else None
        for ratio in ratios.tolist()
    ]


def main() -> None:
    """Write the table."""
    table = {
        "voters": [counted_voters(honest) for honest in VOTERS],
        "epsilons": EPSILONS,
        "orders": ORDERS,
        "excess": [log_excesses(honest, epsilon) for honest in VOTERS for epsilon in EPSILONS],
    }
    TARGET.write_text(json.dumps(table, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
