"""hushbit tally"""

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from hushbit.checks import choice
from hushbit.cli.output import announce_cluster, err, out, show_json, table
from hushbit.errors import DamagedFile, InvalidInput

DECODERS = ("mean", "median", "trimmed-mean", "shrunken")
FILTERS = ("none", "spectral")


def tally(
    ballots: Annotated[Path, typer.Argument(help="Folder of ballots: round=R/*.parquet.")],
    out_folder: Annotated[Path, typer.Option("--out", help="New folder for tallies and means.")],
    secret_file: Annotated[
        Path | None, typer.Option(help="The server's secret: a file of 32 bytes.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Instead of a secret: the seed of a simulated run.")
    ] = None,
    decoder: Annotated[str, typer.Option(help=f"{', '.join(DECODERS)}.")] = "mean",
    trim: Annotated[float, typer.Option(help="Share cut at either end (trimmed-mean).")] = 0.1,
    filter_name: Annotated[
        str, typer.Option("--filter", help="none, or spectral: all ballots in memory at once.")
    ] = "none",
    fingerprint: Annotated[
        str | None, typer.Option(help="Count files of this mechanism only (16 hex digits).")
    ] = None,
    skip_damaged: Annotated[
        bool, typer.Option("--skip-damaged", help="Count the rest where files are damaged.")
    ] = False,
    engine: Annotated[str, typer.Option(help="local (processes here) or ray.")] = "local",
    workers: Annotated[int | None, typer.Option(help="Worker processes.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Count stored ballots again: verify every one, report the refused by reason, decode."""
    from hushbit.engine import chosen_engine
    from hushbit.rest.report import count_folder, new_folder
    from hushbit.rest.store import find_sources

    choice("decoder", decoder, DECODERS)
    choice("filter", filter_name, FILTERS)
    secret = _secret(secret_file, seed)
    found, damaged = find_sources(ballots)
    for path, why in damaged.items():
        err.print(f"damaged: {path}: {why}", soft_wrap=True, highlight=False)
    if damaged and not skip_damaged:
        raise DamagedFile(
            f"{len(damaged)} of {len(found) + len(damaged)} files cannot be read, nothing was "
            "written: mend or remove them, or count the rest with --skip-damaged"
        )
    if fingerprint is not None:
        found = [one for one in found if one.mechanism.fingerprint.hex() == fingerprint.lower()]
    if not found:
        raise InvalidInput(f"{ballots} holds no readable ballots of that kind")
    jobs = math.ceil(sum(sum(one.groups) for one in found) / 4096)
    announce_cluster(engine)
    with new_folder(out_folder) as place, chosen_engine(engine, workers, jobs) as crew:
        report = count_folder(
            found, secret, place, decoder=decoder, trim=trim, spectral=filter_name == "spectral",
            skip_damaged=skip_damaged, engine=crew,
            damaged={str(path.relative_to(ballots)): why for path, why in damaged.items()},
        )  # fmt: skip
    if json:
        show_json(report)
    else:
        _show(report)
    for row in report["rounds"]:
        if row["counted"] == 0:
            err.print(f"round {row['round']}: no ballot could be counted, so it has no mean")
    if not any(row["counted"] for row in report["rounds"]):
        raise typer.Exit(1)


def _secret(file: Path | None, seed: int | None) -> bytes:
    from hushbit.fl.secret import simulation_secret
    from hushbit.keys import SECRET_BYTES

    if file is not None and seed is not None:
        raise InvalidInput("--secret-file and --seed were both given: ballots have one secret")
    if file is None and seed is None:
        raise InvalidInput("ballots are opened with --secret-file, or --seed of a simulated run")
    if file is None:
        assert seed is not None
        return simulation_secret(seed)
    try:
        found = file.read_bytes()
    except OSError as error:
        raise InvalidInput(f"the secret {file} cannot be read: {error}") from error
    if len(found) != SECRET_BYTES:
        raise InvalidInput(f"{file} holds {len(found)} bytes; a secret has {SECRET_BYTES}")
    return found


def _show(report: dict[str, Any]) -> None:
    reasons = sorted({reason for row in report["rounds"] for reason in row["refused"]})
    columns = ["round", "ballots", "counted", *reasons]
    rows = [
        [str(row["round"]), f"{row['ballots']:,}", f"{row['counted']:,}",
         *(f"{row['refused'].get(reason, 0):,}" for reason in reasons)]
        for row in report["rounds"]
    ]  # fmt: skip
    out.print(table("Ballots counted, and refused by reason", columns, rows))
