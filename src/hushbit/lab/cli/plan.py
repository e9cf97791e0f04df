"""The `plan` command: predict SNR, bytes and guarantees for a privacy budget."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hushbit.budget import Budget
from hushbit.defence.shift_bound import ATTACKER_SHARES, DefendedShift, defended_shift
from hushbit.errors import InvalidInput
from hushbit.lab.cli.options import DataFolder, with_options_of
from hushbit.lab.cli.output import err, need_lab, out, print_lines, show_json, table
from hushbit.tuning.plan import Plan, PlanOption
from hushbit.tuning.plan import plan as make_plan

if TYPE_CHECKING:
    from hushbit.lab.sim.rehearsal import Rehearsal

TEXTS = {
    "dim": "Number of entries of an update.",
    "users": "Number of users per round.",
    "epsilon": "Epsilon of the privacy budget; needs --delta, --per and --against.",
    "delta": "Delta of the privacy budget; 0 for a pure budget.",
    "per": "Unit of the privacy budget: bit, message or run.",
    "against": "Observer of the privacy budget: server (sees ballots) or model (sees only tallies "
    "and models).",
    "accountant": "How epsilon against the model is computed: renyi (default), or tightest, the "
    "smaller of two proved bounds, which may need less noise.",
    "epsilon_per_bit": "Local-DP epsilon per bit, instead of a budget.",
    "honest": "Voters in each round who keep their coins secret, for guarantees against the model: "
    "a whole number of voters (1 is one voter), or with a decimal point a share of the users (1.0 "
    "is all of them).",
    "rounds": "Number of rounds a user takes part in; default: 1.",
    "radius": "Bound on every entry of an update.",
    "clip": "Bound on the l2 norm of an update; default: from --user-rms.",
    "signal": "Assumed RMS entry of the mean update, as a multiple of radius.",
    "user_rms": "Assumed RMS entry of a user's update, as a multiple of radius; default: --signal.",
    "k": "Minimum k-anonymity of a block in one round.",
    "bits_per_weight": "Bits per weight: below 1 for a random subset, 2, 3, ... for stages.",
    "snr_db": "Also report how many users reach this SNR in dB.",
}


def plan_of_options(
    dim: int,
    users: int,
    epsilon: float | None = None,
    delta: float | None = None,
    per: str | None = None,
    against: str | None = None,
    accountant: str | None = None,
    epsilon_per_bit: float | None = None,
    honest: float | None = None,
    rounds: int | None = None,
    radius: float = 1.0,
    clip: float | None = None,
    signal: float = 0.1,
    user_rms: float | None = None,
    k: int = 1,
    bits_per_weight: float | None = None,
    snr_db: float | None = None,
) -> Plan:
    """The plan of the command's options."""
    return make_plan(
        dim,
        users,
        budget=_budget(epsilon, delta, per, against, accountant),
        epsilon_per_bit=epsilon_per_bit,
        honest=honest,
        rounds=rounds,
        radius=radius,
        clip=clip,
        signal=signal,
        user_rms=user_rms,
        k=k,
        bits_per_entry=bits_per_weight,
        snr_db=snr_db,
    )


def _budget(
    epsilon: float | None,
    delta: float | None,
    per: str | None,
    against: str | None,
    accountant: str | None,
) -> Budget | None:
    parts = {"--epsilon": epsilon, "--delta": delta, "--per": per, "--against": against}
    missing = [name for name, value in parts.items() if value is None]
    if epsilon is not None and delta is not None and per is not None and against is not None:
        return Budget(epsilon, delta, per=per, against=against, accountant=accountant or "renyi")
    if len(missing) == len(parts):
        if accountant is not None:
            raise InvalidInput("--accountant applies to a budget only: leave it out")
        return None
    raise InvalidInput(
        "a privacy budget has four parts, none with a default value; missing: "
        f"{', '.join(missing)}. Example: --epsilon 4 --delta 1e-5 --per run --against model"
    )


@with_options_of(plan_of_options, TEXTS)
def plan(
    named: dict[str, Any],
    details: Annotated[
        bool, typer.Option("--details", help="Also print every level, proof and bound.")
    ] = False,
    note: Annotated[
        str | None,
        typer.Option(help="Write the privacy note of the best option to a file; - prints it."),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(help="Write an offline HTML page with sliders and live predictions."),
    ] = None,
    rehearse: Annotated[
        bool,
        typer.Option(
            "--rehearse",
            help="Also simulate the first rounds beside FedAvg (--task, or --dataset and --model).",
        ),
    ] = False,
    task: Annotated[
        str | None,
        typer.Option(help="Own task of the rehearsal: a file and a name, my_task.py:task."),
    ] = None,
    dataset: Annotated[str, typer.Option(help="Data set of the rehearsal.")] = "digits",
    model: Annotated[str, typer.Option(help="Model of the rehearsal.")] = "linear",
    data: DataFolder = None,
    json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Predict SNR, bytes, privacy guarantees, k-anonymity and the number of users for a budget."""
    if json and note == "-":
        raise InvalidInput("--json and --note - both write to standard output: give a file")
    with err.status("computing the guarantees"):
        made = plan_of_options(**named)
        written = None if note is None else made.best.note()
        shown = _json(made) if json else made.best.statement.lines()
    rehearsed = _rehearse(made.best, dataset, model, data, task) if rehearse else None
    if page is not None:
        _write(page, _page(made, named))
    if note == "-":
        print(written, end="")
        return
    if note is not None and written is not None:
        _write(Path(note), written)
    if isinstance(shown, dict):
        show_json(shown if rehearsed is None else shown | {"rehearsal": asdict(rehearsed)})
        return
    _show(made, shown, details)
    if rehearsed is not None:
        _show_rehearsal(rehearsed, made)


def _json(made: Plan) -> dict[str, Any]:
    """The statement of the best option, then all options."""
    return {
        **made.best.statement.row(),
        "assumptions": made.assumptions.row(),
        "options": made.rows(),
        "worst_shift": [asdict(shift) for shift in _shifts(made)],
    }


def _rehearse(
    option: PlanOption, dataset: str, model: str, data: Path | None, task: str | None
) -> "Rehearsal":
    need_lab()
    with err.status("rehearsing the plan beside FedAvg"):
        from hushbit.lab.sim.rehearsal import rehearse

        return rehearse(option, dataset, model, data, task)


def _show_rehearsal(found: "Rehearsal", made: Plan) -> None:
    """Print predictions beside measurements, and what to change in the plan."""
    title = f"Rehearsal of {found.rounds} round{'s' * (found.rounds != 1)}"
    ratios = [f"{found.snr_db:.2f}", f"{found.predicted_db:.2f}"]
    form = ".1%" if found.metric == "test_accuracy" else ".4g"
    rows = [
        ["fedavg", f"{found.fedavg_score:{form}}", "", ""],
        [made.best.name, f"{found.score:{form}}", *ratios],
    ]
    metric = found.metric.replace("_", " ")
    out.print(table(title, ["", metric, "SNR dB", "predicted SNR dB"], rows))
    assumed = made.assumptions.signal / made.assumptions.radius
    lines = [f"rms of the mean update: {found.signal:.3g} radii measured, {assumed:.3g} assumed."]
    if not 0.8 < found.signal / assumed < 1.25:
        change = f"--signal {found.signal:.2g}" if found.signal <= 1 else "a larger --radius"
        lines.append(f"For a prediction of this task, plan with {change}.")
    if found.overload_rate > 0:
        lines.append(f"{found.overload_rate:.1%} of the entries were beyond the radius.")
    print_lines(lines)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}") from None


def _page(made: Plan, named: dict[str, Any]) -> str:
    from hushbit.lab.report.plan_page import write_plan_page

    asked = {name: named[name] for name in ("k", "bits_per_entry") if name in named}
    return write_plan_page(made, honest=named.get("honest"), **asked)


def _show(made: Plan, statement: list[str], details: bool) -> None:
    assumed = made.assumptions
    for line in statement:
        out.print(line, highlight=False, markup=False)
    columns = ["option", "SNR dB", "bits", "bytes", "k", "dB for k"]
    if assumed.snr_db is not None:
        columns.append(f"users for {assumed.snr_db:g} dB")
    title = f"{assumed.users:,} users, {assumed.dim:,} entries; best first"
    out.print(table(title, columns, [_row(option) for option in made.options]))
    out.print("assumed: " + "; ".join(assumed.lines()))
    if not details:
        out.print("The statement is that of the first option. More: --details, --note FILE.")
        return
    for option in made.options:
        out.print(f"\n{option.name}")
        out.print(option.mechanism.guarantee.report(assumed.rounds, delta=assumed.delta))
    if shifts := _shifts(made):
        _show_shifts(shifts, made)


def _shifts(made: Plan) -> list[DefendedShift]:
    """The worst shifts of the mean by colluding users, for the best option."""
    mechanism, assumed = made.best.mechanism, made.assumptions
    shifts = [
        defended_shift(mechanism, assumed.users, assumed.rounds, share) for share in ATTACKER_SHARES
    ]
    return [shift for shift in shifts if shift is not None]


def _show_shifts(shifts: list[DefendedShift], made: Plan) -> None:
    """Print the worst shift of the mean by colluding users, as a multiple of the clip."""
    assumed = made.assumptions
    rows = []
    for shift in shifts:
        norms = shift.without_defence, shift.one_round, shift.every_round
        rows.append([f"{shift.attackers:.0%}", *(f"{norm / assumed.clip:.3g}" for norm in norms)])
    title = f"Worst shift of the mean by colluding users, in multiples of clip ({made.best.name})"
    columns = ["attackers", "no defence", "defence, one round", "defence, every round"]
    out.print(table(title, columns, rows))
    print_lines(
        [
            "no defence: proved; attained by the attack directed.",
            "one round: proved along the direction of the model, which the defence rounds to -1, 0 "
            "and 1; no other direction is bounded.",
            f"every round: mean over rounds 6 to {assumed.rounds}, proved against the rounded "
            "direction of the model.",
            "Both with --defence scores hold for any data of the others, if all users take part in "
            "every round and the defence removes at most half of them (docs/defence.md).",
        ]
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
