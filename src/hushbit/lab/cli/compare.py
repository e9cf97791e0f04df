"""The `compare` command: several mechanisms on the same users, with table and plot."""

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
    print_card,
    print_details,
    print_lines,
    print_simulation_note,
    print_title,
    resume_hint,
    show_json,
    without_history,
)
from hushbit.lab.cli.output import out as console
from hushbit.lab.sim.settings import BUDGET_OPTIONS, Settings, mechanism_name

if TYPE_CHECKING:
    from hushbit.lab.sim.run import RunSummary


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
    details: Annotated[
        bool, output_flag("--details", "Print the statement and every figure of each run.")
    ] = False,
    json: Annotated[bool, output_flag("--json", "Print the summaries as JSON.")] = False,
) -> None:
    """Run several mechanisms on the same users and seed; print a table and draw a plot."""
    results = run_all([name.strip() for name in mechanisms.split(",")], named, config, data, out)
    plot = None if out is None else draw_plot(results, out)
    if json:
        show_summaries(results)
        return
    print_results(results, details)
    if plot is not None:
        console.print(str(plot))


def show_summaries(results: "list[RunSummary]") -> None:
    """Print the figures of each run as JSON."""
    show_json([without_history(result) for result in results])


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
    reference = {k: v for k, v in options.items() if k not in (*BUDGET_OPTIONS, "accountant")}
    given = {  # FedAvg is the reference without privacy, if others spend the budget
        name: reference if mechanism_name(name) == "fedavg" and len(names) > 1 else options
        for name in names
    }
    for name, own in given.items():  # refuses wrong options before torch and Numba are loaded
        Settings(**own | {"mechanism": name})
    from hushbit.lab.sim.setup import OPTIONS, accepted_options

    accepted = [accepted_options(name, options.get("per")) for name in names]
    unused = sorted(k for k in options if k in OPTIONS and all(k not in a for a in accepted))
    if unused:
        flags = ", ".join("--" + name.replace("_", "-") for name in unused)
        raise InvalidInput(f"none of {', '.join(names)} takes {flags}; leave it out")
    return [
        Settings(
            **{k: v for k, v in given[name].items() if k not in OPTIONS or k in own}
            | {"mechanism": name}
        )
        for name, own in zip(names, accepted, strict=True)
    ]


def print_results(results: "list[RunSummary]", details: bool = False) -> None:
    """Print the card of all runs and the privacy statement of the best private one.

    With `details` all statements and all figures. Only a simulation has some of these figures,
    which a note then says.
    """
    print_title(results[0])
    best = print_card(results)
    for result in results:
        if details or best in (None, result["mechanism"]):
            print_lines([f"{result['mechanism']}:", *result.statement.lines(), ""])
    for result in results if details else ():
        print_details(result)
    if details:
        print_simulation_note()


def draw_plot(results: "list[RunSummary]", folder: Path) -> Path:
    """Draw accuracy and SNR by round into a PNG file in the folder."""
    from hushbit.lab.report.plots import plot_runs

    first = results[0]
    target = folder / "compare.png"
    title = f"{first['dataset']}, {first['model']}, {first['users']:,} users"
    plot_runs({r["mechanism"]: r["history"] for r in results}, target, title)
    return target
