"""Counting stored ballots again: every ballot and MAC is verified, no user is counted twice.

If a user has several ballots, the first valid one counts, in the order of files and rows. Users
with several ballots are found from the users columns first. Their ballots are set aside while the
others are counted; when it is known which are valid, the first of each user is counted.

`count_folder` writes the tallies, the means and a report of all rounds.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.defence.defence import Defence
from hushbit.engine import Engine, SerialEngine
from hushbit.errors import DamagedFile, InvalidInput
from hushbit.mechanism import Mechanism
from hushbit.store.ballot_files import BallotFile, RowGroup, read_group, users_of
from hushbit.tally.estimate import FROM_HISTOGRAM, Estimate
from hushbit.tally.tally import Tally
from hushbit.wire.ballot import Ballots, ParsedRows, parse_rows
from hushbit.wire.files import write_atomic, write_text
from hushbit.wire.keys import RoundKey

RECOUNT_FILE = "report.json"


@dataclass(frozen=True, eq=False)
class CountContext:
    """What all jobs share: how to count, and the users with several ballots."""

    mechanism: Mechanism
    round_key: RoundKey
    histogram: bool
    duplicated: NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class GroupJob:
    """One row group; `chosen` are the rows to count of those that were set aside."""

    number: int
    group: RowGroup
    chosen: NDArray[np.int64] | None = None


@dataclass(frozen=True, eq=False)
class RecountResult:
    """A tally of stored ballots, and how many were refused for which reason.

    `duplicate_users` and `positions` (job, row) are those of the valid ballots set aside;
    `damaged` says which row groups could not be read.
    """

    tally: Tally
    refused: Counter[str]
    duplicate_users: NDArray[np.uint64]
    positions: NDArray[np.int64]
    damaged: tuple[str, ...] = ()


def recount(
    files: Sequence[BallotFile],
    round_key: RoundKey,
    *,
    histogram: bool = False,
    engine: Engine | None = None,
    skip_damaged: bool = False,
) -> RecountResult:
    """Count the ballots of one round in several files; counted + refused = rows of the files.

    A row group that cannot be read is an error. With `skip_damaged` it is listed in the result and
    its rows are refused as damaged.
    """
    mechanism = one_mechanism(files)
    workers = SerialEngine() if engine is None else engine
    users, times = np.unique(_all_users(files, skip_damaged), return_counts=True)
    context = CountContext(mechanism, round_key, histogram, users[times > 1])
    jobs = [GroupJob(number, group) for number, group in enumerate(_groups(files))]
    if not jobs:
        return _empty_result(context)
    work = count_or_skip if skip_damaged else count_group
    return _resolve_duplicates(workers, context, jobs, workers.run(work, context, jobs, merged))


def one_mechanism(files: Sequence[BallotFile]) -> Mechanism:
    """The mechanism of all files of a round."""
    if not files:
        raise InvalidInput("there are no readable files of ballots")
    fingerprints = {file.mechanism.fingerprint.hex() for file in files}
    if len(fingerprints) > 1 or len({file.round for file in files}) > 1:
        raise InvalidInput(
            f"files of {len(fingerprints)} mechanisms ({', '.join(sorted(fingerprints))}) cannot "
            "be counted together: name one with --fingerprint"
        )
    return files[0].mechanism


def count_group(context: CountContext, job: GroupJob) -> RecountResult:
    """Verify one row group and count it, without the ballots of users who have several."""
    parsed = _parse_group(context, job.group)
    users = parsed.ballots.users
    if job.chosen is None:
        aside = np.isin(users, context.duplicated)
        counted, refused = ~aside, parsed.refused
    else:
        aside = np.zeros(len(users), dtype=np.bool_)
        counted, refused = np.isin(parsed.rows, job.chosen), Counter[str]()
    tally = context.mechanism.tally(context.round_key, context.histogram)
    tally.add_many(parsed.ballots[counted])
    rows = parsed.rows[aside]
    positions = np.stack([np.full_like(rows, job.number), rows], axis=1)
    return RecountResult(tally, refused, users[aside], positions)


def count_or_skip(context: CountContext, job: GroupJob) -> RecountResult:
    """As `count_group`, but rows that cannot be read are refused as damaged."""
    try:
        return count_group(context, job)
    except DamagedFile as error:
        empty = _empty_result(context)
        refused = Counter({"damaged": job.group.rows})
        return RecountResult(
            empty.tally, refused, empty.duplicate_users, empty.positions, (str(error),)
        )


def merged(left: RecountResult, right: RecountResult) -> RecountResult:
    """Both counts together; neither is changed."""
    tally = left.tally.empty_like()
    tally.merge(left.tally)
    tally.merge(right.tally)
    return RecountResult(
        tally,
        left.refused + right.refused,
        np.concatenate([left.duplicate_users, right.duplicate_users]),
        np.concatenate([left.positions, right.positions]),
        left.damaged + right.damaged,
    )


def _parse_group(context: CountContext, group: RowGroup) -> ParsedRows:
    users, rows = read_group(group)
    parsed = parse_rows(rows, users, context.mechanism, context.round_key, require_mac=True)
    # The MACs are verified. Without them the tally does not verify them a second time.
    return replace(parsed, ballots=replace(parsed.ballots, macs=None))


def _resolve_duplicates(
    workers: Engine, context: CountContext, jobs: Sequence[GroupJob], counted: RecountResult
) -> RecountResult:
    """Add the first valid ballot of each user who has several; refuse the others."""
    if not counted.duplicate_users.size:
        return counted
    job_numbers, rows = counted.positions.T
    order = np.lexsort((rows, job_numbers, counted.duplicate_users))
    users, job_numbers, rows = counted.duplicate_users[order], job_numbers[order], rows[order]
    first = np.concatenate([[True], users[1:] != users[:-1]])
    again = [
        GroupJob(int(number), jobs[number].group, rows[first & (job_numbers == number)])
        for number in np.unique(job_numbers[first])
    ]
    total = merged(counted, workers.run(count_group, context, again, merged))
    refused = total.refused + Counter({"duplicate": int((~first).sum())})
    empty = _empty_result(context)
    return RecountResult(
        total.tally, refused, empty.duplicate_users, empty.positions, total.damaged
    )


def _groups(files: Sequence[BallotFile]) -> Iterator[RowGroup]:
    for file in files:
        for number, rows in enumerate(file.groups):
            yield RowGroup(file.path, number, rows)


def _empty_result(context: CountContext) -> RecountResult:
    tally = context.mechanism.tally(context.round_key, context.histogram)
    return RecountResult(tally, Counter(), np.empty(0, np.uint64), np.empty((0, 2), np.int64))


def _all_users(files: Sequence[BallotFile], skip_damaged: bool) -> NDArray[np.uint64]:
    parts = [np.empty(0, dtype=np.uint64)]
    for file in files:
        try:
            parts.append(users_of(file))
        except DamagedFile:
            if not skip_damaged:
                raise
            parts += _readable_users(file)
    return np.concatenate(parts)


def _readable_users(file: BallotFile) -> list[NDArray[np.uint64]]:
    found = []
    for group in _groups([file]):
        with suppress(DamagedFile):
            found.append(read_group(group)[0])
    return found


def all_ballots(
    files: Sequence[BallotFile], round_key: RoundKey, skip_damaged: bool = False
) -> Ballots:
    """Every valid ballot at once, the first of each user: for a defence that compares users."""
    mechanism = one_mechanism(files)
    context = CountContext(mechanism, round_key, False, np.empty(0, dtype=np.uint64))
    parts = []
    for group in _groups(files):
        try:
            parts.append(_parse_group(context, group).ballots)
        except DamagedFile:
            if not skip_damaged:
                raise
    users = np.concatenate([part.users for part in parts])
    payload = np.concatenate([part.payload for part in parts])
    ballots = Ballots(
        mechanism.fingerprint,
        round_key.round,
        mechanism.payload_bits,
        users,
        payload,
        np.zeros(users.size, dtype=np.int64),
    )
    first: Ballots = ballots[np.sort(np.unique(users, return_index=True)[1])]
    return first


def count_folder(
    files: Sequence[BallotFile],
    secret: bytes,
    run: bytes,
    folder: Path,
    *,
    decoder: str,
    trim: float,
    defence: str,
    skip_damaged: bool,
    engine: Engine,
    damaged: Mapping[str, str],
) -> dict[str, Any]:
    """Count every round into `folder`; returns the report, which is written there too."""
    histogram = decoder in FROM_HISTOGRAM
    rounds = []
    for number in sorted({file.round for file in files}):
        chosen = [file for file in files if file.round == number]
        key = RoundKey(secret, number, run)
        check_secret(chosen, key)
        counted = recount(
            chosen, key, histogram=histogram, engine=engine, skip_damaged=skip_damaged
        )
        tally, refused = counted.tally, dict(sorted(counted.refused.items()))
        if defence != "none" and tally.count:
            valid = all_ballots(chosen, key, skip_damaged)
            tally, result = Defence().count(tally.mechanism, valid, key, histogram=histogram)
            refused["filtered"] = result.removed
        tally.save(folder / f"round-{number}.tally")
        if tally.count:
            mean = decoded(tally.mechanism.estimate(tally), decoder, trim)
            write_atomic(folder / f"round-{number}.{decoder}.npy", partial(np.save, arr=mean))
        rounds.append(
            {
                "round": number,
                "files": len(chosen),
                "counted": tally.count,
                "refused": refused,
                "ballots": sum(sum(file.groups) for file in chosen),
                "mechanism": one_mechanism(chosen).description,
                "damaged": list(counted.damaged),
            }
        )
    report = {
        "rounds": rounds,
        "damaged_files": dict(damaged),
        "decoder": decoder,
        "filter": defence,
    }
    write_text(folder / RECOUNT_FILE, json.dumps(report, indent=2) + "\n")
    return report


def check_secret(files: Sequence[BallotFile], key: RoundKey) -> None:
    """Refuse a secret or run that the ballots were not encoded with: their mean would be noise."""
    other = [file.path for file in files if file.key_id != key.key_id.hex()]
    if other:
        raise InvalidInput(
            f"{other[0]} was written under another secret or seed, or for another run: name the "
            "secret or seed of that run"
        )


def decoded(estimate: Estimate, decoder: str, trim: float) -> NDArray[np.float64]:
    """The mean update by the named decoder."""
    if decoder == "median":
        return estimate.median()
    if decoder == "trimmed-mean":
        return estimate.trimmed_mean(trim)
    return estimate.shrunken_mean() if decoder == "shrunken" else estimate.mean
