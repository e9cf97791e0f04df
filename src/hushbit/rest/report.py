"""A folder of tallies, means and a report, which appears when all of it is there."""

import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.decode import Estimate
from hushbit.engine import Engine
from hushbit.errors import DamagedFile, InvalidInput
from hushbit.files import write_text, write_whole
from hushbit.keys import RoundKey
from hushbit.rest.recount import all_ballots, one_mechanism, recount
from hushbit.rest.scratch import LOCK, held, remove_abandoned
from hushbit.rest.store import Source
from hushbit.robust.filtered import filtered_tally

REPORT = "report.json"
FROM_HISTOGRAM = ("median", "trimmed-mean")


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to fill, put in place at the end; an error leaves nothing behind.

    What a killed process left beside the target is taken away; what a living one fills is not.
    """
    if target.exists():
        raise InvalidInput(f"{target} exists already: name a new folder")
    scratch = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
    try:
        remove_abandoned(target)
        scratch.mkdir(parents=True)
        with held(scratch / LOCK):
            yield scratch
            (scratch / LOCK).unlink()
            os.rename(scratch, target)
    except OSError as error:
        if target.exists():
            raise InvalidInput(f"{target} was made by another process meanwhile") from error
        raise DamagedFile(f"{target} could not be written: {error}; nothing was kept") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def count_folder(
    sources: Sequence[Source], secret: bytes, place: Path, *, decoder: str, trim: float,
    spectral: bool, skip_damaged: bool, engine: Engine, damaged: Mapping[str, str],
) -> dict[str, Any]:  # fmt: skip
    """Count every round into `place`; the report, which is written there too."""
    rows = []
    for number in sorted({source.round for source in sources}):
        chosen = [source for source in sources if source.round == number]
        key = RoundKey(secret, number)
        check_secret(chosen, key)
        counted = recount(
            chosen, key, histogram=decoder in FROM_HISTOGRAM, engine=engine,
            skip_damaged=skip_damaged,
        )  # fmt: skip
        tally, refused = counted.tally, dict(sorted(counted.refused.items()))
        if spectral and tally.count:
            valid = all_ballots(chosen, key, skip_damaged)
            tally, verdict = filtered_tally(
                tally.mechanism, valid, key, histogram=decoder in FROM_HISTOGRAM
            )
            refused["filtered"] = int((~verdict.accepted).sum())
        tally.save(place / f"round-{number}.tally.npz")
        if tally.count:
            mean = decoded(tally.mechanism.estimate(tally), decoder, trim)
            write_whole(place / f"round-{number}.{decoder}.npy", partial(np.save, arr=mean))
        rows.append({
            "round": number, "files": len(chosen), "counted": tally.count, "refused": refused,
            "ballots": sum(sum(source.groups) for source in chosen),
            "mechanism": one_mechanism(chosen).description, "damaged": list(counted.damaged),
        })  # fmt: skip
    report = {"rounds": rows, "damaged_files": dict(damaged), "decoder": decoder,
              "filter": "spectral" if spectral else "none"}  # fmt: skip
    write_text(place / REPORT, json.dumps(report, indent=2) + "\n")
    return report


def check_secret(sources: Sequence[Source], key: RoundKey) -> None:
    """Refuse a secret under which the ballots were not cast: their mean would be noise."""
    other = [source.path for source in sources if source.key_mark not in (None, key.mark.hex())]
    if other:
        raise InvalidInput(
            f"{other[0]} was written under another secret or seed: name the one of that run"
        )


def decoded(estimate: Estimate, decoder: str, trim: float) -> NDArray[np.float64]:
    """The mean update as a decoder sees it."""
    if decoder == "median":
        return estimate.median()
    if decoder == "trimmed-mean":
        return estimate.trimmed_mean(trim)
    return estimate.shrunken_mean() if decoder == "shrunken" else estimate.mean
