"""The server: a Flower strategy that requests private ballots and decodes their mean."""

import json
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from logging import INFO, WARNING, getLogger
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from hushbit.budget import Budget, honest_voters
from hushbit.checks import check_delta, check_int, check_positive
from hushbit.defence.defence import Defence
from hushbit.errors import DamagedFile, HushbitError, InvalidInput
from hushbit.flower.defended_run import DefendedRun
from hushbit.flower.policy import list_of_names
from hushbit.flower.privacy_choice import PrivacyChoice
from hushbit.flower.records import (
    Arrays,
    apply_update,
    array_record,
    dimension,
    encoded_layout,
    flat_model,
    layout,
    numpy_arrays,
)
from hushbit.flower.server_optimizer import ServerOptimizer
from hushbit.flower.server_round import (
    MetricMeans,
    OpenRound,
    RoundCount,
    failure_report,
    privacy_metrics,
    replies,
    round_line,
    sample_nodes,
    send_all,
    snr_estimate_db,
    vote_metrics,
)
from hushbit.mechanism import Mechanism
from hushbit.store.run_folder import Checkpoint, RunFolder, software_versions, to_json
from hushbit.wire import keys
from hushbit.wire.keys import RoundKey

log = getLogger("flwr").log

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]
CONFIG_FILE = "flower.json"
RUN_BYTES = 16
RECORDED_PACKAGES = ("hushbit", "flwr", "numpy", "numba")


class ModelUnchanged(HushbitError):
    """No round of a run changed the model; `result` holds the metrics of its rounds."""

    def __init__(self, message: str, result: Result) -> None:
        super().__init__(message)
        self.result = result


class HushbitStrategy(Strategy):
    """Requests private ballots from sampled users and updates the model with the decoded mean.

    How updates are encoded follows from a budget:

    budget            the most that one user may reveal; epsilon per bit, radius and rotation follow
    rounds            rounds of a run; required for a budget per run
    honest            voters in each tally whose coins stay secret, as a number or (a float) as a
                      share of `users_per_round`; required for a budget against the model
    clip              l2 norm to which updates are scaled down; None to let private norm votes
                      choose it in every round (`AutoCPA`)

    Experts give a mechanism instead of a budget:

    mechanism         a Mechanism, or a name ("cpa", "laplace", …) with its parameters as options
    delta             delta of the reported guarantees; by default that of the budget

    Rounds:

    quorum            smallest number of accepted ballots that updates the model; by default the
                      number of honest voters, and never less for a budget against the model
    deadline_seconds  longest duration of a round, which ends early when all users have replied
    users_per_round   number of sampled users; None for all
    optimizer         FedAvg, FedAvgM, FedAdam, FedYogi or FedAdagrad; its sampling is ignored
    defence           a `Defence`, which removes ballots of colluding users before they are counted;
                      the server then keeps the ballots of a round, users * dim / 8 bytes
    users             user number of each node id; None to use the node id
    frozen            name patterns of arrays that are not encoded and keep the server's value
    folder            run folder: metrics, summary, and the checkpoint from which a run resumes
    secret            32 bytes from which all keys are derived, see `load_secret`; required with a
                      folder, because a resumed run needs the same secret
    evaluate_users    also request evaluations; the guarantee does not cover their metrics
    """

    def __init__(
        self,
        mechanism: Mechanism | str | None = None,
        *,
        budget: Budget | None = None,
        rounds: int | None = None,
        honest: float | None = None,
        clip: float | None = None,
        delta: float | None = None,
        quorum: int | None = None,
        deadline_seconds: float = 3600.0,
        users_per_round: int | None = None,
        optimizer: FedAvg | None = None,
        defence: Defence | None = None,
        users: Mapping[int, int] | None = None,
        frozen: Sequence[str] = (),
        folder: str | Path | None = None,
        secret: bytes | None = None,
        evaluate_users: bool = False,
        **options: Any,
    ) -> None:
        if isinstance(honest, float) and users_per_round is None:
            raise InvalidInput(
                f"honest={honest} is a share of the users in a round: also give users_per_round, "
                "or give honest as a whole number"
            )
        voters = honest_voters(honest, users_per_round)
        self.privacy = PrivacyChoice(mechanism, options, budget, rounds, voters, clip)
        least = 1 if voters is None else voters
        if quorum is None and voters is None:
            raise InvalidInput("quorum is missing: the smallest number of ballots of a round")
        self.quorum = check_int("quorum", least if quorum is None else quorum, least)
        self.users_per_round = users_per_round
        if users_per_round is not None:
            self.users_per_round = check_int("users_per_round", users_per_round, self.quorum)
        if delta is None and budget is not None and budget.delta:
            delta = budget.delta
        if delta is None:
            raise InvalidInput("delta is missing: that of the reported guarantees, such as 1e-5")
        self.delta = check_delta(delta, zero=False)
        self.deadline_seconds = check_positive("deadline_seconds", deadline_seconds)
        if users is not None and not isinstance(users, Mapping):
            raise InvalidInput(
                "users must be a table {node id: user number}, or None; got "
                f"{type(users).__name__}. The number of users in a round is users_per_round"
            )
        if users is not None and len(set(users.values())) < len(users):
            raise InvalidInput("two nodes have the same user number: give each node its own")
        self.users = None if users is None else dict(users)
        self.frozen = list_of_names("frozen", frozen)
        self.optimizer = ServerOptimizer(FedAvg() if optimizer is None else optimizer)
        if defence is not None and not isinstance(defence, Defence):
            raise InvalidInput(f"defence must be a Defence; got {type(defence).__name__}")
        if defence is not None and voters is not None:
            raise InvalidInput(
                "a budget against the model covers only sums of ballots, but a defence reads "
                "single ballots: leave defence out, or take a budget against the server"
            )
        self.defence = defence
        if folder is not None and secret is None:
            raise InvalidInput(
                "a run folder needs a secret that is kept: secret=load_secret('secret.key')"
            )
        self.secret = RoundKey(secrets.token_bytes(32) if secret is None else secret, 0).secret
        self.folder = None if folder is None else RunFolder(folder, CONFIG_FILE)
        self.evaluate_users = evaluate_users
        self._mechanism: Mechanism | None = None
        self._run = secrets.token_bytes(RUN_BYTES)
        self._round: OpenRound | None = None
        self._defended: DefendedRun | None = None
        self._grid: Grid | None = None
        self._unanswered: set[str] = set()
        self._failures: Counter[str] = Counter()

    def summary(self) -> None:
        """Log budget or mechanism, quorum, deadline and optimizer."""
        log(INFO, "\t├──> hushbit: %s", self.privacy)
        log(INFO, "\t├──> quorum %d, deadline %g s", self.quorum, self.deadline_seconds)
        log(INFO, "\t└──> server optimizer: %s", type(self.optimizer.strategy).__name__)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Run the rounds that are not yet in the folder; return Flower's Result.

        `timeout` is ignored: `deadline_seconds` limits every round.
        """
        self.summary()
        self.privacy.check_rounds(check_int("num_rounds", num_rounds, 0))
        # A resumed run has new keys, so that users answer an interrupted round again.
        self._run = secrets.token_bytes(RUN_BYTES)
        self._failures.clear()
        with nullcontext() if self.folder is None else self.folder.locked():
            return self._run_rounds(
                grid,
                initial_arrays,
                num_rounds,
                train_config or ConfigRecord(),
                evaluate_config or ConfigRecord(),
                evaluate_fn,
            )

    def _run_rounds(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int,
        train_config: ConfigRecord,
        evaluate_config: ConfigRecord,
        evaluate_fn: Evaluate | None,
    ) -> Result:
        result = Result()
        result.arrays, first = self._begin(initial_arrays)
        log(
            INFO,
            "hushbit: %s",
            self.privacy.statement(self._require_mechanism(), num_rounds, self.delta),
        )
        if evaluate_fn is not None and first == 1:
            _evaluate(0, result, evaluate_fn)
        history: list[dict[str, Any]] = []
        for number in range(first, num_rounds + 1):
            log(INFO, "[ROUND %d/%d]", number, num_rounds)
            requests = self._open_round(number, result.arrays, train_config, grid)
            made, train_metrics = self.aggregate_train(number, self._exchange(grid, requests))
            result.arrays = result.arrays if made is None else made
            metrics: dict[str, Any] = dict(train_metrics or {})
            result.train_metrics_clientapp[number] = MetricRecord(dict(metrics))
            if self.evaluate_users:
                self._evaluate_users(number, result, evaluate_config, grid)
            if evaluate_fn is not None:
                metrics |= _evaluate(number, result, evaluate_fn)
            log(INFO, "hushbit: %s", round_line(metrics))
            history.append(metrics)
            if self.folder is not None:
                groups = {
                    "model": numpy_arrays(result.arrays),
                    "optimizer": self.optimizer.state(),
                    "tuning": self._require_mechanism().state,
                    "defence": {} if self._defended is None else self._defended.state,
                }
                self.folder.save({"round": number, **metrics}, groups)
        if self.folder is not None:
            history = self.folder.rows()
            self.folder.finish({"rounds": len(history), **(history[-1] if history else {})})
        if history and not any(row["model_updated"] for row in history):
            raise ModelUnchanged(
                f"the model never changed in {len(history)} rounds: no round reached the quorum of "
                f"{self.quorum} ballots. Requests without a counted ballot: "
                f"{failure_report(self._failures) or 'none; too few nodes were connected'}",
                result,
            )
        return result

    def _begin(self, initial: ArrayRecord) -> tuple[ArrayRecord, int]:
        """The initial model, and the number of the first round to run."""
        before = numpy_arrays(initial)
        slots = encoded_layout(before, self.frozen)
        encoded = [slot.name for slot in slots]
        _check_finite({name: before[name] for name in encoded}, "before the first round")
        first = self.privacy.build(dimension(slots), self.users_per_round or self.quorum)
        self._mechanism = first
        self._defended = None
        if self.defence is not None:
            self._defended = DefendedRun(self.defence, first, flat_model(slots, before))
        # As the server reads it: the first round sends the same types as all others.
        initial = array_record(before)
        if self.folder is None:
            return initial, 1
        config = {
            "mechanism": first.description,
            "budget": None if self.privacy.budget is None else str(self.privacy),
            "rounds": self.privacy.rounds,
            "key": RoundKey(self.secret, 0).key_id.hex(),
            "optimizer": self.optimizer.settings,
            "model": {name: list(array.shape) for name, array in before.items()},
            "frozen": list(self.frozen),
            "defence": None if self.defence is None else asdict(self.defence),
        }
        checkpoint = _open_run(self.folder, config, before)
        if checkpoint is None:
            return initial, 1
        log(INFO, "hushbit: resuming after round %d", checkpoint.round)
        self.optimizer.restore(checkpoint.groups.get("optimizer", {}))
        self._mechanism = first.with_state(checkpoint.groups.get("tuning", {}))
        if self._defended is not None:
            self._defended.restore(checkpoint.groups.get("defence", {}))
        model = {name: checkpoint.groups["model"][name] for name in before}
        _check_finite(
            {name: model[name] for name in encoded}, f"in the checkpoint of {self.folder.folder}"
        )
        return array_record(model), checkpoint.round + 1

    def _sampled(self, grid: Grid, deadline: float) -> dict[int, int]:
        """The user number of each sampled node, from `users` if it was given.

        Below the quorum no node is sampled: ballots would cost epsilon but change nothing.
        """
        table = self.users
        nodes = sample_nodes(
            grid,
            (lambda node: True) if table is None else table.__contains__,
            self.users_per_round,
            self.quorum,
            deadline,
        )
        if len(nodes) < self.quorum:
            log(
                WARNING, "hushbit: %d nodes online, below the quorum of %d", len(nodes), self.quorum
            )
            return {}
        return {node: node if table is None else table[node] for node in nodes}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterator[Message]:
        """Refused: the rounds of this strategy are part of its own `start`."""
        raise InvalidInput(
            "HushbitStrategy runs its own rounds: call start of this strategy. It cannot be inside "
            "of another strategy, such as Flower's differential privacy wrappers: its budget is "
            "the guarantee"
        )

    def _open_round(
        self, number: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterator[Message]:
        """Sample users, and build the request to each of them, one at a time."""
        begun = time.monotonic()
        deadline = begun + self.deadline_seconds
        before = numpy_arrays(arrays)
        slots = encoded_layout(before, self.frozen)
        # Rounds of keys are counted from 0, those of Flower from 1.
        key = RoundKey(self.secret, number - 1, self._run)
        nodes = self._sampled(grid, deadline)
        log(INFO, "hushbit: sending requests to %d users", len(nodes))
        if self._defended is not None and nodes:
            known = [*nodes, *grid.get_node_ids()] if self.users is None else self.users.values()
            self._defended.enrol(known)
        mechanism = self._require_mechanism()
        self._round = OpenRound(number, mechanism, key, before, slots, nodes, begun, deadline)
        self._grid = grid
        return self._round.requests(arrays, config, self.frozen, self.optimizer.content)

    def _require_mechanism(self) -> Mechanism:
        if self._mechanism is None:
            raise InvalidInput("no run was started: call start")
        return self._mechanism

    def _exchange(self, grid: Grid, messages: Iterable[Message]) -> Iterator[Message]:
        """Send messages, record the user of each, and yield replies as they arrive.

        Replies to earlier rounds come first, so that late ballots are counted as such.
        """
        current = self._round
        assert current is not None
        sent = send_all(grid, messages)
        current.record_sent(sent)
        yield from grid.pull_messages(self._unanswered) if self._unanswered else ()
        self._unanswered = set(sent)
        for reply in replies(grid, sent, current.deadline):
            self._unanswered.discard(reply.metadata.reply_to_message_id)
            yield reply

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Count the ballots as they arrive, decode their mean and apply the optimizer."""
        current = self._round
        if current is None or self._grid is None or current.number != server_round:
            raise InvalidInput(f"round {server_round} is not open: call start")
        count = current.count(replies, self._defended)
        metrics = vote_metrics(count, len(current.nodes)) | {"bytes_down": current.bytes_down}
        metrics |= privacy_metrics(current.mechanism, server_round, self.delta)
        model = self.privacy.epsilon_run_model(current.mechanism, server_round, self.delta)
        if model is not None:
            metrics |= {"epsilon_run_model": model, "honest": self.privacy.honest}
        self._report_failures(count, count.failures(len(current.nodes)))
        made: ArrayRecord | None = None
        if count.accepted >= self.quorum:
            estimate = current.mechanism.estimate(count.tally)
            if count.accepted > 1:  # one ballot does not separate signal from noise
                metrics["snr_estimate_db"] = snr_estimate_db(estimate)
            before = {slot.name: current.before[slot.name] for slot in current.slots}
            mean_model = apply_update(current.slots, before, estimate.mean)
            after = self.optimizer.step(server_round, before, mean_model, self._grid)
            _check_finite(after, f"after round {server_round}")
            made = array_record(current.before | after)
            self._mechanism = current.mechanism.next_round(count.tally)
            if self._defended is not None:
                self._defended.previous = flat_model(current.slots, current.before)
        metrics |= {
            "model_updated": int(made is not None),
            "seconds": time.monotonic() - current.begun,
        }
        return made, MetricRecord(metrics)

    def _report_failures(self, count: RoundCount, failures: Counter[str]) -> None:
        """Log why requests brought no counted ballot, and whether the model changes."""
        self._failures += failures
        if failures:
            log(
                WARNING,
                "hushbit: %d ballots accepted; requests without a counted ballot: %s",
                count.accepted,
                failure_report(failures),
            )
        if count.accepted < self.quorum:
            log(
                WARNING,
                "hushbit: %d ballots are below the quorum of %d; the model does not change",
                count.accepted,
                self.quorum,
            )

    def _evaluate_users(
        self, number: int, result: Result, config: ConfigRecord, grid: Grid
    ) -> None:
        requests = self.configure_evaluate(number, result.arrays, config, grid)
        deadline = time.monotonic() + self.deadline_seconds
        metrics = self.aggregate_evaluate(number, replies(grid, send_all(grid, requests), deadline))
        if metrics is not None:
            result.evaluate_metrics_clientapp[number] = metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterator[Message]:
        """Requests to the users of this round to evaluate the model, if `evaluate_users` is set."""
        if not self.evaluate_users or self._round is None:
            return
        own = ConfigRecord({**config, "server-round": server_round})
        for node in self._round.nodes:
            content = self.optimizer.evaluate_content(arrays, own)
            yield Message(content, node, MessageType.EVALUATE, ttl=self.deadline_seconds)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """The mean of each metric that clients send."""
        means = MetricMeans()
        for reply in replies:
            if not reply.has_error():
                means.add(reply.content)
        found = means.means()
        return MetricRecord(dict(found)) if found else None


def _evaluate(number: int, result: Result, evaluate: Evaluate) -> dict[str, Any]:
    """Evaluate at the server and store the metrics in the result."""
    found = evaluate(number, result.arrays)
    if found is None:
        return {}
    result.evaluate_metrics_serverapp[number] = found
    return {f"test_{name}": value for name, value in found.items()}


def _check_finite(arrays: Mapping[str, Any], where: str) -> None:
    """Refuse a model that is not finite: ballots would have no information, at full cost."""
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise InvalidInput(
                f"array {name!r} of the model has NaN or infinity {where}: check the initial "
                "model, or lower the optimizer's learning rate or the clip"
            )


def _open_run(folder: RunFolder, config: Mapping[str, Any], model: Arrays) -> Checkpoint | None:
    """Start a run in the folder, or return the checkpoint of the run that it holds."""
    text, versions = to_json(config), software_versions(RECORDED_PACKAGES)
    if not folder.holds_run:
        folder.create(text, versions)
        return None
    known, own = folder.read_json(CONFIG_FILE), json.loads(text)
    different = sorted(key for key in {*own, *known} if known.get(key) != own.get(key))
    if different:
        raise InvalidInput(
            f"{folder.folder} holds a run with another {', '.join(different)}: resume it with "
            "the same values, or use another folder"
        )
    checkpoint = folder.read_checkpoint()
    if checkpoint is not None and layout(checkpoint.groups.get("model", {})) != layout(model):
        raise DamagedFile(
            f"the checkpoint in {folder.folder} does not fit the model: restore a copy of it"
        )
    folder.rewind(0 if checkpoint is None else checkpoint.round, versions)
    return checkpoint


def load_secret(path: str | Path) -> bytes:
    """Read the server's secret from a file; a missing file is created with 32 random bytes.

    A relative path is relative to the folder of the module that calls this function: the working
    directory of a ServerApp is where somebody started the SuperLink. Flower installs every version
    of an app in a folder of its own, so use an absolute path for runs that are to be resumed after
    the app was changed.
    """
    caller = sys._getframe(1).f_globals.get("__file__")
    return keys.load_secret(Path(path) if caller is None else Path(caller).parent / path)
