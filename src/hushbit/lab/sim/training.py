"""Local training of many users at once, with the same bits however users are grouped.

Users are taken in ascending order and computed in tiles of one fixed size (the last one padded),
so that every matrix product has the same shape and position whatever the chunk or thread count.

The samples of a step are a pure function of seed, round and user, as of a shuffling data loader
that keeps the last short batch: a user with n samples and batch size b takes ceil(n/b) batches
from one random order, then draws a new order. A user with n <= b uses all samples in every step.

In the first step of a round all users share their weights. Convolutional models then process all
samples as one large batch, and only the gradients of weights are formed user by user. This equals
a separate gradient for each user up to rounding and is faster: no patches are written out, and the
output gradients that pooling and ReLU set to zero (seven of eight) are skipped.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from hushbit.errors import InvalidInput, NotFinite
from hushbit.lab.sim import fast_steps
from hushbit.lab.sim.metrics import worst_class_accuracy
from hushbit.lab.sim.models import Masks, Model, Tensors, flat_tensor
from hushbit.lab.sim.optimizers import LocalState, Optimizer, Rate
from hushbit.lab.sim.partition import Federation, Indices, UserRows

Floats = NDArray[np.float32]
Seeds = NDArray[np.uint64]
StateRows = dict[str, Floats]
"""Optimizer state by name, one row per user."""

EVALUATION_BATCH = 500
WORKING_SET_BYTES = 96 << 20
MAX_TILE_USERS = 256
SMALLEST_NORM, LARGEST_NORM = 1e-20, 1e10  # accepted by AutoCPA; a run beyond them diverges
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK = (1 << 64) - 1


class TrainingDiverged(NotFinite):
    """Local training gave NaN or infinite values."""


@dataclass(frozen=True)
class LocalSettings:
    """What every user does in a round: `steps` steps on batches of `batch_size` samples.

    `memory_mb` limits the updates that are returned at once; it never changes their values.
    """

    rate: Rate
    steps: int = 1
    batch_size: int = 16
    optimizer: Optimizer = field(default_factory=Optimizer)
    memory_mb: float = 16.0


class LocalChunk(NamedTuple):
    """Results of some users: updates (users, dim), mean losses, optimizer state to keep."""

    users: Indices
    updates: Floats
    losses: Floats
    state: StateRows

    def part(self, rows: slice) -> "LocalChunk":
        """Views of the rows of some users."""
        kept = {name: values[rows] for name, values in self.state.items()}
        return LocalChunk(self.users[rows], self.updates[rows], self.losses[rows], kept)


class Score(NamedTuple):
    """Share of correct predictions, mean cross entropy, and the lowest accuracy of a class."""

    accuracy: float
    loss: float
    worst_class: float


def local_updates(
    model: Model,
    params: Floats,
    federation: Federation,
    users: Indices,
    settings: LocalSettings,
    *,
    round_number: int,
    seed: int,
    state: Mapping[str, Floats] | None = None,
) -> Iterator[LocalChunk]:
    """Train the users from the same params; yield their updates w_local - w_global in chunks.

    Chunks follow ascending user number. `state` holds one row per user of the federation (see
    `fresh_state`) and is only read; `store_rows` stores the rows that a chunk returns.
    """
    if not 0 <= federation.labels.min() <= federation.labels.max() < model.classes:
        raise InvalidInput(f"labels must lie in 0..{model.classes - 1}; build another model")
    batch = max(1, min(settings.batch_size, federation.largest))
    job = _Job(model, flat_tensor(params), federation, settings, batch, round_number)
    chosen = np.sort(users)
    seeds = batch_seeds(seed, round_number, chosen)
    return _chunks(job, chosen, seeds, state or {})


def fresh_state(dim: int, users: int, settings: LocalSettings) -> StateRows:
    """Return zeroed optimizer state for every user; empty unless the optimizer keeps its state."""
    if not settings.optimizer.keep_state:
        return {}
    widths = settings.optimizer.widths(dim)
    return {n: np.zeros((users, w), dtype=np.float32) for n, w in widths.items()}


def store_rows(state: StateRows, chunk: LocalChunk) -> None:
    """Store the optimizer state of a chunk in the rows of its users."""
    for name, rows in chunk.state.items():
        state[name][chunk.users] = rows


def concat_chunks(chunks: list[LocalChunk]) -> LocalChunk:
    """Join chunks into one, for attacks and defences that need all users at once."""
    if len(chunks) == 1:
        return chunks[0]
    return LocalChunk(
        np.concatenate([chunk.users for chunk in chunks]),
        np.concatenate([chunk.updates for chunk in chunks]),
        np.concatenate([chunk.losses for chunk in chunks]),
        {n: np.concatenate([c.state[n] for c in chunks]) for n in chunks[0].state},
    )


def median_norm(chunks: Iterator[LocalChunk]) -> float:
    """The median norm of updates, within the limits of AutoCPA; the upper one if users diverge."""
    try:
        norms = [np.linalg.norm(row) for chunk in chunks for row in chunk.updates]
    except TrainingDiverged:
        return LARGEST_NORM
    return min(max(float(np.median(norms)), SMALLEST_NORM), LARGEST_NORM)


def evaluate(
    model: Model, params: Floats, images: NDArray[np.uint8], labels: NDArray[Any]
) -> Score:
    """Return accuracy, mean loss and worst class over a set of images, without dropout."""
    flat = flat_tensor(params)
    correct, total = np.empty(len(images), dtype=np.bool_), 0.0
    with torch.inference_mode():
        for begin in range(0, len(images), EVALUATION_BATCH):
            part = slice(begin, begin + EVALUATION_BATCH)
            logits = shared_logits(model, flat, normalised(images[part], model.pixel_range))
            answers = torch.from_numpy(np.asarray(labels[part], dtype=np.int64))
            losses = F.cross_entropy(logits, answers, reduction="none")
            correct[part] = (logits.argmax(dim=1) == answers).numpy()
            total += float(losses.double().sum())
    accuracy = int(correct.sum()) / len(images)
    return Score(accuracy, total / len(images), worst_class_accuracy(correct, labels))


def normalised(images: NDArray[np.uint8], pixel_range: tuple[float, float]) -> Tensor:
    """Convert bytes to float32: (byte - center) / scale."""
    center, scale = pixel_range
    return torch.from_numpy(images.astype(np.float32)).sub_(center).div_(scale)


class Batch(NamedTuple):
    """Rows of the data set, shape (users, batch), and 1 for a real row, 0 for padding."""

    rows: Indices
    present: Floats


def batch_seeds(seed: int, round_number: int, users: Indices) -> Seeds:
    """Return a 64-bit seed for each user, for this run seed and round."""
    start = np.array([seed & _MASK], dtype=np.uint64)
    per_round = _splitmix64(_splitmix64(start) + np.uint64(round_number & _MASK))
    return _splitmix64(per_round + users.astype(np.uint64) * _GOLDEN)


def draw_batch(federation: UserRows, users: Indices, seeds: Seeds, step: int, size: int) -> Batch:
    """Choose the samples of one local step for several users at once."""
    begins = federation.starts[users].astype(np.int64)
    counts = federation.starts[users + 1] - begins
    steps_per_pass = np.maximum(-(-counts // size), 1)
    passes, turn = np.divmod(step, steps_per_pass)
    position = turn[:, None] * size + np.arange(size)
    present = position < counts[:, None]
    slots = np.where(present, position, 0)
    if (counts > size).any():
        shuffled = np.take_along_axis(_orders(counts, seeds, passes), slots, axis=1)
        slots = np.where(counts[:, None] > size, shuffled, slots)
    rows = begins[:, None] + slots
    safe = np.minimum(rows, max(len(federation.members) - 1, 0))
    return Batch(federation.members[safe].astype(np.int64), present.astype(np.float32))


def dropout_masks(
    seeds: Seeds, step: int, samples: int, shapes: tuple[tuple[int, ...], ...], rate: float
) -> tuple[NDArray[np.bool_], ...]:
    """Draw dropout masks of shape (users, samples, *shape), true where a value is kept."""
    masks = tuple(np.empty((len(seeds), samples, *shape), dtype=np.bool_) for shape in shapes)
    for row, seed in enumerate(seeds):
        rng = np.random.Generator(np.random.Philox(key=[int(seed), step]))
        for mask, shape in zip(masks, shapes, strict=True):
            mask[row] = rng.random((samples, *shape), dtype=np.float32) >= rate
    return masks


def _orders(counts: Indices, seeds: Seeds, passes: Indices) -> Indices:
    """Return a random order of 0..count-1 per row; entries from count on have no meaning."""
    slot = np.arange(counts.max())
    base = _splitmix64(seeds + passes.astype(np.uint64))[:, None]
    ticket = _splitmix64(base + slot.astype(np.uint64) * _GOLDEN)
    ticket[slot >= counts[:, None]] = np.uint64(_MASK)
    return np.argsort(ticket, axis=1, kind="stable")


def _splitmix64(word: Seeds) -> Seeds:
    """Mix 64 bits so that neighbouring inputs look unrelated (the finaliser of SplitMix64)."""
    word = word + _GOLDEN
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


def tile_size(model: Model, batch: int) -> int:
    """Return how many users are computed together: a power of two that fits the working set."""
    floats = 6 * model.dim + batch * _saved_floats(model)
    fitting = max(1, WORKING_SET_BYTES // (4 * floats))
    return min(MAX_TILE_USERS, 1 << (fitting.bit_length() - 1))


def _saved_floats(model: Model) -> int:
    """Return how many floats torch saves for the gradient of one sample."""
    sizes: list[int] = []

    def unpack(_: None) -> Tensor:
        raise NotImplementedError("no gradient is computed here")

    flat = torch.zeros(model.dim, requires_grad=True)
    # Only sizes are kept: a tensor that its own graph keeps would never be freed.
    with torch.autograd.graph.saved_tensors_hooks(
        lambda saved: sizes.append(saved.numel()), unpack
    ):
        model.apply(flat, torch.zeros(1, *model.input_shape))
    return max(sum(sizes) - model.dim, 0)


def supports_shared_gradients(model: Model) -> bool:
    """Whether the model is convolutional and treats every sample separately."""
    return model.name in ("cnn2", "cnn3")


def shared_logits(model: Model, weights: Tensor, x: Tensor) -> Tensor:
    """Return logits of images without dropout, by the layers for shared weights if supported."""
    if not supports_shared_gradients(model):
        return model.apply(weights, x)
    one_user = {name: tensor[None] for name, tensor in model.tensors(weights).items()}
    return model.forward(one_user, x, (), None)


def shared_gradients(
    model: Model, weights: Tensor, x: Tensor, y: Tensor, present: Tensor, masks: Masks
) -> tuple[Tensor, Tensor]:
    """Return gradients (users, dim) of each user's mean loss, and the losses.

    x holds images (users, batch, ...), y and present (users, batch), masks (users, batch, ...).
    """
    users = len(x)
    own = {
        name: tensor.expand(users, *tensor.shape).requires_grad_()
        for name, tensor in model.tensors(weights).items()
    }
    flat_masks = tuple(mask.flatten(0, 1) for mask in masks)
    logits = model.forward(own, x.flatten(0, 1), flat_masks, None)
    losses = F.cross_entropy(logits, y.flatten(), reduction="none").reshape(y.shape)
    means = (losses * present).sum(dim=1) / present.sum(dim=1).clamp(min=1.0)
    gradients = torch.autograd.grad(means.sum(), list(own.values()))
    return torch.cat([gradient.flatten(1) for gradient in gradients], dim=1), means.detach()


PerUserStep = Callable[..., tuple[dict[str, Tensor], Tensor]]


@dataclass(frozen=True, eq=False)
class _Job:
    """What all tiles of a round have in common."""

    model: Model
    start: Tensor
    federation: Federation
    settings: LocalSettings
    batch: int
    round_number: int

    def rate(self, step: int) -> float:
        """Return the learning rate of a step of this round."""
        return self.settings.rate.at(self.round_number * self.settings.steps + step)

    def gradients(
        self, weights: Tensor, x: Tensor, y: Tensor, present: Tensor, masks: Masks
    ) -> tuple[Tensor, Tensor]:
        """Return gradient and loss of each user, at weights shared by all or one row per user."""
        shared = weights.dim() == 1
        if shared and supports_shared_gradients(self.model):
            return shared_gradients(self.model, weights, x, y, present, masks)
        step: PerUserStep = torch.func.vmap(
            torch.func.grad_and_value(self._loss), in_dims=(None if shared else 0, 0, 0, 0, 0)
        )
        tensors = (self.model.tensors if shared else torch.func.vmap(self.model.tensors))(weights)
        by_name, losses = step(tensors, x, y, present, masks)
        pieces = [by_name[slot.name].flatten(1) for slot in self.model.shapes]
        return torch.cat(pieces, dim=1), losses

    def _loss(
        self, tensors: Tensors, x: Tensor, y: Tensor, present: Tensor, masks: Masks
    ) -> Tensor:
        logits = self.model.forward(tensors, x, masks, present)
        losses = F.cross_entropy(logits, y, reduction="none")
        return (losses * present).sum() / present.sum().clamp(min=1.0)


def _chunks(
    job: _Job, users: Indices, seeds: Seeds, state: Mapping[str, Floats]
) -> Iterator[LocalChunk]:
    tile = tile_size(job.model, job.batch)
    row_bytes = 4 * (job.model.dim + sum(rows.shape[1] for rows in state.values()))
    tiles_in_chunk = max(1, int(job.settings.memory_mb * 2**20 / (row_bytes * tile)))
    for begin in range(0, len(users), tiles_in_chunk * tile):
        part = slice(begin, begin + tiles_in_chunk * tile)
        yield _chunk(job, users[part], seeds[part], state, tile)


def _chunk(
    job: _Job, users: Indices, seeds: Seeds, state: Mapping[str, Floats], tile: int
) -> LocalChunk:
    chunk = LocalChunk(
        users,
        np.empty((len(users), job.model.dim), np.float32),
        np.empty(len(users), np.float32),
        {name: np.empty((len(users), *v.shape[1:]), np.float32) for name, v in state.items()},
    )
    kind = (job.model, job.settings.steps, job.settings.optimizer)
    linear_sgd = fast_steps.supports_linear_sgd(*kind)
    momentum = bool(state) and fast_steps.supports_momentum_step(*kind)
    train_tile = _fast_tile if linear_sgd or momentum else _general_tile
    for begin in range(0, len(users), tile):
        padded = np.minimum(np.arange(begin, begin + tile), len(users) - 1)
        out = chunk.part(slice(begin, begin + tile))
        train_tile(job, users[padded], seeds[padded], state, out)
    if not (
        linear_sgd
        and fast_steps.weights_stay_finite(job.start, job.rate(0))
        and np.isfinite(chunk.losses).all()
    ):
        check_finite(chunk, job.round_number)
    return chunk


def _fast_tile(
    job: _Job, users: Indices, seeds: Seeds, state: Mapping[str, Floats], out: LocalChunk
) -> None:
    """Run the only local step of one tile by `fast_steps`."""
    rows, present = draw_batch(job.federation, users, seeds, 0, job.batch)
    labels = job.federation.labels[rows]
    pixel_range = job.model.pixel_range
    batch = fast_steps.TileBatch(job.federation.images, rows, labels, present, pixel_range)
    start = (job.model, job.start, batch, job.rate(0))
    if not state:
        fast_steps.linear_sgd_update(*start, out.updates, out.losses)
        return
    momentum, before, after = (
        job.settings.optimizer.momentum,
        state["velocity"],
        out.state["velocity"],
    )
    fast_steps.momentum_update(*start, momentum, out.users, before, out.updates, after, out.losses)


def _general_tile(
    job: _Job, users: Indices, seeds: Seeds, state: Mapping[str, Floats], out: LocalChunk
) -> None:
    """Run all local steps of one tile by torch; losses are averaged over steps."""
    model, settings = job.model, job.settings
    own: LocalState = {name: torch.from_numpy(rows[users]) for name, rows in state.items()}
    own = own or settings.optimizer.fresh(len(users), model.dim)
    weights = job.start
    total = torch.zeros(len(users))
    for step in range(settings.steps):
        rows, present = draw_batch(job.federation, users, seeds, step, job.batch)
        x = normalised(job.federation.images[rows], model.pixel_range)
        y = job.federation.labels[rows]
        masks: tuple[Tensor, ...] = ()
        if model.dropout_shapes:
            drawn = dropout_masks(seeds, step, job.batch, model.dropout_shapes, model.dropout_rate)
            masks = tuple(torch.from_numpy(mask) for mask in drawn)
        gradient, loss = job.gradients(
            weights, x, torch.from_numpy(y), torch.from_numpy(present), masks
        )
        weights = settings.optimizer.advance(weights, gradient, own, job.rate(step))
        total += loss
    length = len(out.users)
    torch.sub(weights[:length], job.start, out=torch.from_numpy(out.updates))
    out.losses[:] = (total / settings.steps)[:length].numpy()
    for name, kept in out.state.items():
        kept[:] = own[name][:length].numpy()


def check_finite(chunk: LocalChunk, round_number: int) -> None:
    """Raise `TrainingDiverged` if an update or a loss is not finite."""
    # A sum is finite only if all its terms are; if it is not, the rows are checked one by one.
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(chunk.updates.sum())
    if math.isfinite(total) and np.isfinite(chunk.losses).all():
        return
    finite = np.isfinite(chunk.updates).all(axis=1) & np.isfinite(chunk.losses)
    broken = chunk.users[~finite]
    if len(broken):
        names = ", ".join(str(user) for user in broken[:5]) + (", ..." if len(broken) > 5 else "")
        raise TrainingDiverged(
            f"round {round_number + 1}: training gave NaN or infinite values for "
            f"user{'s' * (len(broken) > 1)} {names}: check their data, or lower --rate or "
            "--server-rate"
        )
