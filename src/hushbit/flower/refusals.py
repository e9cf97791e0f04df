"""Why a client refuses a request: the class of the cause, and a text that depends on no data.

A refusal is an error reply whose text is "cause: text". Nothing was charged for it, except for the
cause "simulation": the training of a simulated user failed.
"""

from flwr.app import Error, Message

from hushbit.errors import (
    AlreadyCharged,
    BudgetSpent,
    HushbitError,
    MissingExtra,
    TooManyRequests,
)

CAUSES = ("policy", "budget", "expired", "configuration", "version", "simulation")
MOD_FAILED_PRECONDITION = 6
"""The error code of Flower for a mod that refuses a message; Flower exports no name for it."""

MAX_CHARACTERS = 500


class RequestRefused(HushbitError):
    """The client's policy does not allow a request; nothing was charged or sent."""


class RequestInvalid(HushbitError):
    """A request or an installation is wrong; the text depends on no data and is sent."""


class VersionMismatch(HushbitError):
    """No mechanism of this version has the requested description; the text is sent."""


class RequestExpired(HushbitError):
    """The round of a request has ended; a ballot would be charged but not counted."""


def refusal_text(error: Exception) -> str:
    """The text of the error reply to a request that was refused with this error.

    Texts of other errors are not sent: it is not known what they depend on.
    """
    if isinstance(error, BudgetSpent):
        return "budget: the client's budget is spent"
    if isinstance(error, RequestRefused | AlreadyCharged | TooManyRequests):
        return "policy: the client's policy does not allow this request"
    if isinstance(error, RequestExpired):
        return "expired: the request has expired"
    if isinstance(error, RequestInvalid | MissingExtra):
        return f"configuration: {one_line(error)}"
    if isinstance(error, VersionMismatch):
        return f"version: {one_line(error)}"
    return "configuration: the client cannot answer; its log has the reason"


def error_reply(message: Message, text: str) -> Message:
    """The reply to `message` that states a refusal."""
    return Message(Error(MOD_FAILED_PRECONDITION, text), reply_to=message)


def cause_of(error: Error) -> str | None:
    """The cause that an error reply states; None if Flower made the reply, not a client's mod."""
    cause = str(error.reason).partition(":")[0]
    return cause if error.code == MOD_FAILED_PRECONDITION and cause in CAUSES else None


def one_line(text: object) -> str:
    r"""The text with unprintable characters escaped and at most MAX_CHARACTERS of it, for a log.

    >>> one_line("refused\nINFO : accepted")
    'refused\\nINFO : accepted'
    """
    short = str(text)[:MAX_CHARACTERS]
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in short)
