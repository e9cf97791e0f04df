"""The server: a Flower strategy that requests private ballots and decodes their mean."""

import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from flwr.supercore import log

from hushbit.checks import check_delta, check_int, check_positive
from hushbit.errors import DamagedFile, InvalidInput
from hushbit.flower.policy import list_of_names
from hushbit.flower.records import (
    Arrays,
    apply_update,
    array_record,
    dimension,
    encoded_layout,
    numpy_arrays,
)
from hushbit.flower.server_optimizer import ServerOptimizer
from hushbit.flower.server_round import (
    MetricMeans,
    OpenRound,
    privacy_metrics,
    replies,
    sample_nodes,
    send_all,
    snr_estimate_db,
    vote_metrics,
)
from hushbit.mechanism import Mechanism
from hushbit.registry import mechanism_by_name
from hushbit.store.run_folder import Checkpoint, RunFolder, software_versions, to_json
from hushbit.wire.keys import RoundKey

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]
CONFIG_FILE = "flower.json"
RUN_BYTES = 16
RECORDED_PACKAGES = ("hushbit", "flwr", "numpy", "numba")


class HushbitStrategy(Strategy):
    """Requests private ballots from sampled users and updates the model with the decoded mean.

    mechanism         a Mechanism, or a name ("cpa", "laplace", …) with its parameters as options
    secret            32 bytes from which all keys are derived, see `load_secret`; keep them
    delta             delta of the reported (epsilon, delta) guarantees
    quorum            smallest number of accepted ballots that updates the model
    deadline_seconds  longest duration of a round, which ends early when all users have replied
    users_per_round   number of sampled users; None for all
    optimizer         FedAvg, FedAvgM, FedAdam, FedYogi or FedAdagrad; its sampling is ignored
    users             user number of each node id; None to use the node id
    frozen            name patterns of arrays that are not encoded and keep the server's value
    folder            run folder: metrics, summary, and the checkpoint from which a run resumes
    evaluate_users    also request evaluations; the guarantee does not cover their metrics
    """

    def __init__(
        self,
        mechanism: Mechanism | str,
        *,
        secret: bytes,
        delta: float,
        quorum: int,
        deadline_seconds: float,
        users_per_round: int | None = None,
        optimizer: FedAvg | None = None,
        users: Mapping[int, int] | None = None,
        frozen: Sequence[str] = (),
        folder: str | Path | None = None,
        evaluate_users: bool = False,
        **options: Any,
    ) -> None:
        named = isinstance(mechanism, str)
        if not isinstance(mechanism, Mechanism | str) or (options and not named):
            raise InvalidInput(
                f"mechanism must be a Mechanism without options, or a name with options; got "
                f"{type(mechanism).__name__} and {sorted(options)}"
            )
        self.secret = RoundKey(secret, 0).secret
        self.delta = check_delta(delta, zero=False)
        self.quorum = check_int("quorum", quorum, 1)
        self.deadline_seconds = check_positive("deadline_seconds", deadline_seconds)
        self.users_per_round = users_per_round
        if users_per_round is not None:
            self.users_per_round = check_int("users_per_round", users_per_round, self.quorum)
        if users is not None and len(set(users.values())) < len(users):
            raise InvalidInput("two nodes have the same user number: give each node its own")
        self.users = None if users is None else dict(users)
        self.frozen = list_of_names("frozen", frozen)
        self.optimizer = ServerOptimizer(FedAvg() if optimizer is None else optimizer)
        self.folder = None if folder is None else RunFolder(folder, CONFIG_FILE)
        self.evaluate_users = evaluate_users
        self._mechanism, self._options = mechanism, options
        self._run = secrets.token_bytes(RUN_BYTES)
        self._round: OpenRound | None = None
        self._grid: Grid | None = None

    def summary(self) -> None:
        """Log mechanism, quorum, deadline and optimizer."""
        log(INFO, "\t├──> hushbit: %s", self._mechanism)
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
        # A resumed run has new keys, so that users answer an interrupted round again.
        self._run = secrets.token_bytes(RUN_BYTES)
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
        if evaluate_fn is not None and first == 1:
            _evaluate(0, result, evaluate_fn)
        for number in range(first, num_rounds + 1):
            log(INFO, "[ROUND %d/%d]", number, num_rounds)
            requests = self.configure_train(number, result.arrays, train_config, grid)
            made, train_metrics = self.aggregate_train(number, self._exchange(grid, requests))
            result.arrays = result.arrays if made is None else made
            metrics: dict[str, Any] = dict(train_metrics or {})
            result.train_metrics_clientapp[number] = MetricRecord(dict(metrics))
            if self.evaluate_users:
                self._evaluate_users(number, result, evaluate_config, grid)
            if evaluate_fn is not None:
                metrics |= _evaluate(number, result, evaluate_fn)
            log(INFO, "hushbit: %s", metrics)
            if self.folder is not None:
                groups = {"model": numpy_arrays(result.arrays), "optimizer": self.optimizer.state()}
                self.folder.save({"round": number, **metrics}, groups)
        if self.folder is not None:
            rows = self.folder.rows()
            self.folder.finish({"rounds": len(rows), **(rows[-1] if rows else {})})
        return result

    def _begin(self, initial: ArrayRecord) -> tuple[ArrayRecord, int]:
        """The initial model, and the number of the first round to run."""
        before = numpy_arrays(initial)
        mechanism = self._sized(dimension(encoded_layout(before, self.frozen)))
        if self.folder is None:
            return initial, 1
        config = {
            "mechanism": mechanism.description,
            "key": RoundKey(self.secret, 0).key_id.hex(),
            "optimizer": self.optimizer.settings,
            "model": {name: list(array.shape) for name, array in before.items()},
            "frozen": list(self.frozen),
        }
        checkpoint = _open_run(self.folder, config, before)
        if checkpoint is None:
            return initial, 1
        log(INFO, "hushbit: resuming after round %d", checkpoint.round)
        self.optimizer.restore(checkpoint.groups.get("optimizer", {}))
        model = {name: checkpoint.groups["model"][name] for name in before}
        return array_record(model), checkpoint.round + 1

    def _sized(self, dim: int) -> Mechanism:
        """The mechanism for this number of entries; a mechanism given by name is built here."""
        if isinstance(self._mechanism, str):
            self._mechanism = mechanism_by_name(self._mechanism, dim, **self._options)
        if self._mechanism.dim != dim:
            raise InvalidInput(
                f"the mechanism encodes {self._mechanism.dim} entries; the model has {dim}"
            )
        return self._mechanism

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
        """Sample users, and build the request to each of them, one at a time."""
        begun = time.monotonic()
        deadline = begun + self.deadline_seconds
        before = numpy_arrays(arrays)
        slots = encoded_layout(before, self.frozen)
        # Rounds of keys are counted from 0, those of Flower from 1.
        key = RoundKey(self.secret, server_round - 1, self._run)
        nodes = self._sampled(grid, deadline)
        log(INFO, "hushbit: sending requests to %d users", len(nodes))
        mechanism = self._sized(dimension(slots))
        self._round = OpenRound(server_round, mechanism, key, before, slots, nodes, begun, deadline)
        self._grid = grid
        return self._round.requests(arrays, config, self.frozen, self.optimizer.content)

    def _exchange(self, grid: Grid, messages: Iterable[Message]) -> Iterator[Message]:
        """Send messages, record the user of each, and yield replies as they arrive."""
        current = self._round
        if current is None:
            raise InvalidInput("no round is open: call configure_train first")
        sent = send_all(grid, messages)
        current.record_sent(sent)
        yield from replies(grid, sent, current.deadline)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Count the ballots as they arrive, decode their mean and apply the optimizer."""
        current = self._round
        if current is None or self._grid is None or current.number != server_round:
            raise InvalidInput(f"round {server_round} is not open: call configure_train first")
        count = current.count(replies)
        metrics = vote_metrics(count, len(current.nodes)) | {"bytes_down": current.bytes_down}
        metrics |= privacy_metrics(current.mechanism, server_round, self.delta)
        made: ArrayRecord | None = None
        if count.accepted >= self.quorum:
            estimate = current.mechanism.estimate(count.tally)
            if count.accepted > 1:  # one ballot does not separate signal from noise
                metrics["snr_estimate_db"] = snr_estimate_db(estimate)
            before = {slot.name: current.before[slot.name] for slot in current.slots}
            mean_model = apply_update(current.slots, before, estimate.mean)
            after = self.optimizer.step(server_round, before, mean_model, self._grid)
            made = array_record(current.before | after)
        else:
            log(
                WARNING,
                "hushbit: %d ballots are below the quorum of %d; the model does not change",
                count.accepted,
                self.quorum,
            )
        metrics |= {
            "model_updated": int(made is not None),
            "seconds": time.monotonic() - current.begun,
        }
        return made, MetricRecord(metrics)

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
            content = self.optimizer.content(arrays, own)
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
    if checkpoint is not None and _layout(checkpoint.groups.get("model", {})) != _layout(model):
        raise DamagedFile(
            f"the checkpoint in {folder.folder} does not fit the model: restore a copy of it"
        )
    folder.rewind(0 if checkpoint is None else checkpoint.round, versions)
    return checkpoint


def _layout(arrays: Arrays) -> dict[str, Any]:
    return {name: (array.shape, array.dtype) for name, array in arrays.items()}
