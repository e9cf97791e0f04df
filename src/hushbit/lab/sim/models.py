"""Models as pure functions of one flat parameter vector, so that many users train at once.

ResNet-18 has the shapes and names of torchvision's, and one more layer from 1000 to the number of
classes. The running statistics of BatchNorm are not parameters and are not part of an update.
Randomly initialised models normalise by the statistics of the batch, in training and evaluation; a
weights file contains running statistics, which stay frozen.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from hushbit.checks import check_choice, check_int
from hushbit.errors import DamagedFile, InvalidInput, NotFinite
from hushbit.lab.sim.layers import (
    batch_norm,
    conv_pool_relu,
    convolve,
    convolve_with_bias,
    dense,
    dropout,
    max_pool,
    output_size,
    supports_conv_pool_relu,
)

PIXEL_RANGES = {"unit": (0.0, 255.0), "symmetric": (127.5, 127.5)}
"""Center and scale of the inputs (byte - center) / scale: in [0, 1], or in [-1, 1]."""

WIDTHS = (64, 128, 256, 512)
IMAGENET_CLASSES = 1000

ImageShape = tuple[int, int, int]
Layout = list[tuple[str, tuple[int, ...]]]
Tensors = Mapping[str, Tensor]
Masks = Sequence[Tensor]
Forward = Callable[[Tensors, Tensor, Masks, Tensor | None], Tensor]
Statistics = Mapping[str, tuple[Tensor, Tensor]]


def resnet_layout(channels: int, classes: int) -> Layout:
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


def _conv_rows(conv: str, norm: str, before: int, after: int, kernel: int) -> Layout:
    return [
        (f"{conv}.weight", (after, before, kernel, kernel)),
        (f"{norm}.weight", (after,)),
        (f"{norm}.bias", (after,)),
    ]


def resnet_forward(
    statistics: Statistics | None, tensors: Tensors, x: Tensor, masks: Masks, present: Tensor | None
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
    except Exception as error:  # torch raises many types for files of other formats
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
            got = tuple(found.shape) if isinstance(found, Tensor) else "nothing"
            raise DamagedFile(f"{path}: {name} must have shape {shape}; got {got}")
    trained = {name: stored[name].float().numpy() for name in needed if name in expected}
    frozen = {
        norm: (stored[f"{norm}.running_mean"].float(), stored[f"{norm}.running_var"].float())
        for norm in norms
    }
    return trained, frozen


def _is_norm_bias(name: str) -> bool:
    return name.endswith(".bias") and ("bn" in name or "downsample.1" in name)


@dataclass(frozen=True)
class TensorSlot:
    """The position of one named tensor in the flat vector: entries start..stop-1."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class Model:
    """A network without state: `init` returns a flat vector, `apply` maps it and images to logits.

    `dropout_shapes` lists the masks that one training sample needs (none in evaluation).
    `note` describes the initial parameters, for the run record. `statistics` are the frozen mean
    and variance of each normalisation, from a weights file. `pixels` names the range of the
    inputs in `PIXEL_RANGES`; the published code uses [-1, 1].
    """

    name: str
    input_shape: ImageShape
    classes: int
    shapes: tuple[TensorSlot, ...]
    forward: Forward
    dropout_shapes: tuple[tuple[int, ...], ...] = ()
    dropout_rate: float = 0.0
    given: Mapping[str, NDArray[np.float32]] | None = None
    note: str = "random start"
    statistics: Statistics | None = None
    pixels: str = "symmetric"

    @property
    def dim(self) -> int:
        """Number of parameters, which is the length of the flat vector."""
        return self.shapes[-1].stop

    @property
    def pixel_range(self) -> tuple[float, float]:
        """Center and scale of the inputs: (byte - center) / scale."""
        return PIXEL_RANGES[self.pixels]

    @property
    def layers(self) -> tuple[slice, ...]:
        """The slice of each tensor in the flat vector."""
        return tuple(slice(slot.start, slot.stop) for slot in self.shapes)

    def init(self, seed: int) -> NDArray[np.float32]:
        """Return initial parameters: tensors of the weights file if there is one, else random."""
        rng = np.random.default_rng(check_int("seed", seed, 0))
        flat = np.empty(self.dim, dtype=np.float32)
        for slot in self.shapes:
            values = _initial_values(slot, self.shapes, rng)
            if self.given is not None and slot.name in self.given:
                values = self.given[slot.name]
            flat[slot.start : slot.stop] = values.ravel()
        return flat

    def tensors(self, flat: Tensor) -> dict[str, Tensor]:
        """Split the flat vector into named tensors, which are views of it."""
        pieces = torch.split(flat, [slot.stop - slot.start for slot in self.shapes])
        named = zip(self.shapes, pieces, strict=True)
        return {slot.name: piece.reshape(slot.shape) for slot, piece in named}

    def apply(
        self, flat: Tensor, x: Tensor, masks: Masks = (), present: Tensor | None = None
    ) -> Tensor:
        """Return logits (batch, classes) of images x (batch, channels, height, width).

        `masks` are dropout masks, one per entry of `dropout_shapes`; without them there is no
        dropout.
        `present` marks real samples with 1 and padding with 0.
        """
        return self.forward(self.tensors(flat), x, masks, present)


@dataclass(frozen=True)
class StackPlan:
    """Widths of hidden dense layers, and channels, kernel side and dropout of convolutions."""

    dense: tuple[int, ...] = ()
    channels: tuple[int, ...] = ()
    kernel: int = 0
    dropout: float = 0.0


STACKS = {
    "linear": StackPlan(),
    "mlp": StackPlan((32, 16)),
    "cnn2": StackPlan((50,), (6, 6), 5),
    "cnn3": StackPlan((128, 64, 32), (32, 64, 128), 3, dropout=0.2),
}
MODEL_NAMES = (*STACKS, "resnet18")


def build_model(
    name: str, input_shape: ImageShape, classes: int, weights_file: str | Path | None = None
) -> Model:
    """Return the named model for images of (channels, height, width) and a number of classes.

    >>> build_model("linear", (1, 28, 28), 10).dim
    7850
    """
    check_choice("model", name, MODEL_NAMES)
    if name == "resnet18":
        return _resnet18(input_shape, classes, weights_file)
    if weights_file is not None:
        raise InvalidInput(f"a weights file applies to resnet18 only, not {name!r}; leave it out")
    plan = STACKS[name]
    layout, (depth, height, width), masks = _conv_layout(name, input_shape, plan)
    layout += _dense_layout((depth * height * width, *plan.dense, classes))
    forward = partial(_stack, len(plan.channels), plan.dropout)
    masks = masks if plan.dropout else ()
    return Model(name, input_shape, classes, _slots(layout), forward, masks, plan.dropout)


def _resnet18(shape: ImageShape, classes: int, weights_file: str | Path | None) -> Model:
    slots = _slots(resnet_layout(shape[0], classes))
    if weights_file is None:
        return Model("resnet18", shape, classes, slots, partial(resnet_forward, None))
    expected = {slot.name: slot.shape for slot in slots}
    given, statistics = read_weights(Path(weights_file), expected)
    forward = partial(resnet_forward, statistics)
    note = f"weights and normalisation statistics from {Path(weights_file).name}"
    return Model(
        "resnet18", shape, classes, slots, forward, given=given, note=note, statistics=statistics
    )


def _stack(
    blocks: int, rate: float, tensors: Tensors, x: Tensor, masks: Masks, present: Tensor | None
) -> Tensor:
    """Run blocks of convolution, pooling, ReLU and dropout, then dense layers with ReLU between."""
    if blocks:
        x = x.permute(0, 2, 3, 1)
        for block in range(blocks):
            name = f"conv{block + 1}"
            weight, bias = tensors[f"{name}.weight"], tensors[f"{name}.bias"]
            if supports_conv_pool_relu(weight):
                x = conv_pool_relu(x, weight, bias)
            else:  # ReLU after pooling gives the same values for a quarter of the work
                x = F.relu(max_pool(convolve_with_bias(x, weight, bias), 2, 2))
            if masks:
                x = dropout(x, masks[block], rate)
        x = x.permute(0, 3, 1, 2)
    x = x.flatten(1)
    layers = len(tensors) // 2 - blocks
    for layer in range(1, layers + 1):
        x = dense(x, tensors[f"fc{layer}.weight"], tensors[f"fc{layer}.bias"])
        x = F.relu(x) if layer < layers else x
    return x


def _dense_layout(widths: Sequence[int]) -> Layout:
    layout: Layout = []
    for layer, (inner, outer) in enumerate(pairwise(widths), start=1):
        layout += [(f"fc{layer}.weight", (outer, inner)), (f"fc{layer}.bias", (outer,))]
    return layout


def _conv_layout(
    name: str, shape: ImageShape, plan: StackPlan
) -> tuple[Layout, ImageShape, tuple[tuple[int, ...], ...]]:
    """Return the tensors of the convolutions, the shape of their output, and that of masks."""
    layout: Layout = []
    masks = []
    depth, height, width = shape
    for block, wider in enumerate(plan.channels, start=1):
        height, width = (output_size(side, plan.kernel) // 2 for side in (height, width))
        if min(height, width) < 1:
            raise InvalidInput(
                f"images of {shape[1]}x{shape[2]} are too small for {name}; use linear or mlp"
            )
        weight = (wider, depth, plan.kernel, plan.kernel)
        layout += [(f"conv{block}.weight", weight), (f"conv{block}.bias", (wider,))]
        masks.append((height, width, wider))
        depth = wider
    return layout, (depth, height, width), tuple(masks)


def _slots(layout: Layout) -> tuple[TensorSlot, ...]:
    ends = np.cumsum([math.prod(shape) for _, shape in layout]).tolist()
    starts = [0, *ends[:-1]]
    rows = zip(layout, starts, ends, strict=True)
    return tuple(TensorSlot(name, shape, start, stop) for (name, shape), start, stop in rows)


def _initial_values(
    slot: TensorSlot, slots: Sequence[TensorSlot], rng: np.random.Generator
) -> NDArray[np.float32]:
    """Initialise as PyTorch's layers: uniform within 1/sqrt(fan in); ResNet as torchvision."""
    if "bn" in slot.name or "downsample.1" in slot.name:
        return np.full(slot.shape, float(slot.name.endswith("weight")), dtype=np.float32)
    owner = slot.name.rpartition(".")[0]
    weight = next(other for other in slots if other.name == f"{owner}.weight")
    if len(weight.shape) == 4 and not any(other.name == f"{owner}.bias" for other in slots):
        deviation = math.sqrt(2.0 / (weight.shape[0] * math.prod(weight.shape[2:])))
        return rng.normal(0.0, deviation, slot.shape).astype(np.float32)
    bound = 1.0 / math.sqrt(math.prod(weight.shape[1:]))
    return rng.uniform(-bound, bound, slot.shape).astype(np.float32)


def flat_tensor(params: NDArray[np.float32]) -> Tensor:
    """Copy a parameter vector to torch; every entry must be finite."""
    if not np.isfinite(params).all():
        raise NotFinite("params hold NaN or infinite values; resume from a checkpoint")
    return torch.tensor(params)
