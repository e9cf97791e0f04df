"""ResNet-18 in torchvision's shape and names, with a further layer from 1000 to the classes.

BatchNorm buffers are not parameters and are never voted on. A random start normalises by the
statistics of the batch, in training and in evaluation; a weights file brings running statistics,
which then stay frozen.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from hushbit.errors import DamagedFile
from hushbit.fl.layers import batch_norm, convolve, dense, max_pool

WIDTHS = (64, 128, 256, 512)
IMAGENET_CLASSES = 1000
Statistics = Mapping[str, tuple[Tensor, Tensor]]


def layout(channels: int, classes: int) -> list[tuple[str, tuple[int, ...]]]:
    """Return names and shapes of all trained tensors, in torchvision's order, then the head."""
    rows = _conv_rows("conv1", "bn1", channels, 64, 7)
    before = 64
    for stage, width in enumerate(WIDTHS, start=1):
        for block in (0, 1):
            prefix = f"layer{stage}.{block}"
            rows += _conv_rows(f"{prefix}.conv1", f"{prefix}.bn1", before, width, 3)
            rows += _conv_rows(f"{prefix}.conv2", f"{prefix}.bn2", width, width, 3)
            if before != width:
                down = f"{prefix}.downsample"
                rows += _conv_rows(f"{down}.0", f"{down}.1", before, width, 1)
            before = width
    rows += [("fc.weight", (IMAGENET_CLASSES, 512)), ("fc.bias", (IMAGENET_CLASSES,))]
    return [*rows, ("head.weight", (classes, IMAGENET_CLASSES)), ("head.bias", (classes,))]


def _conv_rows(
    conv: str, norm: str, before: int, after: int, kernel: int
) -> list[tuple[str, tuple[int, ...]]]:
    return [
        (f"{conv}.weight", (after, before, kernel, kernel)),
        (f"{norm}.weight", (after,)),
        (f"{norm}.bias", (after,)),
    ]


def forward(
    statistics: Statistics | None,
    tensors: Mapping[str, Tensor],
    x: Tensor,
    masks: Sequence[Tensor],
    present: Tensor | None,
) -> Tensor:
    """Return the logits of images (batch, channels, height, width)."""

    def conv_norm(x: Tensor, conv: str, norm: str, stride: int, padding: int) -> Tensor:
        frozen = None if statistics is None else statistics[norm]
        y = convolve(x, tensors[f"{conv}.weight"], stride, padding)
        return batch_norm(y, tensors[f"{norm}.weight"], tensors[f"{norm}.bias"], present, frozen)

    def residual(x: Tensor, prefix: str, stride: int) -> Tensor:
        y = F.relu(conv_norm(x, f"{prefix}.conv1", f"{prefix}.bn1", stride, 1))
        y = conv_norm(y, f"{prefix}.conv2", f"{prefix}.bn2", 1, 1)
        if f"{prefix}.downsample.0.weight" in tensors:
            x = conv_norm(x, f"{prefix}.downsample.0", f"{prefix}.downsample.1", stride, 0)
        return F.relu(x + y)

    x = F.relu(conv_norm(x.permute(0, 2, 3, 1), "conv1", "bn1", 2, 3))
    x = max_pool(x, 3, 2, 1)
    for stage in range(1, len(WIDTHS) + 1):
        x = residual(x, f"layer{stage}.0", 1 if stage == 1 else 2)
        x = residual(x, f"layer{stage}.1", 1)
    x = dense(x.mean(dim=(1, 2)), tensors["fc.weight"], tensors["fc.bias"])
    return dense(x, tensors["head.weight"], tensors["head.bias"])


def read_weights(
    path: Path, expected: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, NDArray[np.float32]], dict[str, tuple[Tensor, Tensor]]]:
    """Read torchvision's resnet18 state file: trained tensors, and (mean, variance) per norm."""
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a file of another kind makes torch raise many kinds
        raise DamagedFile(
            f"cannot read weights from {path}: {str(error).splitlines()[0]}; "
            "give a resnet18 state file as torchvision publishes it"
        ) from error
    needed = {name: shape for name, shape in expected.items() if not name.startswith("head.")}
    norms = [name.removesuffix(".bias") for name in needed if _is_norm_bias(name)]
    for norm in norms:
        needed[f"{norm}.running_mean"] = needed[f"{norm}.running_var"] = needed[f"{norm}.bias"]
    for name, shape in needed.items():
        found = stored.get(name) if isinstance(stored, dict) else None
        if not isinstance(found, Tensor) or tuple(found.shape) != shape:
            came = tuple(found.shape) if isinstance(found, Tensor) else "nothing"
            raise DamagedFile(f"{path}: {name} must have shape {shape}, found {came}")
    trained = {name: stored[name].float().numpy() for name in needed if name in expected}
    frozen = {
        norm: (stored[f"{norm}.running_mean"].float(), stored[f"{norm}.running_var"].float())
        for norm in norms
    }
    return trained, frozen


def _is_norm_bias(name: str) -> bool:
    return name.endswith(".bias") and ("bn" in name or "downsample.1" in name)
