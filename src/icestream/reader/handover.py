"""A reader's position in a topic, and its way from tier to tier."""

from collections.abc import Sequence

import pyarrow as pa

from icestream.model.errors import OffsetOutOfRangeError
from icestream.reader.tiers import MovedError, Selection, Tier, TierRead, UnreadableError

DEFAULT_READ_BYTES = 1 << 20
_MAX_CHANGES = 8
"""In one call. Each is a tier that held the offset when it was chosen, and no longer when it was read."""


class TopicReader:
    """One reader's position. Not thread-safe: each thread makes its own."""

    def __init__(self, tiers: Sequence[Tier], offset: int, selection: Selection, *, place: str) -> None:
        self._tiers = tiers
        self._selection = selection
        self._place = place
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

    def _in_no_tier(self, next_offset: int) -> OffsetOutOfRangeError:
        return OffsetOutOfRangeError(
            f"no tier of the topic holds offset {self.offset}; the next offset that one holds is {next_offset}",
            operation="read",
            place=self._place,
            remedy="start at earliest, latest or an offset in between",
            details={"offset": self.offset, "next_offset": next_offset},
        )
