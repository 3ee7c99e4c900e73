"""What headcount says when it will not do something: one sentence each, what was seen, what is needed, what to do."""

from __future__ import annotations


class HeadcountError(Exception):
    """Base of every error that headcount raises on purpose; the command line prints it without a traceback."""


class NotFound(HeadcountError):
    """No attention was found where one was expected, or a name matches nothing in the model."""


class Refused(HeadcountError):
    """The request is understood and cannot be done exactly; the model is as it was before."""


class BadPlan(HeadcountError):
    """A plan, or the plan inside a checkpoint, is damaged, malformed or does not fit the model."""


class CheckFailed(HeadcountError):
    """The cut model did not equal the closed one; the model has been put back bit for bit."""


class BadCheckpoint(HeadcountError):
    """A folder cannot be read, or cannot be written, as a headcount checkpoint."""
