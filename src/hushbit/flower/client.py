"""The client: a Flower mod whose replies contain only a ballot and the listed metrics."""

import time
from collections.abc import Callable
from logging import ERROR, INFO, WARNING

import numpy as np
from flwr.app import ArrayRecord, Context, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.constant import ErrorCode
from flwr.supercore import log

from hushbit.encoding.clip_and_rotate import clip_l2
from hushbit.errors import BudgetSpent, HushbitError, InvalidInput
from hushbit.flower.policy import Policy, RequestRefused
from hushbit.flower.records import (
    BALLOT_RECORD,
    Arrays,
    Request,
    ballot_record,
    dimension,
    encoded_layout,
    flat_update,
    numpy_arrays,
    read_request,
    records,
)
from hushbit.mechanism import Mechanism
from hushbit.registry import described_dim, mechanism_from_description
from hushbit.wire.coins import OsCoins

METRICS_RECORD = "metrics"
MAX_CHARACTERS = 500


class TrainingFailed(HushbitError):
    """The app raised an error, or replied with an error or an invalid model."""


class RequestExpired(HushbitError):
    """The round of a request has ended; a ballot would be charged but not counted."""


class HushbitMod:
    """Encodes the model that `@app.train` returns as a private ballot, within the client's policy.

    `policy` is a `Policy`, or a function that returns one for the Context of the node
    (`node_policy`). List this mod before mods that change the model: the first one is outermost.
    """

    def __init__(self, policy: Policy | Callable[[Context], Policy]) -> None:
        if not isinstance(policy, Policy) and not callable(policy):
            raise InvalidInput(
                "HushbitMod takes a Policy or a function that returns one; got "
                f"{type(policy).__name__}"
            )
        self._policy = policy

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Reply to one message; an error is reported by one of five sentences, without details."""
        try:
            policy = self._policy if isinstance(self._policy, Policy) else self._policy(context)
            if message.metadata.message_type.partition(".")[0] == MessageType.TRAIN:
                content = _train_and_encode(policy, message, context, call_next)
            else:
                content = _listed_metrics(policy, _app_content(message, context, call_next))
            return Message(content, reply_to=message)
        except BudgetSpent as error:
            return _refusal(message, "the client's budget is spent", error)
        except RequestRefused as error:
            return _refusal(message, "the client's policy does not allow this", error)
        except RequestExpired as error:
            return _refusal(message, "the request has expired", error)
        except TrainingFailed as error:
            return _refusal(message, "the client's app failed", error)
        except Exception as error:  # Flower would send the text of any other exception
            return _refusal(message, "the client refused", error)


def _train_and_encode(
    policy: Policy, message: Message, context: Context, call_next: ClientAppCallable
) -> RecordDict:
    """Train, encode and charge; the content with the ballot is built after the charge."""
    _refuse_expired(message)
    request = read_request(message.content)
    policy.check_name(request.description)
    # Copied before the app runs, because the app may change its message.
    before = _model(message.content, "a train message must contain")
    slots = encoded_layout(before, request.frozen)
    mechanism = _mechanism(policy, request, dimension(slots))
    policy.check_budget(mechanism)
    trained = _app_content(message, context, call_next)
    update = flat_update(slots, before, _model(trained, "the app must return"))
    if not np.isfinite(update).all():
        raise TrainingFailed("trained weights are NaN or infinite; nothing was sent or charged")
    if not np.isinf(policy.l2_clip):
        update = clip_l2(update[None], policy.l2_clip)[0]
    ballot = mechanism.encode(update, request.key, OsCoins())
    _refuse_expired(message)
    policy.charge(mechanism, request.key.round)
    log(INFO, "hushbit: round %d, sending %d private bits", ballot.round, ballot.bits)
    content = _listed_metrics(policy, trained)
    content[BALLOT_RECORD] = ballot_record(ballot)
    return content


def _refuse_expired(message: Message) -> None:
    """Refuse a request whose time to live has ended, by the clock of this machine."""
    over = time.time() - (message.metadata.created_at + message.metadata.ttl)
    if over >= 0:
        raise RequestExpired(
            f"it expired {over:.1f} s ago by the clock of this machine; nothing was sent or "
            "charged. If this happens in every round, set the clock or use a longer deadline"
        )


def _model(content: RecordDict, requirement: str) -> Arrays:
    """The arrays of the only ArrayRecord in a content."""
    found = list(records(content, ArrayRecord).values())
    if len(found) != 1:
        raise InvalidInput(f"{requirement} exactly one ArrayRecord, the model; got {len(found)}")
    return numpy_arrays(found[0])


def _mechanism(policy: Policy, request: Request, dim: int) -> Mechanism:
    """The requested mechanism, if its size fits the model and the policy allows it."""
    requested = described_dim(request.description)
    if requested != dim:
        raise InvalidInput(
            f"the server's mechanism encodes {requested} entries; the model has {dim} to encode"
        )
    mechanism = mechanism_from_description(request.description)
    policy.check(mechanism)
    return mechanism


def _app_content(message: Message, context: Context, call_next: ClientAppCallable) -> RecordDict:
    """The reply of the app; its errors are not sent, because their text may contain data."""
    try:
        reply = call_next(message, context)
    except Exception as error:
        log(ERROR, "hushbit: the app raised an error", exc_info=error)
        raise TrainingFailed(f"the app raised {type(error).__name__}") from error
    if reply.has_error():
        raise TrainingFailed(f"the app replied with an error: {reply.error.reason}")
    return reply.content


def _listed_metrics(policy: Policy, content: RecordDict) -> RecordDict:
    """A new content with only the metrics that the policy lists."""
    listed = {
        name: value
        for record in records(content, MetricRecord).values()
        for name, value in record.items()
        if name in policy.metrics
    }
    return RecordDict({METRICS_RECORD: MetricRecord(listed)} if listed else {})


def _refusal(message: Message, sentence: str, error: Exception) -> Message:
    log(WARNING, "hushbit: %s: %s", sentence, one_line(error))
    return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, sentence), reply_to=message)


def one_line(text: object) -> str:
    r"""The text with unprintable characters escaped and at most MAX_CHARACTERS of it, for a log.

    >>> one_line("refused\nINFO : accepted")
    'refused\\nINFO : accepted'
    """
    short = str(text)[:MAX_CHARACTERS]
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in short)
