"""A plan as one HTML page with sliders that works without a network.

The script of the page, plan.js, repeats the formulas of `hushbit.tuning.plan`. Figures against the
model come from a table of Rényi divergences (tools/tally_excess.py) and are rounded up, by at most
2 %.
"""

import json
import math
from typing import Any

from hushbit.errors import InvalidInput, MissingExtra
from hushbit.lab.report.html import content_security_policy, read_resource
from hushbit.mechanism import Mechanism
from hushbit.privacy.accountant import delta_text
from hushbit.privacy.central import VoteSums
from hushbit.statement import MODEL, MODEL_ASSUMES, RELATION_TEXTS, SERVER, SERVER_ASSUMES
from hushbit.tuning.calibrate import rotated_radius
from hushbit.tuning.plan import Plan, plan
from hushbit.wrappers import Subset

BITS_PER_WEIGHT = (0.125, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0)
STEPS = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
"""Positions of a slider in each decade."""
TRIED_EPSILONS = (0.5, 4.0)
"""Epsilons per bit whose best numbers of points the page tries; the choice hardly depends on it."""
TARGET_DB = 0.0
"""The SNR for which the page states the number of users, unless the plan has one."""


def write_plan_page(
    made: Plan, *, honest: float | None = None, k: int = 1, bits_per_entry: float | None = None
) -> str:
    """The page of a plan; `honest`, `k` and `bits_per_entry` are the arguments of the plan.

    A share of honest voters follows the number of users, and a number of them stays as it is.
    """
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
        from markupsafe import Markup
    except ImportError:
        raise MissingExtra("a page needs jinja2: pip install 'hushbit[lab]'") from None
    environment = Environment(
        loader=PackageLoader(__package__), autoescape=True, undefined=StrictUndefined
    )
    assumed, script = made.assumptions, read_resource("plan.js")
    data, start = _data(made, honest, k, bits_per_entry)
    page = environment.get_template("plan.html.j2").render(
        data=data,
        start=start,
        policy=content_security_policy([script]),
        style=Markup(read_resource("style.css") + read_resource("plan.css")),
        script=Markup(script),
        server=SERVER,
        server_assumes=SERVER_ASSUMES,
        model=MODEL,
        model_assumes=MODEL_ASSUMES.split("{voters}"),
        lines=[f"updates of {assumed.dim:,} weights", *assumed.lines(rounds=False)],
    )
    return f"{page}\n"


def _data(
    made: Plan, honest: float | None, k: int, bits_per_entry: float | None
) -> tuple[dict[str, Any], dict[str, int]]:
    """The figures that the script needs, and the first position of each slider."""
    assumed, budget, best = made.assumptions, made.assumptions.budget, made.best
    epsilon = best.mechanism.guarantee.epsilon_per_bit if budget is None else budget.epsilon
    if math.isinf(epsilon):
        raise InvalidInput("a page needs a finite epsilon: without noise there is no privacy")
    per, against, delta = "bit", "server", 0.0
    if budget is not None:
        per, against, delta = budget.per, budget.against, budget.delta
    chosen = 1.0 if bits_per_entry is None else float(bits_per_entry)
    numbers = sorted({chosen, *BITS_PER_WEIGHT}) if per == "bit" else [chosen]
    range_of_epsilon = (0.02, max(8.0, epsilon)) if per == "bit" else (epsilon / 20, epsilon * 20)
    stops = {
        "users": _stops(assumed.users, assumed.users / 100, assumed.users * 100, whole=True),
        "rounds": _stops(assumed.rounds, 1, max(1000, assumed.rounds * 10), whole=True),
        "epsilon": _stops(epsilon, *range_of_epsilon),
    }
    share = honest if isinstance(honest, float) else None
    data: dict[str, Any] = {
        "dim": assumed.dim,
        "radius": assumed.radius,
        "rotatedRadius": rotated_radius(assumed.dim, assumed.clip),
        "clip": assumed.clip,
        "signal": assumed.signal,
        "userRms": assumed.user_rms,
        "delta": assumed.delta,
        "deltaText": _delta(assumed.delta),
        "budget": {"per": per, "against": against, "delta": delta},
        "unit": f"per {per}{f' at delta {_delta(delta)}' if delta else ''}, against the {against}",
        "honest": None if honest is None else {"share": share, "number": assumed.honest},
        "tally": None if honest is None else json.loads(read_resource("tally_excess.json")),
        "relation": RELATION_TEXTS["replace"],
        "overhead": best.message_bytes - math.ceil(best.bits / 8),
        "target": TARGET_DB if assumed.snr_db is None else assumed.snr_db,
        "bits": [_bits(made, number, k) for number in numbers] if per == "bit" else [[]],
        "stops": stops,
    }
    values = {"users": assumed.users, "rounds": assumed.rounds, "epsilon": epsilon}
    start = {name: stops[name].index(value) for name, value in values.items()}
    start["bits"] = numbers.index(chosen)
    return data, start


def _delta(delta: float) -> str:
    """A delta as text, with a hyphen at which no line is broken."""
    return delta_text(delta).replace("-", "\N{NON-BREAKING HYPHEN}")


def _bits(made: Plan, bits_per_entry: float, k: int) -> list[dict[str, Any]]:
    """The best mechanisms with so many bits per weight; their noise is gain / beta² + rest."""
    assumed = made.assumptions
    options: list[dict[str, Any]] = []
    for epsilon in TRIED_EPSILONS:
        found = plan(
            assumed.dim,
            assumed.users,
            epsilon_per_bit=epsilon,
            radius=assumed.radius,
            signal=assumed.signal / assumed.radius,
            user_rms=assumed.user_rms / assumed.radius,
            k=k,
            bits_per_entry=bits_per_entry,
        ).best
        power = _power_of_bits(found.mechanism)
        sent = sum(count for _, count in found.mechanism.guarantee.groups)
        option = {
            "sent": sent,
            "payload": found.bits,
            "gain": power * math.tanh(epsilon / 2) ** 2,
            "rest": found.mechanism.noise_per_user(assumed.user_rms) - power,
            "ratio": math.sqrt(sent),
            "proved": isinstance(found.mechanism.guarantee.sums, VoteSums),
        }
        options.append(option)
    return options


def _power_of_bits(mechanism: Mechanism) -> float:
    """The part of the noise that is inversely proportional to beta²."""
    if isinstance(mechanism, Subset):
        return mechanism.weight * mechanism.inner.stage_noise
    return float(mechanism.stage_noise)  # type: ignore[attr-defined]


def _stops(value: float, low: float, high: float, *, whole: bool = False) -> list[float]:
    """The positions of a slider from low to high: steps of each decade, and the value itself."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    found = {value}
    for decade in range(first, last + 1):
        for step in STEPS:
            number = float(f"{step}e{decade}")
            if low <= number <= high and (not whole or number == int(number)):
                found.add(int(number) if whole else number)
    return sorted(found)
