"""Stored ballots: Parquet files that are written and read in batches, and counted again."""

from hushbit.store.ballot_files import BallotFile, RowGroup, ballot_writer, find_ballot_files
from hushbit.store.recount import RecountResult, recount

__all__ = [
    "BallotFile",
    "RecountResult",
    "RowGroup",
    "ballot_writer",
    "find_ballot_files",
    "recount",
]
