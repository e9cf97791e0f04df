"""Partitions of a data set among users, and the federation that results.

A partition is a function from labels (or writers) and a NumPy generator to index arrays.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import check_int, check_positive
from hushbit.errors import InvalidInput

Indices = NDArray[np.int64]
IndexTable = NDArray[np.integer]
Parts = list[Indices] | IndexTable
DRAW_CHUNK = 1 << 16


def iid(labels: NDArray[Any], users: int, rng: np.random.Generator) -> list[Indices]:
    """Distribute all samples at random; sizes differ by at most one."""
    count, users = _check_counts(labels, users)
    return [np.sort(part) for part in np.array_split(rng.permutation(count), users)]


def same_size_parts(
    labels: NDArray[Any],
    users: int,
    rng: np.random.Generator,
    samples: int,
    replace: bool = False,
) -> IndexTable:
    """Give every user `samples` random samples; no sample twice unless `replace` is true.

    The result has shape (users, samples).
    """
    count = len(_labels(labels))
    users, samples = check_int("users", users, 1), check_int("samples", samples, 1)
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
    labels: NDArray[Any],
    users: int,
    rng: np.random.Generator,
    alpha: float,
    at_least: int = 1,
) -> list[Indices]:
    """Split each class by shares drawn from Dirichlet(alpha, ..., alpha); small alpha is skewed.

    A user with fewer than `at_least` samples gets random ones of the user who has most.
    """
    count, users = _check_counts(labels, users)
    alpha, at_least = check_positive("alpha", alpha), check_int("at_least", at_least, 0)
    if users * at_least > count:
        raise InvalidInput(
            f"{users} users cannot have {at_least} samples each; there are {count} samples"
        )
    owner = np.empty(count, dtype=np.int64)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(users, alpha))
        if not np.isfinite(shares).all():
            raise InvalidInput(f"alpha={alpha} is too small or too large to draw shares from")
        ends = np.rint(np.cumsum(shares) * len(members)).astype(np.int64)
        ends[-1] = len(members)
        owner[members] = np.searchsorted(ends, np.arange(len(members)), side="right")
    _top_up_small_users(owner, users, at_least, rng)
    return _rows_by_owner(owner, users)


def shards(
    labels: NDArray[Any], users: int, rng: np.random.Generator, shards_per_user: int
) -> list[Indices]:
    """Sort by label, cut into users * shards_per_user shards, give each user random ones."""
    count, users = _check_counts(labels, users)
    pieces = users * check_int("shards_per_user", shards_per_user, 1)
    if pieces > count:
        raise InvalidInput(
            f"{pieces} shards need at least as many samples; the data set has {count}"
        )
    shard_rows = np.array_split(np.argsort(labels, kind="stable"), pieces)
    assigned = rng.permutation(pieces).reshape(users, shards_per_user)
    return [np.sort(np.concatenate([shard_rows[one] for one in own])) for own in assigned]


def by_writer(
    writers: NDArray[Any] | None, rng: np.random.Generator, users: int | None = None
) -> list[Indices]:
    """Make each writer one user; with `users`, choose that many writers at random."""
    if writers is None:
        raise InvalidInput("this data set does not name the writers of its samples; use mnist")
    names, owner = np.unique(_labels(writers), return_inverse=True)
    parts = _rows_by_owner(owner.astype(np.int64), len(names))
    if users is None:
        return parts
    if check_int("users", users, 1) > len(names):
        raise InvalidInput(f"users must be at most the {len(names)} writers; got {users}")
    return [parts[index] for index in np.sort(rng.permutation(len(names))[:users])]


def hold_out(count: int, size: int, rng: np.random.Generator) -> tuple[Indices, Indices]:
    """Split 0..count-1 at random into training and `size` validation indices, both sorted."""
    count, size = check_int("count", count, 1), check_int("size", size, 0)
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
class Federation:
    """A data set and its partition: user u holds the rows members[starts[u]:starts[u + 1]].

    Images are one shared uint8 array; users may hold different numbers of rows.
    """

    images: NDArray[np.uint8]
    labels: Indices
    members: IndexTable
    starts: IndexTable | EqualOffsets

    @classmethod
    def of(cls, images: NDArray[np.uint8], labels: NDArray[Any], parts: Parts) -> "Federation":
        """Combine images (samples, channels, height, width), labels and the rows of each user."""
        images, labels = np.asarray(images), _labels(labels)
        if images.dtype != np.uint8 or images.ndim != 4 or len(images) != len(labels):
            raise InvalidInput(
                "images must be uint8 of shape (samples, channels, height, width) with one label "
                f"each; got {images.dtype} of shape {images.shape} and {len(labels)} labels"
            )
        if labels.dtype.kind not in "iu":
            raise InvalidInput(f"labels must be integers; got {labels.dtype}")
        members, counts = _concat_parts(parts)
        if members.size and not 0 <= members.min() <= members.max() < len(labels):
            raise InvalidInput(f"rows of users must lie in 0..{len(labels) - 1}")
        if isinstance(counts, EqualOffsets):
            starts: IndexTable | EqualOffsets = counts
        else:
            starts = narrow_dtype(np.concatenate([[0], np.cumsum(counts)]))
        return cls(images, labels.astype(np.int64), narrow_dtype(members), starts)

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
        user = check_int("user", user, 0, self.users - 1)
        own = self.members[self.starts[user] : self.starts[user + 1]]
        return own.astype(np.int64)


def _labels(labels: NDArray[Any]) -> NDArray[Any]:
    array = np.asarray(labels)
    if array.ndim != 1 or array.size == 0:
        raise InvalidInput(f"labels must be a non-empty vector; got shape {array.shape}")
    return array


def _check_counts(labels: NDArray[Any], users: int) -> tuple[int, int]:
    count, users = len(_labels(labels)), check_int("users", users, 1)
    if users > count:
        raise InvalidInput(
            f"{users} users are more than the {count} samples; use at most {count} users, or "
            "same_size_parts with replace=True"
        )
    return count, users


def _rows_by_owner(owner: Indices, users: int) -> list[Indices]:
    order = np.argsort(owner, kind="stable")
    ends = np.cumsum(np.bincount(owner, minlength=users))[:-1]
    return np.split(order, ends)


def _top_up_small_users(
    owner: Indices, users: int, at_least: int, rng: np.random.Generator
) -> None:
    counts = np.bincount(owner, minlength=users)
    for small in np.flatnonzero(counts < at_least):
        while counts[small] < at_least:
            largest = int(np.argmax(counts))
            owner[rng.choice(np.flatnonzero(owner == largest))] = small
            counts[largest] -= 1
            counts[small] += 1


def _concat_parts(parts: Parts | Sequence[Indices]) -> tuple[IndexTable, Indices | EqualOffsets]:
    if len(parts) == 0:
        raise InvalidInput("parts are empty; give the rows of at least one user")
    counts: Indices | EqualOffsets
    if isinstance(parts, np.ndarray) and parts.ndim == 2:
        counts = EqualOffsets(*parts.shape)
        members = parts.reshape(-1)
    else:
        rows = [np.asarray(part).reshape(-1) for part in parts]
        counts = np.array([len(row) for row in rows], dtype=np.int64)
        members = np.concatenate(rows)
    if members.size and members.dtype.kind not in "iu":
        raise InvalidInput(f"parts must hold row numbers; got {members.dtype}")
    return members if members.size else members.astype(np.int64), counts


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
