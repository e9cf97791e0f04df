"""Local training of any `torch.nn.Module` by many users, from one flat vector of its tensors.

The flat vector holds what users send: trained parameters and floating-point buffers such as the
running statistics of BatchNorm, in the order of the module's state. This is what the Flower client
encodes. Integer buffers and frozen tensors keep the server's value.

The gradients of users are computed by one of three methods. A task chooses the fastest one whose
results equal those of the loop, in a trial with two users of two test samples each:

    shared   first step of a round: one pass over the samples of all users (`per_user_gradients`)
    vmap     users in parallel by `torch.func`, on batches of equal size
    loop     one user after the other, as an ordinary PyTorch loop

Users are taken in ascending order in tiles of a fixed number of users, so the results do not
depend on memory limits or engines. Users of a tile whose batches have equal sizes train together.
Batches are never padded.
"""

import copy
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parameter import is_lazy

from hushbit.errors import HushbitError, InvalidInput
from hushbit.lab.sim.client_data import Batch, Samples, shortened
from hushbit.lab.sim.models import TensorSlot
from hushbit.lab.sim.optimizers import LocalState
from hushbit.lab.sim.partition import Indices, UserRows
from hushbit.lab.sim.per_user_gradients import PerUserGradientMode, UserGradients, used_elsewhere
from hushbit.lab.sim.training import (
    Floats,
    LocalChunk,
    LocalSettings,
    Seeds,
    batch_seeds,
    check_finite,
    draw_batch,
)

Loss = Callable[[Any, Tensor], Tensor]
UnsentTensors = dict[str, Tensor]
"""Tensors that users do not send, such as the batch count of BatchNorm, during a local training."""

WORKING_SET_BYTES = 96 << 20
MAX_TILE_USERS = 256
NONNEGATIVE_PATTERN = "*running_var"
PROBE_SAMPLES = 2
PROBE_RATE = 0.01
MAX_TEXT = 200
TOLERANCE = 1e-3  # of the largest change, between two methods on the same batches
MIN_FLOATS_FOR_THREADS = 1 << 20  # about a millisecond of work


class NotSupported(HushbitError):
    """A method of computing gradients does not work for a module."""


@dataclass(frozen=True, eq=False)
class StepResult:
    """Gradients (users, dim) with zeros for buffers, losses (users,), and new values of buffers."""

    gradients: Tensor
    losses: Tensor
    buffers: Mapping[str, Tensor]


class TrainedModule:
    """A module, its loss, and the position of each of its tensors in the flat vector."""

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        names: tuple[str, ...] | None = None,
        frozen: Sequence[str] = (),
    ) -> None:
        self.module = copy.deepcopy(module).train()
        self.loss, self.names = loss, names
        _check_frozen(frozen, list(_tensors(self.module)))
        for name, parameter in self.module.named_parameters():
            if _matches(name, frozen):
                parameter.requires_grad_(False)
        self.parameters, self.buffers = _slots(self.module, frozen)
        self.slots = tuple(sorted((*self.parameters, *self.buffers), key=lambda slot: slot.start))
        if not self.parameters:
            raise InvalidInput(
                "the model has no parameter to train: set requires_grad of at least one, or "
                "freeze fewer"
            )
        sent = {slot.name for slot in self.slots}
        self.unsent = {
            name: tensor.detach().clone()
            for name, tensor in _tensors(self.module).items()
            if name not in sent
        }

    @property
    def dim(self) -> int:
        """The length of the flat vector."""
        return self.slots[-1].stop

    def flat(self, module: nn.Module) -> Floats:
        """The flat vector of a module with the same tensors."""
        tensors = _tensors(module)
        parts = [tensors[slot.name].detach().reshape(-1) for slot in self.slots]
        return torch.cat(parts).numpy().astype(np.float32)

    def load(
        self, flat: Tensor, unsent: Mapping[str, Tensor], module: nn.Module | None = None
    ) -> None:
        """Set the tensors of the module, or of another module with the same tensors."""
        tensors = _tensors(module or self.module)
        with torch.no_grad():
            for slot in self.slots:
                tensors[slot.name].copy_(flat[slot.start : slot.stop].view(slot.shape))
            for name, value in unsent.items():
                tensors[name].copy_(value)

    def call(self, inputs: tuple[Tensor, ...], values: Mapping[str, Tensor] | None = None) -> Any:
        """The outputs of the module; `values` replace its tensors for this call."""
        args: tuple[Any, ...] = inputs
        named: dict[str, Any] = {}
        if self.names is not None:
            args, named = (), dict(zip(self.names, inputs, strict=True))
        if values is None:
            return self.module(*args, **named)
        return functional_call(self.module, dict(values), args, named)

    def loss_of(self, outputs: Any, targets: Tensor) -> Tensor:
        """The loss, which must be one number."""
        value = self.loss(outputs, targets)
        if not isinstance(value, Tensor) or value.dim() != 0:
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise InvalidInput(
                f"the loss must return one number, the mean over a batch; got {shape}"
            )
        return value

    def copy_unsent(self) -> UnsentTensors:
        """Copies of the tensors that users do not send, with the server's values."""
        return {name: tensor.clone() for name, tensor in self.unsent.items()}

    def loop(
        self, weights: Tensor, batch: Batch, unsent: UnsentTensors, gradients: Tensor
    ) -> StepResult:
        """The gradient of one user; weights have shape (dim,) or (1, dim)."""
        self.load(weights.reshape(-1), unsent)
        for parameter in self.module.parameters():
            parameter.grad = None
        outputs = self.call(tuple(one[0] for one in batch.inputs))
        loss = self.loss_of(outputs, batch.targets[0])
        loss.backward()
        tensors = _tensors(self.module)
        gradients.zero_()
        for slot in self.parameters:
            found = tensors[slot.name].grad
            if found is not None:
                gradients[0, slot.start : slot.stop] = found.reshape(-1)
        for name, value in unsent.items():
            value.copy_(tensors[name])
        buffers = {slot.name: tensors[slot.name].clone()[None] for slot in self.buffers}
        return StepResult(gradients, loss.detach().reshape(1), buffers)

    def vmap(
        self, weights: Tensor, batch: Batch, unsent: UnsentTensors, gradients: Tensor
    ) -> StepResult:
        """The gradients of all users of a group, by `torch.func`."""
        users, shared = len(batch.targets), weights.dim() == 1
        parameters = {slot.name: _part(weights, slot) for slot in self.parameters}
        own = weights.expand(users, -1) if shared else weights
        buffers = {slot.name: _part(own, slot).clone() for slot in self.buffers}

        def loss(
            parameters: dict[str, Tensor],
            buffers: dict[str, Tensor],
            unsent: dict[str, Tensor],
            inputs: tuple[Tensor, ...],
            targets: Tensor,
        ) -> tuple[Tensor, dict[str, Tensor]]:
            outputs = self.call(inputs, {**unsent, **parameters, **buffers})
            return self.loss_of(outputs, targets), buffers

        step: Any = vmap(
            grad_and_value(loss, has_aux=True),
            in_dims=(None if shared else 0, 0, None, 0, 0),
            randomness="different",
        )
        with sdpa_kernel(SDPBackend.MATH):  # the fused attention kernels do not support vmap
            by_name, (losses, after) = step(
                parameters, buffers, unsent, batch.inputs, batch.targets
            )
        for slot in self.parameters:
            gradients[:, slot.start : slot.stop] = by_name[slot.name].flatten(1)
        for slot in self.buffers:
            gradients[:, slot.start : slot.stop] = 0.0
        return StepResult(gradients, losses, after)

    def shared(
        self, weights: Tensor, batch: Batch, unsent: UnsentTensors, gradients: Tensor
    ) -> StepResult:
        """The gradients of all users of a group at weights of shape (dim,), in one pass."""
        if self.buffers:
            raise NotSupported("buffers differ from user to user")
        users = len(batch.targets)
        parameters = {
            slot.name: _part(weights, slot).detach().requires_grad_() for slot in self.parameters
        }
        columns = {
            id(parameters[slot.name]): slice(slot.start, slot.stop) for slot in self.parameters
        }
        by_layer = UserGradients(gradients, columns)
        with PerUserGradientMode(by_layer):
            inputs = tuple(one.flatten(0, 1) for one in batch.inputs)
            outputs = self.call(inputs, {**unsent, **parameters})
        if not isinstance(outputs, Tensor):
            raise NotSupported("the outputs are not one tensor")
        by_user = outputs.reshape(users, -1, *outputs.shape[1:])
        losses = vmap(self.loss_of, randomness="different")(by_user, batch.targets)
        losses.sum().backward()
        if found := used_elsewhere(parameters):
            raise NotSupported(
                f"{found[0]} is not the weight or bias of a dense layer or convolution"
            )
        return StepResult(by_layer.finish(), losses.detach(), {})

    def corrected(self, flat: Floats) -> Floats:
        """The vector with negative running variances, which noise can cause, replaced by zero.

        The Flower strategy does the same.
        """
        places = [slot for slot in self.buffers if fnmatchcase(slot.name, NONNEGATIVE_PATTERN)]
        if places:
            flat = flat.copy()
            for slot in places:
                np.maximum(flat[slot.start : slot.stop], 0.0, out=flat[slot.start : slot.stop])
        return flat


def _part(weights: Tensor, slot: TensorSlot) -> Tensor:
    """One tensor of the flat vector, or of one vector for each user."""
    return weights[..., slot.start : slot.stop].reshape(*weights.shape[:-1], *slot.shape)


def _check_frozen(patterns: Sequence[str], names: Sequence[str]) -> None:
    """Refuse patterns without effect: tensors that should stay on the device would be sent."""
    if isinstance(patterns, str):
        raise InvalidInput(f"frozen must be a list of patterns; got the text {patterns!r}")
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise InvalidInput(
                f"frozen pattern {pattern!r} matches no tensor of the model: {shortened(names)}"
            )


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers, each once."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _slots(
    module: nn.Module, frozen: Sequence[str]
) -> tuple[tuple[TensorSlot, ...], tuple[TensorSlot, ...]]:
    """The parameters and buffers that users send, in the order of the state dict."""
    trained = {name for name, one in module.named_parameters() if one.requires_grad}
    tensors, state = _tensors(module), module.state_dict()
    parameters: list[TensorSlot] = []
    buffers: list[TensorSlot] = []
    start = 0
    for name in (name for name in state if name in tensors and not _matches(name, frozen)):
        tensor, is_parameter = tensors[name], isinstance(tensors[name], nn.Parameter)
        if is_lazy(tensor):
            raise InvalidInput(
                f"{name} has no shape yet: call the model once on a batch, so that its lazy layers "
                "get their shapes, before you give it to a task"
            )
        if (is_parameter and name not in trained) or not tensor.is_floating_point():
            continue
        if tensor.dtype != torch.float32:
            raise InvalidInput(
                f"{name} has type {tensor.dtype}; a task trains float32 tensors: call model.float()"
            )
        slot = TensorSlot(name, tuple(tensor.shape), start, start + tensor.numel())
        (parameters if is_parameter else buffers).append(slot)
        start = slot.stop
    return tuple(parameters), tuple(buffers)


@dataclass(frozen=True)
class GradientMethods:
    """The methods that compute gradients in the first local step of a round and in later steps.

    `note` states why users train one after the other; `floats` is the number of floats that torch
    stores for the gradient of one sample.
    """

    first: str
    later: str
    note: str = ""
    floats: int = 0

    def describe(self) -> str:
        """How users are trained, in words for the run record."""
        if self.first == "loop":
            return f"one user after the other, because vmap does not apply ({self.note})"
        return "many users at once"


def choose_gradient_methods(trained: TrainedModule, samples: Samples) -> GradientMethods:
    """The fastest methods whose results equal those of the loop in a trial on a few samples."""
    rows = np.resize(np.arange(len(samples)), (2, PROBE_SAMPLES))
    batch = samples.batch(rows)
    start = torch.from_numpy(trained.flat(trained.module))
    try:
        with warnings.catch_warnings():
            # Outputs (n, 1) and targets (n,) are broadcast to (n, n), which trains nonsense.
            warnings.filterwarnings("error", message="Using a target size")
            expected = _probe(trained, ("loop", "loop"), start, batch, seed=0)
        random = not torch.equal(expected, _probe(trained, ("loop", "loop"), start, batch, seed=1))
    except HushbitError:
        raise
    except Exception as error:
        raise InvalidInput(
            f"training on two test samples failed: {type(error).__name__}: {_first_line(error)}; "
            "check the model, the loss, and the shapes and labels of the samples"
        ) from error
    notes, floats = [], _saved_floats(trained, start, batch)
    for first, later in (("shared", "vmap"), ("vmap", "vmap")):
        if random and first == "shared":  # its results cannot be compared with the loop
            notes.append("the model uses random numbers")
            continue
        try:
            with warnings.catch_warnings():
                # vmap warns of operations that it would compute user by user; a loop is faster.
                warnings.filterwarnings("error", message="There is a performance drop")
                found = _probe(trained, (first, later), start, batch, seed=0)
        except Exception as error:  # vmap raises many types for unsupported operations
            notes.append(_first_line(error))
            continue
        if random or _close(found, expected):
            return GradientMethods(first, later, floats=floats)
        notes.append("samples of one user change the gradient of another user")
    return GradientMethods("loop", "loop", notes[-1], floats)


def _probe(
    trained: TrainedModule, methods: tuple[str, str], start: Tensor, batch: Batch, seed: int
) -> Tensor:
    """The updates of two users after two steps of plain SGD."""
    groups = [slice(0, 1), slice(1, 2)] if methods[0] == "loop" else [slice(0, 2)]
    changes = []
    for group in groups:
        part = Batch(tuple(one[group] for one in batch.inputs), batch.targets[group])
        weights, unsent = start, trained.copy_unsent()
        for step, method in enumerate(methods):
            with seeded(seed + step):
                gradients = torch.empty(len(part.targets), trained.dim)
                made = getattr(trained, method)(weights, part, unsent, gradients)
            weights = weights - PROBE_RATE * made.gradients
            _set_buffers(trained, weights, made)
        changes.append(weights - start)
    return torch.cat(changes)


def _close(found: Tensor, expected: Tensor) -> bool:
    limit = TOLERANCE * float(expected.abs().max()) + 1e-12
    return bool(((found - expected).abs() <= limit).all())


def _first_line(error: Exception) -> str:
    text = (str(error).strip().splitlines() or [""])[0]
    missing = re.search(r"batching rule for (\S+?)\.? ", text)
    return f"no rule for {missing[1]}" if missing else text[:MAX_TEXT]


def _set_buffers(trained: TrainedModule, weights: Tensor, made: StepResult) -> None:
    for slot in trained.buffers:
        weights[:, slot.start : slot.stop] = made.buffers[slot.name].flatten(1)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's generator for the body of the with statement, and restore it afterwards."""
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)  # torch.manual_seed also queues calls for GPUs
    try:
        yield
    finally:
        torch.set_rng_state(before)


@contextmanager
def threads_for(floats: int) -> Iterator[None]:
    """Let torch use one thread in the body, which computes so many floats, if they are few.

    On cores that other processes keep busy, threads of torch wait for each other at the end of
    every operation, which can take longer than small operations themselves.
    """
    before = torch.get_num_threads()
    if before == 1 or floats >= MIN_FLOATS_FOR_THREADS:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True, eq=False)
class ModuleJob:
    """What all tiles of a round have in common."""

    trained: TrainedModule
    gradient_methods: GradientMethods
    start: Tensor
    samples: Samples
    rows: UserRows
    settings: LocalSettings
    round_number: int
    on_test_set: bool = False

    @property
    def batch(self) -> int:
        """The largest number of samples in a step."""
        return max(1, min(self.settings.batch_size, self.rows.largest))

    @property
    def user_floats(self) -> int:
        """Number of floats that a step computes for one user."""
        return 3 * self.trained.dim + self.batch * self.gradient_methods.floats

    @property
    def tile(self) -> int:
        """Number of users trained together: a power of two that fits into the working set."""
        fitting = max(1, WORKING_SET_BYTES // (4 * self.user_floats))
        return min(MAX_TILE_USERS, 1 << (fitting.bit_length() - 1))

    def chunks(
        self, users: Indices, seed: int, state: Mapping[str, Floats]
    ) -> Iterator[LocalChunk]:
        """The updates of the users, in ascending order."""
        users = np.sort(users)
        seeds = batch_seeds(seed, self.round_number, users)
        dim, tile = self.trained.dim, self.tile
        row_bytes = 4 * (dim + sum(rows.shape[1] for rows in state.values()))
        size = tile * max(1, int(self.settings.memory_mb * 2**20 / (row_bytes * tile)))
        for begin in range(0, len(users), size):
            part = slice(begin, begin + size)
            chunk = _empty_chunk(users[part], dim, state)
            for first in range(0, len(chunk.users), tile):
                inside = slice(first, first + tile)
                self._tile(chunk.part(inside), seeds[part][inside], state)
            check_finite(chunk, self.round_number)
            yield chunk

    def _tile(self, out: LocalChunk, seeds: Seeds, state: Mapping[str, Floats]) -> None:
        for members in self._groups(out.users):
            try:
                with threads_for(len(members) * self.user_floats):
                    self._group(out, members, seeds[members], state)
            except (IndexError, RuntimeError, ValueError) as error:  # of torch, such as a token
                if isinstance(error, HushbitError):
                    raise
                what = f"training failed for one of the clients {shortened(out.users[members])}"
                if self.on_test_set:
                    what = "the clip could not be computed from the test set"
                raise InvalidInput(
                    f"{what}: {type(error).__name__}: {_first_line(error)}; check the shapes, "
                    "types and values of the samples"
                ) from error

    def _groups(self, users: Indices) -> list[Indices]:
        """The users of a tile that train together: those with batches of equal sizes."""
        if self.gradient_methods.first == "loop":
            return [np.array([number]) for number in range(len(users))]
        counts = (self.rows.starts[users + 1] - self.rows.starts[users]).astype(np.int64)
        steps = np.arange(self.settings.steps)
        turns = steps % -(-counts[:, None] // self.batch)
        sizes = np.minimum(counts[:, None] - turns * self.batch, self.batch)
        if (sizes == sizes[0]).all():
            return [np.arange(len(users))]
        _, group = np.unique(sizes, axis=0, return_inverse=True)
        group = group.reshape(-1)
        return [np.flatnonzero(group == number) for number in range(int(group.max()) + 1)]

    def _group(
        self, out: LocalChunk, members: Indices, seeds: Seeds, state: Mapping[str, Floats]
    ) -> None:
        trained, settings, users = self.trained, self.settings, out.users[members]
        own: LocalState = {name: torch.from_numpy(rows[users]) for name, rows in state.items()}
        own = own or settings.optimizer.fresh(len(users), trained.dim)
        weights, unsent, total = self.start, trained.copy_unsent(), torch.zeros(len(users))
        whole = len(members) == len(out.users)
        updates = torch.from_numpy(out.updates) if whole else torch.empty(len(users), trained.dim)
        for step in range(settings.steps):
            # The last step writes gradients, then updates, into the output array: no extra copy.
            last = step == settings.steps - 1
            gradients = updates if last else torch.empty_like(updates)
            rows, present = draw_batch(self.rows, users, seeds, step, self.batch)
            batch = self.samples.batch(rows[:, : int(present[0].sum())])
            with seeded((int(seeds[0]) + step) % 2**63):
                method = self.gradient_methods.later if step else self.gradient_methods.first
                made: StepResult = getattr(trained, method)(weights, batch, unsent, gradients)
            rate = settings.rate.at(self.round_number * settings.steps + step)
            weights = settings.optimizer.advance(weights, made.gradients, own, rate)
            _set_buffers(trained, weights, made)
            total += made.losses
        torch.sub(weights, self.start, out=updates)
        if not whole:
            out.updates[members] = updates.numpy()
        out.losses[members] = (total / settings.steps).numpy()
        for name, kept in out.state.items():
            kept[members] = own[name].numpy()


def _empty_chunk(users: Indices, dim: int, state: Mapping[str, Floats]) -> LocalChunk:
    return LocalChunk(
        users,
        np.empty((len(users), dim), np.float32),
        np.empty(len(users), np.float32),
        {name: np.empty((len(users), *v.shape[1:]), np.float32) for name, v in state.items()},
    )


def _saved_floats(trained: TrainedModule, start: Tensor, batch: Batch) -> int:
    """The number of floats that torch stores for the gradient of one sample."""
    sizes: list[int] = []

    def note(saved: Tensor) -> Tensor:
        sizes.append(saved.numel())
        return saved

    with seeded(0), torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved):
        trained.loop(start, batch, trained.copy_unsent(), torch.empty(1, trained.dim))
    inputs = sum(one[0, 0].numel() for one in batch.inputs)
    return max((sum(sizes) - trained.dim) // PROBE_SAMPLES, inputs)
