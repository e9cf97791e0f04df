"""The roll: who has voted, in eight bytes a user."""

import numpy as np
from numpy.typing import NDArray


def ascending(users: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The users in order; those that already are, as batches mostly are, cost no sorting."""
    return users if (users[1:] > users[:-1]).all() else np.sort(users)


class Roll:
    """A growing set of user numbers, kept as a few sorted runs of doubling size."""

    def __init__(self) -> None:
        self._runs: list[NDArray[np.uint64]] = []

    def __len__(self) -> int:
        return sum(run.size for run in self._runs)

    def find(self, users: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which of these users are on the roll."""
        known = np.zeros(users.size, dtype=np.bool_)
        for run in self._runs:
            place = np.searchsorted(run, users)
            known |= run[np.minimum(place, run.size - 1)] == users
        return known

    def add(self, users: NDArray[np.uint64]) -> None:
        """Enter users that are not yet on the roll."""
        if users.size == 0:
            return
        self._runs.append(ascending(users).copy())
        # Merging only runs of like size keeps the total work at n log n.
        while len(self._runs) > 1 and self._runs[-2].size <= 2 * self._runs[-1].size:
            merged = np.concatenate([self._runs.pop(), self._runs.pop()])
            # Sorting in place keeps the peak at sixteen bytes a user.
            merged.sort()
            self._runs.append(merged)

    def users(self) -> NDArray[np.uint64]:
        """All users, ascending."""
        if not self._runs:
            return np.empty(0, dtype=np.uint64)
        return np.sort(np.concatenate(self._runs))
