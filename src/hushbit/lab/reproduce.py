"""From the name of an experiment to its result file."""

import time
from collections.abc import Iterator, Mapping, Sequence
from queue import SimpleQueue
from threading import Thread

from hushbit.checks import whole
from hushbit.errors import InvalidInput
from hushbit.kernels.threads import get_threads, set_threads
from hushbit.lab.experiments import EXPERIMENTS, Experiment, Lab
from hushbit.lab.record import environment
from hushbit.lab.results import Result

GROUPS = {"mnist": ("mnist", "theory"), "cifar": ("cifar",), "all": ("mnist", "theory", "cifar")}
QUICK_SEEDS = 2


def named(words: Sequence[str], known: Mapping[str, Experiment] = EXPERIMENTS) -> list[Experiment]:
    """The experiments that words name: their own names, or a group of them; each once."""
    found: dict[str, Experiment] = {}
    for word in words:
        if word in known:
            found[word] = known[word]
        elif word in GROUPS:
            found |= {name: one for name, one in known.items() if one.group in GROUPS[word]}
        else:
            raise InvalidInput(
                f"unknown experiment {word!r}; choose from {', '.join([*known, *GROUPS])}"
            )
    return list(found.values())


def seeds_for(experiment: Experiment, quick: bool, count: int | None) -> tuple[int, ...]:
    """Seeds 1, 2, ...: as many as asked for, or as the form of the experiment has."""
    usual = min(QUICK_SEEDS, experiment.seeds) if quick else experiment.seeds
    return tuple(range(1, whole("seeds", usual if count is None else count, 1, 1000) + 1))


def reproduce(experiment: Experiment, lab: Lab, command: str) -> Result:
    """Run an experiment (or read its kept cells) and write its result."""
    begun = time.thread_time()  # other experiments may be under way in other threads
    found = experiment.find(lab)
    notes = found.notes
    if lab.quick or lab.rounds is not None:
        form = "the quick form" if lab.quick else f"a run of {lab.rounds} rounds"
        notes = (f"This is {form}: fewer rounds or seeds than the full one.", *notes)
    result = Result(
        name=experiment.name,
        title=experiment.title,
        paper=experiment.paper,
        quick=lab.quick,
        command=command,
        seeds=lab.seeds,
        about=experiment.about,
        choices=found.choices,
        privacy=found.privacy,
        axes=found.axes,
        cells=found.cells,
        checks=found.checks,
        notes=notes,
        environment={key: str(value) for key, value in environment().items()},
        seconds=round(max(time.thread_time() - begun, sum(lab.spent.values())), 1),
    )
    result.save(lab.folder)
    return result


Work = Sequence[tuple[Experiment, Lab, str]]


def reproduce_together(work: Work) -> Iterator[Result]:
    """Run experiments side by side, each with its laboratory and command; results as they come.

    They share a bench of workers, so that one computes while another waits. This process itself
    keeps to one thread of computing, as the workers do.
    """
    results: SimpleQueue[Result | BaseException] = SimpleQueue()

    def one(experiment: Experiment, lab: Lab, command: str) -> None:
        try:
            results.put(reproduce(experiment, lab, command))
        except BaseException as failure:
            results.put(failure)

    before = get_threads()
    set_threads(1)
    try:
        for job in work:
            # Nobody waits for these threads after an error: cells are kept one by one.
            Thread(target=one, args=job, daemon=True).start()
        for _ in work:
            made = results.get()
            if isinstance(made, BaseException):
                raise made
            yield made
    finally:
        set_threads(before)


def command_line(name: str, lab_options: Mapping[str, object]) -> str:
    """The command that does it again."""
    words = ["hushbit reproduce", name]
    for option, value in lab_options.items():
        if value is True:
            words.append(f"--{option}")
        elif value is not None and value is not False:
            words.append(f"--{option} {value}")
    return " ".join(words)
