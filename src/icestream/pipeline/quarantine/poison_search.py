"""Narrows a failure down to one frame, over several passes. Pure; a search that is lost begins again.

A range that fails is first tried again, `pipeline.quarantine_after` times. Then the frames of the failed range are
listed, and half of them are tried. If these fail too, half of them are tried; if they are written, half of the rest.
Written frames are in the table for good, so each try leaves fewer frames, until a single frame has failed alone.

Only failures that messages can cause are counted. Not counted: an unreachable broker, catalog or store; a topic that
was deleted or created again; a table of another stream; batches lost in transit; a worker that lacks memory, modules or
files. An unforeseen error counts, but proves nothing before the same workers have written a row: see `worker_probe`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from icestream.model.errors import DamagedError, IcestreamError
from icestream.pipeline.spark.session import JobFailedError
from icestream.pipeline.tasks import WRITE_OPERATION

_FAULTS_OF_MESSAGES = frozenset({"invalid_message", "invalid_request", "too_large"})
CRASHED = JobFailedError.code


def may_be_the_messages(error: IcestreamError) -> bool:
    """Return whether the messages of a task can be the cause of its error."""
    if error.code == CRASHED:
        return True
    if error.code == IcestreamError.code:  # unforeseen: only if the task had messages
        return error.operation == WRITE_OPERATION
    if error.code == DamagedError.code:
        return error.operation == "decode"  # else the log is damaged, or the transfer
    return error.code in _FAULTS_OF_MESSAGES and not error.retryable


def needs_worker_probe(error: IcestreamError) -> bool:
    """Return whether the workers may be the cause as well as the messages."""
    return error.code in {CRASHED, IcestreamError.code}


@dataclass
class PoisonSearch:
    """The search for a frame from `start` on that cannot be written."""

    start: int
    failures: int = 0
    ends: tuple[int, ...] = ()
    """Where the possible frames end, in order; empty before they are listed."""
    verdict: IcestreamError | None = None
    """The error that ends the search until an operator acts."""

    @property
    def is_narrowing(self) -> bool:
        return bool(self.ends)

    @property
    def limit(self) -> int | None:
        """Where the next try ends: after half of the frames."""
        return self.ends[(len(self.ends) - 1) // 2] if self.ends else None

    def narrow(self, ends: Sequence[int], failed_end: int) -> bool:
        """Note that the messages before `failed_end` failed. Return whether that was a single frame, tried alone."""
        before = [end for end in ends if end < failed_end]
        self.ends = tuple(ends[: len(before) + 1])
        return len(self.ends) == 1

    def continues_after(self, committed: int) -> bool:
        """Note that the table holds all messages before an offset. Return whether the search goes on."""
        if committed > self.start:
            self.start = committed
            self.ends = tuple(end for end in self.ends if end > committed)
            return self.is_narrowing
        return True
