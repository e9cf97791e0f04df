"""hushbit compare"""

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from hushbit.cli import Interrupted
from hushbit.cli.extras import need_lab
from hushbit.cli.output import out as console
from hushbit.cli.output import show_json, table
from hushbit.cli.run import how_to_go_on
from hushbit.errors import InvalidInput
from hushbit.fl.settings import Settings

COLUMNS = (
    ("test_accuracy", "test\naccuracy", lambda v: f"{v:.2%}"),
    ("snr_db", "SNR\n(dB)", lambda v: f"{v:.1f}"),
    ("bytes_up", "sent\nup", lambda v: f"{v / 1e6:,.1f} MB"),
    ("epsilon_per_bit", "eps per\nbit", lambda v: f"{v:.4g}"),
    ("epsilon_per_message", "eps per\nmessage", lambda v: f"{v:.4g}"),
    ("epsilon_run", "eps per\nrun", lambda v: f"{v:.4g}"),
    ("seconds", "time", lambda v: f"{v:.1f} s"),
)


def compare(
    named: dict[str, Any],
    mechanisms: Annotated[
        str, typer.Option(help="Comma-separated, as in fedavg,cpa,laplace.")
    ] = "fedavg,cpa",
    out: Annotated[Path | None, typer.Option(help="Folder for the runs and the plot.")] = None,
    config: Annotated[Path | None, typer.Option(help="Options from a TOML file.")] = None,
    data: Annotated[Path | None, typer.Option(help="Data folder; else HUSHBIT_DATA.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the summaries as JSON.")] = False,
) -> None:
    """Run several mechanisms on the same users and seed; a table and a plot side by side."""
    results = run_all([name.strip() for name in mechanisms.split(",")], named, config, data, out)
    plot = None if out is None else picture(results, out)
    if json:
        show_json([{k: v for k, v in r.items() if k != "history"} for r in results])
        return
    print_table(results)
    if plot is not None:
        console.print(str(plot))


def run_all(
    names: list[str], named: dict[str, Any], config: Path | None, data: Path | None,
    out: Path | None,
) -> list[dict[str, Any]]:  # fmt: skip
    """The runs, one after the other; options that a mechanism does not take are left to others."""
    need_lab()
    from hushbit.cli.options import options_from
    from hushbit.cli.progress import RoundProgress
    from hushbit.fl.setup import prepare
    from hushbit.lab.record import Record
    from hushbit.lab.runs import run

    wanted = fitting_settings(names, options_from(named, config))
    folders = [None if out is None else out / name for name in names]
    # All that can be refused is refused before the first run, which may take long.
    for folder in folders:
        if folder is not None:
            Record(folder).refuse_full()
    for settings in wanted:
        prepare(settings, data)
    results = []
    for name, settings, folder in zip(names, wanted, folders, strict=True):
        try:
            with RoundProgress(settings, label=name) as progress:
                results.append(run(settings, folder, data=data, watch=progress.watch))
        except KeyboardInterrupt:
            raise Interrupted(how_to_go_on(folder)) from None
    return results


def fitting_settings(names: list[str], options: dict[str, Any]) -> list[Settings]:
    """Settings of each mechanism; an option that only some of them take is left to those."""
    from hushbit.fl.mechanisms import OPTIONS, TAKES, mechanism_name

    if len(set(names)) != len(names) or not all(names):
        raise InvalidInput(f"name every mechanism once, as in fedavg,cpa; got {','.join(names)}")
    taken = [TAKES[mechanism_name(name)] for name in names]
    unused = sorted(k for k in options if k in OPTIONS and all(k not in t for t in taken))
    if unused:
        flags = ", ".join("--" + name.replace("_", "-") for name in unused)
        raise InvalidInput(f"none of {', '.join(names)} takes {flags}; leave it out")
    return [
        Settings(**{k: v for k, v in options.items() if k not in OPTIONS or k in takes}
                 | {"mechanism": name})
        for name, takes in zip(names, taken, strict=True)
    ]  # fmt: skip


def print_table(results: list[dict[str, Any]]) -> None:
    """The figures side by side."""
    first = results[0]
    title = (
        f"{first['dataset']}, {first['model']}, {first['users']:,} users, {first['rounds']} rounds"
    )
    rows = [
        [result["mechanism"], *(_cell(result[key], show) for key, _, show in COLUMNS)]
        for result in results
    ]
    console.print(table(title, ["mechanism", *(head for _, head, _ in COLUMNS)], rows))


def picture(results: list[dict[str, Any]], folder: Path) -> Path:
    """Accuracy and SNR by round, as a PNG in the folder."""
    from hushbit.lab.plots import plot_runs

    first = results[0]
    target = folder / "compare.png"
    title = f"{first['dataset']}, {first['model']}, {first['users']:,} users"
    plot_runs({r["mechanism"]: r["history"] for r in results}, target, title)
    return target


def _cell(value: Any, show: Any) -> str:
    return "inf" if isinstance(value, float) and math.isinf(value) else str(show(value))
