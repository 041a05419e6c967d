"""Cloud objects as a tier: what was uploaded, from the first object that retention has left to the last one.

A read ends where the log begins, or where the objects end. While it lasts it has a lease, which delays retention for a
bounded time. Of an object that cannot be read, the table serves the messages that it has.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from copy import copy
from time import monotonic
from typing import NamedTuple

import pyarrow as pa
import structlog

from icestream.cloud import CloudReader, ObjectMap, ObjectRemovedError, ObjectStore, ReadPool, offset_at_time
from icestream.model.errors import IcestreamError
from icestream.model.messages import slice_from
from icestream.reader.log_tier import Decode
from icestream.reader.tiers import MovedError, Selection, UnreadableError
from icestream.wal import ReadLease, ReadLeases

_DAMAGED_SECONDS = 5.0
_AWAY_SECONDS = 2.0
_MAX_FAILURES = 1_024
_log = structlog.get_logger(__name__)


class _KnownFailure(NamedTuple):
    error: IcestreamError
    until: float


class ReadFailures:
    """Objects of a topic that could not be read, by their first offset, so that not every reader tries them again.

    After a while the first reader that asks tries again; the others still get the known error. Thread-safe.
    """

    def __init__(self, topic: str, clock: Callable[[], float] = monotonic) -> None:
        self._topic = topic
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[int, _KnownFailure] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._known)

    def note(self, first_offset: int, error: IcestreamError) -> None:
        """Note that an object could not be read. It is logged once, as long as it is known."""
        with self._lock:
            is_new = self._known.pop(first_offset, None) is None
            self._known[first_offset] = _KnownFailure(copy(error), self._clock() + _pause(error))
            if len(self._known) > _MAX_FAILURES:
                self._known.popitem(last=False)
        if is_new:
            _log.warning("cloud_read_failed", topic=self._topic, offset=first_offset, error=str(error))

    def at(self, first_offset: int) -> IcestreamError | None:
        """Return why an object cannot be read; None if nothing is known, and for the reader that has to try again."""
        with self._lock:
            known = self._known.get(first_offset)
            if known is None:
                return None
            now = self._clock()
            if now < known.until:
                return copy(known.error)  # a copy each: a raised error keeps the frames that it passes
            self._known[first_offset] = _KnownFailure(known.error, now + _pause(known.error))
            return None

    def clear(self, first_offset: int) -> None:
        """Note that an object can be read."""
        with self._lock:
            self._known.pop(first_offset, None)


def _pause(error: IcestreamError) -> float:
    return _AWAY_SECONDS if error.retryable else _DAMAGED_SECONDS


class CloudTier:
    def __init__(
        self, objects: ObjectMap, store: ObjectStore, leases: ReadLeases, decode: Decode, pool: ReadPool, *, place: str
    ) -> None:
        self.objects = objects
        self.leases = leases
        self.decode = decode
        self._failures = ReadFailures(place)
        self._store = store
        self._pool = pool

    @property
    def first_offset(self) -> int | None:
        """The first offset that objects hold; None if there are no objects."""
        return self.objects.first_offset

    @property
    def end_offset(self) -> int:
        return self.objects.end_offset

    def next_start(self, offset: int) -> int | None:
        try:
            return next((span.first_offset for span in self.objects.spans if span.first_offset > offset), None)
        except IcestreamError:  # the list of objects cannot be read now: farther tiers serve
            return None

    def begin(self, offset: int, nearer: int | None, selection: Selection) -> "CloudTierRead | None":
        try:
            _ = self.objects.spans  # this may read the metadata store, which must not happen under the lock
            with self.leases.lock:
                span = self.objects.span_at(offset)
                if span is None:
                    return None
                lease = self.leases.take(offset)
        except IcestreamError as error:
            raise UnreadableError from error
        failure = self._failures.at(span.first_offset)
        if failure is not None:
            self.leases.release(lease)
            raise UnreadableError from failure
        reader = CloudReader(self.objects, self._store, offset, end=nearer, pool=self._pool)
        return CloudTierRead(self, reader, lease, nearer, selection)

    def wait(self, offset: int, timeout: float | None) -> bool:
        """Return at once: new messages are in the log, which is nearer."""
        del timeout
        return offset < self.end_offset

    def close(self) -> None:
        """Do nothing: the reads hold what is open."""

    def failed(self, offset: int, error: IcestreamError) -> None:
        """Note that the object with this offset could not be read."""
        span = self.objects.span_at(offset)
        if span is not None:
            self._failures.note(span.first_offset, error)

    def succeeded(self, offset: int) -> None:
        span = self.objects.span_at(offset) if self._failures else None
        if span is not None:
            self._failures.clear(span.first_offset)

    def holds(self, offset: int) -> bool:
        return self.objects.span_at(offset) is not None

    def offset_at_time(self, time_us: int, first: int = 0) -> int | None:
        """Return the first offset from `first` on that was published at or after a time; None if there is none."""
        return offset_at_time(self.objects, self._store, self._pool, time_us, first)


class CloudTierRead:
    def __init__(
        self, tier: CloudTier, reader: CloudReader, lease: ReadLease, end: int | None, selection: Selection
    ) -> None:
        self._tier = tier
        self._reader = reader
        self._lease = lease
        self._end = end
        self._selection = selection

    @property
    def offset(self) -> int:
        return self._lease.offset

    def read(self, max_bytes: int) -> list[pa.RecordBatch] | None:
        while self._end is None or self.offset < self._end:
            start = self.offset
            try:
                frames = self._reader.read(max_bytes)
                batches = list(self._tier.decode(frames))
            except ObjectRemovedError as gone:
                raise MovedError from gone.cause
            except IcestreamError as error:
                self._tier.failed(start, error)
                raise MovedError from error
            if not frames:
                return None
            self._lease.offset = self._reader.offset
            self._tier.succeeded(start)
            if batches:  # none if a repair gave up everything in these frames
                batches[0] = slice_from(batches[0], start)
                return [self._selection.apply(batch) for batch in batches]
        return None

    def close(self) -> None:
        self._reader.close()
        self._tier.leases.release(self._lease)
