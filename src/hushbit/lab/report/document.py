"""From sources to a document: one section for each experiment and run."""

import re

from hushbit.lab.report.blocks import Document, Section
from hushbit.lab.report.experiments import experiment_section
from hushbit.lab.report.runs import run_section, runs_section
from hushbit.lab.report.sources import Sources


def make_document(sources: Sources, title: str) -> Document:
    """The report before any format; each section has an anchor of its own."""
    taken: set[str] = {"summary", "content", "theme"}
    sections: list[Section] = [
        experiment_section(result, _anchor(result.name, taken)) for result in sources.results
    ]
    if sources.runs:
        sections.append(runs_section(sources.runs, _anchor("runs", taken)))
        sections += [run_section(run, _anchor(run.name, taken)) for run in sources.runs]
    return Document(title, tuple(sections))


def _anchor(name: str, taken: set[str]) -> str:
    """A name that is safe in an address and not taken yet."""
    base = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "section"
    anchor, again = base, 2
    while anchor in taken:
        anchor, again = f"{base}-{again}", again + 1
    taken.add(anchor)
    return anchor
