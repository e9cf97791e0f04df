"""Data sets: found in the data folder and verified, else fetched; digits need no download."""

import hashlib
import http.client
import io
import os
import sys
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import choice
from hushbit.errors import DamagedFile, HushbitError, InvalidInput, MissingExtra
from hushbit.fl.catalogue import CATALOGUE, WRITER_LABELS, WRITERS_SHA256, Entry
from hushbit.fl.sources import DataUnavailable, Route, addresses, fetch, put_in_place

DATASET_NAMES = ("digits", *CATALOGUE)
DIGITS_TEST_SIZE = 360
WRITERS_PATH = "mnist/writer_ids.npz"
CIFAR_PIXELS = 3 * 32 * 32

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images (samples, channels, height, width) as bytes, labels, and who wrote them if known."""

    name: str
    classes: int
    train_x: Images
    train_y: Labels
    test_x: Images
    test_y: Labels
    train_writers: Labels | None = None
    test_writers: Labels | None = None

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        channels, height, width = self.train_x.shape[1:]
        return channels, height, width


@dataclass(frozen=True)
class Status:
    """One row of the data list: `state` is embedded, present, damaged or absent."""

    name: str
    state: str
    detail: str


def data_folder(folder: str | Path | None = None) -> Path:
    """Return the data folder: the argument, else HUSHBIT_DATA, else the user's cache folder."""
    if folder is not None:
        return Path(folder)
    named = os.environ.get("HUSHBIT_DATA")
    if named:
        return Path(named)
    if sys.platform == "win32":
        cache = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        cache = Path.home() / "Library" / "Caches"
    else:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "hushbit"


def load(name: str, folder: str | Path | None = None, *, writers: bool = False) -> Dataset:
    """Return a data set, fetching it first if its files are absent.

    `writers=True` also loads who wrote each digit (mnist only), fetching that if absent.
    """
    choice("data set", name, DATASET_NAMES)
    if writers and name != "mnist":
        raise InvalidInput(f"{name} does not say who wrote a sample; writers are known for mnist")
    if name == "digits":
        return _digits()
    place, entry = data_folder(folder), CATALOGUE[name]
    if not all((place / file.path).exists() for file in entry.files):
        fetch_dataset(name, place)
    parts = [file.raw(place) for file in entry.files]
    train_x, train_y, test_x, test_y = _parsed(entry, parts)
    ids = load_writers(place) if writers else (None, None)
    return Dataset(name, entry.classes, train_x, train_y, test_x, test_y, *ids)


def fetch_dataset(
    name: str, folder: str | Path | None = None, routes: Mapping[str, Route] | None = None
) -> str:
    """Bring absent files into the data folder; return where they came from, in words.

    A file that is there but damaged is an error, never overwritten in silence.
    """
    choice("data set", name, DATASET_NAMES)
    if name == "digits":
        return "embedded in scikit-learn"
    place, entry = data_folder(folder), CATALOGUE[name]
    absent = [file for file in entry.files if not (place / file.path).exists()]
    for file in entry.files:
        if file not in absent:
            file.raw(place)
    if not absent:
        return "already in the data folder"
    return fetch(place, absent, entry.routes if routes is None else routes)


def verify(name: str, folder: str | Path | None = None) -> Status:
    """Read every file of a data set and compare its digest, without fetching."""
    choice("data set", name, DATASET_NAMES)
    if name == "digits":
        return Status(name, "embedded", "part of scikit-learn, no download")
    place, entry = data_folder(folder), CATALOGUE[name]
    missing = [file.path for file in entry.files if not (place / file.path).exists()]
    if missing:
        return Status(name, "absent", f"{', '.join(missing)} not in {place}")
    try:
        for file in entry.files:
            file.raw(place)
        if name == "mnist" and (place / WRITERS_PATH).exists():
            load_writers(place)
    except DamagedFile as error:
        return Status(name, "damaged", str(error))
    return Status(name, "present", f"{len(entry.files)} files in {place}, digests match")


def status(folder: str | Path | None = None) -> list[Status]:
    """Return one row per data set, each verified."""
    return [verify(name, folder) for name in DATASET_NAMES]


def load_writers(
    folder: str | Path | None = None, route: Route | None = None
) -> tuple[Labels, Labels]:
    """Return who wrote each MNIST digit (QMNIST's writer numbers), training and test."""
    place = data_folder(folder) / WRITERS_PATH
    if not place.exists():
        _fetch_writers(place, route or addresses({s: [u] for s, u in WRITER_LABELS.items()}, True))
    try:
        with np.load(place) as stored:
            train, test = stored["train_writer"], stored["test_writer"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DamagedFile(f"cannot read {place}: {error}; delete it and fetch again") from error
    if _writers_digest(train, test) != WRITERS_SHA256:
        raise DamagedFile(f"{place} does not hold QMNIST's writers; delete it and fetch again")
    return train.astype(np.int64), test.astype(np.int64)


def _fetch_writers(place: Path, route: Route) -> None:
    try:
        found = route(place.parent)
        train, test = (_writer_column(found[split]) for split in ("train", "test"))
    except (OSError, KeyError, ValueError, EOFError, zlib.error, http.client.HTTPException,
            HushbitError) as error:  # fmt: skip
        raise DataUnavailable(
            f"cannot fetch the writers of MNIST ({error}); put writer_ids.npz with train_writer "
            f"and test_writer into {place.parent}, or choose another partition"
        ) from error
    if _writers_digest(train, test[:10_000]) != WRITERS_SHA256:
        raise DamagedFile("what was fetched are not QMNIST's writers; try again later")
    packed = io.BytesIO()
    np.savez_compressed(packed, train_writer=train, test_writer=test[:10_000])
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        put_in_place(place, packed.getvalue())
    except OSError as error:
        raise DamagedFile(f"cannot write {place}: {error}; free some space") from error


def _writer_column(table: bytes) -> NDArray[np.int32]:
    """Take column 2 of QMNIST's label table: 12 bytes of header, rows of 8 big-endian numbers."""
    rows = np.frombuffer(table, dtype=">i4", offset=12).reshape(-1, 8)
    return rows[:, 2].astype(np.int32)


def _writers_digest(train: NDArray[np.int32], test: NDArray[np.int32]) -> str:
    return hashlib.sha256(b"".join(a.astype("<i4").tobytes() for a in (train, test))).hexdigest()


def _digits() -> Dataset:
    """Scale scikit-learn's 8x8 digits (0..16) to bytes; the split is one fixed shuffle."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingExtra("digits need scikit-learn: pip install 'hushbit[lab]'") from error
    bunch = load_digits()
    images = np.rint(bunch.images * (255.0 / 16.0)).astype(np.uint8)[:, None]
    labels = bunch.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(labels))
    test, train = order[:DIGITS_TEST_SIZE], order[DIGITS_TEST_SIZE:]
    return Dataset("digits", 10, images[train], labels[train], images[test], labels[test])


Parsed = tuple[Images, Labels, Images, Labels]


def _parsed(entry: Entry, parts: list[bytes]) -> Parsed:
    parse: Callable[[Entry, list[bytes]], Parsed] = {"idx": _idx, "cifar": _cifar}[entry.layout]
    return parse(entry, parts)


def _idx(entry: Entry, parts: list[bytes]) -> Parsed:
    """Cut off the headers (16 bytes for images, 8 for labels) of the four IDX files."""
    train_x, test_x = (
        np.frombuffer(part, np.uint8, offset=16).reshape(
            -1, 1, int.from_bytes(part[8:12], "big"), int.from_bytes(part[12:16], "big")
        )
        for part in (parts[0], parts[2])
    )
    train_y, test_y = (
        np.frombuffer(part, np.uint8, offset=8).astype(np.int64) for part in (parts[1], parts[3])
    )
    return train_x, train_y, test_x, test_y


def _cifar(entry: Entry, parts: list[bytes]) -> Parsed:
    """Cut records of label bytes (the last one counts) and 3072 pixels; the last file is test."""
    width = entry.label_bytes + CIFAR_PIXELS
    train, test = (
        np.frombuffer(content, np.uint8).reshape(-1, width)
        for content in (b"".join(parts[:-1]), parts[-1])
    )
    images = [
        np.ascontiguousarray(r[:, entry.label_bytes :]).reshape(-1, 3, 32, 32)
        for r in (train, test)
    ]
    labels = [r[:, entry.label_bytes - 1].astype(np.int64) for r in (train, test)]
    return images[0], labels[0], images[1], labels[1]
