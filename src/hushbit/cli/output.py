"""How commands speak: results on standard output, everything else on standard error."""

import json
import math
import os
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

out = Console(soft_wrap=True)
err = Console(stderr=True)


def show_json(result: Any) -> None:
    """Print a result as JSON; numbers that JSON lacks become strings."""
    print(json.dumps(_plain(result), indent=2))


def announce_cluster(engine: str) -> None:
    """Say that a cluster is being asked: one that does not answer is waited for in silence."""
    address = os.environ.get("RAY_ADDRESS")
    if engine == "ray" and address:
        err.print(f"asking the Ray cluster at {address} (RAY_ADDRESS)", highlight=False)


def table(title: str, columns: list[str], rows: list[list[str]]) -> Table:
    """A table whose first column is text and whose other columns are numbers."""
    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, collapse_padding=True)
    for number, column in enumerate(columns):
        made.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        made.add_row(*row)
    return made


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
