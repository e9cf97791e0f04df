"""`LearningTask`, the base class of tasks.

`ImageTask` implements it for the built-in models and data sets, `Task` for any torch module.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from hushbit.kernels import Flags
from hushbit.lab.sim.models import TensorSlot
from hushbit.lab.sim.partition import Indices, UserRows
from hushbit.lab.sim.training import Floats, LocalChunk, LocalSettings


class LearningTask(ABC):
    """A model, the data of users and a test set.

    name, model_name  names of the data and the model in records and reports
    note              where the initial weights come from
    slots             the position of each tensor in the flat vector
    user_rows         the samples of each user
    own_metrics       names of additional columns of the metrics file, such as test_mae
    digest            identifies the task in checkpoints; empty if the settings identify it
    image_shape       channels, height and width of the inputs; None if they are not images
    """

    @property
    @abstractmethod
    def name(self) -> str: ...  # noqa: D102

    @property
    @abstractmethod
    def model_name(self) -> str: ...  # noqa: D102

    @property
    @abstractmethod
    def note(self) -> str: ...  # noqa: D102

    @property
    @abstractmethod
    def slots(self) -> tuple[TensorSlot, ...]: ...  # noqa: D102

    @property
    @abstractmethod
    def user_rows(self) -> UserRows: ...  # noqa: D102

    @property
    def own_metrics(self) -> tuple[str, ...]:  # noqa: D102
        return ()

    @property
    def digest(self) -> bytes:  # noqa: D102
        return b""

    @property
    def image_shape(self) -> tuple[int, int, int] | None:  # noqa: D102
        return None

    @property
    def dim(self) -> int:
        """Number of entries that a user sends."""
        return self.slots[-1].stop

    @property
    def users(self) -> int:
        """Number of users."""
        return self.user_rows.users

    @property
    def largest(self) -> int:
        """The largest number of samples of a user."""
        return self.user_rows.largest

    def describe(self) -> dict[str, Any]:
        """Facts about the task for the run record, in addition to the settings."""
        return {}

    @abstractmethod
    def init(self, seed: int) -> Floats:
        """The initial weights as a flat vector."""

    @abstractmethod
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

    @abstractmethod
    def allocates_by_torch(self, settings: LocalSettings) -> bool:
        """Whether training allocates memory by torch, some of which stays in the heap."""

    def corrected(self, params: Floats) -> Floats:
        """The weights after a server step, within the limits of the model."""
        return params

    @abstractmethod
    def scores(self, params: Floats) -> dict[str, float]:
        """Test results by their names in the metrics."""

    @abstractmethod
    def poisoned(self, attackers: Flags, attack: str) -> "LearningTask":
        """The task with changed samples of attackers, if the attack changes samples."""

    @abstractmethod
    def public_norm(self, settings: LocalSettings, samples: int, seed: int) -> float:
        """The median norm of updates on `samples` samples, computed without users' data."""

    @abstractmethod
    def state_dict(self, params: Floats) -> dict[str, Tensor]:
        """The state of the model with these weights."""


def layer_slices(task: LearningTask) -> tuple[slice, ...]:
    """The slice of each tensor in the flat vector."""
    return tuple(slice(slot.start, slot.stop) for slot in task.slots)
