"""Local training of many users at once, chunk by chunk, with the same bits however it is cut.

Users are taken in ascending order and computed in tiles of one fixed size (the last one padded),
so that every matrix product has the same shape and place whatever the chunk or thread count.
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

from hushbit.checks import positive, whole
from hushbit.errors import HushbitError, InvalidInput
from hushbit.fl import heavy_ball, softmax
from hushbit.fl import shared as quick
from hushbit.fl.arguments import check_data, checked_state, chosen_users
from hushbit.fl.batches import Words, draw_batch, dropout_masks, user_keys
from hushbit.fl.models import Model, flat_tensor
from hushbit.fl.optimizers import LocalState, Optimizer, Rate
from hushbit.fl.partition import Federation, Indices
from hushbit.fl.tiles import tile_size

EVALUATION_BATCH = 500

StateRows = dict[str, NDArray[np.float32]]


class TrainingDiverged(HushbitError):
    """Local training gave NaN or infinite values."""


@dataclass(frozen=True)
class LocalSettings:
    """What every user does in a round: `steps` steps on batches of `batch_size` samples.

    `memory_mb` bounds the updates handed out at once; it never changes their values.
    """

    rate: Rate
    steps: int = 1
    batch_size: int = 16
    optimizer: Optimizer = field(default_factory=Optimizer)
    memory_mb: float = 16.0

    def __post_init__(self) -> None:
        whole("steps", self.steps, 1)
        whole("batch_size", self.batch_size, 1)
        positive("memory_mb", self.memory_mb)


class LocalChunk(NamedTuple):
    """What some users' training gave: updates (users, dim), mean loss of each, kept state."""

    users: Indices
    updates: NDArray[np.float32]
    losses: NDArray[np.float32]
    state: StateRows


class Score(NamedTuple):
    """Share of right answers, and mean cross entropy."""

    accuracy: float
    loss: float


def local_updates(
    model: Model,
    params: NDArray[np.float32],
    federation: Federation,
    users: Indices,
    settings: LocalSettings,
    *,
    round_number: int,
    seed: int,
    state: Mapping[str, NDArray[np.float32]] | None = None,
) -> Iterator[LocalChunk]:
    """Train the users from the same params; yield their updates w_local - w_global in chunks.

    Chunks follow ascending user number. `state` holds one row per user of the federation (see
    `fresh_state`) and is only read; `keep_rows` stores the rows that a chunk brings back.
    """
    start = flat_tensor(model, params)
    chosen = chosen_users(users, federation)
    check_data(model, federation)
    job = _Job(
        model,
        start,
        federation,
        settings,
        batch=max(1, min(settings.batch_size, federation.largest)),
        first_step=whole("round_number", round_number, 0) * settings.steps,
    )
    keys = user_keys(whole("seed", seed, 0), round_number, chosen)
    rows = checked_state(federation, settings.optimizer, model.dim, state)
    return _chunks(job, chosen, keys, rows, round_number)


def fresh_state(model: Model, federation: Federation, settings: LocalSettings) -> StateRows:
    """Return zeroed optimizer state for every user; empty unless the optimizer keeps its state."""
    if not settings.optimizer.keep_state:
        return {}
    widths = settings.optimizer.widths(model.dim)
    return {n: np.zeros((federation.users, w), dtype=np.float32) for n, w in widths.items()}


def keep_rows(state: StateRows, chunk: LocalChunk) -> None:
    """Store a chunk's optimizer state in the rows of its users."""
    for name, rows in chunk.state.items():
        state[name][chunk.users] = rows


def joined(chunks: list[LocalChunk]) -> LocalChunk:
    """One chunk of many, for those who must see all users at once."""
    if len(chunks) == 1:
        return chunks[0]
    return LocalChunk(
        np.concatenate([chunk.users for chunk in chunks]),
        np.concatenate([chunk.updates for chunk in chunks]),
        np.concatenate([chunk.losses for chunk in chunks]),
        {n: np.concatenate([c.state[n] for c in chunks]) for n in chunks[0].state},
    )


def evaluate(
    model: Model, params: NDArray[np.float32], images: NDArray[np.uint8], labels: NDArray[Any]
) -> Score:
    """Return accuracy and mean loss over a set of images, without dropout."""
    flat = flat_tensor(model, params)
    if len(images) == 0 or len(images) != len(labels):
        raise InvalidInput(f"{len(images)} images for {len(labels)} labels; give one each")
    right, total = 0, 0.0
    with torch.inference_mode():
        for begin in range(0, len(images), EVALUATION_BATCH):
            part = slice(begin, begin + EVALUATION_BATCH)
            logits = quick.logits_of(model, flat, normalised(images[part]))
            answers = torch.from_numpy(np.asarray(labels[part], dtype=np.int64))
            losses = F.cross_entropy(logits, answers, reduction="none")
            right += int((logits.argmax(dim=1) == answers).sum())
            total += float(losses.double().sum())
    return Score(right / len(images), total / len(images))


def normalised(images: NDArray[np.uint8]) -> Tensor:
    """Turn bytes into float32 in [-1, 1]: (x / 255 - 0.5) / 0.5."""
    return torch.from_numpy(images.astype(np.float32)).sub_(127.5).div_(127.5)


PerUserStep = Callable[..., tuple[dict[str, Tensor], Tensor]]


@dataclass(frozen=True, eq=False)
class _Job:
    """All that one round's tiles have in common."""

    model: Model
    start: Tensor
    federation: Federation
    settings: LocalSettings
    batch: int
    first_step: int

    def gradients(
        self, weights: Tensor, x: Tensor, y: Tensor, present: Tensor, masks: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor]:
        """Gradient and loss of each user, at weights that all share or at its own."""
        shared = weights.dim() == 1
        if shared and quick.fits(self.model):
            return quick.shared_gradients(self.model, weights, x, y, present, masks)
        step: PerUserStep = torch.func.vmap(
            torch.func.grad_and_value(self._loss), in_dims=(None if shared else 0, 0, 0, 0, 0)
        )
        tensors = (self.model.tensors if shared else torch.func.vmap(self.model.tensors))(weights)
        by_name, losses = step(tensors, x, y, present, masks)
        pieces = [by_name[slot.name].flatten(1) for slot in self.model.shapes]
        return torch.cat(pieces, dim=1), losses

    def _loss(
        self, tensors: Mapping[str, Tensor], x: Tensor, y: Tensor, present: Tensor,
        masks: tuple[Tensor, ...],
    ) -> Tensor:  # fmt: skip
        logits = self.model.forward(tensors, x, masks, present)
        losses = F.cross_entropy(logits, y, reduction="none")
        return (losses * present).sum() / present.sum().clamp(min=1.0)


def _chunks(
    job: _Job, users: Indices, keys: Words, state: Mapping[str, NDArray[np.float32]], round_: int
) -> Iterator[LocalChunk]:
    tile = tile_size(job.model, job.batch)
    row_bytes = 4 * (job.model.dim + sum(rows.shape[1] for rows in state.values()))
    tiles_in_chunk = max(1, int(job.settings.memory_mb * 2**20 / (row_bytes * tile)))
    for begin in range(0, len(users), tiles_in_chunk * tile):
        part = slice(begin, begin + tiles_in_chunk * tile)
        yield _chunk(job, users[part], keys[part], state, tile, round_)


def _chunk(
    job: _Job,
    users: Indices,
    keys: Words,
    state: Mapping[str, NDArray[np.float32]],
    tile: int,
    round_: int,
) -> LocalChunk:
    updates = np.empty((len(users), job.model.dim), dtype=np.float32)
    losses = np.empty(len(users), dtype=np.float32)
    kept = {name: np.empty((len(users), *v.shape[1:]), np.float32) for name, v in state.items()}
    plain = softmax.fits(job.model, job.settings.steps, job.settings.optimizer)
    heavy = heavy_ball.fits(job.model, job.settings.steps, job.settings.optimizer) and state
    rate = job.settings.rate.at(job.first_step)
    for begin in range(0, len(users), tile):
        real = slice(begin, min(begin + tile, len(users)))
        padded = np.minimum(np.arange(begin, begin + tile), len(users) - 1)
        if plain or heavy:
            held = job.federation
            drawn, present = draw_batch(held, users[padded], keys[padded], 0, job.batch)
            batch = (job.model, job.start, held.images, drawn, held.labels[drawn], present)
            if plain:
                softmax.plain_step(*batch, rate, updates[real], losses[real])
                continue
            heavy_ball.kept_step(
                *batch, job.settings.optimizer.momentum, rate, users[real], state["velocity"],
                updates[real], kept["velocity"][real], losses[real],
            )  # fmt: skip
            continue
        weights, loss, after = _train_tile(job, users[padded], keys[padded], state)
        length = real.stop - real.start
        torch.sub(weights[:length], job.start, out=torch.from_numpy(updates[real]))
        losses[real] = loss[:length].numpy()
        for name, rows in kept.items():
            rows[real] = after[name][:length].numpy()
    if not (plain and softmax.stays_finite(job.start, rate) and np.isfinite(losses).all()):
        _refuse_nonfinite(users, updates, losses, round_)
    return LocalChunk(users, updates, losses, kept)


def _train_tile(
    job: _Job, users: Indices, keys: Words, state: Mapping[str, NDArray[np.float32]]
) -> tuple[Tensor, Tensor, LocalState]:
    """Run all local steps of one tile; return weights, losses averaged over steps, state."""
    model, settings = job.model, job.settings
    own = {name: torch.from_numpy(rows[users]) for name, rows in state.items()}
    own = own or settings.optimizer.fresh(len(users), model.dim)
    weights = job.start
    total = torch.zeros(len(users))
    for step in range(settings.steps):
        x, y, present = _samples(job, users, keys, step)
        masks: tuple[Tensor, ...] = ()
        if model.dropout_shapes:
            drawn = dropout_masks(keys, step, job.batch, model.dropout_shapes, model.dropout_rate)
            masks = tuple(torch.from_numpy(mask) for mask in drawn)
        gradient, loss = job.gradients(
            weights, x, torch.from_numpy(y), torch.from_numpy(present), masks
        )
        rate = settings.rate.at(job.first_step + step)
        weights = settings.optimizer.advance(weights, gradient, own, rate)
        total += loss
    return weights, total / settings.steps, own


def _samples(
    job: _Job, users: Indices, keys: Words, step: int
) -> tuple[Tensor, NDArray[np.int64], NDArray[np.float32]]:
    """Images, labels and which of them are there, for one step of some users."""
    rows, present = draw_batch(job.federation, users, keys, step, job.batch)
    return normalised(job.federation.images[rows]), job.federation.labels[rows], present


def _refuse_nonfinite(
    users: Indices, updates: NDArray[np.float32], losses: NDArray[np.float32], round_: int
) -> None:
    # A sum is finite only if all its parts are; one that overflows leads to the slow look.
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(updates.sum())
    if math.isfinite(total) and np.isfinite(losses).all():
        return
    broken = users[~(np.isfinite(updates).all(axis=1) & np.isfinite(losses))]
    if len(broken):
        names = ", ".join(str(user) for user in broken[:5]) + (", ..." if len(broken) > 5 else "")
        raise TrainingDiverged(
            f"round {round_}: training gave NaN or infinite values for {len(broken)} users "
            f"({names}); lower the learning rate or the server step, resume from a checkpoint"
        )
