"""What a tier is to a reader: something that holds a run of offsets and reads them in order."""

from typing import Protocol

import pyarrow as pa

from icestream.reader.selection import Selection


class MovedError(Exception):
    """What a step was to read is not there any more, for the tier has changed: decide again. Raised from the cause."""


class UnreadableError(Exception):
    """The tier holds the offset but cannot read it now; a farther tier may serve instead. Raised from the cause."""


class Step(Protocol):
    """A run of messages that one tier reads out, beginning at the offset it was made for."""

    @property
    def offset(self) -> int:
        """The next message's."""

    def read(self, max_bytes: int) -> list[pa.RecordBatch] | None:
        """What follows, about so many bytes; an empty list when there is nothing now, None when the step is over.

        Raises `MovedError` when the tier does not hold the offset any more, or not as it did when the step began.
        """

    def close(self) -> None:
        """Let go of files, threads and leases."""


class Tier(Protocol):
    def next_start(self, offset: int) -> int | None:
        """Past an offset that it does not serve, the first one that it holds, up to which farther tiers are read.

        None if there is none, and for the last tier.
        """

    def begin(self, offset: int, nearer: int | None, selection: Selection) -> Step | None:
        """A step from an offset on; None if this tier does not hold it. A nearer tier goes on at `nearer`, past it.

        Raises `UnreadableError` when it holds the offset and cannot read it.
        """

    def wait(self, offset: int, timeout: float | None) -> bool:
        """Sleep until there is a message at the offset; False when the time was up before. Asked of the nearest."""

    def close(self) -> None:
        """Wake who waits."""
