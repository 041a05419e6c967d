"""Cloud objects as a tier: what was uploaded, from the first object that retention has left to the last one.

A step ends where the log begins, or where the objects end. While it reads it has a lease, which holds retention up for
a bounded time. An object that cannot be read is left to the table, where the table has its messages.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from copy import copy
from time import monotonic
from typing import NamedTuple

import pyarrow as pa
import structlog

from icestream.cloud import ObjectMap, ObjectStore
from icestream.cloud.reader import CloudReader, ObjectRemovedError, ReadPool, offset_at_time
from icestream.model.errors import IcestreamError
from icestream.model.messages import slice_from
from icestream.reader.log_tier import Decode
from icestream.reader.tiers import MovedError, Selection, UnreadableError
from icestream.wal import ReadLease, ReadLeases

# --------------------
# Objects that could not be read, remembered for a while, so that not every reader tries them at once.


_DAMAGED_SECONDS = 5.0
_AWAY_SECONDS = 2.0
_MAX_PLACES = 1_024
_log = structlog.get_logger(__name__)


class _Known(NamedTuple):
    error: IcestreamError
    until: float


class Troubles:
    """Thread-safe. What is wrong with places of a topic, by the first offset of each.

    After a while one reader, the first to ask, is let through to try again; the others go on to be told the error.
    """

    def __init__(self, topic: str, clock: Callable[[], float] = monotonic) -> None:
        self._topic = topic
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[int, _Known] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._known)

    def note(self, place: int, error: IcestreamError) -> None:
        """A place could not be read. It is told once, as long as it is known."""
        with self._lock:
            is_new = self._known.pop(place, None) is None
            self._known[place] = _Known(copy(error), self._clock() + _pause(error))
            if len(self._known) > _MAX_PLACES:
                self._known.popitem(last=False)
        if is_new:
            _log.warning("cloud_read_failed", topic=self._topic, offset=place, error=str(error))

    def at(self, place: int) -> IcestreamError | None:
        """What is wrong with a place; None where nothing is known, and for who is to try again."""
        with self._lock:
            known = self._known.get(place)
            if known is None:
                return None
            now = self._clock()
            if now < known.until:
                return copy(known.error)  # one each: an error that is raised keeps the frames that it passes
            self._known[place] = _Known(known.error, now + _pause(known.error))
            return None

    def clear(self, place: int) -> None:
        """It can be read, again."""
        with self._lock:
            self._known.pop(place, None)


def _pause(error: IcestreamError) -> float:
    return _AWAY_SECONDS if error.retryable else _DAMAGED_SECONDS


class CloudTier:
    def __init__(
        self, objects: ObjectMap, store: ObjectStore, leases: ReadLeases, decode: Decode, pool: ReadPool, *, place: str
    ) -> None:
        self.objects = objects
        self.leases = leases
        self.decode = decode
        self._troubles = Troubles(place)
        self._store = store
        self._pool = pool

    @property
    def first_offset(self) -> int | None:
        """None if there are no objects."""
        return self.objects.first_offset

    @property
    def end_offset(self) -> int:
        return self.objects.end_offset

    def next_start(self, offset: int) -> int | None:
        try:
            return next((span.first_offset for span in self.objects.spans if span.first_offset > offset), None)
        except IcestreamError:  # which objects there are is not known now; what farther tiers have is read from there
            return None

    def begin(self, offset: int, nearer: int | None, selection: Selection) -> "CloudStep | None":
        try:
            _ = self.objects.spans  # may have to be read, which should not happen under the lock
            with self.leases.lock:
                span = self.objects.span_at(offset)
                if span is None:
                    return None
                lease = self.leases.take(offset)
        except IcestreamError as error:
            raise UnreadableError from error
        trouble = self._troubles.at(span.first_offset)
        if trouble is not None:
            self.leases.release(lease)
            raise UnreadableError from trouble
        reader = CloudReader(self.objects, self._store, offset, end=nearer, pool=self._pool)
        return CloudStep(self, reader, lease, nearer, selection)

    def wait(self, offset: int, timeout: float | None) -> bool:
        """Objects are not waited for: what is new is in the log, which is nearer."""
        del timeout
        return offset < self.end_offset

    def close(self) -> None:
        """There is nothing to close: steps have what is open."""

    def failed(self, offset: int, error: IcestreamError) -> None:
        """The object with an offset could not be read."""
        span = self.objects.span_at(offset)
        if span is not None:
            self._troubles.note(span.first_offset, error)

    def succeeded(self, offset: int) -> None:
        span = self.objects.span_at(offset) if self._troubles else None
        if span is not None:
            self._troubles.clear(span.first_offset)

    def holds(self, offset: int) -> bool:
        return self.objects.span_at(offset) is not None

    def offset_at_time(self, time_us: int) -> int | None:
        """The first offset published at or after a time, of those in the objects; None where there is none."""
        return offset_at_time(self.objects, self._store, self._pool, time_us)


class CloudStep:
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
            if batches:  # none where everything in these frames was given up by a repair
                batches[0] = slice_from(batches[0], start)
                return [self._selection.apply(batch) for batch in batches]
        return None

    def close(self) -> None:
        self._reader.close()
        self._tier.leases.release(self._lease)
