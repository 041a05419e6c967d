"""Tiers, and the reader that goes from tier to tier.

A tier is a store that holds a range of a topic's offsets and reads them in order. `TopicReader` is a reader's position
in a topic: it chooses the nearest tier that holds the next offset.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from icestream.model.errors import IcestreamError, InvalidRequestError, OffsetOutOfRangeError
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


DEFAULT_READ_BYTES = 1 << 20
_MAX_CHANGES = 8
"""In one call. Each is a tier that held the offset when it was chosen, and no longer when it was read."""


class TopicReader:
    """One reader's position. Not thread-safe: each thread makes its own."""

    def __init__(
        self,
        tiers: Sequence[Tier],
        offset: int,
        selection: Selection,
        *,
        place: str,
        explain: Callable[[int], IcestreamError | None] = lambda _: None,
    ) -> None:
        """`explain` returns a better error than the reader's own for an offset that no tier holds, if there is one."""
        self._tiers = tiers
        self._selection = selection
        self._place = place
        self._explain = explain
        self._current: TierRead | None = None
        self.offset = offset
        """The offset of the next message."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of all its batches. It stays when the topic gains columns."""
        return self._selection.schema

    @property
    def is_filtered(self) -> bool:
        """Whether a filter leaves messages out."""
        return self._selection.where is not None

    def read(self, max_bytes: int = DEFAULT_READ_BYTES) -> list[pa.RecordBatch]:
        """Return what follows, about `max_bytes` of it; nothing at the durable end.

        With a filter the batches may have no rows: nothing matched up to `offset`, and there is more. An error leaves
        the reader where it was; after a retryable one the next call may succeed.
        """
        changes = 0
        while (current := self._current or self._choose()) is not None:
            self._current = None  # kept only if it goes on
            try:
                batches = current.read(max_bytes)
            except MovedError as moved:
                current.close()
                changes += 1
                if changes >= _MAX_CHANGES and moved.__cause__ is not None:
                    raise moved.__cause__ from None
                continue
            except BaseException:
                current.close()
                raise
            has_moved, self.offset = current.offset > self.offset, current.offset
            if batches is not None:
                self._current = current
                return batches
            current.close()
            if has_moved and self.is_filtered:
                return [pa.RecordBatch.from_pylist([], self.schema)]
        return []

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until there is something to read; return False at the time-out."""
        return self._tiers[0].wait(self.offset, timeout)

    def close(self) -> None:
        current, self._current = self._current, None
        if current is not None:
            current.close()

    def _choose(self) -> TierRead | None:
        """Begin to read the nearest tier that holds the offset and can read it; return None at the end of all.

        The read ends where a nearer tier continues: of what the cloud has lost, the table reads up to the next object
        or the log, whichever comes first.
        """
        starts: list[int] = []
        cause: BaseException | None = None
        for tier in self._tiers:
            try:
                begun = tier.begin(self.offset, min(starts, default=None), self._selection)
            except UnreadableError as error:
                begun, cause = None, error.__cause__
            if begun is not None:
                return begun
            start = tier.next_start(self.offset)
            if start is not None:
                starts.append(start)
        if cause is not None:
            raise cause
        if starts:
            raise self._in_no_tier(min(starts))
        return None

    def _in_no_tier(self, next_offset: int) -> IcestreamError:
        return self._explain(self.offset) or OffsetOutOfRangeError(
            f"no tier of the topic holds offset {self.offset}; the next offset that one holds is {next_offset}",
            operation="read",
            place=self._place,
            remedy="start at earliest, latest or an offset in between",
            details={"offset": self.offset, "next_offset": next_offset},
        )
