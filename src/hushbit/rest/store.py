"""Ballots as Parquet: FOLDER/round=R/NAME.parquet, whose rows are a user and its ballot's bytes.

Bits that look random do not compress, so there is neither compression nor dictionary. Pages carry
checksums besides those of the ballots.
"""

import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.ballot import HEADER_BYTES, Ballots
from hushbit.checks import whole
from hushbit.describe import description_text, mechanism_from_text
from hushbit.errors import DamagedFile, HushbitError, InvalidInput, MissingExtra
from hushbit.keys import LAST_ID, RoundKey
from hushbit.mechanism import Mechanism
from hushbit.rest.scratch import held, remove_abandoned
from hushbit.rest.wire import Rows, wire_rows

FORMAT = 1
UNFINISHED = ".unfinished"
GROUP_ROWS = 4096
NOTE = b"hushbit ballots"
Write = Callable[[Ballots], None]


@dataclass(frozen=True)
class Source:
    """One readable file: where it lies, whose ballots it holds, how many in each row group.

    `key_mark` tells the round's key from another one without holding it; None where nobody said.
    """

    path: Path
    round: int
    mechanism: Mechanism
    groups: tuple[int, ...]
    key_mark: str | None = None


@dataclass(frozen=True)
class Group:
    """One row group of a file: a job's worth of ballots."""

    path: Path
    number: int
    rows: int


def write_ballots(
    folder: str | Path, mechanism: Mechanism, batches: Iterable[Ballots], name: str
) -> Path:
    """Write batches of one round into one file, all of them or nothing."""
    stream = iter(batches)
    first = next(stream, None)
    if first is None:
        raise InvalidInput("there are no ballots to write")
    with ballot_writer(folder, mechanism, first.round, name) as write:
        write(first)
        for batch in stream:
            write(batch)
    return place_of(folder, first.round, name)


def place_of(folder: str | Path, round_number: int, name: str) -> Path:
    """Where the file of a name lies."""
    return Path(folder) / f"round={round_number}" / f"{name}.parquet"


@contextmanager
def ballot_writer(
    folder: str | Path, mechanism: Mechanism, round_number: int, name: str,
    round_key: RoundKey | None = None,
) -> Iterator[Write]:  # fmt: skip
    """A function that appends a batch to one file, which appears at the end or never.

    With the round's key the file can tell a wrong secret; the key itself is not written.
    """
    pa, pq = arrow()
    target = place_of(folder, whole("round", round_number, 0), name)
    scratch = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
    size = HEADER_BYTES + (mechanism.payload_bits + 7) // 8
    schema = _schema(pa, size).with_metadata({NOTE: _note(mechanism, round_number, round_key)})

    def write(batch: Ballots) -> None:
        if batch.fingerprint != mechanism.fingerprint or batch.round != round_number:
            raise InvalidInput("ballots in one file must be of its mechanism and round")
        rows = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(size), len(batch), [None, pa.py_buffer(wire_rows(batch))]
        )
        table = pa.Table.from_arrays([pa.array(batch.users), rows], schema=schema)
        writer.write_table(table, row_group_size=GROUP_ROWS)

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(target)
        with held(scratch) as file:
            with pq.ParquetWriter(
                file, schema, compression="none", use_dictionary=False, write_page_checksum=True,
                write_statistics=False,
            ) as writer:  # fmt: skip
                yield write
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, target)
    except OSError as error:
        why = error.strerror or error  # without the name of the file that is gone again
        raise DamagedFile(f"{target} could not be written: {why}; it was left out") from error
    finally:
        scratch.unlink(missing_ok=True)


@contextmanager
def whole_round(folder: Path | None, round_number: int) -> Iterator[None]:
    """Put a round's files in place together, once all jobs have written theirs to UNFINISHED.

    A round that fails leaves none; one that is done again replaces what it wrote before.
    """
    if folder is None:
        yield
        return
    name = f"round={round_number}"
    target, scratch = folder / name, folder / UNFINISHED / name
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        yield
        shutil.rmtree(target, ignore_errors=True)
        os.rename(scratch, target)
    except OSError as error:
        raise DamagedFile(f"{target} could not be put in place: {error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        with suppress(OSError):  # folders that hold anything stay
            scratch.parent.rmdir()
            folder.rmdir()


def find_sources(folder: str | Path) -> tuple[list[Source], dict[Path, str]]:
    """The files of ballots under a folder in order of their names, and why others are none."""
    root = Path(folder)
    if not root.is_dir():
        raise InvalidInput(f"{root} is no folder: name one that holds round=R/*.parquet")
    good, bad = [], {}
    for path in sorted(root.rglob("*.parquet")):
        if any(part.startswith(".") for part in path.relative_to(root).parts):
            continue  # what a killed writer left
        try:
            good.append(_source(path))
        except HushbitError as error:
            bad[path] = str(error)
    if not good and not bad:
        raise InvalidInput(f"{root} holds no ballots: there is no *.parquet file in it")
    return good, bad


def users_of(source: Source) -> NDArray[np.uint64]:
    """Whose ballots a file says to hold, in the order of its rows; the ballots are not read."""
    column = _read(source.path, None, ["user"]).column("user")
    return np.asarray(column.to_numpy(), dtype=np.uint64)


def read_group(group: Group) -> tuple[NDArray[np.uint64], Rows]:
    """The users and the ballots' bytes of one row group."""
    table = _read(group.path, group.number, ["user", "ballot"])
    users = np.asarray(table.column("user").to_numpy(), dtype=np.uint64)
    wide = table.schema.field("ballot").type.byte_width
    raw = b"".join(
        chunk.buffers()[1].slice(chunk.offset * wide, len(chunk) * wide).to_pybytes()
        for chunk in table.column("ballot").chunks
    )
    return users, np.frombuffer(raw, dtype=np.uint8).reshape(len(users), wide)


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


def _source(path: Path) -> Source:
    pa, pq = arrow()
    try:
        with pq.ParquetFile(path) as file:
            schema, meta = file.schema_arrow, file.metadata
            groups = tuple(meta.row_group(n).num_rows for n in range(meta.num_row_groups))
    except (OSError, pa.ArrowException) as error:
        raise DamagedFile(f"not a whole Parquet file: {error}") from error
    note = (schema.metadata or {}).get(NOTE)
    if note is None:
        raise DamagedFile("a foreign Parquet file: it does not say that it holds ballots")
    names = {field.name: field.type for field in schema}
    kind = names.get("ballot")
    wide = kind.byte_width if kind is not None and pa.types.is_fixed_size_binary(kind) else 0
    if names != {"user": pa.uint64(), "ballot": pa.binary(wide) if wide else None}:
        shown = ", ".join(f"{name} {type_}" for name, type_ in names.items())
        raise DamagedFile(f"a foreign schema: {shown}")
    try:
        told = json.loads(note)
        if not isinstance(told, dict) or not {"format", "round", "mechanism"} <= set(told):
            raise ValueError("it must tell format, round and mechanism")
        number, mechanism = told["round"], mechanism_from_text(told["mechanism"])
        if told["format"] != FORMAT:
            raise ValueError(f"format {told['format']}")
        whole("round", number, 0, LAST_ID)
        if path.parent.name.startswith("round=") and path.parent.name != f"round={number}":
            raise ValueError(f"round {number}, in the folder {path.parent.name}")
        mark = told.get("key mark")
        if mark is not None and not isinstance(mark, str):
            raise ValueError(f"key mark {mark!r}")
    except (ValueError, KeyError, TypeError, HushbitError) as error:
        raise DamagedFile(f"its note cannot be understood: {error}") from error
    return Source(path, number, mechanism, groups, mark)


def _note(mechanism: Mechanism, round_number: int, round_key: RoundKey | None) -> bytes:
    told = {"format": FORMAT, "round": round_number, "mechanism": description_text(mechanism)}
    if round_key is not None:
        told["key mark"] = round_key.mark.hex()
    return json.dumps(told).encode()


def _schema(pa: Any, size: int) -> Any:
    return pa.schema(
        [pa.field("user", pa.uint64(), False), pa.field("ballot", pa.binary(size), False)]
    )


def arrow() -> tuple[Any, Any]:
    """pyarrow and its Parquet part."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingExtra("ballots at rest need pyarrow: pip install 'hushbit[scale]'") from error
    return pa, pq
