"""The table of docs/flower.md, from the lines that flower_accuracy.py printed.

python flower_table.py
"""

import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RUNS = Path(__file__).with_name("flower_accuracy.jsonl")


def table(lines: Iterable[str]) -> str:
    """The runs as a Markdown table, one row for all seeds of a method."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in map(json.loads, lines):
        key = row["users"], row.get("epsilon_message"), row.get("epsilon_run"), row["method"]
        groups.setdefault(key, []).append(row)
    made = [
        "| users | method | epsilon per message | epsilon per run, against the model "
        "| test accuracy | seeds | bytes up | client ms | server ms |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for (users, message, run, method), rows in groups.items():
        found = {row["seed"]: row["accuracy"] for row in rows}
        spread = f" ± {statistics.stdev(found.values()):.1f}" if len(found) > 1 else ""
        means = {
            name: statistics.mean(row[name] for row in rows)
            for name in ("bytes_up", "client_ms", "server_ms")
        }
        cells = [
            users,
            method,
            "" if message is None else f"{message:g}",
            "" if run is None else f"{run:.3g}",
            f"{statistics.mean(found.values()):.1f}{spread} %",
            len(found),
            round(means["bytes_up"]),
            f"{means['client_ms']:.1f}",
            f"{means['server_ms']:.1f}",
        ]
        made.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(made)


if __name__ == "__main__":
    print(table(RUNS.read_text().splitlines()))
