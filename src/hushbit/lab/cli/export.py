"""The `export` command: weights and metrics of a stored run, for other programs."""

from pathlib import Path
from typing import Annotated

import typer

from hushbit.errors import InvalidInput
from hushbit.lab.cli.output import need_lab, out, show_json
from hushbit.lab.export import METRICS_FORMATS, WEIGHTS_FORMATS, check_format


def export(
    run: Annotated[Path, typer.Argument(help="Folder that hushbit run --out wrote.")],
    weights: Annotated[
        Path | None,
        typer.Option(help="File for the weights of the last model: .safetensors or .pt."),
    ] = None,
    metrics: Annotated[
        Path | None,
        typer.Option(help="File for the metrics by round: .jsonl, .csv or .parquet."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the written files as JSON.")] = False,
) -> None:
    """Write weights and metrics of a stored run to files that need no hushbit."""
    if weights is None and metrics is None:
        raise InvalidInput("name a file: --weights model.safetensors or --metrics metrics.csv")
    if weights is not None:
        check_format(weights, WEIGHTS_FORMATS)
    if metrics is not None:
        check_format(metrics, METRICS_FORMATS)
    need_lab()
    from hushbit.lab.export import complete_rounds, write_metrics, write_weights

    rounds = complete_rounds(run)
    if weights is not None:
        write_weights(run, weights)
    if metrics is not None:
        write_metrics(run, metrics)
    files = {"weights": weights, "metrics": metrics}
    written = {name: str(path) for name, path in files.items() if path is not None}
    if json:
        show_json({"rounds": rounds, **written})
        return
    for name, path in written.items():
        text = f"{name} after {rounds} rounds: {path}"
        out.print(text, highlight=False, markup=False, soft_wrap=True)
