"""The defence of a run: a row for each user, and the models from which the direction follows."""

from collections.abc import Iterable

import numpy as np

from hushbit.checks import Floats
from hushbit.defence.defence import Defence, model_direction
from hushbit.errors import DamagedFile, InvalidInput
from hushbit.flower.records import Arrays, layout
from hushbit.mechanism import Mechanism
from hushbit.tally.tally import Tally, Users
from hushbit.wire.ballot import Ballots
from hushbit.wire.keys import user_ids


class DefendedRun:
    """What a defence needs in later rounds.

    users     user number of each row
    rows      the columns of `Defence.start`
    first     the model before the first round, as a flat vector
    previous  the model before its last change
    """

    def __init__(self, defence: Defence, mechanism: Mechanism, model: Floats) -> None:
        if mechanism.votes is None or not mechanism.votes.readable:
            raise InvalidInput(
                "the defence decodes ballots one by one, which works with cpa, nested, signsgd and "
                f"mvu; got {mechanism.description['mechanism']}: choose one of these, or leave "
                "defence out"
            )
        self.defence, self.first, self.previous = defence, model, model
        self.users, self.rows = np.empty(0, dtype=np.uint64), defence.start(0)

    def enrol(self, users: Iterable[int]) -> None:
        """Enrol users before the first round; later users are newcomers, so this has no effect."""
        if not self.users.size:
            self._add(np.unique(user_ids(users)), enrolled=True)

    def count(self, empty: Tally, ballots: Ballots, model: Floats) -> tuple[Tally, dict[str, int]]:
        """The tally of the accepted ballots, and the number of the others by test.

        `model` is that of the requests. Ballots are in the order of their users.
        """
        self._add(np.setdiff1d(ballots.users, self.users), enrolled=False)
        order = np.argsort(self.users)
        at = order[np.searchsorted(self.users, ballots.users, sorter=order)]
        state = {name: column[at] for name, column in self.rows.items()}
        direction = model_direction(model, self.previous, self.first)
        tally, result = self.defence.count(
            empty.mechanism, ballots, empty.round_key, state, direction
        )
        for name, column in result.state.items():
            self.rows[name][at] = column
        return tally, result.removed_by

    def _add(self, users: Users, *, enrolled: bool) -> None:
        fresh = self.defence.start(users.size, enrolled=enrolled)
        self.users = np.concatenate([self.users, users])
        self.rows = {name: np.concatenate([self.rows[name], fresh[name]]) for name in fresh}

    @property
    def state(self) -> Arrays:
        """Users, models and rows as named arrays."""
        models = {"first model": self.first, "previous model": self.previous}
        return {"users": self.users, **models, **{f"row {n}": c for n, c in self.rows.items()}}

    def restore(self, saved: Arrays) -> None:
        """Restore a state that `state` returned, into a run without users."""
        users = saved.get("users", self.users)
        self._add(np.arange(users.size, dtype=np.uint64), enrolled=True)
        if (
            layout(saved) != layout(self.state)
            or np.unique(users).size < users.size
            or not all(np.isfinite(array).all() for array in saved.values())
        ):
            raise DamagedFile(
                "the checkpoint has no valid state of the defence: restore a copy of it, or start "
                "the run again in another folder"
            )
        self.users, self.first = users, saved["first model"]
        self.previous = saved["previous model"]
        self.rows = {name: saved[f"row {name}"] for name in self.rows}
