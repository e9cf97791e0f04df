"""Accuracy without a defence, with the ballot filter and with `Defence`, on development seeds.

    HUSHBIT_DATA=... python tools/compare_defences.py run FILE [--seeds 101 ...] [--cells ...]
    python tools/compare_defences.py table FILE

MNIST, K = 1000 users with 5 samples each, 60 rounds, the settings of docs/robustness.md. The cells
are `CELLS`; 30 % attackers unless the cell states another share. All defences of a cell have the
data, the first weights and the coins of its seed. Seeds below 101 are for reporting: refused.

Each line of the file is one run; a run that is there already is not repeated. Shares are in
percent: `ever_honest` of the honest users lost a ballot in at least one round, `removed_honest` is
the mean over rounds.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from hushbit.engine import Engine
from hushbit.lab.experiments.robustness import private
from hushbit.lab.sim.rounds import Aggregate, RunState, ballots, initial_state, one_round
from hushbit.lab.sim.settings import Settings
from hushbit.lab.sim.setup import Setup, build_setup
from hushbit.lab.sim.training import evaluate

ROUNDS, SHARE, FIRST_SEED = 60, 0.3, 101
DEFENCES = {"none": "none", "filter": "spectral", "Defence": "scores"}
MLP: dict[str, Any] = {"model": "mlp"}
DIRICHLET: dict[str, Any] = {"partition": "dirichlet", "alpha": 0.1}
ONE_CLASS: dict[str, Any] = {"partition": "shards", "shards_per_user": 1}
ATTACKS = (
    "ones",
    "flip",
    "directed",
    "directed-stealth",
    "sybils",
    "inner-product",
    "little",
    "scaled",
    "mirror",
    "cancel",
    "label-flip",
    "decoys",
    "two-coalitions",
    "sleepers",
)


def attack(name: str, share: float = SHARE, **options: Any) -> dict[str, Any]:
    """The options of a cell under attack."""
    return {"attack": name, "attackers": share, **options}


CELLS: dict[str, dict[str, Any]] = {
    "none": {},
    "none, Dirichlet 0.1": DIRICHLET,
    "none, one class": ONE_CLASS,
    **{name: attack(name) for name in ATTACKS},
    "adaptive 20 %": attack("adaptive", 0.2),
    "fresh-identities 14 %": attack("fresh-identities", 0.14),
    "label-flip, Dirichlet 0.1": attack("label-flip", **DIRICHLET),
    "inner-product, Dirichlet 0.1": attack("inner-product", **DIRICHLET),
    "MLP, none": MLP,
    "MLP, none, Dirichlet 0.1": MLP | DIRICHLET,
    "MLP, label-flip": attack("label-flip", **MLP),
    "MLP, scaled": attack("scaled", **MLP),
    "MLP, inner-product": attack("inner-product", **MLP),
    "MLP, little": attack("little", **MLP),
}


def cell_settings(cell: str, defence: str, seed: int) -> Settings:
    """The settings of one run."""
    if seed < FIRST_SEED:
        raise SystemExit(f"development seeds start at {FIRST_SEED}; got {seed}")
    options = {"model": "linear", **CELLS[cell]}
    return private(rounds=ROUNDS, seed=seed, defence=DEFENCES[defence], **options)


def run_cell(settings: Settings) -> dict[str, Any]:
    """The figures of one run."""
    setup = build_setup(settings)
    state, removed = initial_state(setup), []

    def aggregate(setup: Setup, state: RunState, engine: Engine | None) -> Aggregate:
        made = ballots(setup, state, engine)
        if made.removals is not None:
            removed.append(~made.removals.result.accepted)
        return made

    while state.round < settings.rounds:
        made = one_round(setup, state, aggregator=aggregate)
    data = setup.task.data
    by_class = [
        evaluate(setup.task.model, state.params, data.test_x[of], data.test_y[of]).accuracy
        for of in (data.test_y == c for c in range(data.classes))
    ]
    found = {
        "accuracy": round(100 * (made.test_accuracy or 0.0), 2),
        "worst_class": round(100 * min(by_class), 2),
    }
    if removed:
        honest, bad = (np.array(removed)[:, who] for who in (~setup.attackers, setup.attackers))
        found["ever_honest"] = round(100 * honest.any(axis=0).mean(), 2)
        found["removed_honest"] = round(100 * honest.mean(), 2)
        if bad.size:
            found["removed_attackers"] = round(100 * bad.mean(), 2)
    return found


def run(file: Path, seeds: list[int], cells: list[str], defences: list[str]) -> None:
    """Append the runs that the file does not contain yet."""
    lines = file.read_text().splitlines() if file.exists() else []
    done = {(row["cell"], row["seed"], row["defence"]) for row in map(json.loads, lines)}
    for seed in seeds:
        for cell in cells:
            for defence in defences:
                if (cell, seed, defence) in done:
                    continue
                row = {"cell": cell, "seed": seed, "defence": defence}
                row |= run_cell(cell_settings(cell, defence, seed))
                with file.open("a") as out:
                    out.write(json.dumps(row) + "\n")
                print(json.dumps(row), flush=True)


def table(file: Path) -> None:
    """Means over the seeds that all defences of a cell have; honest users ever removed."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    found = {(row["cell"], row["defence"], row["seed"]): row for row in rows}
    print(
        f"{'cell':30} seeds    none  filter Defence  change  honest ever removed by filter, Defence"
    )
    for cell in CELLS:
        names = [name for name in DEFENCES if any(key[:2] == (cell, name) for key in found)]
        seeds = [s for s in range(FIRST_SEED, 200) if all((cell, n, s) in found for n in names)]
        if not (names and seeds):
            continue
        accuracy, ever = (
            {n: statistics.fmean(found[cell, n, s][field] for s in seeds) for n in wanted}
            for field, wanted in (("accuracy", names), ("ever_honest", set(names) - {"none"}))
        )
        shown = " ".join(f"{accuracy[n]:7.2f}" if n in accuracy else "      -" for n in DEFENCES)
        both = {"filter", "Defence"} <= set(names)
        change = f"{accuracy['Defence'] - accuracy['filter']:+11.2f}" if both else " " * 11
        removed = " ".join(f"{ever[n]:6.2f}" for n in DEFENCES if n in ever)
        print(f"{cell:30} {len(seeds):5} {shown} {change}  {removed}")


def main() -> None:
    """Run, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("command", choices=("run", "table"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(101, 106)))
    parser.add_argument("--cells", nargs="+", default=list(CELLS), choices=list(CELLS))
    parser.add_argument("--defences", nargs="+", default=list(DEFENCES), choices=list(DEFENCES))
    options = parser.parse_args()
    if options.command == "run":
        run(options.file, options.seeds, options.cells, options.defences)
    else:
        table(options.file)


if __name__ == "__main__":
    main()
