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
    """The cut model did not equal the masked one; the model has been put back bit for bit."""


class BadCheckpoint(HeadcountError):
    """A folder cannot be read, or cannot be written, as a headcount checkpoint."""


class BadMeasure(HeadcountError):
    """A metric, a test or a comparison does not fit the values that it was given."""


class BadRun(HeadcountError):
    """A run folder is in use, holds something else, is damaged, or cannot be written."""


class BadData(HeadcountError):
    """A file or table cannot be read as examples, or its labels do not fit the model."""


class NotShown(HeadcountError):
    """What was asked for may be true, and the examples or the machine at hand cannot show it; nothing was changed."""


class TooMuchLost(HeadcountError):
    """A plan would ruin the model, as measured on the scoring examples; nothing was written."""


class NotFinite(HeadcountError):
    """A loss or a score is not a number; the sentence names the example that caused it."""


class OutOfMemory(HeadcountError):
    """Even one example at a time does not fit into memory."""


class LoadingNote(UserWarning):
    """What a person would not expect of a model that was loaded, such as an adapter that was merged into it."""
