"""`Task`: any `torch.nn.Module` with its loss, the data of clients, a test set and metrics.

task = Task(model=MyLSTM(), loss=F.cross_entropy, clients=[(x0, y0), (x1, y1)], test=(tx, ty))

`load_task` reads a task from a Python file, for the command line.
"""

import copy
import dataclasses
import hashlib
import importlib
import inspect
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hushbit.errors import HushbitError, InvalidInput
from hushbit.kernels import Flags
from hushbit.lab.attacks import POISONING
from hushbit.lab.attacks.poisoning import rows_of
from hushbit.lab.sim.client_data import (
    Array,
    Batch,
    Prepare,
    Samples,
    owners_text,
    read_clients,
    read_samples,
    rows_not_finite,
)
from hushbit.lab.sim.learning_task import LearningTask
from hushbit.lab.sim.metrics import WORST_CLASS, worst_class_accuracy
from hushbit.lab.sim.models import TensorSlot, flat_tensor
from hushbit.lab.sim.module_training import (
    Loss,
    ModuleJob,
    TrainedModule,
    choose_gradient_methods,
    seeded,
)
from hushbit.lab.sim.partition import Indices, UserRows
from hushbit.lab.sim.per_user_gradients import FastLayers
from hushbit.lab.sim.training import (
    EVALUATION_BATCH,
    Floats,
    LocalChunk,
    LocalSettings,
    median_norm,
)

Metric = Callable[[Any, Tensor], Any]
SIMULATED_USERS = 8


class Task(LearningTask):
    """A model, its loss, the data of clients, and a test set.

    model    a module, whose weights are the initial ones; or a function that returns a module,
             called with torch's generator set to the seed of the run
    loss     function of outputs and targets of a batch that returns their mean loss
    clients  pairs (x, y), one for each user; or an object with `load_partition`, such as a
             FederatedDataset of flwr-datasets; or, with `data`, the row numbers of each user
    test     a pair (x, y) on which models are evaluated; it is not private
    data     a pair (x, y) with the samples of all clients; `clients` then lists row numbers
    metrics  functions of outputs and targets of the whole test set; by default the accuracy, if
             targets are classes
    frozen   name patterns of tensors that are neither trained nor sent, such as "*running_mean"
    prepare  function that turns a client, the test set and `data` into a pair (x, y)
    name     name of the data in records

    Inputs x are an array, or a tuple or a dict of arrays for models with several arguments.
    Parameters that are trained and floating-point buffers are sent; parameters without
    `requires_grad` and integer buffers keep their value.
    """

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        loss: Loss,
        clients: Any,
        test: Any,
        *,
        data: Any = None,
        metrics: Mapping[str, Metric] | None = None,
        frozen: Sequence[str] = (),
        prepare: Prepare | None = None,
        name: str = "own data",
    ) -> None:
        samples, self.rows = read_clients(clients, data, prepare)
        self.samples = samples.stored()
        self.test = read_samples(test, prepare, "test").stored()
        if self.test.names != self.samples.names:
            raise InvalidInput("test must have the same inputs as the clients")
        self._refuse(rows_not_finite, "NaN or infinite values in the data: remove or replace them")
        if not callable(loss) or isinstance(loss, type):
            raise InvalidInput(
                "loss must be a function of outputs and targets, such as F.cross_entropy or "
                f"nn.CrossEntropyLoss(); got {loss!r}"
            )
        self.model, self.loss = model, loss
        module = self._module(0)
        self._name = name
        self.metrics = _checked_metrics(metrics)
        self.trained = TrainedModule(module, loss, self.samples.names, frozen)
        self.gradient_methods = choose_gradient_methods(self.trained, self.test)
        self.classes = self._count_classes()
        self._accuracy = metrics is None and self.classes is not None
        if self.classes is not None:
            self._refuse(
                self._wrong_labels,
                f"labels that the loss does not accept: the model has {self.classes} outputs, for "
                f"labels from 0 to {self.classes - 1}",
            )

    def __repr__(self) -> str:
        return (
            f"Task({self.model_name}: {self.dim} weights, {self.users} clients, "
            f"{len(self.samples)} samples, {len(self.test)} for the test)"
        )

    def _refuse(self, find: Callable[[Samples], Array], what: str) -> None:
        """Refuse data in which `find` marks samples of a client or of the test set."""
        if owners := owners_text(self.rows, find(self.samples)):
            raise InvalidInput(f"{owners}: {what}")
        if find(self.test).any():
            raise InvalidInput(f"test set: {what}")

    def _wrong_labels(self, samples: Samples) -> Array:
        """Which samples have labels that are not classes and that the loss refuses.

        A loss may accept some, such as -100, which the cross entropy ignores.
        """
        assert self.classes is not None
        labels = samples.targets.reshape(len(samples), -1)
        wrong: Array = np.zeros(len(samples), dtype=bool)
        for label in np.unique(labels[(labels < 0) | (labels >= self.classes)]):
            found = (labels == label).any(axis=1)
            row = int(found.argmax())
            try:
                ((batch, outputs),) = self._outputs(self.init(0), samples.part(slice(row, row + 1)))
                self.trained.loss_of(outputs, batch.targets)
            except (IndexError, RuntimeError, ValueError):
                wrong |= found
        return wrong

    def _module(self, seed: int) -> nn.Module:
        """The module with its initial weights."""
        if isinstance(self.model, nn.Module):
            return self.model
        made: Any = self.model
        if callable(made):
            with seeded(seed):
                made = _call_without_arguments(made, "model")
        if not isinstance(made, nn.Module):
            raise InvalidInput(
                "model must be a torch.nn.Module, or a function that returns one; got "
                f"{type(made).__name__}"
            )
        return made

    @property
    def name(self) -> str:
        """Name of the data."""
        return self._name

    @property
    def model_name(self) -> str:
        """Name of the class of the model."""
        return type(self.trained.module).__name__

    @property
    def slots(self) -> tuple[TensorSlot, ...]:
        """The position of each tensor in the flat vector."""
        return self.trained.slots

    @property
    def user_rows(self) -> UserRows:
        """The samples of each user."""
        return self.rows

    @property
    def note(self) -> str:
        """Where the initial weights come from."""
        given = isinstance(self.model, nn.Module)
        return "weights of the given module" if given else "random start"

    @property
    def own_metrics(self) -> tuple[str, ...]:
        """Names of the columns that the metrics of the task add to the metrics file."""
        return tuple(f"test_{name}" for name in self.metrics)

    def init(self, seed: int) -> Floats:
        """The initial weights as a flat vector."""
        return self.trained.flat(self._module(seed))

    def local_updates(
        self,
        params: Floats,
        users: Indices,
        settings: LocalSettings,
        *,
        round_number: int,
        seed: int,
        state: Mapping[str, Floats] | None = None,
    ) -> Iterator[LocalChunk]:
        """Train users from the same params; yield their updates in chunks of ascending users."""
        job = ModuleJob(
            self.trained,
            self.gradient_methods,
            flat_tensor(params),
            self.samples,
            self.rows,
            settings,
            round_number,
        )
        return job.chunks(users, seed, state or {})

    def corrected(self, params: Floats) -> Floats:
        """The weights after a server step, with running variances of at least zero."""
        return self.trained.corrected(params)

    def allocates_by_torch(self, settings: LocalSettings) -> bool:
        """Whether training leaves blocks of torch in memory."""
        return True

    def poisoned(self, attackers: Flags, attack: str) -> "Task":
        """The task with changed labels of attackers, for the attack label-flip."""
        if attack not in POISONING:
            return self
        targets = self.samples.targets
        if attack != "label-flip" or targets.dtype.kind not in "iu" or targets.ndim != 1:
            raise InvalidInput(
                f"the attack {attack} changes {'images' if attack == 'backdoor' else 'classes'}, "
                "which this task does not have: choose an attack on updates or ballots"
            )
        rows, honest = (rows_of(self.rows, users) for users in (attackers, ~attackers))
        if np.intersect1d(rows, honest).size:
            raise InvalidInput(f"{attack} would change samples that honest users also hold")
        last = max(int(targets.max()), int(self.test.targets.max()))
        changed = copy.copy(self)
        flipped = targets.copy()
        flipped[rows] = last - flipped[rows]
        changed.samples = dataclasses.replace(self.samples, targets=flipped)
        return changed

    def public_norm(self, settings: LocalSettings, samples: int, seed: int) -> float:
        """The median norm of updates that simulated users compute on samples of the test set.

        The server already has the test set, so the norm reveals nothing about users.
        """
        rng = np.random.default_rng([seed, 0x4EA])
        rows = rng.integers(0, len(self.test), (SIMULATED_USERS, min(samples, len(self.test))))
        optimizer = dataclasses.replace(settings.optimizer, keep_state=False)
        job = ModuleJob(
            self.trained,
            self.gradient_methods,
            flat_tensor(self.init(seed)),
            self.test,
            UserRows.from_parts(rows, len(self.test)),
            dataclasses.replace(settings, optimizer=optimizer),
            round_number=0,
            on_test_set=True,
        )
        return median_norm(job.chunks(np.arange(SIMULATED_USERS), seed, {}))

    def scores(self, params: Floats) -> dict[str, float]:
        """Test results by their names in a row of the metrics."""
        found = self.evaluate(params)
        worst = {name: found.pop(name) for name in (WORST_CLASS,) if name in found}
        return {f"test_{name}": value for name, value in found.items()} | worst

    def evaluate(self, params: Floats) -> dict[str, float]:
        """The results on the test set.

        They are the loss, the accuracy and that of the worst class if targets are classes, and the
        metrics of the task.
        """
        samples = self.test
        loss, correct, kept = 0.0, [], []
        for batch, outputs in self._outputs(params, samples):
            targets = batch.targets
            loss += float(self.trained.loss_of(outputs, targets)) * len(targets)
            if self._accuracy:
                correct.append((outputs.argmax(dim=1) == targets).numpy())
            if self.metrics:
                kept.append(outputs)
        scores = {"loss": loss / len(samples)}
        if self._accuracy:
            hits = np.concatenate(correct)
            scores["accuracy"] = int(hits.sum()) / samples.targets.size
            scores[WORST_CLASS] = worst_class_accuracy(hits, samples.targets)
        if self.metrics:
            whole, targets = torch.cat(kept), torch.from_numpy(samples.targets)
            scores |= {name: self._metric(name, whole, targets) for name in self.metrics}
        return scores

    def _metric(self, name: str, outputs: Tensor, targets: Tensor) -> float:
        try:
            with warnings.catch_warnings():
                # Outputs (n, 1) and targets (n,) are broadcast to (n, n), which measures nonsense.
                warnings.filterwarnings("error", message="Using a target size")
                return float(self.metrics[name](outputs, targets))
        except Exception as error:  # of the user's own function
            raise InvalidInput(
                f"metric {name} must return one number for outputs of shape "
                f"{tuple(outputs.shape)} and targets of shape {tuple(targets.shape)}: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _outputs(self, params: Floats, samples: Samples) -> Iterator[tuple[Batch, Any]]:
        """The outputs for all samples, batch by batch."""
        trained = self.trained
        trained.load(flat_tensor(params), trained.unsent)
        trained.module.eval()
        try:
            with torch.no_grad(), FastLayers():  # a module may keep tensors for its training
                for begin in range(0, len(samples), EVALUATION_BATCH):
                    batch = samples.batch(slice(begin, begin + EVALUATION_BATCH))
                    yield batch, trained.call(batch.inputs)
        finally:
            trained.module.train()

    def _count_classes(self) -> int | None:
        """The size of the dimension that outputs have more than integer targets, else None."""
        if self.test.targets.dtype.kind not in "iu":
            return None
        ((batch, outputs),) = self._outputs(self.init(0), self.test.part(slice(1)))
        if not isinstance(outputs, Tensor):
            return None
        shape = tuple(batch.targets.shape)
        return outputs.shape[1] if outputs.shape[:1] + outputs.shape[2:] == shape else None

    def describe(self) -> dict[str, Any]:
        """What the run record says about the task."""
        return {
            "samples": len(self.samples),
            "test_samples": len(self.test),
            "metrics": ["loss", *(["accuracy"] if self._accuracy else []), *self.metrics],
            "training": self.gradient_methods.describe(),
            "sha256": self.digest.hex(),
        }

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the data and of the tensors that users do not send; identifies the task.

        Initial weights are left out: a checkpoint contains the current ones.
        """
        made = hashlib.sha256()
        for slot in self.slots:
            made.update(f"{slot.name} {slot.shape}".encode())
        arrays = [tensor.numpy() for tensor in self.trained.unsent.values()]
        for part in (self.samples, self.test):
            arrays += [*part.inputs, part.targets]
        for array in (*arrays, self.rows.members, self.rows.counts):
            made.update(f"{array.dtype.str} {array.shape}".encode())
            made.update(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data)
        return made.digest()

    def module(self, params: Floats) -> nn.Module:
        """A copy of the model with these weights."""
        made = copy.deepcopy(self.trained.module)
        self.trained.load(flat_tensor(params), self.trained.unsent, made)
        return made.eval()

    def state_dict(self, params: Floats) -> dict[str, Tensor]:
        """The state of the model with these weights, loadable by `load_state_dict`."""
        return dict(self.module(params).state_dict())


def _checked_metrics(metrics: Mapping[str, Metric] | None) -> dict[str, Metric]:
    if metrics is not None and not isinstance(metrics, Mapping):
        raise InvalidInput(
            'metrics must be functions by name, such as {"mae": F.l1_loss}; got '
            f"{type(metrics).__name__}"
        )
    for name, meaning in (("loss", "loss"), (WORST_CLASS, "worst class")):
        if name in (metrics or {}):
            raise InvalidInput(
                f"a metric needs another name than {name}, which is the {meaning} of the task"
            )
    return dict(metrics or {})


def _call_without_arguments(function: Callable[[], Any], what: str) -> Any:
    """The result of a function that takes no arguments."""
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise InvalidInput(
            f"{what} must be callable without arguments ({error}): wrap it, as in "
            "lambda: MyModel(10)"
        ) from None
    except ValueError:  # built-in functions without a signature
        pass
    return function()


def _import_task_file(path: Path) -> ModuleType:
    """The module in a file of the user; an error in it becomes one line."""
    try:
        return importlib.import_module(path.stem)
    except HushbitError:
        raise
    except ModuleNotFoundError as error:
        raise InvalidInput(
            f"{path.name} imports {error.name}, which is not installed: install it, or correct the "
            "name"
        ) from error
    except Exception as error:  # whatever the file does
        raise _task_file_error(path, error) from error


def _task_file_error(path: Path, error: Exception) -> InvalidInput:
    """The error with the last line of the user's file that it passed."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    where = path.name if line is None else f"{path.name}, line {line}"
    return InvalidInput(f"{where}: {type(error).__name__}: {error} (--debug shows the traceback)")


@cache
def load_task(place: str) -> Task:
    """Load the task from a place such as my_task.py:task, the name of a Task or of a function.

    The file is imported under its own name, so that worker processes can import it.
    """
    path_text, colon, name = place.rpartition(":")
    path = Path(path_text).resolve()
    if not colon or not name or path.suffix != ".py":
        raise InvalidInput(
            f"a task is a Python file and a name in it, as in my_task.py:task; got {place!r}. A "
            "run that was started from Python can only be resumed from Python"
        )
    if not path.is_file():
        raise InvalidInput(f"{path_text} is not a file: give the Python file that defines the task")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # last, so that no file in it hides a standard module
    module = _import_task_file(path)
    if Path(getattr(module, "__file__", None) or "").resolve() != path:
        raise InvalidInput(
            f"{path.name} has the name of another module, {path.stem}: rename the file"
        )
    if not hasattr(module, name):
        raise InvalidInput(f"{path.name} has no name {name}")
    found = getattr(module, name)
    if callable(found) and not isinstance(found, Task):
        try:
            inspect.signature(found).bind()
        except TypeError as error:
            raise InvalidInput(
                f"{name} in {path.name} must return a task without arguments: {error}"
            ) from None
        try:
            found = found()
        except HushbitError:
            raise
        except Exception as error:  # of the user's own function
            raise _task_file_error(path, error) from error
    if not isinstance(found, Task):
        raise InvalidInput(
            f"{name} in {path.name} must be a hushbit.lab.Task, or a function that returns one; "
            f"got {type(found).__name__}"
        )
    return found
