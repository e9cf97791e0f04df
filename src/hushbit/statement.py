"""The privacy statement of a run: what ballots reveal to the server, and what models reveal.

Every display states privacy by the same two rows, one for each observer:

    against the server   local differential privacy of a user's ballots; needs no trust in others
    against the model    what tallies and models reveal (`Guarantee.of_tally`), with assumptions

`PrivacyStatement.row` holds the figures for JSON, `lines` the text for a terminal, and `note` a
page of Markdown for the person who approves the run.
"""

import math
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hushbit.budget import Budget, honest_voters
from hushbit.checks import check_choice, check_delta, check_int
from hushbit.errors import InvalidInput
from hushbit.privacy.accountant import composed_bound, delta_text
from hushbit.privacy.central import RELATIONS, TallyRelease, VoteSums, bound_of_tallies
from hushbit.privacy.guarantee import Guarantee, participation_bound

WIDTH = 80
"""Columns of the text."""

SERVER = "Against the server, which sees ballots"
MODEL = "Against those who see only the model"
SERVER_ASSUMES = (
    "Assumes only that the user's own device follows the protocol and keeps its coins secret. "
    "Neither the server nor other users have to be trusted."
)
MODEL_ASSUMES = (
    "Assumes a server that releases nothing but tallies (sums of all users' votes) and what is "
    "computed from them, or secure aggregation; in every round {voters} whose coins stay secret; "
    "that taking part does not depend on data."
)
TRUSTED_SERVER = (
    "Assumes a trusted server, which sees every update, adds the noise and releases nothing but "
    "estimates and models; that taking part does not depend on data."
)
RELATION_TEXTS = {
    "replace": "one user's update changes arbitrarily (replace)",
    "zero-out": "one user's update becomes zero (zero-out)",
}
NO_PRIVACY = (
    "No privacy: users send messages without noise, and no epsilon is finite. The server and those "
    "who see the models may learn anything about a user."
)
SIMULATED = (
    "Simulated run: these are the figures of the deployment that it simulates, in which coins come "
    "from the operating system."
)


@dataclass(frozen=True)
class PrivacyStatement:
    """What one user reveals to each of the two observers, and under which assumptions.

    epsilon_bit             largest pure epsilon of one bit (of one `unit` for other mechanisms)
    epsilon_message_server  of one message, at delta, against the server
    epsilon_run_server      of all messages of the run, at delta, against the server
    epsilon_run_model       of the whole run, at delta, against those who see only the model;
                            infinite if no smaller figure than that against the server is proved
    reason                  why `epsilon_run_model` is infinite, else empty
    delta                   of the three figures above
    honest                  voters in every tally whose coins stay secret; None if not stated
    relation                "replace" or "zero-out", for the figure against the model
    rounds                  number of rounds of the run
    taken_part              rounds that are counted for one user
    unit                    what `epsilon_bit` counts: bit, entry, block or message
    users                   number of users, if known
    budget, spent           the requested budget and what the run costs in its unit, if any
    simulated               whether the run was a simulation
    """

    epsilon_bit: float
    epsilon_message_server: float
    epsilon_run_server: float
    epsilon_run_model: float
    reason: str
    delta: float
    honest: int | None
    relation: str
    rounds: int
    taken_part: int
    unit: str = "bit"
    users: int | None = None
    budget: Budget | None = None
    spent: float | None = None
    simulated: bool = False

    @property
    def within_budget(self) -> bool:
        """Whether the run costs at most its budget; true without a budget."""
        return self.budget is None or self.spent is None or self.spent <= self.budget.epsilon

    @property
    def is_private(self) -> bool:
        """Whether there is a guarantee against at least one observer."""
        return math.isfinite(min(self.epsilon_run_model, self.epsilon_run_server))

    @property
    def server_noise(self) -> bool:
        """Whether the server adds the noise to updates that it sees, as in `Gaussian`."""
        return math.isinf(self.epsilon_bit) and not self.reason

    def row(self) -> dict[str, float | str | None]:
        """The figures for JSON."""
        return {
            "epsilon_bit": self.epsilon_bit,
            "epsilon_message_server": self.epsilon_message_server,
            "epsilon_run_server": self.epsilon_run_server,
            "epsilon_run_model": self.epsilon_run_model,
            "delta": self.delta,
            "honest": self.honest,
            "relation": self.relation,
        }

    def lines(self) -> list[str]:
        """The statement as text: the budget first, then a row for each observer."""
        if not self.is_private:
            return _wrapped(NO_PRIVACY, "", "  ")
        found = [] if self.budget is None else _wrapped(self.budget_line, "", "  ")
        for title, row in ((SERVER, self._server_row()), (MODEL, self._model_row())):
            found.append(f"{title}:")
            found += [line for text in row for line in _wrapped(text, "  ", "    ")]
        for text in self._remarks():
            found += _wrapped(text, "", "  ")
        return found

    def __str__(self) -> str:
        return "\n".join(self.lines())

    @property
    def budget_line(self) -> str:
        """One line: what the run costs of its budget, in the unit of the budget."""
        if self.budget is None or self.spent is None:
            return "no budget was given"
        within = "within" if self.within_budget else "over"
        _, limit = str(self.budget).split(" ", 1)
        return f"{within} the budget: epsilon {_number(self.spent)} of {limit}"

    def _server_row(self) -> list[str]:
        """Figures and assumptions against the server."""
        if math.isinf(self.epsilon_bit):
            return ["no guarantee: messages are sent without noise (epsilon is infinite)."]
        message, run = _number(self.epsilon_message_server), _number(self.epsilon_run_server)
        return [
            f"epsilon {_number(self.epsilon_bit)} per {self.unit}, {message} per message and {run} "
            f"per {self._run_text()}, the last two at delta {delta_text(self.delta)}.",
            SERVER_ASSUMES,
        ]

    def _model_row(self) -> list[str]:
        """Figure and assumptions against those who see only the model."""
        if self.reason:
            return [f"no smaller epsilon than against the server is proved: {self.reason}."]
        voters = f"at least {self.honest} voters" if self.honest != 1 else "1 voter"
        return [
            f"epsilon {_number(self.epsilon_run_model)} per {self._run_text()} at delta "
            f"{delta_text(self.delta)}; {RELATION_TEXTS[self.relation]}.",
            TRUSTED_SERVER if self.server_noise else MODEL_ASSUMES.format(voters=voters),
        ]

    def _run_text(self) -> str:
        text = f"run of {self.rounds} round{'s' * (self.rounds != 1)}"
        return text if self.taken_part == self.rounds else f"{text} ({self.taken_part} counted)"

    def _remarks(self) -> list[str]:
        """A warning about a delta that is too large, and a remark on simulations."""
        found = []
        users = self.users or self.honest
        if users is not None and self.delta * users >= 1:
            found.append(
                f"Warning: delta {delta_text(self.delta)} is not below 1/users = {1 / users:.2g}; "
                "a smaller delta is needed for a meaningful guarantee."
            )
        return [*found, SIMULATED] if self.simulated else found

    def note(
        self,
        title: str = "Privacy note",
        *,
        evidence: Mapping[str, float | str] | None = None,
        details: Iterable[str] = (),
    ) -> str:
        """A page of Markdown for the person who approves the run.

        evidence  measured results of attacks: what was measured, and its value with its unit
        details   further facts about the run or plan, a line each
        """
        shown = [*details, *([] if self.budget is None else [f"{self.budget_line}."])]
        measured = [f"{name}: {_value(value)}" for name, value in (evidence or {}).items()]
        if self.is_private:
            measured = measured or ["No attack was measured for this note."]
            sections = [
                ("Summary", [*shown, *self._remarks()]),
                (SERVER, self._server_row()),
                (MODEL, self._model_row()),
                ("What the figures mean", self._meaning()),
                ("Who has to be trusted", self._trust()),
                ("Attack evidence", measured),
                ("Not covered", list(NOT_COVERED)),
                ("Before another run with the same users", self._renewal()),
            ]
        else:
            sections = [("Summary", [NO_PRIVACY, *shown]), ("Attack evidence", measured)]
        parts = [f"# {title}"]
        for heading, texts in sections:
            if texts:
                items = "\n".join("\n".join(_wrapped(_sentence(t), "- ", "  ")) for t in texts)
                parts.append(f"## {heading}\n\n{items}")
        return "\n\n".join(parts) + "\n"

    def _meaning(self) -> list[str]:
        return [
            "The unit of protection is one user: all data that one user contributes to the run, "
            f"over {self._rounds_text()}.",
            "Differential privacy: if the updates of one user change, the probability of any "
            "conclusion of the observer changes by at most a factor of e^epsilon, plus delta.",
            f"Neighbouring inputs against the model: {RELATION_TEXTS[self.relation]}. Against the "
            "server: any two updates of the user.",
        ]

    def _rounds_text(self) -> str:
        return f"{self.rounds} round{'s' * (self.rounds != 1)}"

    def _trust(self) -> list[str]:
        found = ["Against the server: nobody but the user's own device."]
        if math.isinf(self.epsilon_bit):
            found = ["Against the server: there is no guarantee."]
        if self.reason:
            return found
        if self.server_noise:
            return [
                *found,
                "Against the model: whoever runs the server sees every update. The server must add "
                "the noise and release nothing but estimates and models.",
            ]
        others = "no other user" if self.honest == 1 else f"{self._others()} other users"
        return [
            *found,
            "Against the model: whoever runs the server must release nothing but tallies and what "
            "is computed from them, or secure aggregation must hide the ballots; "
            f"{others} in every round must keep their coins secret and use them as prescribed.",
        ]

    def _others(self) -> int:
        return 0 if self.honest is None else self.honest - 1

    def _renewal(self) -> list[str]:
        found = [
            "The epsilons of all runs with the same users add up, and so do the deltas. A further "
            "run needs a new approval of the sum.",
        ]
        for name, epsilon in (
            ("against the server", self.epsilon_run_server),
            ("against the model", self.epsilon_run_model),
        ):
            if math.isfinite(epsilon):
                found.append(
                    f"A second run like this one: epsilon {_number(2 * epsilon)} for both runs at "
                    f"delta {delta_text(2 * self.delta)}, {name}."
                )
        return [*found, "For a user who takes part for the first time, no earlier runs are added."]


NOT_COVERED = (
    "Training losses, accuracies, stopping rules and settings that are computed from users' data "
    "other than the tallies: each is a further release.",
    "Data that the server has itself, such as a test set: they must be public.",
    "Stored or published ballots: against those who see them, only the figures against the server "
    "hold.",
    "User state that is computed from a user's own ballots, such as error feedback.",
    "Who takes part, when, and from which address.",
    "Groups: for m users together, or one person with m accounts, epsilon is m times as large, and "
    "delta grows too.",
    "Facts about the population that the model shows whether or not the user takes part.",
)


def privacy_statement(
    guarantees: Guarantee | Iterable[Guarantee],
    *,
    rounds: int,
    delta: float,
    honest: float | None,
    users: int | None = None,
    relation: str = "replace",
    budget: Budget | None = None,
    participation: float | None = None,
    not_a_sum: str = "",
    simulated: bool = False,
) -> PrivacyStatement:
    """The statement of a run whose rounds have these guarantees.

    guarantees     one guarantee that holds in every round, or one for each round
    honest         voters in every tally whose coins stay secret: a number, a share of the users (a
                   float), or None if nothing is claimed about other users
    participation  rounds in which one user takes part, as in `Guarantee.run_bound`. It only counts
                   rounds; no amplification by sampling is claimed
    not_a_sum      why the released results are not functions of tallies (a defence, medians,
                   stored ballots); there is no figure against the model then, and a budget against
                   the model is refused

    Rounds whose guarantees differ may have been chosen with knowledge of earlier rounds: ballots
    are composed by `composed_bound` with `adaptive=True`, tallies by `bound_of_tallies`.
    """
    rounds, delta = check_int("rounds", rounds, 1), check_delta(delta, zero=False)
    run = _Run(
        _kinds(guarantees, rounds),
        honest_voters(honest, users),
        check_choice("relation", relation, RELATIONS),
        participation,
        "renyi" if budget is None else budget.accountant,
    )
    reason = not_a_sum or run.missing_proof()
    if budget is not None and budget.against == "model" and reason:
        raise InvalidInput(f"a budget against the model cannot be stated: {reason}")
    largest = max(run.kinds, key=lambda one: one.epsilon_per_bit)
    return PrivacyStatement(
        epsilon_bit=largest.epsilon_per_bit,
        epsilon_message_server=run.of_message("server", delta),
        epsilon_run_server=run.of_run("server", delta),
        epsilon_run_model=math.inf if reason else run.of_run("model", delta),
        reason=reason,
        delta=delta,
        honest=run.honest,
        relation=relation,
        rounds=rounds,
        taken_part=participation_bound(rounds, delta, participation)[0],
        unit=largest.unit,
        users=users,
        budget=budget,
        spent=None if budget is None else run.of_budget(budget),
        simulated=simulated,
    )


@dataclass(frozen=True)
class _Run:
    """The distinct guarantees of a run with their numbers of rounds, and the assumptions."""

    kinds: dict[Guarantee, int]
    honest: int | None
    relation: str
    participation: float | None
    accountant: str

    def __post_init__(self) -> None:
        if len(self.kinds) > 1 and self.participation is not None:
            raise InvalidInput(
                "participation needs the same guarantee in every round: leave it out"
            )

    def missing_proof(self) -> str:
        """Why no guarantee against those who see only the model is proved; empty if one is."""
        for guarantee in self.kinds:
            if isinstance(guarantee.sums, str):
                return f"no guarantee of the tally is proved; {guarantee.sums}"
            if isinstance(guarantee.sums, VoteSums) and math.isinf(guarantee.sums.epsilon):
                return "votes without randomized response have no noise"
        return "" if self.honest else "it needs the number of honest voters, which was not stated"

    def of_message(self, against: str, delta: float) -> float:
        """Epsilon of the costliest message."""
        return max(self._rounds_of(one, 1, against, delta) for one in self.kinds)

    def of_run(self, against: str, delta: float) -> float:
        """Epsilon of all rounds in which one user takes part."""
        if len(self.kinds) > 1:
            return self._different_rounds(against, delta)
        ((guarantee, rounds),) = self.kinds.items()
        times, left, more = participation_bound(rounds, delta, self.participation)
        found = self._rounds_of(guarantee, times, against, left)
        return min(found, self._rounds_of(guarantee, rounds, against, delta)) if more else found

    def of_budget(self, budget: Budget) -> float:
        """Epsilon in the unit of the budget, at its delta and against its observer."""
        if budget.per == "bit":
            return max(guarantee.epsilon_per_bit for guarantee in self.kinds)
        cost = self.of_message if budget.per == "message" else self.of_run
        return cost(budget.against, budget.delta)

    def _rounds_of(self, guarantee: Guarantee, times: int, against: str, delta: float) -> float:
        if against == "server":
            return guarantee.bound(times, delta).epsilon
        assert self.honest is not None
        return guarantee.of_tally(
            self.honest,
            times,
            delta=delta,
            relation=self.relation,
            accountant=self.accountant,
        ).epsilon

    def _different_rounds(self, against: str, delta: float) -> float:
        costs = [guarantee.cost.times(times) for guarantee, times in self.kinds.items()]
        found = composed_bound(costs, delta, adaptive=True).epsilon
        if against == "server":
            return found
        assert self.honest is not None
        releases = [
            TallyRelease(guarantee.sums, self.honest, times, self.relation)
            for guarantee, times in self.kinds.items()
            if not isinstance(guarantee.sums, str)
        ]
        return min(found, bound_of_tallies(releases, delta, self.accountant).epsilon)


def _kinds(guarantees: Guarantee | Iterable[Guarantee], rounds: int) -> dict[Guarantee, int]:
    """The distinct guarantees, each with the number of its rounds."""
    if isinstance(guarantees, Guarantee):
        return {guarantees: rounds}
    counted = Counter(guarantees)
    if counted.total() != rounds:
        raise InvalidInput(
            f"a list of guarantees has one for each round: got {counted.total()} for {rounds} "
            "rounds"
        )
    return dict(counted)


def _wrapped(text: str, first: str, following: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=following, break_on_hyphens=False
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _value(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if 1e4 <= value < 1e15 else f"{value:.4g}"
