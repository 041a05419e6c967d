"""Narrowing a failure down to one frame, over passes. Pure; all of it can be lost, and is then found out again.

A range that fails is first tried again, as often as `pipeline.quarantine_after` says. Then the frames of the failed
range are listed, and half of them are tried: if these fail too, half of them; if they are written, half of the rest.
What was written is in the table for good, so each try leaves less to look at, until a single frame has failed alone.

Only failures that messages can be the cause of are counted. A broker, catalog or store that is away, a topic that was
deleted or made again, a table that is another stream's, batches that are lost on the way: none of these is the fault of
what stands at an offset. Nor is what a worker lacks: memory, modules, files. An error that nobody foresaw counts, but
says nothing before the same workers have shown that they can write: see `control`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from icestream.model.errors import DamagedError, IcestreamError
from icestream.pipeline.tasks import WRITE_OPERATION

_FAULTS_OF_MESSAGES = frozenset({"invalid_message", "invalid_request", "too_large"})
CRASHED = "job_failed"


def may_be_the_messages(error: IcestreamError) -> bool:
    """Whether an error of a task can be the fault of the messages that it was given."""
    if error.code == CRASHED:
        return True
    if error.code == IcestreamError.code:  # what nobody foresaw: only where messages were in hand
        return error.operation == WRITE_OPERATION
    if error.code == DamagedError.code:
        return error.operation == "decode"  # else it is the log, or what came of it
    return error.code in _FAULTS_OF_MESSAGES and not error.retryable


def needs_worker_probe(error: IcestreamError) -> bool:
    """Whether the workers may be to blame as well as the messages: the error itself does not tell."""
    return error.code in {CRASHED, IcestreamError.code}


@dataclass
class PoisonSearch:
    """That one of the frames from `start` on cannot be written."""

    start: int
    failures: int = 0
    ends: tuple[int, ...] = ()
    """Where the frames end that it may be, in order; none before they are listed."""
    verdict: IcestreamError | None = None
    """Why nothing more can be done about it before somebody acts."""

    @property
    def is_narrowing(self) -> bool:
        return bool(self.ends)

    @property
    def limit(self) -> int | None:
        """Where the next try ends: half of the frames."""
        return self.ends[(len(self.ends) - 1) // 2] if self.ends else None

    def narrow(self, ends: Sequence[int], failed_end: int) -> bool:
        """The messages below `failed_end` have failed; whether that was a single frame, tried alone."""
        before = [end for end in ends if end < failed_end]
        self.ends = tuple(ends[: len(before) + 1])
        return len(self.ends) == 1

    def passed(self, committed: int) -> bool:
        """The table holds all below an offset now; whether there still is something to find."""
        if committed > self.start:
            self.start = committed
            self.ends = tuple(end for end in self.ends if end > committed)
            return self.is_narrowing
        return True
