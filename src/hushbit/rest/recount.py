"""Counting stored ballots again: every one verified, none twice, on any engine.

A user with several ballots has the first valid one counted, in the order of files and rows. Who
has several is read from the files' column of users first; those ballots are set aside while the
others are counted, and decided upon when it is known which of them are valid.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hushbit.ballot import Ballots
from hushbit.engine import Alone, Engine
from hushbit.errors import DamagedFile, InvalidInput
from hushbit.keys import RoundKey
from hushbit.mechanism import Mechanism
from hushbit.rest.store import Group, Source, read_group, users_of
from hushbit.rest.wire import Verified, verify
from hushbit.robust.filtered import accepted_only
from hushbit.tally import Tally

Places = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Ask:
    """What all jobs share: how to count, and whose ballots to set aside."""

    mechanism: Mechanism
    round_key: RoundKey
    histogram: bool
    contested: NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class GroupJob:
    """One row group; `chosen` names the rows to count among those set aside before."""

    number: int
    group: Group
    chosen: Places | None = None


@dataclass(frozen=True, eq=False)
class Counted:
    """A tally of stored ballots, and how many were refused for which reason.

    `claims` and `places` are the valid ballots set aside: user, and (job, row).
    """

    tally: Tally
    refused: Counter[str]
    claims: NDArray[np.uint64]
    places: Places
    damaged: tuple[str, ...] = ()


def recount(
    sources: Sequence[Source],
    round_key: RoundKey,
    *,
    histogram: bool = False,
    engine: Engine | None = None,
    skip_damaged: bool = False,
) -> Counted:
    """Count the ballots of one round in several files; the report adds up to their rows.

    A row group that cannot be read is an error, or with `skip_damaged` it is named in the report
    and its rows are refused as damaged.
    """
    mechanism = one_mechanism(sources)
    workers = Alone() if engine is None else engine
    everyone = _everyone(sources, skip_damaged)
    alike, times = np.unique(everyone, return_counts=True)
    ask = Ask(mechanism, round_key, histogram, alike[times > 1])
    jobs = [GroupJob(number, group) for number, group in enumerate(_groups(sources))]
    work = count_or_skip if skip_damaged else count_group
    if not jobs:
        return _nothing(ask)
    counted = workers.run(work, ask, jobs, merged)
    return _decided(workers, ask, jobs, counted)


def one_mechanism(sources: Sequence[Source]) -> Mechanism:
    """The mechanism of all files of a round."""
    if not sources:
        raise InvalidInput("there are no readable files of ballots")
    kinds = {source.mechanism.fingerprint.hex() for source in sources}
    if len(kinds) > 1 or len({source.round for source in sources}) > 1:
        raise InvalidInput(
            f"files of {len(kinds)} mechanisms ({', '.join(sorted(kinds))}) cannot be counted "
            "together: name one with --fingerprint"
        )
    return sources[0].mechanism


def count_group(ask: Ask, job: GroupJob) -> Counted:
    """Verify one row group and count it, without the ballots of users who have several."""
    verified = verified_group(ask, job)
    users = verified.ballots.users
    aside = np.isin(users, ask.contested)
    if job.chosen is not None:
        counted, refused = np.isin(verified.rows, job.chosen), Counter[str]()
        aside = np.zeros_like(aside)
    else:
        counted, refused = ~aside, verified.refused
    tally = ask.mechanism.tally(ask.round_key, ask.histogram)
    tally.add_many(accepted_only(verified.ballots, counted))
    places = np.stack([np.full(int(aside.sum()), job.number), verified.rows[aside]], axis=1)
    return Counted(tally, refused, users[aside], places.astype(np.int64))


def count_or_skip(ask: Ask, job: GroupJob) -> Counted:
    """As `count_group`, but rows that cannot be read are refused instead of an error."""
    try:
        return count_group(ask, job)
    except DamagedFile as error:
        none = _nothing(ask)
        lost = Counter({"damaged": job.group.rows})
        return Counted(none.tally, lost, none.claims, none.places, (str(error),))


def verified_group(ask: Ask, job: GroupJob) -> Verified:
    """The valid ballots of one row group."""
    users, rows = read_group(job.group)
    return verify(rows, users, ask.mechanism, ask.round_key.round)


def merged(left: Counted, right: Counted) -> Counted:
    """Both counts together; neither is changed."""
    tally = left.tally.like()
    tally.merge(left.tally)
    tally.merge(right.tally)
    return Counted(
        tally,
        left.refused + right.refused,
        np.concatenate([left.claims, right.claims]),
        np.concatenate([left.places, right.places]),
        left.damaged + right.damaged,
    )


def _decided(workers: Engine, ask: Ask, jobs: Sequence[GroupJob], counted: Counted) -> Counted:
    """The count with the first valid ballot of each user who has several."""
    if not counted.claims.size:
        return counted
    order = np.lexsort((counted.places[:, 1], counted.places[:, 0], counted.claims))
    users, places = counted.claims[order], counted.places[order]
    first = np.concatenate([[True], users[1:] != users[:-1]])
    again = [
        GroupJob(int(number), jobs[int(number)].group, places[first & (places[:, 0] == number), 1])
        for number in np.unique(places[first, 0])
    ]
    chosen = workers.run(count_group, ask, again, merged)
    tally = counted.tally.like()
    tally.merge(counted.tally)
    tally.merge(chosen.tally)
    refused = counted.refused + Counter({"duplicate": int((~first).sum())})
    none = _nothing(ask)
    return Counted(tally, refused, none.claims, none.places, counted.damaged)


def _groups(sources: Sequence[Source]) -> Iterator[Group]:
    for source in sources:
        for number, rows in enumerate(source.groups):
            yield Group(source.path, number, rows)


def _nothing(ask: Ask) -> Counted:
    tally = ask.mechanism.tally(ask.round_key, ask.histogram)
    return Counted(tally, Counter(), np.empty(0, np.uint64), np.empty((0, 2), np.int64))


def _everyone(sources: Sequence[Source], skip_damaged: bool) -> NDArray[np.uint64]:
    parts = [np.empty(0, dtype=np.uint64)]
    for source in sources:
        try:
            parts.append(users_of(source))
        except DamagedFile:
            if not skip_damaged:
                raise
            parts += _readable_users(source)
    return np.concatenate(parts)


def _readable_users(source: Source) -> list[NDArray[np.uint64]]:
    found = []
    for number, rows in enumerate(source.groups):
        try:
            found.append(read_group(Group(source.path, number, rows))[0])
        except DamagedFile:
            continue
    return found


def all_ballots(
    sources: Sequence[Source], round_key: RoundKey, skip_damaged: bool = False
) -> Ballots:
    """Every valid ballot at once, the first of each user: for filters that compare users."""
    mechanism = one_mechanism(sources)
    ask = Ask(mechanism, round_key, False, np.empty(0, dtype=np.uint64))
    parts = []
    for group in _groups(sources):
        try:
            parts.append(verified_group(ask, GroupJob(0, group)).ballots)
        except DamagedFile:
            if not skip_damaged:
                raise
    users = np.concatenate([part.users for part in parts])
    first = np.sort(np.unique(users, return_index=True)[1])
    return Ballots(
        mechanism.fingerprint, round_key.round, mechanism.payload_bits, users[first],
        np.concatenate([part.payload for part in parts])[first],
        np.zeros(first.size, dtype=np.int64),
    )  # fmt: skip
