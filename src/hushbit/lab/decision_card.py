"""The decision card of runs on one task: the best private run, what privacy costs, a ranking.

card = DecisionCard.of(summaries)   run summaries, as `hushbit run --json` prints them
card.facts(), card.verdict          figures of the best run with their labels; a sentence
card.columns, card.rows()           the ranked table
card.text(), card.html()            all of it for a terminal, for a report
card.notebook()                     all of it with its own style
"""

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Self

from hushbit.errors import InvalidInput
from hushbit.lab.intervals import interval
from hushbit.privacy.accountant import delta_text

STRONG, REASONABLE = 1.0, 10.0
"""Largest epsilon of a strong and of a reasonable guarantee; a larger one is weak.

These are the tiers of Ponomareva et al., "How to DP-fy ML", 2023.
"""
WIDTH = 80
"""Columns of the text."""
METRICS = {"test_accuracy": 100.0, "test_loss": 1.0}
"""What runs are ranked by, with the scale of display: accuracy if a run has one, else loss."""
LITTLE = 0.1
"""A run learns little up to this share of what FedAvg learns, or else of all that is to learn."""
MODEL = "those who see only the model"
MODEL_LABEL, SERVER_LABEL = "epsilon against the model", "epsilon against the server"
NOTEBOOK_STYLE = """
.hushbit .card { border: 1px solid; border-left-width: 4px; border-radius: 6px; padding: .6em 1em }
.hushbit .card dl { display: flex; flex-wrap: wrap; gap: .4em 2em; margin: .4em 0 }
.hushbit .card dt, .hushbit .card dd { margin: 0; font-size: .9em; font-weight: normal }
.hushbit .card dd b { display: block; font-size: 1.6em }
.hushbit .card p { margin: 0 }
.hushbit .box { overflow-x: auto; margin: .8em 0 }
.hushbit .ranking { border-collapse: collapse; font-size: .85em }
.hushbit .ranking th, .hushbit .ranking td { padding: .2em 1em .2em 0; text-align: right }
.hushbit .ranking th:first-child, .hushbit .ranking caption { text-align: left }
.hushbit .ranking caption span { display: block; position: sticky; left: 0; max-width: 80vw }
.hushbit .chosen { font-weight: bold }
"""
"""A notebook sets the colours."""


@dataclass(frozen=True)
class RankedRun:
    """All seeds of one run.

    score           mean of the metric over seeds and the ends of its interval (accuracy in percent)
    start           mean of the metric before training; NaN if the summaries lack it
    epsilon_model   of the run against those who see only the model, at most `epsilon_server`
    epsilon_server  of the run against the server
    delta           of both epsilons
    message_bytes   bytes that one user sends in one round
    users           number of users
    epsilon_per_bit infinite if messages have no noise of their own
    server_step     name and rate of the server step; empty if the summary lacks them
    """

    name: str
    mechanism: str
    seeds: int
    score: tuple[float, float, float]
    start: float
    epsilon_model: float
    epsilon_server: float
    delta: float
    message_bytes: float
    users: int
    epsilon_per_bit: float
    server_step: str = ""

    @classmethod
    def of(cls, name: str, seeds: Sequence[Mapping[str, Any]], metric: str) -> Self:
        """The run of these summaries, one for each seed; epsilons are the largest ones."""
        first = seeds[0]
        step = ""
        if "server" in first and "server_rate" in first:
            step = f"{first['server']}, rate {float(first['server_rate']):.3g}"
        messages = [
            sum(row["users"] or 0 for row in one.get("history", ())) or one["users"] * one["rounds"]
            for one in seeds
        ]
        starts = [float(one.get(metric.replace("test", "start"), math.nan)) for one in seeds]
        server = max(float(one["epsilon_run_server"]) for one in seeds)
        return cls(
            name,
            mechanism=str(first["mechanism"]),
            seeds=len(seeds),
            score=interval([METRICS[metric] * float(one[metric]) for one in seeds]),
            start=METRICS[metric] * sum(starts) / len(starts),
            # The server sees all that those who see only the model see.
            epsilon_model=min(server, max(float(one["epsilon_run_model"]) for one in seeds)),
            epsilon_server=server,
            delta=max(float(one["delta"]) for one in seeds),
            message_bytes=sum(float(one["bytes_up"]) for one in seeds) / sum(messages),
            users=int(first["users"]),
            epsilon_per_bit=float(first["epsilon_bit"]),
            server_step=step,
        )

    @property
    def is_private(self) -> bool:
        """Whether an epsilon of the run is finite."""
        return math.isfinite(self.epsilon_model)

    @property
    def needs_trusted_server(self) -> bool:
        """Whether the run is private against those who see only the model, not the server."""
        return self.is_private and math.isinf(self.epsilon_server)

    def users_for_next_tier(self) -> tuple[float, int] | None:
        """The next stronger tier against the model, and the users that reach it at this noise.

        The number is rounded up to two digits. None if there is no weaker tier to leave, or no
        guarantee against the model beyond that against the server.
        """
        target = next((e for e in (REASONABLE, STRONG) if e < self.epsilon_model), None)
        if target is None or self.epsilon_model == self.epsilon_server:
            return None
        from hushbit.tuning.users_for_epsilon import users_for_epsilon  # it loads Numba

        needed = users_for_epsilon(
            target,
            users=self.users,
            epsilon=self.epsilon_model,
            delta=self.delta,
            epsilon_per_bit=self.epsilon_per_bit,
        )
        unit = 10 ** max(0, len(str(needed)) - 2)
        return target, -(-needed // unit) * unit


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
        """The best private run that needs no trusted server, else the best private run, if any."""
        local = [run for run in self.runs if math.isfinite(run.epsilon_server)]
        private = [run for run in self.runs if run.is_private]
        return (local or private or self.runs)[0]

    @property
    def reference(self) -> RankedRun | None:
        """The best run of FedAvg, which has no privacy."""
        return next((run for run in self.runs if run.mechanism == "fedavg"), None)

    @property
    def title(self) -> str:
        """What the card is about; the name of the best run follows it."""
        if len(self.runs) == 1:
            return "Run"
        if not self.best.is_private:
            return "Best run"
        return "Best private run" + " without a trusted server" * bool(self.better_if_trusted)

    @property
    def better_if_trusted(self) -> tuple[RankedRun, ...]:
        """Private runs that rank above the best one because their server is trusted."""
        above = self.runs[: self.runs.index(self.best)]
        return tuple(run for run in above if run.is_private)

    def facts(self) -> list[tuple[str, str, str]]:
        """The figures of the best run: label, value, and what it is compared with."""
        best, plain = self.best, self.reference
        compared = [] if math.isnan(best.start) else [f"{self.text_of(best.start)} before training"]
        size = ""
        if plain is not None and plain is not best:
            compared.insert(0, f"FedAvg {self.score(plain)}")
            size = f"FedAvg {size_text(plain.message_bytes)}"
        if best.seeds > 1:
            compared.append(f"means of {best.seeds} seeds")
        found = [(self.label, self.score(best), ", ".join(compared))]
        if best.is_private:
            unit = f"per run, delta {delta_text(best.delta)}"
            proved = best.epsilon_model < best.epsilon_server
            server = unit if math.isfinite(best.epsilon_server) else "no guarantee"
            found += [
                (
                    MODEL_LABEL,
                    epsilon_text(best.epsilon_model),
                    unit if proved else "no smaller one than against the server is proved",
                ),
                (SERVER_LABEL, epsilon_text(best.epsilon_server), server),
            ]
        found.append(("sent per user and round", size_text(best.message_bytes), size))
        if wanted := best.users_for_next_tier():
            target, users = wanted
            detail = f"at the same noise; now {best.users:,}"
            found.append((f"users for epsilon {target:g} (model)", f"{users:,}", detail))
        return found

    def lines(self) -> list[str]:
        """The figures of the best run, a line each, and the verdict."""
        facts = self.facts()
        widths = [max(len(fact[place]) for fact in facts) for place in (0, 1)]
        rows = [
            f"  {label:{widths[0]}}  {value:{widths[1]}}  {detail}".rstrip()
            for label, value, detail in facts
        ]
        return [f"{self.title}: {self.best.name}", *rows, *textwrap.wrap(self.verdict, WIDTH)]

    def text(self) -> str:
        """The card for a terminal; one run needs no table."""
        if len(self.runs) == 1:
            return "\n".join(self.lines())
        table = _aligned(self.columns, self.rows())
        return "\n".join([*self.lines(), "", *table, *textwrap.wrap(self.caption, WIDTH)])

    @property
    def verdict(self) -> str:
        """What privacy costs beside FedAvg, how strong the guarantee is, and a warning of noise."""
        best = self.best
        if not best.is_private:
            one = len(self.runs) == 1
            return "Not private: messages are sent without noise." if one else "No run is private."
        return " ".join([self._result(), self._guarantee(), *self._alternatives()])

    def _result(self) -> str:
        """A sentence on the accuracy or loss of the best run; a warning if it learned little."""
        best, plain = self.best, self.reference
        found = f"{self.score(best)} after training, {self.text_of(best.start)} before"
        diverged = best.score[0] > best.start or math.isnan(best.score[0])
        if self.metric == "test_loss" and diverged:
            return (
                f"The test loss rose during training ({found}). The server's steps may be too long "
                f"for this task and its noise: try a smaller server_rate{_server_step_text(best)} "
                "before you change the budget."
            )
        if self._learned_little():
            advice = f"the noise is too large for {best.users:,} users"
            condition = "" if plain is not None else "if FedAvg learns this task, "
            return (
                f"Little was learned ({found}): {condition}{advice}. Use more users or a larger "
                "epsilon."
            )
        if plain is None:
            return "Compare it with FedAvg to see what privacy costs."
        share = 100 * best.message_bytes / plain.message_bytes
        text = f"It {self._compared(best, plain)} FedAvg{self._untuned(best, plain)}"
        return f"{text} and sends {share:.3g} % of its bytes."

    def _learned_little(self) -> bool:
        """Whether the best run learned little of what FedAvg learned or, without it, of all."""
        best, plain = self.best, self.reference
        perfect = 100.0 if self.metric == "test_accuracy" else 0.0
        possible = abs(perfect - best.start) if plain is None else self._gain(plain)
        return possible > 0 and self._gain(best) <= LITTLE * possible

    def _gain(self, run: RankedRun) -> float:
        """By how much training improved the metric."""
        gain = run.score[0] - run.start
        return gain if self.metric == "test_accuracy" else -gain

    def _guarantee(self) -> str:
        best = self.best
        if best.needs_trusted_server:
            text = f"The guarantee is {_strength(best.epsilon_model)} against {MODEL}"
            return f"{text}; the server sees every update and has to be trusted."
        model, server = _strength(best.epsilon_model), _strength(best.epsilon_server)
        if model == server:
            return f"The guarantee is {server} against the server and against {MODEL}."
        return f"The guarantee is {model} against {MODEL} and {server} against the server."

    def _alternatives(self) -> list[str]:
        """A sentence on runs that are better if the server is trusted."""
        kind = "more accurate" if self.metric == "test_accuracy" else "better"
        return [
            f"{run.name} is {kind} ({self.score(run)}) but needs a trusted server."
            for run in self.better_if_trusted[:1]
        ]

    def _compared(self, run: RankedRun, plain: RankedRun) -> str:
        gap = self.number(abs(run.score[0] - plain.score[0]))
        lower = run.score[0] < plain.score[0]
        if self.metric == "test_loss":
            return f"has a test loss {gap} {'below' if lower else 'above'} that of"
        if gap == self.number(0.0):
            return "is as accurate as"
        return f"is {gap} points {'less' if lower else 'more'} accurate than"

    def _untuned(self, run: RankedRun, plain: RankedRun) -> str:
        """A remark on a reference with another server step, which may not be its best one."""
        if run.server_step == plain.server_step:
            return ""
        return f" (server step {plain.server_step}, not tuned)"

    def score(self, run: RankedRun) -> str:
        """The mean of the metric as text."""
        return self.text_of(run.score[0])

    def text_of(self, value: float) -> str:
        """A value of the metric as text, with its unit."""
        return f"{self.number(value)}{' %' if self.metric == 'test_accuracy' else ''}"

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
        text = f"All finished runs by {self.label}.{means} Epsilons are for the whole run."
        if trusted := [run.name for run in self.runs if run.needs_trusted_server]:
            needs = "needs" if len(trusted) == 1 else "need"
            text += f" {' and '.join(trusted)} {needs} a trusted server."
        if len({run.server_step for run in self.runs}) > 1:
            text += (
                " Server rates differ: under a budget the rate follows from clip, noise and rounds "
                "by one rule; other runs have rate 1 unless another is given."
            )
        return text

    @property
    def columns(self) -> tuple[str, ...]:
        """The head of the ranked table."""
        whole = ("epsilon, model", "epsilon, server")
        return ("run", self.label, "minus FedAvg", *whole, "sent", "server step, rate", "seeds")

    def rows(self) -> list[tuple[str, ...]]:
        """The ranked table."""
        return [self._row(run) for run in self.runs]

    def _row(self, run: RankedRun) -> tuple[str, ...]:
        mean, low, high = run.score
        spread = "" if low == high else f" [{self.number(low)}, {self.number(high)}]"
        plain = self.reference
        gap = "" if plain is None or plain is run else self.number(mean - plain.score[0])
        return (
            run.name,
            self.score(run) + spread,
            gap.replace("-", "−"),
            epsilon_text(run.epsilon_model),
            epsilon_text(run.epsilon_server),
            size_text(run.message_bytes),
            run.server_step.replace(", rate", ""),
            str(run.seeds),
        )

    def html(self) -> str:
        """The card as HTML without style; a report styles its classes."""
        shown = "".join(
            f"<div><dt>{label}</dt><dd><b>{value}</b> {detail}</dd></div>"
            for label, value, detail in self.facts()
        )
        return (
            f'<div class="card"><p class="best">{self.title}: <b>{escape(self.best.name)}</b></p>'
            f'<dl>{shown}</dl><p class="conclusion">{_kept_together(self.verdict)}</p></div>'
            f"{self._table() if len(self.runs) > 1 else ''}"
        )

    def notebook(self) -> str:
        """The card as HTML with the style that a report has of its own."""
        return f'<div class="hushbit"><style>{NOTEBOOK_STYLE}</style>{self.html()}</div>'

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
            f'<table class="ranking"><caption><span>{escape(self.caption)}</span></caption>'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )


def _aligned(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table as text: the first column to the left, the others to the right, heads wrapped."""
    cells = list(zip(*rows, strict=True))
    lengths = [
        max(map(len, (*cell, *head.split()))) for head, cell in zip(columns, cells, strict=True)
    ]
    heads = [textwrap.wrap(head, size) for head, size in zip(columns, lengths, strict=True)]
    lines = [
        [head[number] if number < len(head) else "" for head in heads]
        for number in range(max(map(len, heads)))
    ]
    rule = ["─" * size for size in lengths]
    return [
        "  ".join(
            cell.rjust(size) if place else cell.ljust(size)
            for place, (cell, size) in enumerate(zip(row, lengths, strict=True))
        ).rstrip()
        for row in (*lines, rule, *rows)
    ]


def _kept_together(text: str) -> str:
    """A text as HTML, in which no line ends between a number and its percent sign."""
    return escape(text).replace(" %", "&nbsp;%")


def _strength(epsilon: float) -> str:
    return "strong" if epsilon <= STRONG else "reasonable" if epsilon <= REASONABLE else "weak"


def epsilon_text(epsilon: float) -> str:
    """An epsilon with three digits.

    >>> epsilon_text(4.0), epsilon_text(0.12345), epsilon_text(117750), epsilon_text(math.inf)
    ('4', '0.123', '117,750', '∞')
    """
    if math.isinf(epsilon):
        return "∞"
    return f"{epsilon:,.0f}" if epsilon >= 1000 else f"{epsilon:.3g}"


def _server_step_text(run: RankedRun) -> str:
    """The server step of a run in brackets, if it is known."""
    return f" (it was {run.server_step})" if run.server_step else ""


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
