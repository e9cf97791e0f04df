"""The server's side: a Flower strategy that asks for private bits and decodes their mean."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from flwr.supercore import log

from hushbit.checks import positive, whole
from hushbit.describe import mechanism_by_name
from hushbit.errors import InvalidInput
from hushbit.flower.arrays import array_record, dimension, moved, numpy_arrays, voted_slots
from hushbit.flower.count import MetricMeans
from hushbit.flower.exchange import push, replies, sample_nodes
from hushbit.flower.figures import privacy_figures, snr_estimate_db, vote_figures
from hushbit.flower.folder import Kept, RunFolder
from hushbit.flower.optimizer import ServerOptimizer
from hushbit.flower.policy import list_of_names
from hushbit.flower.round import OpenRound
from hushbit.keys import RoundKey
from hushbit.mechanism import Mechanism
from hushbit.privacy.arguments import failure_probability

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


class HushbitStrategy(Strategy):
    """Asks sampled users for private ballots and moves the model by their decoded mean.

    mechanism         a Mechanism, or a name ("cpa", "laplace", …) with its parameters as options
    secret            32 bytes from which all keys come; keep them (see `load_secret`)
    delta             at which (epsilon, delta) figures are reported
    quorum            fewest accepted ballots that move the model
    deadline_seconds  a round is closed so long after its begin, or when all have answered
    users_per_round   how many are sampled; None asks all
    optimizer         Flower's FedAvg, FedAvgM, FedAdam, FedYogi, FedAdagrad; sampling is not theirs
    users             the user number of each node id; None takes the node id itself
    frozen            patterns of arrays that are not voted on and keep the server's value
    folder            run folder: metrics, summary, and the checkpoint that a killed server needs
    evaluate_users    also ask the users to evaluate; what they say is outside the guarantee
    """

    def __init__(
        self, mechanism: Mechanism | str, *, secret: bytes, delta: float, quorum: int,
        deadline_seconds: float, users_per_round: int | None = None,
        optimizer: FedAvg | None = None, users: Mapping[int, int] | None = None,
        frozen: Sequence[str] = (), folder: str | Path | None = None,
        evaluate_users: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        named = isinstance(mechanism, str)
        if not isinstance(mechanism, Mechanism | str) or (options and not named):
            raise InvalidInput("give a mechanism, or the name of one and its parameters")
        self.secret = RoundKey(secret, 0).secret
        self.delta = failure_probability(delta, zero=False)
        self.quorum = whole("quorum", quorum, 1)
        self.deadline_seconds = positive("deadline_seconds", deadline_seconds)
        self.users_per_round = users_per_round
        if users_per_round is not None:
            self.users_per_round = whole("users_per_round", users_per_round, self.quorum)
        if users is not None and len(set(users.values())) < len(users):
            raise InvalidInput("two nodes have one user number; every user needs its own")
        self.users = None if users is None else dict(users)
        self.frozen = list_of_names("frozen", frozen)
        self.optimizer = ServerOptimizer(FedAvg() if optimizer is None else optimizer)
        self.folder = None if folder is None else RunFolder(folder)
        self.evaluate_users = evaluate_users
        self._mechanism, self._options = mechanism, options
        self._open: OpenRound | None = None
        self._grid: Grid | None = None

    def summary(self) -> None:
        """Log what the strategy does."""
        log(INFO, "\t├──> hushbit: %s", self._mechanism)
        log(INFO, "\t├──> quorum %d, deadline %g s", self.quorum, self.deadline_seconds)
        log(INFO, "\t└──> server optimizer: %s", type(self.optimizer.strategy).__name__)

    def start(
        self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3,
        timeout: float = 3600, train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None, evaluate_fn: Evaluate | None = None,
    ) -> Result:  # fmt: skip
        """Run the rounds that are not yet in the folder; returns Flower's Result.

        `timeout` has no say: every round ends by `deadline_seconds`.
        """
        self.summary()
        result = Result()
        result.arrays, first = self._begin(initial_arrays)
        if evaluate_fn is not None and first == 1:
            _score(0, result, evaluate_fn)
        for number in range(first, num_rounds + 1):
            log(INFO, "[ROUND %d/%d]", number, num_rounds)
            asks = self.configure_train(number, result.arrays, train_config or ConfigRecord(), grid)
            made, metrics = self.aggregate_train(number, self._exchange(grid, asks))
            result.arrays = result.arrays if made is None else made
            figures: dict[str, Any] = dict(metrics or {})
            result.train_metrics_clientapp[number] = MetricRecord(dict(figures))
            if self.evaluate_users:
                self._ask_scores(number, result, evaluate_config or ConfigRecord(), grid)
            if evaluate_fn is not None:
                figures |= _score(number, result, evaluate_fn)
            log(INFO, "hushbit: %s", figures)
            if self.folder is not None:
                kept = Kept(number, numpy_arrays(result.arrays), self.optimizer.state())
                self.folder.save(kept, {"round": number, **figures})
        if self.folder is not None:
            rows = self.folder.rows()
            self.folder.finish({"rounds": len(rows), **(rows[-1] if rows else {})})
        return result

    def _begin(self, initial: ArrayRecord) -> tuple[ArrayRecord, int]:
        """The model to start from and the number of the first round to run."""
        before = numpy_arrays(initial)
        mechanism = self._sized(dimension(voted_slots(before, self.frozen)))
        if self.folder is None:
            return initial, 1
        kept = self.folder.open(
            {
                "mechanism": mechanism.description,
                "key": RoundKey(self.secret, 0).mark.hex(),
                "optimizer": self.optimizer.settings,
                "model": {name: list(array.shape) for name, array in before.items()},
                "frozen": list(self.frozen),
            }
        )
        if kept is None:
            return initial, 1
        log(INFO, "hushbit: going on after round %d", kept.round)
        model = kept.model_like(before)
        self.optimizer.restore(kept.optimizer)
        return array_record(model), kept.round + 1

    def _sized(self, dim: int) -> Mechanism:
        """The mechanism, built at first sight of the model if it was only named."""
        if isinstance(self._mechanism, str):
            self._mechanism = mechanism_by_name(self._mechanism, dim, **self._options)
        if self._mechanism.dim != dim:
            raise InvalidInput(
                f"the mechanism takes {self._mechanism.dim} entries, the model has {dim} to vote on"
            )
        return self._mechanism

    def _sampled(self, grid: Grid, deadline: float) -> dict[int, int]:
        """The user number of each sampled node, from the server's own table.

        With fewer nodes than the quorum nobody is asked: their ballots would cost and move nothing.
        """
        table = self.users
        nodes = sample_nodes(
            grid, (lambda node: True) if table is None else table.__contains__,
            self.users_per_round, self.quorum, deadline,
        )  # fmt: skip
        if len(nodes) < self.quorum:
            log(WARNING, "hushbit: %d users are there, the quorum is %d", len(nodes), self.quorum)
            return {}
        return {node: node if table is None else table[node] for node in nodes}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterator[Message]:
        """Sample users and make each one's request, one at a time."""
        begun = time.monotonic()
        deadline = begun + self.deadline_seconds
        before = numpy_arrays(arrays)
        slots = voted_slots(before, self.frozen)
        # Keys count rounds from 0, as everywhere in hushbit; Flower counts from 1.
        key = RoundKey(self.secret, server_round - 1)
        nodes = self._sampled(grid, deadline)
        log(INFO, "hushbit: asking %d users", len(nodes))
        mechanism = self._sized(dimension(slots))
        self._open = OpenRound(server_round, mechanism, key, before, slots, nodes, begun, deadline)
        self._grid = grid
        return self._open.requests(arrays, config, self.frozen, self.optimizer.content)

    def _exchange(self, grid: Grid, messages: Iterable[Message]) -> Iterator[Message]:
        """Send, note which user each message went to, and hand on replies as they come."""
        opened = self._open
        if opened is None:
            raise InvalidInput("no round is open: call configure_train first")
        sent = push(grid, messages)
        opened.sent(sent)
        yield from replies(grid, sent, opened.deadline)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Count the ballots as they come, decode their mean and move the model by it."""
        opened = self._open
        if opened is None or self._grid is None or opened.number != server_round:
            raise InvalidInput(f"round {server_round} is not open: call configure_train first")
        count = opened.count(replies)
        figures = vote_figures(count, len(opened.nodes)) | {"bytes_down": opened.bytes_down}
        figures |= privacy_figures(opened.mechanism, server_round, self.delta)
        made: ArrayRecord | None = None
        if count.accepted >= self.quorum:
            estimate = opened.mechanism.estimate(count.tally)
            if count.accepted > 1:  # one ballot does not tell signal from noise
                figures["snr_estimate_db"] = snr_estimate_db(estimate)
            before = {slot.name: opened.before[slot.name] for slot in opened.slots}
            mean_model = moved(opened.slots, before, estimate.mean)
            after = self.optimizer.step(server_round, before, mean_model, self._grid)
            made = array_record(opened.before | after)
        else:
            log(WARNING, "hushbit: %d ballots are below the quorum of %d; the model stays",
                count.accepted, self.quorum)  # fmt: skip
        figures |= {"moved": int(made is not None), "seconds": time.monotonic() - opened.begun}
        return made, MetricRecord(figures)

    def _ask_scores(self, number: int, result: Result, config: ConfigRecord, grid: Grid) -> None:
        asks = self.configure_evaluate(number, result.arrays, config, grid)
        deadline = time.monotonic() + self.deadline_seconds
        said = self.aggregate_evaluate(number, replies(grid, push(grid, asks), deadline))
        if said is not None:
            result.evaluate_metrics_clientapp[number] = said

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterator[Message]:
        """Ask the users of this round to evaluate the model, if `evaluate_users` is set."""
        if not self.evaluate_users or self._open is None:
            return
        own = ConfigRecord({**config, "server-round": server_round})
        for node in self._open.nodes:
            content = self.optimizer.content(arrays, own)
            yield Message(content, node, MessageType.EVALUATE, ttl=self.deadline_seconds)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """The plain mean of each metric that users' policies let out."""
        means = MetricMeans()
        for reply in replies:
            if not reply.has_error():
                means.add(reply.content)
        found = means.means()
        return MetricRecord(dict(found)) if found else None


def _score(number: int, result: Result, evaluate: Evaluate) -> dict[str, Any]:
    """The server's own evaluation, kept in the result."""
    found = evaluate(number, result.arrays)
    if found is None:
        return {}
    result.evaluate_metrics_serverapp[number] = found
    return {f"test_{name}": value for name, value in found.items()}
