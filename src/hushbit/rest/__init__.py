"""Ballots at rest: Parquet files written and read in streams, and counted again."""

from hushbit.rest.recount import Counted, recount
from hushbit.rest.store import Group, Source, ballot_writer, find_sources, write_ballots

__all__ = [
    "Counted",
    "Group",
    "Source",
    "ballot_writer",
    "find_sources",
    "recount",
    "write_ballots",
]
