"""What there is to report on: results of experiments and folders of runs."""

from dataclasses import dataclass, field
from pathlib import Path

from hushbit.errors import InvalidInput
from hushbit.lab.report.run_folder import CONFIG, RunFolder, read_run
from hushbit.lab.results import FILE, Result, read_result

DEPTH = 2
"""How far below a named folder runs and results are looked for."""


@dataclass(frozen=True)
class Sources:
    """Everything found, in the order in which it was named."""

    results: tuple[Result, ...] = field(default=())
    runs: tuple[RunFolder, ...] = field(default=())


def read_sources(places: list[Path]) -> Sources:
    """Read every result file and run folder in or below the named places."""
    if not places:
        raise InvalidInput("nothing to report on: name folders of hushbit run or reproduce")
    found: list[Path] = []
    for place in places:
        found += [path for path in _below(place) if path not in found]
    folders = [path for path in found if path.is_dir()]
    return Sources(
        tuple(read_result(path) for path in found if not path.is_dir()),
        tuple(read_run(path, name) for path, name in zip(folders, _names(folders), strict=True)),
    )


def _below(place: Path) -> list[Path]:
    """Result files and run folders in a place: a file, a folder of one, or a folder of many."""
    if not place.exists():
        raise InvalidInput(f"{place} does not exist: name folders of hushbit run or reproduce")
    if not place.is_dir():
        return [place.resolve()]
    found = _look(place.resolve(), DEPTH)
    if not found:
        raise InvalidInput(
            f"{place} holds no run ({CONFIG}) and no result ({FILE}), nor do folders in it: "
            "name folders of hushbit run or reproduce"
        )
    return found


def _look(folder: Path, depth: int) -> list[Path]:
    try:
        if (folder / FILE).is_file():
            return [folder / FILE]
        if (folder / CONFIG).is_file():
            return [folder]
        inner = [] if depth == 0 else sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be read: {error}") from error
    return [
        found for path in inner if not path.name.startswith(".") for found in _look(path, depth - 1)
    ]


def _names(folders: list[Path]) -> list[str]:
    """Short names of runs: the folder's own, with parents where two would be the same."""
    names = [path.name for path in folders]
    return [
        path.name if names.count(path.name) == 1 else f"{path.parent.name}/{path.name}"
        for path in folders
    ]
