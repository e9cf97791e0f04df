"""The client's side: a Flower mod that lets nothing out but ballots and listed metrics."""

import time
from collections.abc import Callable
from logging import ERROR, INFO, WARNING

import numpy as np
from flwr.app import ArrayRecord, Context, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.constant import ErrorCode
from flwr.supercore import log

from hushbit.coins import OsCoins
from hushbit.cpa import clipped
from hushbit.describe import described_dim, mechanism_from_description
from hushbit.errors import BudgetSpent, HushbitError, InvalidInput
from hushbit.flower.arrays import Arrays, dimension, flat_update, numpy_arrays, voted_slots
from hushbit.flower.policy import Policy, RequestRefused
from hushbit.flower.text import one_line
from hushbit.flower.wire import BALLOT_RECORD, Request, ballot_record, read_request, records
from hushbit.mechanism import Mechanism

METRICS_RECORD = "metrics"


class TrainingFailed(HushbitError):
    """The app raised an error or gave no answer."""


class RequestExpired(HushbitError):
    """The round of a request is over; a ballot would be paid for and thrown away."""


class HushbitMod:
    """Turns the model that `@app.train` returns into private bits, within the client's policy.

    policy is a `Policy`, or a function that finds one from the node's Context (`node_policy`).
    Put it before mods that work on the model: the first mod of a list is the outermost.
    """

    def __init__(self, policy: Policy | Callable[[Context], Policy]) -> None:
        if not isinstance(policy, Policy) and not callable(policy):
            raise InvalidInput(f"HushbitMod takes a Policy; got {type(policy).__name__}")
        self._policy = policy

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer one message; an error leaves as one of five sentences, never with details."""
        try:
            policy = self._policy if isinstance(self._policy, Policy) else self._policy(context)
            if message.metadata.message_type.partition(".")[0] == MessageType.TRAIN:
                content = _vote(policy, message, context, call_next)
            else:
                content = _listed_metrics(policy, _answer(message, context, call_next))
            return Message(content, reply_to=message)
        except BudgetSpent as error:
            return _refusal(message, "the client's budget is spent", error)
        except RequestRefused as error:
            return _refusal(message, "the client's policy does not allow this", error)
        except RequestExpired as error:
            return _refusal(message, "the request has expired", error)
        except TrainingFailed as error:
            return _refusal(message, "the client's app failed", error)
        except Exception as error:  # Flower would send the text of anything that got through
            return _refusal(message, "the client refused", error)


def _vote(
    policy: Policy, message: Message, context: Context, call_next: ClientAppCallable
) -> RecordDict:
    """Train, encode, charge and only then hand out the ballot."""
    _refuse_expired(message)
    request = read_request(message.content)
    policy.check_name(request.description)
    # Read before the app runs: an app may change the message that it was given.
    before = _model(message.content, "a train message must hold")
    slots = voted_slots(before, request.frozen)
    mechanism = _mechanism(policy, request, dimension(slots))
    policy.check_budget(mechanism)
    answer = _answer(message, context, call_next)
    update = flat_update(slots, before, _model(answer, "the app must return"))
    if not np.isfinite(update).all():
        raise TrainingFailed("training gave NaN or infinite weights; nothing was sent or charged")
    if not np.isinf(policy.l2_clip):
        update = clipped(update[None], policy.l2_clip)[0]
    ballot = mechanism.encode(update, request.key, OsCoins())
    _refuse_expired(message)
    policy.charge(mechanism, request.key.round)
    log(INFO, "hushbit: round %d, sending %d private bits", ballot.round, ballot.bits)
    content = _listed_metrics(policy, answer)
    content[BALLOT_RECORD] = ballot_record(ballot)
    return content


def _refuse_expired(message: Message) -> None:
    """Refuse a request whose time to live has passed by this machine's clock."""
    over = time.time() - (message.metadata.created_at + message.metadata.ttl)
    if over >= 0:
        raise RequestExpired(
            f"it ended {over:.1f} s ago by this machine's clock; nothing was sent or charged. If "
            "this happens in every round, set the clock or ask for a longer deadline"
        )


def _model(content: RecordDict, whose: str) -> Arrays:
    """The arrays of the one ArrayRecord in a content."""
    found = list(records(content, ArrayRecord).values())
    if len(found) != 1:
        raise InvalidInput(f"{whose} exactly one ArrayRecord, the model; got {len(found)}")
    return numpy_arrays(found[0])


def _mechanism(policy: Policy, request: Request, dim: int) -> Mechanism:
    """The mechanism that the server asks for, if it fits the model and the policy."""
    asked = described_dim(request.description)
    if asked != dim:
        raise InvalidInput(
            f"the server's mechanism is for {asked} entries, the model has {dim} to vote on"
        )
    mechanism = mechanism_from_description(request.description)
    policy.check(mechanism)
    return mechanism


def _answer(message: Message, context: Context, call_next: ClientAppCallable) -> RecordDict:
    """What the app says; its errors stay here, for their text may hold data."""
    try:
        reply = call_next(message, context)
    except Exception as error:
        log(ERROR, "hushbit: the app raised an error", exc_info=error)
        raise TrainingFailed(f"the app raised {type(error).__name__}") from error
    if reply.has_error():
        raise TrainingFailed(f"the app answered with an error: {reply.error.reason}")
    return reply.content


def _listed_metrics(policy: Policy, answer: RecordDict) -> RecordDict:
    """A content that holds the metrics which the policy lists, and nothing else."""
    listed = {
        name: value
        for record in records(answer, MetricRecord).values()
        for name, value in record.items()
        if name in policy.metrics
    }
    return RecordDict({METRICS_RECORD: MetricRecord(listed)} if listed else {})


def _refusal(message: Message, sentence: str, error: Exception) -> Message:
    log(WARNING, "hushbit: %s: %s", sentence, one_line(error))
    return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, sentence), reply_to=message)
