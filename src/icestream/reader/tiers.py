"""What a tier is to a reader: something that holds a run of offsets and reads them in order."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from icestream.model.errors import InvalidRequestError
from icestream.model.messages import conform

# --------------------
# Which columns and rows of a topic a reader wants.


if TYPE_CHECKING:
    from icestream.model.filters import Filter


@dataclass(frozen=True)
class Selection:
    stream: pa.Schema
    """The topic's schema when the reader was opened: what its batches have, whatever columns the topic gains later."""
    columns: tuple[str, ...] | None = None
    """Besides the offset; None for all."""
    where: "Filter | None" = None

    @classmethod
    def of(
        cls, stream: pa.Schema, columns: Sequence[str] | None = None, where: "Filter | str | None" = None
    ) -> "Selection":
        """Checked against the topic's columns."""
        if columns is not None and (unknown := sorted(set(columns) - set(stream.names))):
            raise InvalidRequestError(
                f"the topic has no columns {', '.join(unknown)}",
                operation="read",
                remedy=f"choose among {', '.join(stream.names)}",
            )
        if columns is not None and not 0 < len(columns) == len(set(columns)):
            raise InvalidRequestError("columns are one or more, each once", operation="read")
        if isinstance(where, str):
            # The SQL parser takes a moment to import, which those who do not filter need not spend.
            from icestream.model.filters import Filter  # noqa: PLC0415

            where = Filter.parse(where)
        if where is not None:
            where.check(stream)
        return cls(stream, None if columns is None else tuple(columns), where)

    @cached_property
    def schema(self) -> pa.Schema:
        """Of the reader's batches: the offset, and the columns asked for."""
        if self.columns is None:
            return self.stream
        offset = self.stream.field(0)
        return pa.schema([offset, *(self.stream.field(name) for name in self.columns if name != offset.name)])

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What is wanted of a batch that has all columns of some version of the topic's schema."""
        if self.where is not None:
            batch = self.where.apply(conform(batch, self.stream))
        return conform(batch, self.schema)


class MovedError(Exception):
    """What a step was to read is not there any more, for the tier has changed: decide again. Raised from the cause."""


class UnreadableError(Exception):
    """The tier holds the offset but cannot read it now; a farther tier may serve instead. Raised from the cause."""


class TierRead(Protocol):
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

    def begin(self, offset: int, nearer: int | None, selection: Selection) -> TierRead | None:
        """A step from an offset on; None if this tier does not hold it. A nearer tier goes on at `nearer`, past it.

        Raises `UnreadableError` when it holds the offset and cannot read it.
        """

    def wait(self, offset: int, timeout: float | None) -> bool:
        """Sleep until there is a message at the offset; False when the time was up before. Asked of the nearest."""

    def close(self) -> None:
        """Wake who waits."""
