"""The report in a few words."""

from hushbit.lab.report.blocks import Document


def lead(document: Document) -> str:
    """How many claims hold, in one or two sentences."""
    verdicts = document.verdicts
    if not verdicts:
        return "Figures of runs, side by side. Nothing is claimed, so nothing can fail."
    holds = sum(verdict.holds for verdict in verdicts)
    text = f"{holds} of {len(verdicts)} claims hold"
    fails = len(verdicts) - holds
    text += "." if not fails else "; 1 does not." if fails == 1 else f"; {fails} do not."
    quick = sum(section.quick for section in document.sections)
    if quick:
        text += (
            f" {quick} of the experiments ran in the quick form, with fewer rounds and seeds: "
            "read their figures as a first look."
        )
    return text
