"""Who holds which samples: partitions of a data set among users, and the federation they make.

Every partition is a function of labels (or writers) and a NumPy generator to index arrays.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import positive, whole
from hushbit.errors import InvalidInput

Indices = NDArray[np.int64]
Table = NDArray[np.integer]
Parts = list[Indices] | Table
DRAWN_AT_ONCE = 1 << 16


def iid(labels: NDArray[Any], users: int, rng: np.random.Generator) -> list[Indices]:
    """Deal all samples at random; sizes differ by at most one."""
    count, users = _counted(labels, users)
    return [np.sort(part) for part in np.array_split(rng.permutation(count), users)]


def per_user(
    labels: NDArray[Any],
    users: int,
    rng: np.random.Generator,
    samples: int,
    replace: bool = False,
) -> Table:
    """Give every user `samples` random samples: no sample twice, unless `replace` is true.

    Returns an array of shape (users, samples).
    """
    count = len(_labels(labels))
    users, samples = whole("users", users, 1), whole("samples", samples, 1)
    if replace:
        drawn = np.empty((users, samples), dtype=_narrowest(count))
        for begin in range(0, users, DRAWN_AT_ONCE):
            part = drawn[begin : begin + DRAWN_AT_ONCE]
            part[:] = rng.integers(0, count, size=part.shape)
        return drawn
    if users * samples > count:
        raise InvalidInput(
            f"{users} users with {samples} samples each need {users * samples} samples, the data "
            f"set has {count}; take at most {count // samples} users or allow replace=True"
        )
    return rng.permutation(count)[: users * samples].reshape(users, samples)


def dirichlet(
    labels: NDArray[Any],
    users: int,
    rng: np.random.Generator,
    alpha: float,
    at_least: int = 1,
) -> list[Indices]:
    """Split each class by shares drawn from Dirichlet(alpha, ..., alpha): small alpha, skewed.

    Users left with fewer than `at_least` samples take random ones from whoever has most.
    """
    count, users = _counted(labels, users)
    alpha, at_least = positive("alpha", alpha), whole("at_least", at_least, 0)
    if users * at_least > count:
        raise InvalidInput(f"{users} users cannot all have {at_least} of {count} samples")
    owner = np.empty(count, dtype=np.int64)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(users, alpha))
        if not np.isfinite(shares).all():
            raise InvalidInput(f"alpha={alpha} is too small or too large to draw shares from")
        ends = np.rint(np.cumsum(shares) * len(members)).astype(np.int64)
        ends[-1] = len(members)
        owner[members] = np.searchsorted(ends, np.arange(len(members)), side="right")
    _fill_poor(owner, users, at_least, rng)
    return _grouped(owner, users)


def shards(
    labels: NDArray[Any], users: int, rng: np.random.Generator, shards_per_user: int
) -> list[Indices]:
    """Sort by label, cut into users * shards_per_user runs, deal every user that many at random."""
    count, users = _counted(labels, users)
    pieces = users * whole("shards_per_user", shards_per_user, 1)
    if pieces > count:
        raise InvalidInput(f"{pieces} shards need as many samples, the data set has {count}")
    runs = np.array_split(np.argsort(labels, kind="stable"), pieces)
    hands = rng.permutation(pieces).reshape(users, shards_per_user)
    return [np.sort(np.concatenate([runs[run] for run in hand])) for hand in hands]


def by_writer(
    writers: NDArray[Any] | None, rng: np.random.Generator, users: int | None = None
) -> list[Indices]:
    """Make every writer one user; with `users`, take that many writers at random."""
    if writers is None:
        raise InvalidInput("this data set does not say who wrote a sample; use mnist, with writers")
    names, owner = np.unique(_labels(writers), return_inverse=True)
    parts = _grouped(owner.astype(np.int64), len(names))
    if users is None:
        return parts
    if whole("users", users, 1) > len(names):
        raise InvalidInput(f"{users} users asked, there are {len(names)} writers; ask for fewer")
    return [parts[index] for index in np.sort(rng.permutation(len(names))[:users])]


def hold_out(count: int, size: int, rng: np.random.Generator) -> tuple[Indices, Indices]:
    """Split 0..count-1 at random into training and `size` validation indices, both sorted."""
    count, size = whole("count", count, 1), whole("size", size, 0)
    if size >= count:
        raise InvalidInput(f"cannot hold out {size} of {count} samples; hold out fewer")
    order = rng.permutation(count)
    return np.sort(order[size:]), np.sort(order[:size])


@dataclass(frozen=True)
class EvenStarts:
    """What `starts` of a federation is where all users hold as many: begins without an array."""

    users: int
    each: int

    def __len__(self) -> int:
        return self.users + 1

    def __getitem__(self, user: Any) -> Any:
        return user * self.each


@dataclass(frozen=True, eq=False)
class Federation:
    """A data set and who holds what: user u holds members[starts[u]:starts[u + 1]].

    Images stay one shared uint8 array; a user is a slice of row numbers, however ragged.
    """

    images: NDArray[np.uint8]
    labels: Indices
    members: Table
    starts: Table | EvenStarts

    @classmethod
    def of(cls, images: NDArray[np.uint8], labels: NDArray[Any], parts: Parts) -> "Federation":
        """Join a data set (samples, channels, height, width) with the parts of its users."""
        images, labels = np.asarray(images), _labels(labels)
        if images.dtype != np.uint8 or images.ndim != 4 or len(images) != len(labels):
            raise InvalidInput(
                f"images are {images.shape} of {images.dtype} for {len(labels)} labels; give "
                "uint8 of shape (samples, channels, height, width), one label each"
            )
        if labels.dtype.kind not in "iu":
            raise InvalidInput(f"labels are {labels.dtype}; give whole numbers")
        members, counts = _joined(parts)
        if members.size and not 0 <= members.min() <= members.max() < len(labels):
            raise InvalidInput(f"parts name samples outside 0..{len(labels) - 1}")
        if isinstance(counts, EvenStarts):
            starts: Table | EvenStarts = counts
        else:
            starts = compact(np.concatenate([[0], np.cumsum(counts)]))
        return cls(images, labels.astype(np.int64), compact(members), starts)

    @property
    def users(self) -> int:
        """Number of users."""
        return len(self.starts) - 1

    @property
    def counts(self) -> Indices:
        """Number of samples of each user."""
        if isinstance(self.starts, EvenStarts):
            return np.full(self.users, self.starts.each)
        return np.diff(self.starts).astype(np.int64, copy=False)

    @cached_property
    def largest(self) -> int:
        """Samples of the user who has most; found once, since it looks at all users."""
        return self.starts.each if isinstance(self.starts, EvenStarts) else int(self.counts.max())

    def held_by(self, user: int) -> Indices:
        """Row numbers of one user's samples."""
        user = whole("user", user, 0, self.users - 1)
        own = self.members[self.starts[user] : self.starts[user + 1]]
        return own.astype(np.int64)


def _labels(labels: NDArray[Any]) -> NDArray[Any]:
    array = np.asarray(labels)
    if array.ndim != 1 or array.size == 0:
        raise InvalidInput(f"labels have shape {array.shape}; give one per sample, at least one")
    return array


def _counted(labels: NDArray[Any], users: int) -> tuple[int, int]:
    count, users = len(_labels(labels)), whole("users", users, 1)
    if users > count:
        raise InvalidInput(
            f"{users} users are more than the {count} samples; take at most {count} users, or "
            "n samples per user with replace=True"
        )
    return count, users


def _grouped(owner: Indices, users: int) -> list[Indices]:
    order = np.argsort(owner, kind="stable")
    ends = np.cumsum(np.bincount(owner, minlength=users))[:-1]
    return np.split(order, ends)


def _fill_poor(owner: Indices, users: int, at_least: int, rng: np.random.Generator) -> None:
    counts = np.bincount(owner, minlength=users)
    for poor in np.flatnonzero(counts < at_least):
        while counts[poor] < at_least:
            rich = int(np.argmax(counts))
            owner[rng.choice(np.flatnonzero(owner == rich))] = poor
            counts[rich] -= 1
            counts[poor] += 1


def _joined(parts: Parts | Sequence[Indices]) -> tuple[Table, Indices | EvenStarts]:
    if len(parts) == 0:
        raise InvalidInput("there are no users; give at least one part")
    counts: Indices | EvenStarts
    if isinstance(parts, np.ndarray) and parts.ndim == 2:
        counts = EvenStarts(*parts.shape)
        members = parts.reshape(-1)
    else:
        rows = [np.asarray(part).reshape(-1) for part in parts]
        counts = np.array([len(row) for row in rows], dtype=np.int64)
        members = np.concatenate(rows)
    if members.size and members.dtype.kind not in "iu":
        raise InvalidInput(f"parts hold {members.dtype}; give row numbers")
    return members if members.size else members.astype(np.int64), counts


def compact(numbers: NDArray[np.integer]) -> Table:
    """The same numbers, none of them negative, in as few bytes as the largest needs.

    A million users of five samples hold five million: 10 MB of a data set of 60 000.
    """
    return numbers.astype(_narrowest(int(numbers.max()) + 1 if numbers.size else 1))


def _narrowest(count: int) -> type[np.integer]:
    """The shortest type of 0 … count-1 that stays whole in sums with 64 bits."""
    if count <= 2**16:
        return np.uint16
    return np.int32 if count <= 2**31 else np.int64
