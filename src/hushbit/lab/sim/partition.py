"""Partitions of a data set among users, and the federation that results.

A partition is a function from labels (or writers) and a NumPy generator to index arrays.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.errors import InvalidInput

Indices = NDArray[np.int64]
IndexTable = NDArray[np.integer]
Parts = list[Indices] | IndexTable
DRAW_CHUNK = 1 << 16


def iid(labels: NDArray[Any], users: int, rng: np.random.Generator) -> list[Indices]:
    """Distribute all samples at random; sizes differ by at most one."""
    count = _check_count(labels, users)
    return [np.sort(part) for part in np.array_split(rng.permutation(count), users)]


def same_size_parts(
    labels: NDArray[Any], users: int, rng: np.random.Generator, samples: int, replace: bool = False
) -> IndexTable:
    """Give every user `samples` random samples; no sample twice unless `replace` is true.

    The result has shape (users, samples).
    """
    count = len(labels)
    if replace:
        drawn = np.empty((users, samples), dtype=_narrowest_dtype(count))
        for begin in range(0, users, DRAW_CHUNK):
            part = drawn[begin : begin + DRAW_CHUNK]
            part[:] = rng.integers(0, count, size=part.shape)
        return drawn
    if users * samples > count:
        raise InvalidInput(
            f"{users} users with {samples} samples each need {users * samples} samples; the data "
            f"set has {count}: use at most {count // samples} users or replace=True"
        )
    return rng.permutation(count)[: users * samples].reshape(users, samples)


def dirichlet(
    labels: NDArray[Any], users: int, rng: np.random.Generator, alpha: float
) -> list[Indices]:
    """Split each class by shares drawn from Dirichlet(alpha, ..., alpha); small alpha is skewed.

    A user without samples gets a random one of the user who has most.
    """
    owner = np.empty(_check_count(labels, users), dtype=np.int64)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(users, alpha))
        if not np.isfinite(shares).all():
            raise InvalidInput(f"alpha={alpha} is too small or too large to draw shares from")
        ends = np.rint(np.cumsum(shares) * len(members)).astype(np.int64)
        ends[-1] = len(members)
        owner[members] = np.searchsorted(ends, np.arange(len(members)), side="right")
    counts = np.bincount(owner, minlength=users)
    for empty in np.flatnonzero(counts == 0):
        largest = int(np.argmax(counts))
        owner[rng.choice(np.flatnonzero(owner == largest))] = empty
        counts[largest] -= 1
        counts[empty] = 1
    return _rows_by_owner(owner, users)


def shards(
    labels: NDArray[Any], users: int, rng: np.random.Generator, shards_per_user: int
) -> list[Indices]:
    """Sort by label, cut into users * shards_per_user shards, give each user random ones."""
    count, pieces = _check_count(labels, users), users * shards_per_user
    if pieces > count:
        raise InvalidInput(
            f"{pieces} shards need at least as many samples; the data set has {count}"
        )
    shard_rows = np.array_split(np.argsort(labels, kind="stable"), pieces)
    assigned = rng.permutation(pieces).reshape(users, shards_per_user)
    return [np.sort(np.concatenate([shard_rows[one] for one in own])) for own in assigned]


def by_writer(writers: NDArray[Any], users: int, rng: np.random.Generator) -> list[Indices]:
    """Make each of `users` writers, chosen at random, one user."""
    names, owner = np.unique(writers, return_inverse=True)
    parts = _rows_by_owner(owner.astype(np.int64), len(names))
    if users > len(names):
        raise InvalidInput(f"users must be at most the {len(names)} writers; got {users}")
    return [parts[index] for index in np.sort(rng.permutation(len(names))[:users])]


def hold_out(count: int, size: int, rng: np.random.Generator) -> tuple[Indices, Indices]:
    """Split 0..count-1 at random into training and `size` validation indices, both sorted."""
    if size >= count:
        raise InvalidInput(f"cannot hold out {size} of {count} samples; hold out fewer")
    order = rng.permutation(count)
    return np.sort(order[size:]), np.sort(order[:size])


@dataclass(frozen=True)
class EqualOffsets:
    """The `starts` of a federation whose users all hold `each` samples, without an array."""

    users: int
    each: int

    def __len__(self) -> int:
        return self.users + 1

    def __getitem__(self, user: Any) -> Any:
        return user * self.each


@dataclass(frozen=True, eq=False)
class UserRows:
    """Which rows of the data each user holds: user u holds members[starts[u]:starts[u + 1]]."""

    members: IndexTable
    starts: IndexTable | EqualOffsets

    @classmethod
    def from_parts(cls, parts: Parts, count: int) -> "UserRows":
        """The rows of each user, which must lie in 0..count-1."""
        starts: IndexTable | EqualOffsets
        if isinstance(parts, np.ndarray):
            members, starts = parts.reshape(-1), EqualOffsets(*parts.shape)
        else:
            members = np.concatenate(parts)
            starts = narrow_dtype(np.cumsum([0, *(len(part) for part in parts)]))
        if members.size and not 0 <= members.min() <= members.max() < count:
            raise InvalidInput(f"rows of users must lie in 0..{count - 1}")
        return UserRows(narrow_dtype(members), starts)

    @property
    def users(self) -> int:
        """Number of users."""
        return len(self.starts) - 1

    @property
    def counts(self) -> Indices:
        """Number of samples of each user."""
        if isinstance(self.starts, EqualOffsets):
            return np.full(self.users, self.starts.each)
        return np.diff(self.starts).astype(np.int64, copy=False)

    @cached_property
    def largest(self) -> int:
        """The largest number of samples of a user."""
        return self.starts.each if isinstance(self.starts, EqualOffsets) else int(self.counts.max())

    def samples_of(self, user: int) -> Indices:
        """Row numbers of one user's samples."""
        return self.members[self.starts[user] : self.starts[user + 1]].astype(np.int64)


@dataclass(frozen=True, eq=False)
class Federation(UserRows):
    """Images as one uint8 array, their labels, and the rows of each user."""

    images: NDArray[np.uint8]
    labels: Indices

    @classmethod
    def of(cls, images: NDArray[np.uint8], labels: NDArray[Any], parts: Parts) -> "Federation":
        """Combine images (samples, channels, height, width), labels and the rows of each user."""
        if images.dtype != np.uint8 or images.ndim != 4 or len(images) != len(labels):
            raise InvalidInput(
                "images must be uint8 of shape (samples, channels, height, width) with one label "
                f"each; got {images.dtype} of shape {images.shape} and {len(labels)} labels"
            )
        rows = cls.from_parts(parts, len(labels))
        return cls(rows.members, rows.starts, images, labels.astype(np.int64))


def _check_count(labels: NDArray[Any], users: int) -> int:
    """The number of samples, which must be enough for one sample per user."""
    if users > len(labels):
        raise InvalidInput(
            f"{users} users are more than the {len(labels)} samples; use at most {len(labels)} "
            "users, or same_size_parts with replace=True"
        )
    return len(labels)


def _rows_by_owner(owner: Indices, users: int) -> list[Indices]:
    order = np.argsort(owner, kind="stable")
    ends = np.cumsum(np.bincount(owner, minlength=users))[:-1]
    return np.split(order, ends)


def narrow_dtype(numbers: NDArray[np.integer]) -> IndexTable:
    """Nonnegative numbers in the narrowest type that holds the largest of them.

    The rows of a million users with five samples each of 60 000 take 10 MB.
    """
    return numbers.astype(_narrowest_dtype(int(numbers.max()) + 1 if numbers.size else 1))


def _narrowest_dtype(count: int) -> type[np.integer]:
    """The narrowest type of 0 … count-1 whose sums with 64-bit integers are integers."""
    if count <= 2**16:
        return np.uint16
    return np.int32 if count <= 2**31 else np.int64
