"""hushbit bench"""

from typing import Annotated

import typer

from hushbit import bench as speeds
from hushbit.cli.output import err, out, show_json, table


def bench(
    dim: Annotated[
        list[int] | None, typer.Option(help="Entries of an update; may be given several times.")
    ] = None,
    points: Annotated[
        list[int] | None, typer.Option(help="Points; may be given several times.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure votes per second, beside plain NumPy and the published torch way."""
    rows = []
    chosen = speeds.measure(tuple(dim or speeds.DIMS), tuple(points or speeds.POINTS))
    with err.status("compiling kernels") as status:
        for speed in chosen:
            rows.append(speed.row())
            status.update(f"measured {speed.operation} N={speed.points} dim={speed.dim:,}")
    if json:
        show_json(rows)
        return
    out.print(
        table(
            "Million votes per second, best of a few; peers in the same run",
            ["", "N", "dim", "hushbit", "numpy", "torch", "times numpy", "times torch"],
            [
                [
                    row["operation"], str(row["points"]), f"{row['dim']:,}",
                    _millions(row["hushbit"]), _millions(row["numpy"]), _millions(row["torch"]),
                    _times(row["times_numpy"]), _times(row["times_torch"]),
                ]
                for row in rows
            ],
        )
    )  # fmt: skip


def _millions(rate: float | None) -> str:
    return "not installed" if rate is None else f"{rate / 1e6:,.1f}"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:,.0f}"
