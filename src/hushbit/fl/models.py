"""Models as pure functions of one flat parameter vector, so that many users train at once."""

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

from hushbit.checks import choice, whole
from hushbit.errors import InvalidInput
from hushbit.fl import resnet
from hushbit.fl.layers import (
    block_fits,
    convolve_all,
    convolve_pool_cut,
    dense,
    drop,
    max_pool,
    output_size,
    pool_pairs,
)

MODEL_NAMES = ("linear", "mlp", "cnn2", "cnn3", "resnet18")
CNN3_DROPOUT = 0.2

Tensors = Mapping[str, Tensor]
Forward = Callable[[Tensors, Tensor, Sequence[Tensor], Tensor | None], Tensor]


@dataclass(frozen=True)
class Slot:
    """Where one named tensor lies in the flat vector: entries start..stop-1."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class Model:
    """A network without state: `init` gives a flat vector, `apply` turns it and images to logits.

    `dropout_shapes` lists the masks that one training sample needs (none in evaluation).
    `note` says in words where the first parameters come from, for the run record.
    """

    name: str
    input_shape: tuple[int, int, int]
    classes: int
    shapes: tuple[Slot, ...]
    forward: Forward
    dropout_shapes: tuple[tuple[int, ...], ...] = ()
    dropout_rate: float = 0.0
    given: Mapping[str, NDArray[np.float32]] | None = None
    note: str = "random start"

    @property
    def dim(self) -> int:
        """Number of parameters, which is the length of the flat vector."""
        return self.shapes[-1].stop

    @property
    def layers(self) -> tuple[slice, ...]:
        """Where each tensor lies in the flat vector."""
        return tuple(slice(slot.start, slot.stop) for slot in self.shapes)

    def init(self, seed: int) -> NDArray[np.float32]:
        """Return first parameters: tensors of the weights file where given, else random."""
        rng = np.random.default_rng(whole("seed", seed, 0))
        flat = np.empty(self.dim, dtype=np.float32)
        for slot in self.shapes:
            values = _first_values(slot, self.shapes, rng)
            if self.given is not None and slot.name in self.given:
                values = self.given[slot.name]
            flat[slot.start : slot.stop] = values.ravel()
        return flat

    def tensors(self, flat: Tensor) -> dict[str, Tensor]:
        """Cut the flat vector into named tensors (views; the gradient is put together once)."""
        pieces = torch.split(flat, [slot.stop - slot.start for slot in self.shapes])
        named = zip(self.shapes, pieces, strict=True)
        return {slot.name: piece.reshape(slot.shape) for slot, piece in named}

    def apply(
        self,
        flat: Tensor,
        x: Tensor,
        masks: Sequence[Tensor] = (),
        present: Tensor | None = None,
    ) -> Tensor:
        """Return logits (batch, classes) of images x (batch, channels, height, width).

        `masks` are dropout masks, one per entry of `dropout_shapes`; without them nothing drops.
        `present` marks real samples with 1 and padding with 0.
        """
        return self.forward(self.tensors(flat), x, masks, present)


def build_model(
    name: str,
    input_shape: Sequence[int],
    classes: int,
    weights_file: str | Path | None = None,
) -> Model:
    """Return the named model for images of (channels, height, width) and a number of classes.

    >>> build_model("linear", (1, 28, 28), 10).dim
    7850
    """
    shape = _image_shape(input_shape)
    classes = whole("classes", classes, 2)
    choice("model", name, MODEL_NAMES)
    if weights_file is not None and name != "resnet18":
        raise InvalidInput(f"a weights file fits resnet18 only, not {name!r}; leave it out")
    if name == "resnet18":
        return _resnet18(shape, classes, weights_file)
    layout, forward, masks = {"linear": _linear, "mlp": _mlp, "cnn2": _cnn2, "cnn3": _cnn3}[name](
        shape, classes
    )
    rate = CNN3_DROPOUT if masks else 0.0
    return Model(name, shape, classes, _slots(layout), forward, masks, rate)


Layout = list[tuple[str, tuple[int, ...]]]
Masks = tuple[tuple[int, ...], ...]
Blueprint = tuple[Layout, Forward, Masks]


def _linear(shape: tuple[int, int, int], classes: int) -> Blueprint:
    return _dense_layout((math.prod(shape), classes)), partial(_stack, 0, 0.0), ()


def _mlp(shape: tuple[int, int, int], classes: int) -> Blueprint:
    return _dense_layout((math.prod(shape), 32, 16, classes)), partial(_stack, 0, 0.0), ()


def _cnn2(shape: tuple[int, int, int], classes: int) -> Blueprint:
    layout, sides = _conv_layout("cnn2", shape, (6, 6), kernel=5)
    layout += _dense_layout((6 * sides[-1][0] * sides[-1][1], 50, classes))
    return layout, partial(_stack, 2, 0.0), ()


def _cnn3(shape: tuple[int, int, int], classes: int) -> Blueprint:
    channels = (32, 64, 128)
    layout, sides = _conv_layout("cnn3", shape, channels, kernel=3)
    layout += _dense_layout((128 * sides[-1][0] * sides[-1][1], 128, 64, 32, classes))
    masks = tuple((*side, depth) for side, depth in zip(sides, channels, strict=True))
    return layout, partial(_stack, 3, CNN3_DROPOUT), masks


def _resnet18(shape: tuple[int, int, int], classes: int, weights_file: str | Path | None) -> Model:
    slots = _slots(resnet.layout(shape[0], classes))
    if weights_file is None:
        forward = partial(resnet.forward, None)
        return Model("resnet18", shape, classes, slots, forward)
    expected = {slot.name: slot.shape for slot in slots}
    given, statistics = resnet.read_weights(Path(weights_file), expected)
    forward = partial(resnet.forward, statistics)
    note = f"weights and normalisation statistics from {Path(weights_file).name}"
    return Model("resnet18", shape, classes, slots, forward, given=given, note=note)


def _stack(
    convolutions: int,
    rate: float,
    tensors: Tensors,
    x: Tensor,
    masks: Sequence[Tensor],
    present: Tensor | None,
) -> Tensor:
    """Run convolution, ReLU, pooling (and dropout) blocks, then dense layers with ReLU between."""
    if convolutions:
        x = x.permute(0, 2, 3, 1)
        for block in range(convolutions):
            name = f"conv{block + 1}"
            weight, bias = tensors[f"{name}.weight"], tensors[f"{name}.bias"]
            if block_fits(weight):
                x = convolve_pool_cut(x, weight, bias)
            else:
                x = convolve_all(x, weight, bias)
                x = pool_pairs(x) if weight.dim() == 5 else max_pool(x, 2, 2)
                x = F.relu(x)  # as the other way round, with a quarter of the work
            if masks:
                x = drop(x, masks[block], rate)
        x = x.permute(0, 3, 1, 2)
    x = x.flatten(1)
    layers = len(tensors) // 2 - convolutions
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
    name: str, shape: tuple[int, int, int], channels: Sequence[int], kernel: int
) -> tuple[Layout, list[tuple[int, int]]]:
    """Return the tensors of the convolutions and the image sides after each pooling."""
    depth, height, width = shape
    layout: Layout = []
    sides: list[tuple[int, int]] = []
    for block, wider in enumerate(channels, start=1):
        height, width = output_size(height, kernel) // 2, output_size(width, kernel) // 2
        if min(height, width) < 1:
            raise InvalidInput(
                f"images of {shape[1]}x{shape[2]} are too small for {name}; use linear or mlp"
            )
        layout += [
            (f"conv{block}.weight", (wider, depth, kernel, kernel)),
            (f"conv{block}.bias", (wider,)),
        ]
        sides.append((height, width))
        depth = wider
    return layout, sides


def _slots(layout: Layout) -> tuple[Slot, ...]:
    ends = np.cumsum([math.prod(shape) for _, shape in layout]).tolist()
    starts = [0, *ends[:-1]]
    rows = zip(layout, starts, ends, strict=True)
    return tuple(Slot(name, shape, start, stop) for (name, shape), start, stop in rows)


def _first_values(
    slot: Slot, slots: Sequence[Slot], rng: np.random.Generator
) -> NDArray[np.float32]:
    """Draw as PyTorch's layers do: uniform within 1/sqrt(fan in); ResNet as torchvision does."""
    if "bn" in slot.name or "downsample.1" in slot.name:
        return np.full(slot.shape, float(slot.name.endswith("weight")), dtype=np.float32)
    owner = slot.name.rpartition(".")[0]
    weight = next(other for other in slots if other.name == f"{owner}.weight")
    if len(weight.shape) == 4 and not any(other.name == f"{owner}.bias" for other in slots):
        deviation = math.sqrt(2.0 / (weight.shape[0] * math.prod(weight.shape[2:])))
        return rng.normal(0.0, deviation, slot.shape).astype(np.float32)
    bound = 1.0 / math.sqrt(math.prod(weight.shape[1:]))
    return rng.uniform(-bound, bound, slot.shape).astype(np.float32)


def _image_shape(input_shape: Sequence[int]) -> tuple[int, int, int]:
    sizes = tuple(input_shape)
    if len(sizes) != 3:
        raise InvalidInput(f"input_shape has {len(sizes)} entries; give channels, height, width")
    channels, height, width = (whole("input_shape entry", size, 1) for size in sizes)
    return channels, height, width


def flat_tensor(model: Model, params: NDArray[np.float32]) -> Tensor:
    """Check a parameter vector (float32, finite, length dim) and copy it to torch."""
    vector = np.asarray(params)
    if vector.shape != (model.dim,) or vector.dtype != np.float32:
        raise InvalidInput(
            f"params have shape {vector.shape} and type {vector.dtype}; "
            f"{model.name} takes ({model.dim},) of float32"
        )
    if not np.isfinite(vector).all():
        raise InvalidInput("params hold NaN or infinite values; start again from a checkpoint")
    return torch.tensor(vector)
