"""A place in a topic, read on from tier to tier."""

from collections.abc import Sequence

import pyarrow as pa

from icestream.model.errors import OffsetOutOfRangeError
from icestream.reader.tiers import MovedError, Selection, Tier, TierRead, UnreadableError

DEFAULT_READ_BYTES = 1 << 20
_MAX_MOVES = 8
"""In one call. Each is a tier that had the offset when it was asked for it, and not any more when it was read."""


class TopicReader:
    """One reader's place. Not thread-safe; make one each."""

    def __init__(self, tiers: Sequence[Tier], offset: int, selection: Selection, *, place: str) -> None:
        self._tiers = tiers
        self._selection = selection
        self._place = place
        self._step: TierRead | None = None
        self.offset = offset
        """The next message's."""

    @property
    def schema(self) -> pa.Schema:
        """Of all its batches, whatever columns the topic gains meanwhile."""
        return self._selection.schema

    @property
    def is_filtered(self) -> bool:
        """Whether messages are left out on purpose."""
        return self._selection.where is not None

    def read(self, max_bytes: int = DEFAULT_READ_BYTES) -> list[pa.RecordBatch]:
        """What follows, about `max_bytes` of it; nothing at the durable end.

        With a filter the batches may have no rows: nothing matched up to `offset`, and there is more. An error leaves
        the reader where it was; a retryable one may be gone at the next call.
        """
        moves = 0
        while (step := self._step or self._decide()) is not None:
            self._step = None  # kept only if it goes on
            try:
                batches = step.read(max_bytes)
            except MovedError as moved:
                step.close()
                moves += 1
                if moves >= _MAX_MOVES and moved.__cause__ is not None:
                    raise moved.__cause__ from None
                continue
            except BaseException:
                step.close()
                raise
            has_moved, self.offset = step.offset > self.offset, step.offset
            if batches is not None:
                self._step = step
                return batches
            step.close()
            if has_moved and self.is_filtered:
                return [pa.RecordBatch.from_pylist([], self.schema)]
        return []

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until there is something to read; False when the time was up before."""
        return self._tiers[0].wait(self.offset, timeout)

    def close(self) -> None:
        step, self._step = self._step, None
        if step is not None:
            step.close()

    def _decide(self) -> TierRead | None:
        """The nearest tier that holds the offset and can read it; None at the end of all.

        Its step ends where a nearer one goes on, if any does: what the cloud has lost, the table reads up to the next
        object or the log, whichever comes first.
        """
        starts: list[int] = []
        cause: BaseException | None = None
        for tier in self._tiers:
            try:
                step = tier.begin(self.offset, min(starts, default=None), self._selection)
            except UnreadableError as error:
                step, cause = None, error.__cause__
            if step is not None:
                return step
            start = tier.next_start(self.offset)
            if start is not None:
                starts.append(start)
        if cause is not None:
            raise cause
        if starts:
            raise self._nowhere(min(starts))
        return None

    def _nowhere(self, next_offset: int) -> OffsetOutOfRangeError:
        return OffsetOutOfRangeError(
            f"offset {self.offset} is not in any place that the topic's messages are kept in; the next one that is "
            f"there is {next_offset}",
            operation="read",
            place=self._place,
            remedy="start at earliest, latest or an offset in between",
            details={"offset": self.offset, "next_offset": next_offset},
        )
