"""The client: a Flower mod whose replies contain only a ballot and the listed metrics.

The order of operations prevents a reply from depending on data, except through the bits of the
ballot:

    validate   the whole request: record, key, round, mechanism, sizes, time
    charge     the cost of the ballot, in the ledger
    train      run the app
    reply      with a ballot; the zero update is encoded if training failed in any way

Every refusal happens in the first two steps, which do not see data.
"""

import copy
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from logging import ERROR, INFO, WARNING, getLogger
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp as FlowerClientApp
from flwr.clientapp.typing import ClientAppCallable
from numpy.typing import NDArray

from hushbit.encoding.clip_and_rotate import clip_l2
from hushbit.errors import HushbitError, InvalidInput
from hushbit.flower.description_limits import MAX_LENGTH
from hushbit.flower.local_counts import LocalCounts
from hushbit.flower.node_policy import in_simulation, node_policy
from hushbit.flower.policy import Policy
from hushbit.flower.records import (
    BALLOT_RECORD,
    PULL_SECONDS,
    Arrays,
    ArraySlot,
    Request,
    ballot_record,
    dimension,
    encoded_layout,
    flat_update,
    only_model,
    read_request,
    records,
)
from hushbit.flower.refusals import (
    RequestExpired,
    RequestInvalid,
    RequestRefused,
    VersionMismatch,
    error_reply,
    one_line,
    refusal_text,
)
from hushbit.mechanism import Mechanism
from hushbit.registry import described_dim, mechanism_from_description
from hushbit.wire.coins import OsCoins

log = getLogger("flwr").log

METRICS_RECORD = "metrics"
MAX_ROUND = 2**63 - 1  # the largest number that a ledger stores

TRAINED = "trained"
APP_RAISED = "the app raised an error"
ERROR_REPLY = "the app replied with an error"
WRONG_ANSWER = "the app returned a wrong answer"
NOT_FINITE = "the update is not finite"
NOT_ENCODED = "the update could not be encoded"
NOT_RUN = "the app could not be run"
TOO_SLOW = "the app took longer than answer_after_seconds"

THREAD = "hushbit training"
App = Callable[[Message, Context], Message]


class AppFailed(HushbitError):
    """The app did not give a usable answer; `outcome` is counted and never sent."""

    def __init__(self, outcome: str, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


@dataclass(frozen=True)
class Job:
    """An accepted request: how to make the content of the reply.

    answer    makes it from the content that the app returned
    fallback  replaces it if the app fails; it has the same kind, format and size, and it exists
              before the app runs
    """

    answer: Callable[[RecordDict], RecordDict]
    fallback: RecordDict


@dataclass(frozen=True)
class Answer:
    """How training ended, the content of the reply, and the local error text of a failure."""

    outcome: str
    content: RecordDict
    error: str = ""


class HushbitMod:
    """Encodes the model that `@app.train` returns as a private ballot, within the client's policy.

    `policy` is a `Policy`, or a function that returns one for the Context of the node. The default
    is the file that the node names, or in a simulation the policy of simulated users.

    `dry_run` is the training of the app on synthetic data: a function of message and context that
    returns the reply. It is called once in a process, before the first charge. If it fails, the
    request is refused, which the server sees: it must not use data of the user.

    List this mod before mods that change the model: the first one is outermost.
    """

    def __init__(
        self,
        policy: Policy | Callable[[Context], Policy] = node_policy,
        dry_run: App | None = None,
    ) -> None:
        if not isinstance(policy, Policy) and not callable(policy):
            raise InvalidInput(
                "HushbitMod takes a Policy or a function that returns one; got "
                f"{type(policy).__name__}"
            )
        if dry_run is not None and not callable(dry_run):
            raise InvalidInput(f"dry_run must be a function; got {type(dry_run).__name__}")
        self._policy, self._dry_run = policy, dry_run
        self._dry_run_done = False

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Reply to one message; a refusal states its class and, if it depends on no data, why."""
        arrived = time.monotonic()
        try:
            policy = self._policy if isinstance(self._policy, Policy) else self._policy(context)
            if policy.simulation and not in_simulation():
                raise RequestInvalid(
                    "the policy of this node has simulation = true, which only Flower's simulation "
                    "engine may use: remove it from the policy"
                )
            if message.metadata.message_type.partition(".")[0] == MessageType.TRAIN:
                _refuse_expired(message, PULL_SECONDS)
                job = self._accept_training(policy, message, context)
            else:
                _refuse_expired(message, 0.0)
                job = _accept_metrics(policy)
            # Addressed before the app runs, because the app may change its message.
            reply = Message(job.fallback, reply_to=message)
        except Exception as error:  # Flower would send the text of an exception
            return _refusal(message, error)
        made = _run_app(job, policy, arrived, message, context, call_next)
        _count(policy, made.outcome)
        if policy.simulation and made.outcome != TRAINED:
            return error_reply(message, f"simulation: {made.outcome}: {made.error}")
        reply.content = made.content
        return reply

    def _accept_training(self, policy: Policy, message: Message, context: Context) -> Job:
        """Validate the request and charge its ballot, or raise an error. Uses no data."""
        try:
            request = read_request(message.content)
            # Copied before the app runs, because the app may change its message.
            before = only_model(message.content)
            slots = encoded_layout(before, request.frozen)
        except InvalidInput as error:
            raise RequestInvalid(str(error)) from error
        mechanism = _requested_mechanism(policy, request, dimension(slots))
        policy.check(mechanism)
        zero_update = np.zeros(mechanism.dim, np.float32)
        zero_ballot = mechanism.encode(zero_update, request.key, OsCoins())
        self._check_app(policy, message, context, slots, before)
        policy.charge(mechanism, request.key)
        who = f"simulation, {policy.user}: " if policy.simulation else ""
        log(INFO, "hushbit: %sround %d, charged %d bits", who, zero_ballot.round, zero_ballot.bits)
        send_metrics = policy.simulation or (bool(policy.metrics) and _metric_reply_allowed(policy))

        def answer(trained: RecordDict) -> RecordDict:
            update = _clipped(policy, _finite_update(slots, before, trained))
            try:
                ballot = mechanism.encode(update, request.key, OsCoins())
            except Exception as error:
                raise AppFailed(NOT_ENCODED, str(error)) from error
            content = _listed_metrics(policy, trained if send_metrics else RecordDict())
            content[BALLOT_RECORD] = ballot_record(ballot, request.key)
            return content

        fallback = _listed_metrics(policy, RecordDict())
        fallback[BALLOT_RECORD] = ballot_record(zero_ballot, request.key)
        return Job(answer, fallback)

    def _check_app(
        self,
        policy: Policy,
        message: Message,
        context: Context,
        slots: tuple[ArraySlot, ...],
        before: Arrays,
    ) -> None:
        """Make the dry run, once in a process."""
        if self._dry_run_done:
            return
        if self._dry_run is None:
            if not policy.simulation:
                log(WARNING, "hushbit: no dry_run is set, so an app that fails is only counted")
        else:
            try:
                reply = self._dry_run(copy.deepcopy(message), copy.deepcopy(context))
                flat_update(slots, before, only_model(_content(reply)))
            except Exception as error:
                log(ERROR, "hushbit: the dry run failed", exc_info=error)
                raise RequestInvalid("the dry run of the app failed on synthetic data") from error
        self._dry_run_done = True


def _accept_metrics(policy: Policy) -> Job:
    """Accept an evaluate or query message, if the policy lists metrics and its limit allows."""
    if not policy.simulation:
        if not policy.metrics:
            raise RequestRefused("the policy lists no metrics, so the app is not run")
        if not _metric_reply_allowed(policy):
            raise RequestRefused("the metric replies of this day are used up")
    return Job(
        lambda content: _listed_metrics(policy, content), _listed_metrics(policy, RecordDict())
    )


def _refuse_expired(message: Message, spare: float) -> None:
    """Refuse a request with at most `spare` seconds left to live, by the clock of this machine."""
    left = message.metadata.created_at + message.metadata.ttl - spare - time.time()
    if not left > 0:
        raise RequestExpired(
            f"it expired {-left:.1f} s ago by the clock of this machine; nothing was sent or "
            "charged. If this happens in every round, set the clock or use a longer deadline"
        )


def _requested_mechanism(policy: Policy, request: Request, dim: int) -> Mechanism:
    """The requested mechanism, after its description was compared with policy and model."""
    if request.key.round > MAX_ROUND:
        raise RequestInvalid(f"a round must be at most {MAX_ROUND}; got {request.key.round}")
    if not request.key.run:
        raise VersionMismatch("the key of the request has no run: the server has an older hushbit")
    policy.check_description(request.description)
    requested = described_dim(request.description)
    if requested != dim:
        raise RequestInvalid(
            f"the server's mechanism encodes {requested} entries; the model has {dim} to encode"
        )
    try:
        return mechanism_from_description(request.description)
    except InvalidInput as error:
        raise VersionMismatch(str(error)) from error


def _run_app(
    job: Job,
    policy: Policy,
    arrived: float,
    message: Message,
    context: Context,
    call_next: ClientAppCallable,
) -> Answer:
    """Run the app, and answer at the time that the policy sets."""
    if policy.answer_after_seconds is None:
        return _answered(job, call_next, message, context)
    own = context
    results: list[Answer] = []

    def work() -> None:
        try:
            results.append(_answered(job, call_next, message, own))
        except KeyboardInterrupt:  # raised by the app: signals reach the main thread only
            results.append(Answer(APP_RAISED, job.fallback))

    try:
        # The thread has its own context: an abandoned app must not change what Flower stores.
        own = copy.deepcopy(context)
        threading.Thread(target=work, daemon=True, name=THREAD).start()
    except Exception as error:  # such as a thread that cannot be started
        log(ERROR, "hushbit: %s", NOT_RUN, exc_info=error)
        results.append(Answer(NOT_RUN, job.fallback))
    until = arrived + policy.answer_after_seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(left)
    if not results:
        log(ERROR, "hushbit: %s", TOO_SLOW)
        return Answer(TOO_SLOW, job.fallback)
    context.state = own.state
    return results[0]


def _answered(job: Job, call_next: ClientAppCallable, message: Message, context: Context) -> Answer:
    """Run the app now; returns the fallback after a failure of any kind.

    KeyboardInterrupt passes: it comes from the operator of the machine, not from data.
    """
    try:
        content = _content(call_next(message, context))
        with np.errstate(all="ignore"):
            return Answer(TRAINED, job.answer(content))
    except KeyboardInterrupt:
        raise
    except AppFailed as error:
        log(ERROR, "hushbit: %s: %s", error.outcome, one_line(error))
        return Answer(error.outcome, job.fallback, one_line(error))
    except BaseException as error:  # also SystemExit
        log(ERROR, "hushbit: %s", APP_RAISED, exc_info=error)
        return Answer(APP_RAISED, job.fallback, one_line(repr(error)))


def _content(reply: object) -> RecordDict:
    """The content of the app's reply."""
    if not isinstance(reply, Message):
        raise AppFailed(WRONG_ANSWER, f"it returned a {type(reply).__name__} instead of a Message")
    if reply.has_error():
        raise AppFailed(ERROR_REPLY, reply.error.reason)
    return reply.content


def _finite_update(
    slots: tuple[ArraySlot, ...], before: Arrays, trained: RecordDict
) -> NDArray[np.floating]:
    """What training changed, as one vector."""
    try:
        update = flat_update(slots, before, only_model(trained))
    except InvalidInput as error:
        raise AppFailed(WRONG_ANSWER, str(error)) from error
    if not np.isfinite(update).all():
        raise AppFailed(NOT_FINITE, "trained weights, or their differences, are NaN or infinite")
    return update


def _clipped(policy: Policy, update: NDArray[np.floating]) -> NDArray[np.floating]:
    """The update within the policy's clip; the mechanism applies its own clip when it encodes.

    The clip of the mechanism is not applied here, because a norm vote is on the norm before it. An
    update with entries beyond MAX_LENGTH is scaled down first, so that neither its norm nor a
    rotation overflows.
    """
    peak = np.abs(update).max()
    if peak > MAX_LENGTH:
        update = update / peak * update.dtype.type(MAX_LENGTH)
    return clip_l2(update[None], None if math.isinf(policy.l2_clip) else policy.l2_clip)[0]


def _listed_metrics(policy: Policy, content: RecordDict) -> RecordDict:
    """A content with all metrics that the policy lists, as floats; NaN where the app has none.

    A simulated user sends all metrics. Apps with a NumPyClient have them in a ConfigRecord.
    """
    found = {
        name: float(value)
        for record in (
            *records(content, MetricRecord).values(),
            *records(content, ConfigRecord).values(),
        )
        for name, value in record.items()
        if isinstance(value, int | float) and abs(value) < MAX_LENGTH
    }
    nan = float("nan")
    sent = found if policy.simulation else {name: found.get(name, nan) for name in policy.metrics}
    return RecordDict({METRICS_RECORD: MetricRecord(sent)}) if sent else RecordDict()


def _metric_reply_allowed(policy: Policy) -> bool:
    """Count a reply with metrics; False beyond the limit, or if the count cannot be written."""
    try:
        return _counts(policy).add_metric_reply(policy.metric_replies_per_day)
    except HushbitError as error:
        log(WARNING, "hushbit: no metrics are sent: %s", one_line(error))
        return False


def _count(policy: Policy, outcome: str) -> None:
    """Count the outcome locally; an error is logged, because it must not change the reply."""
    try:
        _counts(policy).add(outcome)
    except HushbitError as error:
        log(WARNING, "hushbit: %s", one_line(error))


def _counts(policy: Policy) -> LocalCounts:
    return LocalCounts(Path(policy.ledger))


def _refusal(message: Message, error: Exception) -> Message:
    """An error reply whose text names the class of the refusal."""
    text = refusal_text(error)
    log(WARNING, "hushbit: refused (%s): %s", text, one_line(error))
    return error_reply(message, text)


class ClientApp(FlowerClientApp):
    """Flower's ClientApp with `HushbitMod()` before its other mods.

    from hushbit.flower import ClientApp        # was: from flwr.clientapp import ClientApp
    """

    def __init__(
        self, client_fn: Callable[..., Any] | None = None, mods: list[Any] | None = None
    ) -> None:
        super().__init__(client_fn, mods=[HushbitMod(), *(mods or [])])
