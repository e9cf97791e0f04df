"""hushbit plan"""

from typing import Annotated

import typer

from hushbit.cli.output import out, show_json, table
from hushbit.privacy.planning import Assumptions, Option, Plan
from hushbit.privacy.planning import plan as make_plan
from hushbit.robust.bound import shifts_of


def plan(
    dim: Annotated[int, typer.Option(help="Entries of an update.")],
    users: Annotated[int, typer.Option(help="Users of a round.")],
    epsilon_per_bit: Annotated[float | None, typer.Option(help="Budget of every bit.")] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Budget of a whole message, with --delta.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="Delta of the whole message; 0 for a pure budget.")
    ] = None,
    radius: Annotated[float, typer.Option(help="Bound on the entries of an update.")] = 1.0,
    clip: Annotated[
        float | None, typer.Option(help="Bound on the l2 norm (default: that of user-rms).")
    ] = None,
    signal: Annotated[
        float, typer.Option(help="Assumed rms of an entry of the mean update, in radii.")
    ] = 0.1,
    user_rms: Annotated[
        float | None, typer.Option(help="Assumed rms of a user's entry, in radii (as signal).")
    ] = None,
    k: Annotated[int, typer.Option(help="Least k-anonymity of a block and round.")] = 1,
    bits_per_entry: Annotated[
        float | None, typer.Option(help="Below 1: a subset; 2, 3, ...: stages.")
    ] = None,
    snr_db: Annotated[
        float | None, typer.Option(help="Target: how many users does this ratio need?")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Rounds that a user takes part in.")] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Predict what a budget buys: ratio, bytes, guarantee in every unit, k and users needed."""
    made = make_plan(
        dim, users, epsilon_per_bit=epsilon_per_bit, epsilon=epsilon, delta=delta, radius=radius,
        clip=clip, signal=signal, user_rms=user_rms, k=k, bits_per_entry=bits_per_entry,
        snr_db=snr_db, rounds=rounds,
    )  # fmt: skip
    if json:
        found = shifts_of(made.options[0].mechanism, users, made.assumptions.clip)
        show_json({"assumptions": vars(made.assumptions), "options": made.rows(),
                   "worst_shift": [shift.row() for shift in found]})  # fmt: skip
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
    _show_shifts(made.options[0], assumed)


def _show_shifts(option: Option, assumed: Assumptions) -> None:
    """How far colluders could move the mean, in lengths of the clip."""
    shifts = shifts_of(option.mechanism, assumed.users, assumed.clip)
    if not shifts:
        return
    rows = [
        [f"{s.attackers:.0%}",
         *(f"{v / assumed.clip:.3g}" for v in (s.open, s.filtered, min(s.filtered, s.lasting)))]
        for s in shifts
    ]  # fmt: skip
    title = f"Worst shift of the mean by colluders, in clips ({option.name})"
    out.print(
        table(title, ["attackers", "no defence", "filter, one round", "filter, every round"], rows)
    )


def _row(option: Option) -> list[str]:
    row = [option.name, f"{option.snr_db:.2f}", f"{option.bits:,}", f"{option.message_bytes:,}",
           str(option.k), f"{option.cost_of_k_db:.2f}"]  # fmt: skip
    return row if option.users_needed is None else [*row, f"{option.users_needed:,}"]
