"""The `tally` command: verify and count stored ballots."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from hushbit.checks import check_choice
from hushbit.errors import DamagedFile, InvalidInput
from hushbit.lab.cli.output import announce_cluster, err, out, show_json, table

DECODERS = ("mean", "median", "trimmed-mean", "shrunken")
DEFENCES = ("none", "scores")


def tally(
    ballots: Annotated[Path, typer.Argument(help="Folder that hushbit run --ballots wrote.")],
    out_folder: Annotated[Path, typer.Option("--out", help="New folder for tallies and means.")],
    secret_file: Annotated[
        Path | None, typer.Option(help="File with the server's secret of 32 bytes.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of a simulated run, instead of --secret-file.")
    ] = None,
    decoder: Annotated[str, typer.Option(help=f"Decoder: {', '.join(DECODERS)}.")] = "mean",
    trim: Annotated[
        float, typer.Option(help="Fraction trimmed at each end, for --decoder trimmed-mean.")
    ] = 0.1,
    defence: Annotated[
        str,
        typer.Option(help="Defence: none, or scores, which holds all ballots in memory."),
    ] = "none",
    fingerprint: Annotated[
        str | None,
        typer.Option(help="Count only files with this mechanism fingerprint (16 hex digits)."),
    ] = None,
    skip_damaged: Annotated[
        bool, typer.Option("--skip-damaged", help="Leave out damaged files and count the rest.")
    ] = False,
    engine: Annotated[
        str, typer.Option(help="Where ballots are counted: local (this machine) or ray.")
    ] = "local",
    workers: Annotated[int | None, typer.Option(help="Number of worker processes.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Verify, count and decode the ballots in a folder that `hushbit run --ballots` wrote.

    Refused ballots are reported by reason.
    """
    from hushbit.lab.sim.engines import open_engine
    from hushbit.store.ballot_files import find_ballot_files, read_run
    from hushbit.store.recount import count_folder
    from hushbit.wire.files import new_folder

    check_choice("decoder", decoder, DECODERS)
    check_choice("defence", defence, DEFENCES)
    secret = _secret(secret_file, seed)
    found, damaged = find_ballot_files(ballots)
    run = read_run(ballots)
    for path, why in damaged.items():
        err.print(f"damaged: {path}: {why}", soft_wrap=True, highlight=False)
    if damaged and not skip_damaged:
        raise DamagedFile(
            f"{len(damaged)} of {len(found) + len(damaged)} files cannot be read and nothing was "
            "written: repair or remove them, or count the rest with --skip-damaged"
        )
    if fingerprint is not None:
        found = [one for one in found if one.mechanism.fingerprint.hex() == fingerprint.lower()]
    if not found:
        wanted = "" if fingerprint is None else f" of fingerprint {fingerprint}"
        raise InvalidInput(f"{ballots} holds no readable ballots{wanted}")
    jobs = math.ceil(sum(sum(one.groups) for one in found) / 4096)
    announce_cluster(engine)
    with new_folder(out_folder) as folder, open_engine(engine, workers, jobs) as opened:
        report = count_folder(
            found,
            secret,
            run,
            folder,
            decoder=decoder,
            trim=trim,
            defence=defence,
            skip_damaged=skip_damaged,
            engine=opened,
            damaged={str(path.relative_to(ballots)): why for path, why in damaged.items()},
        )
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
    from hushbit.lab.sim.setup import simulation_secret
    from hushbit.wire.keys import SECRET_BYTES

    if file is not None and seed is not None:
        raise InvalidInput("--secret-file and --seed were both given: give one of them")
    if file is None and seed is None:
        raise InvalidInput("give --secret-file, or --seed of the simulated run")
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
        [
            str(row["round"]),
            f"{row['ballots']:,}",
            f"{row['counted']:,}",
            *(f"{row['refused'].get(reason, 0):,}" for reason in reasons),
        ]
        for row in report["rounds"]
    ]
    out.print(table("Ballots counted, and refused by reason", columns, rows))
