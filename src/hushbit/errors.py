"""Every error that a wrong input can cause, under one base."""


class HushbitError(Exception):
    """Base of all errors; the message says what came, what is allowed and what to do."""


class InvalidInput(HushbitError, ValueError):
    """An argument has the wrong type, shape or range."""


class RefusedBallot(HushbitError):
    """A ballot was not accepted; the tally is as it was.

    `reason` is one word for counting: damaged, version, mechanism, round, length, padding,
    duplicate or value.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (self.reason, str(self))


class BudgetSpent(HushbitError):
    """A charge would pass the user's limit; nothing was charged and nothing may be sent."""


class DamagedFile(HushbitError):
    """A file is not what it claims to be, or cannot be read or written safely."""


class MissingExtra(HushbitError, ImportError):
    """A part of hushbit needs a package that is not installed."""
