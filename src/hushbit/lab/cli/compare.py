"""The `compare` command: several mechanisms on the same users, with table and plot."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hushbit.errors import InvalidInput
from hushbit.lab.cli.options import (
    PRIVACY,
    ConfigFile,
    DataFolder,
    options_from,
    output_flag,
    output_path,
    with_settings,
)
from hushbit.lab.cli.output import (
    Interrupted,
    RoundProgress,
    need_lab,
    print_details,
    print_simulation_note,
    print_statement,
    resume_hint,
    show_json,
    table,
)
from hushbit.lab.cli.output import out as console
from hushbit.lab.sim.settings import Settings

if TYPE_CHECKING:
    from hushbit.lab.sim.run import RunSummary

Column = tuple[str, str, Callable[[Any], str]]
COLUMNS: tuple[Column, ...] = (
    ("test_accuracy", "test\naccuracy", lambda v: f"{v:.2%}"),
    ("snr_db", "SNR\n(dB)", lambda v: f"{v:.1f}"),
    ("bytes_up", "sent\nup", lambda v: f"{v / 1e6:,.1f} MB"),
    ("seconds", "time", lambda v: f"{v:.1f} s"),
)
"""The columns to the left of those with epsilon."""


@with_settings(leave_out=("mechanism",))
def compare(
    named: dict[str, Any],
    mechanisms: Annotated[
        str,
        typer.Option(
            help="Names of mechanisms, separated by commas: fedavg,cpa,laplace.",
            rich_help_panel=PRIVACY,
        ),
    ] = "fedavg,cpa",
    config: ConfigFile = None,
    data: DataFolder = None,
    out: Annotated[Path | None, output_path("Folder for the runs and the plot.")] = None,
    details: Annotated[bool, output_flag("--details", "Print every figure of the runs.")] = False,
    json: Annotated[bool, output_flag("--json", "Print the summaries as JSON.")] = False,
) -> None:
    """Run several mechanisms on the same users and seed; print a table and draw a plot."""
    results = run_all([name.strip() for name in mechanisms.split(",")], named, config, data, out)
    plot = None if out is None else draw_plot(results, out)
    if json:
        show_summaries(results)
        return
    print_table(results)
    print_statements(results)
    for result in results if details else ():
        result.pop("history")
        print_details(result)
    if plot is not None:
        console.print(str(plot))


def show_summaries(results: "list[RunSummary]") -> None:
    """Print the figures of each run as JSON, without those of single rounds."""
    show_json([{k: v for k, v in r.items() if k != "history"} for r in results])


def run_all(
    names: list[str],
    named: dict[str, Any],
    config: Path | None,
    data: Path | None,
    out: Path | None,
) -> "list[RunSummary]":
    """Run the mechanisms one after the other and return their summaries."""
    need_lab()
    wanted = settings_per_mechanism(names, options_from(named, config))
    from hushbit.lab.sim.run import RunRecord, run
    from hushbit.lab.sim.setup import build_setup

    folders = [None if out is None else out / name for name in names]
    # Every check comes before the first run, which may take long.
    for folder in folders:
        if folder is not None:
            RunRecord(folder).check_empty()
    for settings in wanted:
        build_setup(settings, data)
    results = []
    for name, settings, folder in zip(names, wanted, folders, strict=True):
        try:
            with RoundProgress(settings, label=name) as progress:
                results.append(run(settings, folder, data=data, watch=progress.watch))
        except KeyboardInterrupt:
            raise Interrupted(resume_hint(folder)) from None
    return results


def settings_per_mechanism(names: list[str], options: dict[str, Any]) -> list[Settings]:
    """Settings of each mechanism, with only those options that this mechanism accepts."""
    if len(set(names)) != len(names) or not all(names):
        raise InvalidInput(f"name every mechanism once, as in fedavg,cpa; got {','.join(names)}")
    for name in names:  # refuses wrong options before torch and Numba are loaded
        Settings(**options | {"mechanism": name})
    from hushbit.lab.sim.setup import OPTIONS, accepted_options

    accepted = [accepted_options(name, options.get("per")) for name in names]
    unused = sorted(k for k in options if k in OPTIONS and all(k not in a for a in accepted))
    if unused:
        flags = ", ".join("--" + name.replace("_", "-") for name in unused)
        raise InvalidInput(f"none of {', '.join(names)} takes {flags}; leave it out")
    return [
        Settings(
            **{k: v for k, v in options.items() if k not in OPTIONS or k in own}
            | {"mechanism": name}
        )
        for name, own in zip(names, accepted, strict=True)
    ]


def print_table(results: "list[RunSummary]") -> None:
    """Print one row of figures per mechanism."""
    first = results[0]
    title = (
        f"{first['dataset']}, {first['model']}, {first['users']:,} users, {first['rounds']} rounds"
    )
    columns = [*COLUMNS, *epsilon_columns(first["budget"])]
    if all(math.isnan(result["test_accuracy"]) for result in results):
        columns[0] = ("test_loss", "test\nloss", lambda v: f"{v:.4g}")
    rows = [
        [result["mechanism"], *(_cell(result, key, show) for key, _, show in columns)]
        for result in results
    ]
    console.print(table(title, ["mechanism", *(head for _, head, _ in columns)], rows))


def epsilon_columns(budget: dict[str, Any] | None) -> "list[Column]":
    """The epsilon of the requested unit, then those of the run against each observer."""
    first = ("epsilon_bit", "epsilon\nper bit,\nserver")
    if budget is not None:
        first = ("epsilon_spent", f"epsilon\nper {budget['per']},\n{budget['against']}")
    observers = ("server", "model")
    others = [(f"epsilon_run_{one}", f"epsilon\nper run,\n{one}") for one in observers]
    keys = [first, *(one for one in others if one[1] != first[1])]
    return [(key, head, lambda v: f"{v:.4g}") for key, head in keys]


def print_statements(results: "list[RunSummary]") -> None:
    """Print the privacy statement of each mechanism, and which figures only a simulation has."""
    for result in results:
        console.print(f"{result['mechanism']}:")
        print_statement(result)
        console.print()
    print_simulation_note()


def draw_plot(results: "list[RunSummary]", folder: Path) -> Path:
    """Draw accuracy and SNR by round into a PNG file in the folder."""
    from hushbit.lab.report.plots import plot_runs

    first = results[0]
    target = folder / "compare.png"
    title = f"{first['dataset']}, {first['model']}, {first['users']:,} users"
    plot_runs({r["mechanism"]: r["history"] for r in results}, target, title)
    return target


def _cell(result: "RunSummary", key: str, show: Callable[[Any], str]) -> str:
    value = result[key]
    if value is not None and math.isfinite(value):
        return show(value)
    # Only the figure against the server is proved, which holds against every other observer too.
    same = key == "epsilon_run_model" and math.isfinite(result["epsilon_run_server"])
    return "as server" if same else "inf"
