"""The `plan` command: predict SNR, bytes and guarantees for a privacy budget."""

from typing import Annotated, Any

import typer

from hushbit.defence.bound import ShiftBound, shift_bounds
from hushbit.lab.cli.options import with_options_of
from hushbit.lab.cli.output import out, show_json, table
from hushbit.tuning.plan import Plan, PlanOption
from hushbit.tuning.plan import plan as make_plan

TEXTS = {
    "dim": "Number of entries of an update.",
    "users": "Number of users per round.",
    "epsilon_per_bit": "Local-DP epsilon per bit.",
    "epsilon": "Local-DP epsilon of a whole message; needs --delta.",
    "delta": "Delta of a whole message; 0 for pure epsilon.",
    "radius": "Bound on every entry of an update.",
    "clip": "Bound on the l2 norm of an update; default: from --user-rms.",
    "signal": "Assumed RMS entry of the mean update, as a multiple of radius.",
    "user_rms": "Assumed RMS entry of a user's update, as a multiple of radius; default: --signal.",
    "k": "Minimum k-anonymity of a block in one round.",
    "bits_per_entry": "Bits per entry: below 1 for a random subset, 2, 3, ... for stages.",
    "snr_db": "Also report how many users reach this SNR in dB.",
    "rounds": "Number of rounds a user takes part in.",
}


@with_options_of(make_plan, TEXTS)
def plan(
    named: dict[str, Any],
    json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Predict SNR, bytes, privacy guarantees, k-anonymity and the number of users for a budget."""
    made = make_plan(**named)
    if json:
        show_json(
            {
                "assumptions": vars(made.assumptions),
                "options": made.rows(),
                "worst_shift": [shift.row() for shift in _shifts(made)],
            }
        )
        return
    _show(made)


def _show(made: Plan) -> None:
    assumed = made.assumptions
    columns = ["option", "SNR dB", "bits", "bytes", "k", "dB for k"]
    if assumed.snr_db is not None:
        columns.append(f"users for {assumed.snr_db:g} dB")
    title = f"{assumed.users:,} users, {assumed.dim:,} entries; best first"
    out.print(table(title, columns, [_row(option) for option in made.options]))
    out.print("assumed: " + "; ".join(assumed.lines()))
    for option in made.options:
        out.print(f"\n{option.name}")
        out.print(option.mechanism.guarantee.report(assumed.rounds, delta=assumed.delta))
    if shifts := _shifts(made):
        _show_shifts(shifts, made)


def _shifts(made: Plan) -> list[ShiftBound]:
    """The worst shifts of the mean by colluding users, for the best option."""
    return shift_bounds(made.options[0].mechanism, made.assumptions.users, made.assumptions.clip)


def _show_shifts(shifts: list[ShiftBound], made: Plan) -> None:
    """Print the worst shift of the mean by colluding users, as a multiple of the clip."""
    clip = made.assumptions.clip
    rows = []
    for shift in shifts:
        norms = shift.without_filter, shift.filtered, min(shift.filtered, shift.every_round)
        rows.append([f"{shift.attackers:.0%}", *(f"{norm / clip:.3g}" for norm in norms)])
    title = (
        f"Worst shift of the mean by colluding users, in multiples of clip ({made.options[0].name})"
    )
    columns = ["attackers", "no defence", "filter, one round", "filter, every round"]
    out.print(table(title, columns, rows))


def _row(option: PlanOption) -> list[str]:
    row = [
        option.name,
        f"{option.snr_db:.2f}",
        f"{option.bits:,}",
        f"{option.message_bytes:,}",
        str(option.k),
        f"{option.cost_of_k_db:.2f}",
    ]
    return row if option.users_needed is None else [*row, f"{option.users_needed:,}"]
