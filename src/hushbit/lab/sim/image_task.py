"""The built-in tasks: a model of `models` on an image data set of `datasets`."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hushbit.kernels import Flags
from hushbit.lab.attacks.poisoning import TARGET, poison_data, with_trigger
from hushbit.lab.sim import fast_steps
from hushbit.lab.sim.datasets import Dataset
from hushbit.lab.sim.learning_task import LearningTask
from hushbit.lab.sim.metrics import WORST_CLASS
from hushbit.lab.sim.models import Model, TensorSlot
from hushbit.lab.sim.partition import EqualOffsets, Federation, Indices, UserRows
from hushbit.lab.sim.training import (
    Floats,
    LocalChunk,
    LocalSettings,
    evaluate,
    local_updates,
    median_norm,
)

SIMULATED_USERS = 8
MAX_SIMULATED_SAMPLES = 256  # with more samples the norm hardly changes
SIMULATED_BLOCK = 4  # side of a block of equal pixels: images vary by shapes


@dataclass(frozen=True, eq=False)
class ImageTask(LearningTask):
    """A model, the images of users, a test set, and samples that are held out for validation."""

    model: Model
    data: Dataset
    federation: Federation
    validation: NDArray[np.int64]
    backdoor: bool = False

    @property
    def name(self) -> str:
        """Name of the data set."""
        return self.data.name

    @property
    def model_name(self) -> str:
        """Name of the model."""
        return self.model.name

    @property
    def note(self) -> str:
        """Where the initial weights come from."""
        return self.model.note

    @property
    def slots(self) -> tuple[TensorSlot, ...]:
        """The position of each tensor in the flat vector."""
        return self.model.shapes

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the inputs."""
        return self.model.input_shape

    @property
    def user_rows(self) -> UserRows:
        """The samples of each user."""
        return self.federation

    def init(self, seed: int) -> Floats:
        """The initial weights as a flat vector."""
        return self.model.init(seed)

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
        return local_updates(
            self.model,
            params,
            self.federation,
            users,
            settings,
            round_number=round_number,
            seed=seed,
            state=state,
        )

    def allocates_by_torch(self, settings: LocalSettings) -> bool:
        """Whether training allocates memory by torch, which compiled steps do not."""
        return not fast_steps.supports_linear_sgd(self.model, settings.steps, settings.optimizer)

    def scores(self, params: Floats) -> dict[str, float]:
        """Accuracy and loss on the test set, and other results, by their names in the metrics."""
        data = self.data
        test = evaluate(self.model, params, data.test_x, data.test_y)
        found = {
            "test_accuracy": test.accuracy,
            "test_loss": test.loss,
            WORST_CLASS: test.worst_class,
        }
        if self.backdoor:
            others = data.test_y != TARGET
            marked, wanted = with_trigger(data.test_x[others]), np.full(int(others.sum()), TARGET)
            found["backdoor_rate"] = evaluate(self.model, params, marked, wanted).accuracy
        if self.validation.size:
            held = self.validation
            score = evaluate(self.model, params, data.train_x[held], data.train_y[held])
            found["validation_accuracy"] = score.accuracy
        return found

    def poisoned(self, attackers: Flags, attack: str) -> "ImageTask":
        """The task with changed samples of attackers, if the attack changes samples."""
        changed = poison_data(self.federation, attackers, attack, self.data.classes)
        return dataclasses.replace(self, federation=changed, backdoor=attack == "backdoor")

    def public_norm(self, settings: LocalSettings, samples: int, seed: int) -> float:
        """The median norm of updates on `samples` samples, computed without users' data."""
        return simulated_update_norm(self.model, settings, samples, seed)

    def state_dict(self, params: Floats) -> dict[str, Tensor]:
        """The tensors of the model by name, with frozen statistics under torchvision's names."""
        named = self.model.tensors(torch.tensor(params))
        state = {name: one.clone() for name, one in named.items()}
        for norm, (mean, variance) in (self.model.statistics or {}).items():
            state |= {f"{norm}.running_mean": mean, f"{norm}.running_var": variance}
        return state


def task_without_data(model: Model) -> ImageTask:
    """A task with a model and no images, for mechanisms that depend only on the model."""
    images, rows = np.zeros((0, *model.input_shape), np.uint8), np.zeros(0, np.int64)
    data = Dataset("no data", model.classes, images, rows, images, rows)
    return ImageTask(model, data, Federation(rows, EqualOffsets(1, 0), images, rows), rows)


def simulated_update_norm(model: Model, local: LocalSettings, samples: int, seed: int) -> float:
    """The median norm of updates of simulated users with `samples` samples each, at most 256.

    Simulated users train once on images of random black and white blocks with random labels. No
    real data are used, so the result is public. On MNIST and CIFAR-10 the median norm of the first
    real updates was 0.5 to 1.1 times this value, for four models (`docs/signal.md`).
    """
    rng = np.random.default_rng([seed, 0x4EA])
    samples = min(samples, MAX_SIMULATED_SAMPLES)
    count, (channels, height, width) = SIMULATED_USERS * samples, model.input_shape
    blocks = rng.integers(
        0, 2, (count, channels, -(-height // SIMULATED_BLOCK), -(-width // SIMULATED_BLOCK))
    )
    images = np.kron(blocks, np.full((SIMULATED_BLOCK, SIMULATED_BLOCK), 255))[
        :, :, :height, :width
    ]
    labels = rng.integers(0, model.classes, count)
    parts = np.arange(count).reshape(SIMULATED_USERS, samples)
    optimizer = dataclasses.replace(local.optimizer, keep_state=False)
    chunks = local_updates(
        model,
        model.init(seed),
        Federation.of(images.astype(np.uint8), labels, parts),
        np.arange(SIMULATED_USERS),
        dataclasses.replace(local, optimizer=optimizer),
        round_number=0,
        seed=seed,
    )
    return median_norm(chunks)
