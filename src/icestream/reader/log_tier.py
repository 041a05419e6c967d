"""The log as a tier: the decoded tail if it holds the offset, else the cache, else the segment files."""

from collections.abc import Callable, Iterator

import pyarrow as pa

from icestream.model.errors import OffsetOutOfRangeError
from icestream.model.frames import Frame
from icestream.model.messages import slice_from
from icestream.reader.tail import Tail
from icestream.reader.tiers import MovedError, Selection
from icestream.wal import Log, LogReader

Decode = Callable[[list[Frame]], Iterator[pa.RecordBatch]]


class LogTier:
    def __init__(self, log: Log, decode: Decode, tail: Tail) -> None:
        self._log = log
        self.decode = decode
        self.tail = tail

    def next_start(self, offset: int) -> int | None:
        start = self._log.start_offset
        return start if start > offset else None

    def begin(self, offset: int, nearer: int | None, selection: Selection) -> "LogTierRead | None":
        del nearer
        try:
            return LogTierRead(self, LogReader(self._log, offset), selection)
        except OffsetOutOfRangeError:
            if offset < self._log.start_offset:
                return None
            raise

    def wait(self, offset: int, timeout: float | None) -> bool:
        return self._log.wait_past(offset, timeout)

    def close(self) -> None:
        # The log itself ends the waits.
        self.tail.clear()


class LogTierRead:
    """Reads up to the durable end, and goes on when there is more."""

    def __init__(self, tier: LogTier, reader: LogReader, selection: Selection) -> None:
        self._tier = tier
        self._reader = reader
        self._selection = selection

    @property
    def offset(self) -> int:
        return self._reader.offset

    def read(self, max_bytes: int) -> list[pa.RecordBatch]:
        reader = self._reader
        while True:
            start = reader.offset
            decoded = self._tier.tail.read(start, max_bytes)
            if decoded is not None:
                batches = decoded.batches
                reader.jump(decoded.end_offset)
            else:
                try:
                    frames = reader.read(max_bytes)
                except OffsetOutOfRangeError as error:
                    raise MovedError from error
                if not frames:
                    return []
                batches = list(self._tier.decode(frames))
            if batches:  # none if a repair gave up everything in these frames
                batches[0] = slice_from(batches[0], start)
                return [self._selection.apply(batch) for batch in batches]

    def close(self) -> None:
        self._reader.close()
