"""Ballots as Parquet: FOLDER/round=R/NAME.parquet, whose rows are a user and its ballot's bytes.

The ballots have MACs (version 2); FOLDER/ballots.json has the run of their keys. Random bits do not
compress, so there is neither compression nor a dictionary. Pages have checksums in addition to
those of the ballots.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import check_int
from hushbit.errors import DamagedFile, HushbitError, InvalidInput, MissingExtra
from hushbit.mechanism import Mechanism
from hushbit.registry import description_text, mechanism_from_text
from hushbit.wire.ballot import HEADER_BYTES, MAC_BYTES, Ballots, Rows, wire_rows
from hushbit.wire.files import atomic_file, remove_abandoned, write_text
from hushbit.wire.keys import MAX_UINT64, RoundKey, check_run

FORMAT = 2  # 1 had ballots without MACs, and no run
DESCRIPTION = "ballots.json"
UNFINISHED = ".unfinished"
GROUP_ROWS = 4096
METADATA_KEY = b"hushbit ballots"
Write = Callable[[Ballots], None]


@dataclass(frozen=True)
class BallotFile:
    """One readable file: its path, round and mechanism, and the rows of each row group.

    `key_id` identifies the round's key and does not reveal it.
    """

    path: Path
    round: int
    mechanism: Mechanism
    groups: tuple[int, ...]
    key_id: str


@dataclass(frozen=True)
class RowGroup:
    """One row group of a file: the ballots of one job."""

    path: Path
    number: int
    rows: int


def ballot_path(folder: str | Path, round_number: int, name: str) -> Path:
    """The path of the file with a given name."""
    return Path(folder) / f"round={round_number}" / f"{name}.parquet"


@contextmanager
def ballot_writer(
    folder: str | Path,
    mechanism: Mechanism,
    round_key: RoundKey,
    name: str,
) -> Iterator[Write]:
    """A function that appends a batch with MACs to one file, which appears at the end or never.

    The file identifies the key, so that a recount can refuse a wrong secret; the key itself is not
    written.
    """
    pa, pq = arrow()
    target = ballot_path(folder, round_key.round, name)
    size = HEADER_BYTES + MAC_BYTES + (mechanism.payload_bits + 7) // 8
    schema = pa.schema(
        [pa.field("user", pa.uint64(), False), pa.field("ballot", pa.binary(size), False)],
        {METADATA_KEY: _metadata(mechanism, round_key)},
    )

    def write(batch: Ballots) -> None:
        if batch.fingerprint != mechanism.fingerprint or batch.round != round_key.round:
            raise InvalidInput("ballots in one file must be of its mechanism and round")
        if batch.macs is None:
            raise InvalidInput("stored ballots need MACs: make them with Ballots.with_macs")
        rows = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(size), len(batch), [None, pa.py_buffer(wire_rows(batch))]
        )
        table = pa.Table.from_arrays([pa.array(batch.users), rows], schema=schema)
        writer.write_table(table, row_group_size=GROUP_ROWS)

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DamagedFile(f"{target.parent} could not be created: {error}") from error
    remove_abandoned(target)
    with (
        atomic_file(target) as file,
        pq.ParquetWriter(
            file,
            schema,
            compression="none",
            use_dictionary=False,
            write_page_checksum=True,
            write_statistics=False,
        ) as writer,
    ):
        yield write


@contextmanager
def publish_round(folder: Path | None, round_number: int, run: bytes) -> Iterator[None]:
    """Publish a round's files together, after all jobs have written theirs to UNFINISHED.

    A round that fails leaves no file; one that is repeated replaces its earlier files. The first
    round writes the run to DESCRIPTION; rounds of another run are refused.
    """
    if folder is None:
        yield
        return
    if not check_run(run):
        raise InvalidInput("stored ballots need a run: RoundKey(secret, round, run)")
    described = (folder / DESCRIPTION).exists()
    if described and read_run(folder) != run:
        raise InvalidInput(f"{folder} holds ballots of another run: name another folder")
    name = f"round={round_number}"
    target, scratch = folder / name, folder / UNFINISHED / name
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        yield
        if not described:
            write_run(folder, run)
        shutil.rmtree(target, ignore_errors=True)
        os.rename(scratch, target)
    except OSError as error:
        raise DamagedFile(f"{target} could not be published: {error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        with suppress(OSError):  # folders that are not empty stay
            scratch.parent.rmdir()
            folder.rmdir()


def write_run(folder: Path, run: bytes) -> None:
    """Write the run of all ballots in a folder to its DESCRIPTION."""
    text = json.dumps({"format": FORMAT, "run": run.hex()}, indent=2) + "\n"
    write_text(folder / DESCRIPTION, text)


def read_run(folder: str | Path) -> bytes:
    """The run of the ballots in a folder, from its DESCRIPTION."""
    path = Path(folder) / DESCRIPTION
    if not path.exists():
        raise InvalidInput(
            f"{folder} has no {DESCRIPTION}, which holds the run of its ballots: name the folder "
            "given to --ballots; folders of earlier versions have none and cannot be counted"
        )
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(stored, dict) or stored.get("format") != FORMAT:
            raise ValueError(f"it is not of format {FORMAT}")
        run = check_run(bytes.fromhex(stored.get("run", "")))
        if not run:
            raise ValueError("it names no run")
    except (OSError, ValueError, TypeError, RecursionError, HushbitError) as error:
        raise DamagedFile(f"{path} cannot be read: {error}") from error
    return run


def find_ballot_files(folder: str | Path) -> tuple[list[BallotFile], dict[Path, str]]:
    """The files of ballots under a folder, by name, and why other Parquet files are none."""
    root = Path(folder)
    if not root.is_dir():
        raise InvalidInput(f"{root} is not a folder: name one that holds round=R/*.parquet")
    good, bad = [], {}
    for path in sorted(root.rglob("*.parquet")):
        if any(part.startswith(".") for part in path.relative_to(root).parts):
            continue  # left by a killed writer
        try:
            good.append(_open_ballot_file(path))
        except HushbitError as error:
            bad[path] = str(error)
    if not good and not bad:
        raise InvalidInput(f"{root} holds no ballots: there is no *.parquet file in it")
    return good, bad


def users_of(file: BallotFile) -> NDArray[np.uint64]:
    """The users column of a file; the ballots are not read."""
    column = _read(file.path, None, ["user"]).column("user")
    return np.asarray(column.to_numpy(), dtype=np.uint64)


def read_group(group: RowGroup) -> tuple[NDArray[np.uint64], Rows]:
    """The users and the bytes of the ballots of one row group."""
    table = _read(group.path, group.number, ["user", "ballot"])
    users = np.asarray(table.column("user").to_numpy(), dtype=np.uint64)
    width = table.schema.field("ballot").type.byte_width
    raw = b"".join(
        chunk.buffers()[1].slice(chunk.offset * width, len(chunk) * width).to_pybytes()
        for chunk in table.column("ballot").chunks
    )
    return users, np.frombuffer(raw, dtype=np.uint8).reshape(len(users), width)


def _read(path: Path, group: int | None, columns: list[str]) -> Any:
    pa, pq = arrow()
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            if group is None:
                table = file.read(columns=columns, use_threads=False)
            else:
                table = file.read_row_group(group, columns=columns, use_threads=False)
            if any(column.null_count for column in table.columns):
                raise DamagedFile(f"{path} has empty cells")
            return table
    except (OSError, pa.ArrowException) as error:
        raise DamagedFile(f"{path} is damaged: {error}") from error


def _open_ballot_file(path: Path) -> BallotFile:
    """Read the schema and metadata of a file; refuse a file that does not hold ballots."""
    pa, pq = arrow()
    try:
        with pq.ParquetFile(path) as file:
            schema, meta = file.schema_arrow, file.metadata
            groups = tuple(meta.row_group(n).num_rows for n in range(meta.num_row_groups))
    except (OSError, pa.ArrowException) as error:
        raise DamagedFile(f"not a complete Parquet file: {error}") from error
    metadata = (schema.metadata or {}).get(METADATA_KEY)
    if metadata is None:
        raise DamagedFile("a foreign Parquet file: its metadata does not say that it holds ballots")
    names = {field.name: field.type for field in schema}
    kind = names.get("ballot")
    width = kind.byte_width if kind is not None and pa.types.is_fixed_size_binary(kind) else 0
    if names != {"user": pa.uint64(), "ballot": pa.binary(width) if width else None}:
        shown = ", ".join(f"{name} {type_}" for name, type_ in names.items())
        raise DamagedFile(f"a foreign schema: {shown}")
    try:
        stored = json.loads(metadata)
        if not isinstance(stored, dict) or stored.get("format") != FORMAT:
            found = stored.get("format") if isinstance(stored, dict) else stored
            raise ValueError(f"format {found!r}; this release reads format {FORMAT}")
        if set(stored) != {"format", "round", "mechanism", "key mark"}:
            raise ValueError("it must hold format, round, mechanism and key mark")
        number, mechanism = stored["round"], mechanism_from_text(stored["mechanism"])
        check_int("round", number, 0, MAX_UINT64)
        if path.parent.name.startswith("round=") and path.parent.name != f"round={number}":
            raise ValueError(f"round {number}, in the folder {path.parent.name}")
        key_id = stored["key mark"]
        if not isinstance(key_id, str):
            raise ValueError(f"key mark {key_id!r}")
    except (ValueError, KeyError, TypeError, HushbitError) as error:
        raise DamagedFile(f"its metadata cannot be read: {error}") from error
    return BallotFile(path, number, mechanism, groups, key_id)


def _metadata(mechanism: Mechanism, round_key: RoundKey) -> bytes:
    stored = {
        "format": FORMAT,
        "round": round_key.round,
        "mechanism": description_text(mechanism),
        "key mark": round_key.key_id.hex(),
    }
    return json.dumps(stored).encode()


def arrow() -> tuple[Any, Any]:
    """The modules pyarrow and pyarrow.parquet."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingExtra("stored ballots need pyarrow: pip install 'hushbit[scale]'") from error
    return pa, pq
