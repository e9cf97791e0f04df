"""The `plan` command: predict SNR, bytes and guarantees for a privacy budget."""

from typing import Annotated

import typer

from hushbit.defence.bound import shift_bounds
from hushbit.lab.cli.output import out, show_json, table
from hushbit.tuning.plan import Assumptions, Plan, PlanOption
from hushbit.tuning.plan import plan as make_plan


def plan(
    dim: Annotated[int, typer.Option(help="Number of entries of an update.")],
    users: Annotated[int, typer.Option(help="Number of users per round.")],
    epsilon_per_bit: Annotated[float | None, typer.Option(help="Local-DP epsilon per bit.")] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Local-DP epsilon of a whole message; needs --delta.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="Delta of a whole message; 0 for pure epsilon.")
    ] = None,
    radius: Annotated[float, typer.Option(help="Bound on every entry of an update.")] = 1.0,
    clip: Annotated[
        float | None,
        typer.Option(help="Bound on the l2 norm of an update; default: from --user-rms."),
    ] = None,
    signal: Annotated[
        float, typer.Option(help="Assumed RMS entry of the mean update, as a multiple of radius.")
    ] = 0.1,
    user_rms: Annotated[
        float | None,
        typer.Option(
            help="Assumed RMS entry of a user's update, as a multiple of radius; default: --signal."
        ),
    ] = None,
    k: Annotated[int, typer.Option(help="Minimum k-anonymity of a block in one round.")] = 1,
    bits_per_entry: Annotated[
        float | None,
        typer.Option(help="Bits per entry: below 1 for a random subset, 2, 3, ... for stages."),
    ] = None,
    snr_db: Annotated[
        float | None, typer.Option(help="Also report how many users reach this SNR in dB.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Number of rounds a user takes part in.")] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Predict SNR, bytes, privacy guarantees, k-anonymity and the number of users for a budget."""
    made = make_plan(
        dim,
        users,
        epsilon_per_bit=epsilon_per_bit,
        epsilon=epsilon,
        delta=delta,
        radius=radius,
        clip=clip,
        signal=signal,
        user_rms=user_rms,
        k=k,
        bits_per_entry=bits_per_entry,
        snr_db=snr_db,
        rounds=rounds,
    )
    if json:
        found = shift_bounds(made.options[0].mechanism, users, made.assumptions.clip)
        show_json(
            {
                "assumptions": vars(made.assumptions),
                "options": made.rows(),
                "worst_shift": [shift.row() for shift in found],
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
    _show_shifts(made.options[0], assumed)


def _show_shifts(option: PlanOption, assumed: Assumptions) -> None:
    """Print the worst shift of the mean by colluding users, as a multiple of the clip."""
    shifts = shift_bounds(option.mechanism, assumed.users, assumed.clip)
    if not shifts:
        return
    rows = [
        [
            f"{s.attackers:.0%}",
            *(
                f"{v / assumed.clip:.3g}"
                for v in (s.without_filter, s.filtered, min(s.filtered, s.every_round))
            ),
        ]
        for s in shifts
    ]
    title = f"Worst shift of the mean by colluding users, in multiples of clip ({option.name})"
    out.print(
        table(title, ["attackers", "no defence", "filter, one round", "filter, every round"], rows)
    )


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
