"""Models have the right sizes, equal torch's own layers and work under vmap."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from hushbit.errors import DamagedFile, InvalidInput
from hushbit.lab.sim.layers import batch_norm, convolve, max_pool
from hushbit.lab.sim.models import build_model

MNIST, CIFAR, DIGITS = (1, 28, 28), (3, 32, 32), (1, 8, 8)
RESNET18_OF_TORCHVISION = 11_689_512


@pytest.mark.parametrize(
    ("name", "shape", "classes", "dim"),
    [
        ("linear", MNIST, 10, 7_850),
        ("linear", DIGITS, 10, 650),
        ("mlp", MNIST, 10, 25_818),
        ("cnn2", MNIST, 10, 6_422),
        ("cnn2", CIFAR, 10, 9_422),
        ("cnn3", CIFAR, 10, 169_578),
        ("resnet18", CIFAR, 100, RESNET18_OF_TORCHVISION + 1000 * 100 + 100),
    ],
)
def test_parameter_counts(name: str, shape: tuple[int, int, int], classes: int, dim: int) -> None:
    model = build_model(name, shape, classes)
    assert model.dim == dim
    assert [slot.start for slot in model.shapes[1:]] == [slot.stop for slot in model.shapes[:-1]]
    assert all(s.stop - s.start == np.prod(s.shape) for s in model.shapes)


@pytest.mark.parametrize(
    ("stride", "padding", "kernel"), [(1, 0, 5), (1, 1, 3), (2, 3, 7), (2, 0, 1)]
)
def test_convolution_equals_torch(stride: int, padding: int, kernel: int) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 3, 12, 11, generator=generator)
    weight = torch.randn(4, 3, kernel, kernel, generator=generator)
    ours = convolve(x.permute(0, 2, 3, 1), weight, stride, padding).permute(0, 3, 1, 2)
    torch.testing.assert_close(ours, F.conv2d(x, weight, None, stride, padding))


def test_pooling_equals_torch() -> None:
    x = torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(2))
    ours = max_pool(x.permute(0, 2, 3, 1), 3, 2, 1).permute(0, 3, 1, 2)
    assert torch.equal(ours, F.max_pool2d(x, 3, 2, 1))


def test_batch_norm_equals_torch_and_ignores_padding() -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(5, 4, 6, 6, generator=generator)
    weight, bias = torch.rand(4, generator=generator), torch.rand(4, generator=generator)
    present = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0])
    ours = batch_norm(x.permute(0, 2, 3, 1), weight, bias, present, None).permute(0, 3, 1, 2)
    theirs = F.batch_norm(x[:3], None, None, weight, bias, training=True)
    torch.testing.assert_close(ours[:3], theirs)
    mean, variance = torch.zeros(4), torch.full((4,), 2.0)
    ours = batch_norm(x.permute(0, 2, 3, 1), weight, bias, present, (mean, variance))
    theirs = F.batch_norm(x, mean, variance, weight, bias)
    torch.testing.assert_close(ours.permute(0, 3, 1, 2), theirs)


def _reference(name: str) -> torch.nn.Module:
    from torch import nn

    if name == "linear":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    if name == "mlp":
        layers = [nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 10)]
        return nn.Sequential(nn.Flatten(), *layers)
    if name == "cnn2":
        blocks = [nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2)]
        blocks += [nn.Conv2d(6, 6, 5), nn.ReLU(), nn.MaxPool2d(2)]
        return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(96, 50), nn.ReLU(), nn.Linear(50, 10))
    blocks = []
    for before, after in ((3, 32), (32, 64), (64, 128)):
        blocks += [nn.Conv2d(before, after, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.2)]
    head = [nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU()]
    head += [nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)]
    return nn.Sequential(*blocks, nn.Flatten(), *head).eval()


@pytest.mark.parametrize("name", ["linear", "mlp", "cnn2", "cnn3"])
def test_model_equals_torch_modules(name: str) -> None:
    shape = CIFAR if name == "cnn3" else MNIST
    model, reference = build_model(name, shape, 10), _reference(name)
    flat = torch.from_numpy(model.init(5))
    torch.nn.utils.vector_to_parameters(flat, reference.parameters())
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(4))
    torch.testing.assert_close(model.apply(flat, x), reference(x))


def test_dropout_masks_scale_kept_values() -> None:
    model = build_model("cnn3", CIFAR, 10)
    flat, x = torch.from_numpy(model.init(0)), torch.zeros(2, *CIFAR)
    nothing = [torch.zeros(2, *shape, dtype=torch.bool) for shape in model.dropout_shapes]
    everything = [torch.ones(2, *shape, dtype=torch.bool) for shape in model.dropout_shapes]
    assert model.dropout_shapes == ((15, 15, 32), (6, 6, 64), (2, 2, 128))
    assert torch.equal(*model.apply(flat, torch.stack([x[0], x[0] + 1]), nothing))
    assert not torch.allclose(model.apply(flat, x, everything), model.apply(flat, x))


@pytest.mark.parametrize("name", ["linear", "cnn2"])
def test_vmap_over_users_equals_one_at_a_time(name: str) -> None:
    model = build_model(name, MNIST, 10)
    flat = torch.from_numpy(np.stack([model.init(seed) for seed in range(3)]))
    x = torch.randn(3, 2, *MNIST, generator=torch.Generator().manual_seed(6))
    together = torch.func.vmap(model.apply)(flat, x)
    for user in range(3):
        torch.testing.assert_close(together[user], model.apply(flat[user], x[user]))


def test_init_is_a_function_of_the_seed_with_torch_bounds() -> None:
    model = build_model("mlp", MNIST, 10)
    assert np.array_equal(model.init(7), model.init(7))
    assert not np.array_equal(model.init(7), model.init(8))
    for slot in model.shapes:
        fan_in = model.shapes[0].shape[1] if slot.name.startswith("fc1") else None
        values = np.abs(model.init(7)[slot.start : slot.stop])
        assert values.max() > 0
        assert fan_in is None or values.max() <= 1 / np.sqrt(fan_in)


def _resnet_file(tmp_path, **changes: torch.Tensor):
    model = build_model("resnet18", CIFAR, 10)
    flat = torch.from_numpy(model.init(11))
    state = {n: t.clone() for n, t in model.tensors(flat).items() if not n.startswith("head.")}
    for name in list(state):
        if "bn" in name or "downsample.1" in name:
            norm = name.rpartition(".")[0]
            state[f"{norm}.running_mean"] = torch.zeros_like(state[name])
            state[f"{norm}.running_var"] = torch.ones_like(state[name]) * 4
    torch.save({**state, **changes}, tmp_path / "resnet18.pth")
    return tmp_path / "resnet18.pth", model.init(11), model


def test_a_weights_file_sets_weights_and_statistics_of_resnet(tmp_path) -> None:
    path, expected, plain = _resnet_file(tmp_path)
    model = build_model("resnet18", CIFAR, 10, weights_file=path)
    head = plain.shapes[-2].start
    assert np.array_equal(model.init(3)[:head], expected[:head])
    assert not np.array_equal(model.init(3)[head:], model.init(4)[head:])
    assert "resnet18.pth" in model.note
    assert plain.note == "random start"
    x = torch.randn(3, *CIFAR, generator=torch.Generator().manual_seed(1))
    flat = torch.from_numpy(model.init(3))
    # With frozen statistics, the logits of a sample do not depend on the batch.
    torch.testing.assert_close(model.apply(flat, x)[:1], model.apply(flat, x[:1]))
    assert not torch.allclose(plain.apply(flat, x)[:1], plain.apply(flat, x[:1]))


def test_wrong_weights_files_raise(tmp_path) -> None:
    path, _, _ = _resnet_file(tmp_path, **{"fc.weight": torch.zeros(7, 512)})
    with pytest.raises(DamagedFile, match=r"fc.weight"):
        build_model("resnet18", CIFAR, 10, weights_file=path)
    path.write_bytes(b"not a weights file")
    with pytest.raises(DamagedFile, match="state file"):
        build_model("resnet18", CIFAR, 10, weights_file=path)
    with pytest.raises(DamagedFile):
        build_model("resnet18", CIFAR, 10, weights_file=tmp_path / "absent.pth")
    with pytest.raises(InvalidInput, match="resnet18 only"):
        build_model("linear", MNIST, 10, weights_file=path)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "words"),
    [
        ("vgg", MNIST, 10, "linear, mlp"),
        ("cnn2", DIGITS, 10, "too small"),
        ("cnn3", DIGITS, 10, "too small"),
    ],
)
def test_wrong_arguments_raise(name: str, shape, classes, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        build_model(name, shape, classes)
