"""`consume --catalog`: reads a topic's table through the catalog, without a broker."""

import time
from types import TracebackType
from typing import Self

import pyarrow as pa

from icestream.config import Settings
from icestream.model.errors import IcestreamError
from icestream.model.offsets import StartPosition
from icestream.storage import ReadOnlyStorage

_RETRY_SECONDS = 0.2


class TableConsumer:
    """Reads up to the newest snapshot. With `follow` it waits for new ones, also while the catalog is unreachable."""

    def __init__(
        self,
        settings: Settings,
        topic: str,
        start: StartPosition,
        *,
        follow: bool,
        max_messages: int | None,
        where: str | None,
    ) -> None:
        self._storage = ReadOnlyStorage(settings)
        self._reader = self._storage.reader(topic, start, where=where)
        self._follow = follow
        self._left = max_messages
        self._pending: list[pa.RecordBatch] = []
        self.ended = False
        self.interruption: IcestreamError | None = None
        """Why the table cannot be read at the moment."""

    def poll(self, timeout: float | None = None) -> pa.RecordBatch | None:
        """Return the next batch, or None after `timeout` seconds or at the end (`ended`)."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.ended:
            batch = self._next()
            if batch is not None and batch.num_rows:
                return self._limited(batch)
            if batch is not None:
                continue
            if not self._follow:
                self.ended = True
            elif not self._wait(deadline):
                return None
        return None

    def _next(self) -> pa.RecordBatch | None:
        if not self._pending:
            try:
                if not self._follow:
                    _ = self._reader.schema  # raises if there is no table
                self._pending = self._reader.read()[::-1]
                self.interruption = None
            except IcestreamError as error:
                if not (self._follow and error.retryable):
                    raise
                self.interruption = error
                time.sleep(_RETRY_SECONDS)
        return self._pending.pop() if self._pending else None

    def _wait(self, deadline: float | None) -> bool:
        """Wait for a new snapshot; return False when the deadline has passed."""
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            return False
        try:
            self._reader.wait(left)
        except IcestreamError as error:
            if not error.retryable:
                raise
            time.sleep(_RETRY_SECONDS if left is None else min(left, _RETRY_SECONDS))
        return True

    def _limited(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Cut the batch at `max_messages`."""
        if self._left is not None:
            batch = batch.slice(0, self._left)
            self._left -= batch.num_rows
            self.ended = self._left == 0
        return batch

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.close()
        self._storage.close()
