"""What the server remembers of users from round to round: sums of scores, nothing else.

Round t has two directions d, of length 1: the mean of the others' ballots, and the way that the
model has come since the first round, which is known before the ballots are. The sums

    A <- memory · A + y · d,      n <- memory² · n + 1,      noise of A / sqrt(n): variance 1

tell those who push against the others a little in every round, which one ballot never does.
Ballots are private already, and so is everything that is computed from them.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import whole
from hushbit.errors import InvalidInput

Vector = NDArray[np.float64]
Flags = NDArray[np.bool_]
State = dict[str, Vector]


@dataclass(frozen=True, eq=False)
class Memory:
    """Sums over rounds, a row for each user.

    mean, way  scores on the others' mean and on the way that the model has come
    rounds     n of each user, rounds with a way only
    shared     last scores on what users share besides the mean
    gone       who was last found against the others
    last       who took part in the last round
    """

    mean: Vector
    way: Vector
    rounds: Vector
    shared: Vector
    gone: Flags
    last: Flags

    @classmethod
    def fresh(cls, users: int) -> "Memory":
        """Nothing is known of anybody."""
        zeros = np.zeros(whole("users", users, 0))
        return cls(zeros, zeros, zeros, zeros, zeros > 0, zeros > 0)

    @property
    def goes_on(self) -> bool:
        """Whether these are users of the last round, so that its scores say who shares what."""
        return bool(self.last.all())

    def of(self, users: NDArray[np.integer]) -> "Memory":
        """The rows of some users."""
        return Memory(*(part[users] for part in vars(self).values()))

    def heard(self, mean: Vector, way: Vector, keep: float) -> "Memory":
        """With one round's scores added."""
        rounds = keep**2 * self.rounds + 1
        mean, way = keep * self.mean + mean, keep * self.way + way
        return dataclasses.replace(self, mean=mean, way=way, rounds=rounds)

    def after(self, shared: Vector, gone: Flags) -> "Memory":
        """What a round leaves: its scores on what users share, and who was found."""
        return dataclasses.replace(self, shared=shared, gone=gone, last=np.ones_like(gone))

    def with_rows(self, users: NDArray[np.integer], rows: "Memory") -> "Memory":
        """After a round of some users, whose rows are replaced."""
        made = {}
        for name, part in vars(self).items():
            made[name] = np.zeros_like(part) if name == "last" else part.copy()
            made[name][users] = getattr(rows, name)
        return Memory(**made)

    @property
    def state(self) -> State:
        """All of it as arrays for a checkpoint."""
        return {name: part.astype(np.float64) for name, part in vars(self).items()}

    @classmethod
    def resumed(cls, state: State) -> "Memory":
        """The memory that `state` gave."""
        names = [field.name for field in dataclasses.fields(cls)]
        if set(state) != set(names) or not _rows([state[name] for name in names]):
            raise InvalidInput(
                f"a memory holds {', '.join(names)}, each a finite number for every user"
            )
        if (state["rounds"] < 0).any():
            raise InvalidInput("a memory counts rounds from zero on; got a negative number")
        sums = {name: state[name] for name in names if name not in ("gone", "last")}
        return cls(**sums, gone=state["gone"] > 0, last=state["last"] > 0)


def _rows(parts: list[Vector]) -> bool:
    """Whether all are finite real numbers, as many of each."""
    real = all(part.ndim == 1 and part.dtype.kind in "fiub" for part in parts)
    return real and len({part.size for part in parts}) == 1 and bool(np.isfinite(parts).all())
