"""The decision card of runs on one task: the best private run, what privacy costs, a ranking.

card = DecisionCard.of(summaries)   run summaries, as `hushbit run --json` prints them
card.lines()                        two sentences for a terminal
card.columns, card.rows()           the ranked table
card.html()                         all of it for a notebook or a page
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Self

from hushbit.errors import InvalidInput
from hushbit.lab.intervals import interval

STRONG, REASONABLE = 1.0, 10.0
"""Largest epsilon of a strong and of a reasonable guarantee; a larger one is weak.

These are the tiers of Ponomareva et al., "How to DP-fy ML", 2023.
"""
METRICS = {"test_accuracy": 100.0, "test_loss": 1.0}
"""What runs are ranked by, with the scale of display: accuracy if a run has one, else loss."""
MODEL = "those who see only the model"


@dataclass(frozen=True)
class RankedRun:
    """All seeds of one run.

    score           mean of the metric over seeds and the ends of its interval (accuracy in percent)
    epsilon_model   of the run against those who see only the model; infinite if nothing is proved
    epsilon_server  of the run against the server
    delta           of both epsilons
    message_bytes   bytes that one user sends in one round
    """

    name: str
    mechanism: str
    seeds: int
    score: tuple[float, float, float]
    epsilon_model: float
    epsilon_server: float
    delta: float
    message_bytes: float

    @classmethod
    def of(cls, name: str, seeds: Sequence[Mapping[str, Any]], metric: str) -> Self:
        """The run of these summaries, one for each seed; epsilons are the largest ones."""
        messages = [
            sum(row["users"] or 0 for row in one.get("history", ())) or one["users"] * one["rounds"]
            for one in seeds
        ]
        return cls(
            name,
            mechanism=str(seeds[0]["mechanism"]),
            seeds=len(seeds),
            score=interval([METRICS[metric] * float(one[metric]) for one in seeds]),
            epsilon_model=max(float(one["epsilon_run_model"]) for one in seeds),
            epsilon_server=max(float(one["epsilon_run_server"]) for one in seeds),
            delta=max(float(one["delta"]) for one in seeds),
            message_bytes=sum(float(one["bytes_up"]) for one in seeds) / sum(messages),
        )

    @property
    def is_private(self) -> bool:
        """Whether an epsilon of the run is finite."""
        return math.isfinite(min(self.epsilon_model, self.epsilon_server))


@dataclass(frozen=True)
class DecisionCard:
    """Runs on one task, best first, and the metric that ranks them."""

    metric: str
    runs: tuple[RankedRun, ...]

    @classmethod
    def of(cls, summaries: Sequence[Mapping[str, Any]]) -> Self:
        """The card of run summaries; those without a finite value of the metric are left out.

        Summaries with the same "name", by default the mechanism, are seeds of one run.
        """
        for metric in METRICS:
            seeds: dict[str, list[Mapping[str, Any]]] = {}
            for one in summaries:
                value = one.get(metric)
                if value is not None and math.isfinite(float(value)):
                    seeds.setdefault(str(one.get("name", one["mechanism"])), []).append(one)
            if seeds:
                runs = [RankedRun.of(name, own, metric) for name, own in seeds.items()]
                runs.sort(key=lambda run: run.score[0], reverse=metric == "test_accuracy")
                return cls(metric, tuple(runs))
        raise InvalidInput(f"no run has one of {', '.join(METRICS)}: finish a run first")

    @property
    def best(self) -> RankedRun:
        """The best private run, or the best run if none is private."""
        return next((run for run in self.runs if run.is_private), self.runs[0])

    @property
    def reference(self) -> RankedRun | None:
        """The best run of FedAvg, which has no privacy."""
        return next((run for run in self.runs if run.mechanism == "fedavg"), None)

    def lines(self) -> list[str]:
        """The figures of the best run and the verdict, a sentence each."""
        best, plain = self.best, self.reference
        text = f"Best {'private ' if best.is_private else ''}run: {best.name} {self.score(best)}"
        if best.is_private:
            text += "" if plain is None else f" (FedAvg {self.score(plain)})"
            text += f", epsilon {epsilon_text(min(best.epsilon_model, best.epsilon_server))} per "
            text += f"run {_against(best)} at delta {best.delta:g}"
        text += f", {size_text(best.message_bytes)} per user and round."
        return [text, self.verdict]

    @property
    def verdict(self) -> str:
        """One sentence: the price of privacy beside FedAvg, and how strong the guarantee is."""
        best, plain = self.best, self.reference
        if not best.is_private:
            return "No run is private."
        text = "No run of FedAvg shows what privacy costs"
        if plain is not None:
            share = 100 * best.message_bytes / plain.message_bytes
            text = f"It {self._compared(best, plain)} FedAvg and sends {share:.3g} % of its bytes"
        server = f"{_strength(best.epsilon_server)} against the server"
        if math.isinf(best.epsilon_model):
            return f"{text}; the guarantee is {server}, and no better one is proved."
        model = f"{_strength(best.epsilon_model)} against {MODEL}"
        return f"{text}; the guarantee is {model} and {server}."

    def _compared(self, run: RankedRun, plain: RankedRun) -> str:
        gap = self.number(abs(run.score[0] - plain.score[0]))
        lower = run.score[0] < plain.score[0]
        if self.metric == "test_loss":
            return f"has a test loss {gap} {'below' if lower else 'above'} that of"
        return f"is {gap} points {'less' if lower else 'more'} accurate than"

    def score(self, run: RankedRun) -> str:
        """The mean of the metric as text."""
        unit = " %" if self.metric == "test_accuracy" else ""
        return f"{self.number(run.score[0])}{unit}"

    def number(self, value: float) -> str:
        """A value of the metric, or a difference of two, as text."""
        return f"{value:.1f}" if self.metric == "test_accuracy" else f"{value:.4g}"

    @property
    def label(self) -> str:
        """The metric as text."""
        return self.metric.replace("_", " ")

    @property
    def caption(self) -> str:
        """The caption of the ranked table."""
        seeds = max(run.seeds for run in self.runs)
        means = "" if seeds == 1 else " Means over seeds [95 % interval, from three seeds on]."
        return f"All finished runs by {self.label}.{means} Epsilons of the run at its delta."

    @property
    def columns(self) -> tuple[str, ...]:
        """The head of the ranked table."""
        whole = ("epsilon per run, model", "epsilon per run, server")
        return ("run", self.label, "less FedAvg", *whole, "sent per user and round", "seeds")

    def rows(self) -> list[tuple[str, ...]]:
        """The ranked table."""
        return [self._row(run) for run in self.runs]

    def _row(self, run: RankedRun) -> tuple[str, ...]:
        mean, low, high = run.score
        spread = "" if low == high else f" [{self.number(low)}, {self.number(high)}]"
        plain = self.reference
        gap = "" if plain is None or plain is run else self.number(mean - plain.score[0])
        only_server = run.is_private and math.isinf(run.epsilon_model)
        return (
            run.name,
            self.score(run) + spread,
            gap.replace("-", "−"),
            "as server" if only_server else epsilon_text(run.epsilon_model),
            epsilon_text(run.epsilon_server),
            size_text(run.message_bytes),
            str(run.seeds),
        )

    def html(self) -> str:
        """The card as HTML without style; a report styles its classes."""
        best, plain = self.best, self.reference
        score = size = ""
        if plain is not None and plain is not best:
            score = f"FedAvg {self.score(plain)}"
            size = f"FedAvg {size_text(plain.message_bytes)}"
        facts = [(self.label, self.score(best), score)]
        if best.is_private:
            epsilon = epsilon_text(min(best.epsilon_model, best.epsilon_server))
            facts.append(("epsilon per run", epsilon, f"{_against(best)} at delta {best.delta:g}"))
        facts.append(("sent per user and round", size_text(best.message_bytes), size))
        shown = "".join(
            f"<div><dt>{label}</dt><dd><b>{value}</b> {detail}</dd></div>"
            for label, value, detail in facts
        )
        kind = "Best private run" if best.is_private else "Best run"
        return (
            f'<div class="card"><p class="best">{kind}: <b>{escape(best.name)}</b></p>'
            f'<dl>{shown}</dl><p class="conclusion">{self.verdict}</p></div>{self._table()}'
        )

    def _table(self) -> str:
        first, *others = self.columns
        head = f'<th scope="col">{first}</th>'
        head += "".join(f'<th scope="col" class="number">{column}</th>' for column in others)
        body = ""
        for run, (name, *cells) in zip(self.runs, self.rows(), strict=True):
            mark = ' class="chosen"' if run is self.best else ""
            body += f'<tr{mark}><th scope="row">{escape(name)}</th>'
            body += "".join(f'<td class="number">{cell}</td>' for cell in cells) + "</tr>"
        return (
            '<div class="box" tabindex="0" role="group" aria-label="Ranking">'
            f"<table><caption><span>{self.caption}</span></caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )


def _against(run: RankedRun) -> str:
    """Against whom the smaller epsilon of a run holds, and the other one."""
    if run.epsilon_server <= run.epsilon_model:
        return "against the server"
    return f"against {MODEL} ({epsilon_text(run.epsilon_server)} against the server)"


def _strength(epsilon: float) -> str:
    if math.isinf(epsilon):
        return "absent"
    return "strong" if epsilon <= STRONG else "reasonable" if epsilon <= REASONABLE else "weak"


def epsilon_text(epsilon: float) -> str:
    """An epsilon with three digits.

    >>> epsilon_text(4.0), epsilon_text(0.12345), epsilon_text(117750), epsilon_text(math.inf)
    ('4', '0.123', '117,750', '∞')
    """
    if math.isinf(epsilon):
        return "∞"
    return f"{epsilon:,.0f}" if epsilon >= 1000 else f"{epsilon:.3g}"


def size_text(count: float) -> str:
    """Bytes as text.

    >>> size_text(122), size_text(73_200), size_text(488_000)
    ('122 bytes', '73.2 kB', '488 kB')
    """
    units = ["bytes", "kB", "MB", "GB", "TB"]
    while count >= 1000 and len(units) > 1:
        count /= 1000
        units.pop(0)
    return f"{count:,.{0 if count >= 100 or units[0] == 'bytes' else 1}f} {units[0]}"
