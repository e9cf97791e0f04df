"""All errors that a wrong input can cause, under one base class."""


class HushbitError(Exception):
    """Base class of all hushbit errors; messages state what came, what is allowed, what to do."""


class InvalidInput(HushbitError, ValueError):
    """An argument has the wrong type, shape or range."""


class NotFinite(InvalidInput):
    """A value is NaN or infinite where a finite one is required.

    A class of its own, because the usual cause is not a wrong call but training that diverged.
    """


class RefusedBallot(HushbitError):
    """A ballot was not accepted; the tally is unchanged.

    `reason` is one word for statistics: damaged, version, mechanism, round, run, length, padding,
    unauthenticated (no MAC where one is required), forged (a wrong MAC), duplicate or value.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (self.reason, str(self))


class BudgetSpent(HushbitError):
    """A charge would exceed the user's limit; nothing was charged and nothing may be sent."""


class AlreadyCharged(HushbitError):
    """The user has answered this round of this run; nothing was charged and nothing may be sent."""


class TooManyRequests(HushbitError):
    """The user was charged too often today; nothing was charged and nothing may be sent."""


class DamagedFile(HushbitError):
    """A file does not have the expected content, or cannot be read or written safely."""


class MissingExtra(HushbitError, ImportError):
    """A part of hushbit needs a package that is not installed."""
