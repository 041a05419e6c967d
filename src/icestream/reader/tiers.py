"""The interface of a tier: a store that holds a range of a topic's offsets and reads them in order."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from icestream.model.errors import InvalidRequestError
from icestream.model.messages import OFFSET, conform

if TYPE_CHECKING:
    from icestream.model.filters import Filter


@dataclass(frozen=True)
class Selection:
    """The columns and rows that a reader wants."""

    stream: pa.Schema
    """The topic's schema when the reader was opened. The reader's batches keep it when the topic gains columns."""
    columns: tuple[str, ...] | None = None
    """In addition to the offset; None for all."""
    where: "Filter | None" = None

    @classmethod
    def of(
        cls, stream: pa.Schema, columns: Sequence[str] | None = None, where: "Filter | str | None" = None
    ) -> "Selection":
        """Make a selection; raise where the topic does not have the columns."""
        if columns is not None and (unknown := sorted(set(columns) - set(stream.names))):
            raise InvalidRequestError(
                f"the topic has no columns {', '.join(unknown)}",
                operation="read",
                remedy=f"choose among {', '.join(stream.names)}",
            )
        if columns is not None and not 0 < len(columns) == len(set(columns)):
            raise InvalidRequestError("columns are one or more, each once", operation="read")
        if isinstance(where, str):
            # Imported here: the SQL parser takes time to import, and most readers do not filter.
            from icestream.model.filters import Filter  # noqa: PLC0415

            where = Filter.parse(where)
        if where is not None:
            where.check(stream)
        return cls(stream, None if columns is None else tuple(columns), where)

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the reader's batches: the offset and the selected columns."""
        if self.columns is None:
            return self.stream
        offset = self.stream.field(OFFSET)
        return pa.schema([offset, *(self.stream.field(name) for name in self.columns if name != offset.name)])

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the selected rows and columns of a batch that has all columns of a version of the topic's schema."""
        if self.where is not None:
            batch = self.where.apply(conform(batch, self.stream))
        return conform(batch, self.schema)


class MovedError(Exception):
    """The tier has changed and no longer has what was to be read: choose a tier again. Raised from the cause."""


class UnreadableError(Exception):
    """The tier holds the offset but cannot read it now; a farther tier may have it. Raised from the cause."""


class TierRead(Protocol):
    """A read of one tier, from the offset that it was begun for."""

    @property
    def offset(self) -> int:
        """The offset of the next message."""

    def read(self, max_bytes: int) -> list[pa.RecordBatch] | None:
        """Return what follows, about `max_bytes`; an empty list if there is nothing now; None at the end of this read.

        Raise `MovedError` if the tier does not hold the offset any more, or not as it did when the read began.
        """

    def close(self) -> None:
        """Release files, threads and leases."""


class Tier(Protocol):
    def next_start(self, offset: int) -> int | None:
        """Return the first offset after this one that the tier holds; farther tiers are read up to there.

        Return None if there is none, and for the last tier.
        """

    def begin(self, offset: int, nearer: int | None, selection: Selection) -> TierRead | None:
        """Begin a read at an offset; return None if this tier does not hold it. A nearer tier continues at `nearer`.

        Raise `UnreadableError` if it holds the offset and cannot read it.
        """

    def wait(self, offset: int, timeout: float | None) -> bool:
        """Wait until there is a message at the offset; return False at the time-out. Only the nearest tier is asked."""

    def close(self) -> None:
        """End all waits."""
