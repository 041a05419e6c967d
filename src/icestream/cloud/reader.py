"""Reads a topic's frames from its objects, from an offset on.

The object map finds the object, and its sparse index the position in it. The first range that is read is small, so that
the first message comes soon. The following ranges grow and are read ahead in the background, from object to object.
"""

import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import structlog

from icestream.cloud.object import ObjectDescriptor, check_trailer, damaged_object
from icestream.cloud.registry import ObjectMap
from icestream.cloud.store import ObjectStore
from icestream.config import ReaderSettings
from icestream.model.errors import DamagedError, IcestreamError, ObjectNotFoundError, OffsetOutOfRangeError
from icestream.model.frames import Complete, Corrupt, Decoded, Incomplete, SparseIndex, decode
from icestream.model.messages import Frame

_MAX_BYTES = 16 << 20
_ENTRY_BYTES = 24
_FIXED_BYTES = 256
_log = structlog.get_logger(__name__)


class ObjectIndexCache:
    """The sparse indexes of objects: from the descriptor, or from the object's trailer. Thread-safe.

    Indexes that were read from trailers are cached, up to `max_bytes`.
    """

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._free_bytes = max_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, SparseIndex] = OrderedDict()

    def get(self, store: ObjectStore, descriptor: ObjectDescriptor) -> SparseIndex:
        """Return the object's index. A damaged one counts as empty: then the object is read from its beginning."""
        inline = descriptor.sparse_index()
        if inline is not None:
            return inline
        with self._lock:
            index = self._kept.get(descriptor.key)
            if index is not None:
                self._kept.move_to_end(descriptor.key)
                return index
        try:
            data = store.read(descriptor.key, descriptor.data_bytes, descriptor.size - descriptor.data_bytes)
            index = check_trailer(data, descriptor).index
        except ObjectNotFoundError as error:
            raise damaged_object(descriptor, "the object is missing") from error
        except DamagedError as error:
            _log.warning("object_index_damaged", object=descriptor.key, error=str(error))
            index = SparseIndex(1)
        self._keep(descriptor.key, index)
        return index

    def _keep(self, key: str, index: SparseIndex) -> None:
        with self._lock:
            if key in self._kept:
                return
            self._kept[key] = index
            self._free_bytes -= _nbytes(index)
            while self._free_bytes < 0:
                self._free_bytes += _nbytes(self._kept.popitem(last=False)[1])


def _nbytes(index: SparseIndex) -> int:
    return _FIXED_BYTES + _ENTRY_BYTES * len(index)


class ReadPool:
    """What all readers of objects share: threads that read ahead, a limit on the bytes read ahead, indexes.

    Thread-safe. Threads start when they are first needed; an idle reader uses none.
    """

    def __init__(self, settings: ReaderSettings | None = None) -> None:
        settings = settings or ReaderSettings()
        self.reader_bytes = settings.cloud_prefetch_bytes
        """Bytes that one reader reads ahead at most."""
        self.indexes = ObjectIndexCache()
        self._free_bytes = settings.cloud_prefetch_max_bytes
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(settings.cloud_threads, thread_name_prefix="cloud-read")

    @property
    def free_bytes(self) -> int:
        """Bytes that all readers together may still read ahead."""
        return self._free_bytes

    def start(self, read: Callable[[], bytes], nbytes: int) -> "Future[bytes] | None":
        """Start a read in the background; return None if the readers together have reached their limit.

        The bytes count until they are released.
        """
        with self._lock:
            if nbytes > self._free_bytes:
                return None
            self._free_bytes -= nbytes
        try:
            return self._threads.submit(read)
        except RuntimeError:  # closed: a reader that goes on reads in its own thread
            self.release(nbytes)
            return None

    def release(self, nbytes: int) -> None:
        with self._lock:
            self._free_bytes += nbytes

    def close(self) -> None:
        """Stop the threads after their current reads."""
        self._threads.shutdown(wait=False, cancel_futures=True)


_MAX_RANGES = 16
"""Ranges that one reader reads ahead at most, however small they are."""


class ObjectRange(NamedTuple):
    """A range of bytes of an object's frames."""

    descriptor: ObjectDescriptor
    start: int
    length: int


class RangeRead:
    """The read of a range: pending, running or done."""

    def __init__(self, store: ObjectStore, wanted: ObjectRange, pool: ReadPool, *, ahead: bool) -> None:
        self.range = wanted
        self._read = partial(store.read, wanted.descriptor.key, wanted.start, wanted.length)
        self._pool = pool
        self._future: Future[bytes] | None = pool.start(self._read, wanted.length) if ahead else None

    @property
    def is_ahead(self) -> bool:
        return self._future is not None

    def data(self) -> bytes:
        """Return the bytes. If no thread has started the read, the caller reads, and so waits for no other reader."""
        future, self._future = self._future, None
        if future is None:
            return self._read()
        self._release(future)
        return self._read() if future.cancel() else future.result()

    def drop(self) -> None:
        future, self._future = self._future, None
        if future is not None:
            self._release(future)
            future.cancel()

    def _release(self, future: "Future[bytes]") -> None:
        """Release the bytes, at once if the read is done, otherwise when it ends."""
        pool, nbytes = self._pool, self.range.length
        future.add_done_callback(lambda _: pool.release(nbytes))


class ReadAhead:
    """Reads the ranges of a plan in order, some of them ahead. Not thread-safe."""

    def __init__(self, store: ObjectStore, plan: Iterator[ObjectRange], pool: ReadPool) -> None:
        self._store = store
        self._plan = plan
        self._pool = pool
        self._pending: deque[RangeRead] = deque()
        self._failure: IcestreamError | None = None
        # A reader that is garbage-collected releases its bytes.
        self._forgotten = weakref.finalize(self, _drop_all, self._pending)
        self._forgotten.atexit = False

    def next(self, *, ahead: bool) -> RangeRead | None:
        """Return the next read; None at the end of the plan. An error of the plan is raised after the reads before it.

        With `ahead`, start the reads that follow.
        """
        read = self._pending.popleft() if self._pending else self._planned(ahead=False)
        if ahead:
            self._fill()
        return read

    def close(self) -> None:
        self._forgotten()

    def _fill(self) -> None:
        pending = self._pending
        while self._failure is None and len(pending) < _MAX_RANGES:
            if sum(read.range.length for read in pending) >= self._pool.reader_bytes:
                return
            try:
                read = self._planned(ahead=True)
            except IcestreamError as error:
                self._failure = error
                return
            if read is None:
                return
            pending.append(read)
            if not read.is_ahead:
                return

    def _planned(self, *, ahead: bool) -> RangeRead | None:
        if self._failure is not None:
            raise self._failure
        wanted = next(self._plan, None)
        return RangeRead(self._store, wanted, self._pool, ahead=ahead) if wanted is not None else None


def _drop_all(pending: deque[RangeRead]) -> None:
    while pending:
        pending.popleft().drop()


class FrameWalk:
    """Walks over the frames of consecutive objects and checks each.

    Frames are slices of the ranges read. Only a frame that spans two ranges is copied.

    A frame is accepted if its checksums match at its position, if it follows the frame before it, if its part of the
    object holds it whole, and if its epoch is not above the object's. The last frame ends with the object's end offset.
    """

    def __init__(self, reads: ReadAhead, descriptor: ObjectDescriptor, position: int, offset: int) -> None:
        """Start at a position of an object, where a frame begins whose offset is not above `offset`."""
        self._reads = reads
        self._wanted = offset
        self._buffer = memoryview(b"")
        self._at = 0
        self._expected: int | None = None
        """The next frame's offset; unknown before the first frame, unless that is an object's first."""
        self._failure: DamagedError | None = None
        self._reads_ahead = False
        """Set after the first frames: many readers want no more."""
        self._enter(descriptor, position)

    def take(self, max_bytes: int) -> list[Frame]:
        """Return the next frames of one range, about `max_bytes`; an empty list at the end of all objects.

        Sound frames before a damaged one are returned first; the next call raises the error.
        """
        if self._failure is not None:
            raise self._failure
        frames: list[Frame] = []
        nbytes = 0
        while nbytes < max_bytes:
            if self._at == len(self._buffer) and (frames or not self._next_range()):
                break
            if self._position >= self._part_end:
                self._begin_part()
            outcome = decode(self._buffer, self._at, self._seed + self._position)
            if isinstance(outcome, Incomplete) and frames:
                break
            try:
                frames.append(self._accept(outcome))
            except DamagedError as error:
                if not frames:
                    raise
                self._failure = error
                break
            nbytes += frames[-1].nbytes
        self._reads_ahead = True
        return frames

    def close(self) -> None:
        self._reads.close()

    def _next_range(self) -> bool:
        read = self._reads.next(ahead=self._reads_ahead)
        if read is None:
            return False
        if read.range.descriptor is not self._object:
            self._enter(read.range.descriptor, read.range.start)
        try:
            data = read.data()
        except ObjectNotFoundError as error:
            raise self._damaged("the object is missing", None) from error
        except DamagedError as error:
            raise self._damaged(error.message, read.range.start) from error
        self._buffer, self._at = memoryview(data), 0
        if len(data) != read.range.length:
            raise self._damaged("the object has fewer bytes than it had", read.range.start + len(data))
        return True

    def _enter(self, descriptor: ObjectDescriptor, position: int) -> None:
        self._object, self._position = descriptor, position
        if position == 0:
            self._expected = descriptor.first_offset
        self._begin_part()

    def _begin_part(self) -> None:
        part = self._object.part_at(self._position)
        self._seed, self._part_end = part.seed, self._object.part_end(part)

    def _join(self, outcome: Decoded) -> Decoded:
        """Join a frame that reaches into the following ranges."""
        joined = bytearray(self._buffer[self._at :])
        self._at = len(self._buffer)
        while isinstance(outcome, Incomplete):
            if self._position + outcome.needed > self._part_end:
                raise self._damaged("a frame is cut short", self._position)
            while (missing := outcome.needed - len(joined)) > 0:
                if self._at == len(self._buffer) and not self._next_range():
                    raise self._damaged("a frame is cut short", self._position)
                joined += self._buffer[self._at : self._at + missing]
                self._at = min(self._at + missing, len(self._buffer))
            outcome = decode(memoryview(joined), 0, self._seed + self._position)
        return outcome

    def _accept(self, outcome: Decoded) -> Frame:
        """Return the frame at the position, and move the position behind it."""
        at, is_here = self._position, not isinstance(outcome, Incomplete)
        if not is_here:
            outcome = self._join(outcome)
        if not isinstance(outcome, Complete):
            raise self._damaged(outcome.reason if isinstance(outcome, Corrupt) else "a frame is cut short", at)
        frame, length = outcome.frame, outcome.end
        if is_here:
            length, self._at = outcome.end - self._at, outcome.end
        if at + length > self._part_end:
            raise self._damaged("a frame reaches past the end of its part", at)
        self._check_order(frame)
        self._position = at + length
        self._expected = frame.end_offset
        if self._position == self._object.data_bytes and self._expected != self._object.end_offset:
            raise self._damaged("the frames do not end with the object's last offset", self._position)
        return frame

    def _check_order(self, frame: Frame) -> None:
        if self._expected is None and self._object.first_offset <= frame.base_offset <= self._wanted:
            self._expected = frame.base_offset
        if frame.base_offset != self._expected:
            raise self._damaged(f"a frame begins with offset {frame.base_offset}", self._position)
        if frame.epoch > self._object.epoch:
            reason = f"a frame has the epoch {frame.epoch}, the object {self._object.epoch}"
            raise self._damaged(reason, self._position)

    def _damaged(self, reason: str, position: int | None) -> DamagedError:
        first = self._wanted if self._expected is None else self._expected
        return damaged_object(self._object, reason, position=position, first=min(first, self._object.end_offset - 1))


DEFAULT_READ_BYTES = 1 << 20
_FIRST_RANGE_BYTES = 512 << 10
_MAX_RANGE_BYTES = 4 << 20
_GROWTH = 4
_MAX_TRIES = 5


class ObjectRemovedError(Exception):
    """Retention removed the object meanwhile. `cause` is the error for the user."""

    def __init__(self, cause: IcestreamError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class CloudReader:
    """Reads frames from a topic's objects. Not thread-safe: each thread needs its own.

    Objects that begin at `end` or later are not read. Raises `DamagedError`, which names object and offsets,
    `ObjectRemovedError`, and the errors of store and registry. After an error the next read starts where it was.
    """

    def __init__(
        self, objects: ObjectMap, store: ObjectStore, offset: int, *, end: int | None = None, pool: ReadPool
    ) -> None:
        self._objects = objects
        self._store = store
        self._pool = pool
        self._end = end
        self._walk: FrameWalk | None = None
        self.offset = offset
        """The next message's offset."""

    def read(self, max_bytes: int = DEFAULT_READ_BYTES) -> list[Frame]:
        """Return the next frames, about `max_bytes` and at least one; an empty list where the objects end.

        The first frame may begin before the reader's offset, if that lies within a batch.
        """
        walk = self._walk or self._seek()
        self._walk = None  # set again if the walk continues
        while walk is not None:
            try:
                taken = walk.take(max_bytes)
            except BaseException as error:
                walk.close()
                if isinstance(error, DamagedError):
                    check_described(self._objects, self.offset, error)
                raise
            if not taken:
                walk.close()
                return []
            frames = taken if taken[0].end_offset > self.offset else _from(taken, self.offset)
            if frames:  # otherwise the index has pointed to a position far before the offset
                self.offset = frames[-1].end_offset
                self._walk = walk
                return frames
        return []

    def close(self) -> None:
        walk, self._walk = self._walk, None
        if walk is not None:
            walk.close()

    def _seek(self) -> FrameWalk | None:
        descriptor = find_descriptor(self._objects, self.offset)
        if descriptor is None:
            return None
        position = 0
        if self.offset > descriptor.first_offset:
            position = self._index_position(descriptor)
        plan = _plan(self._objects, descriptor, position, self._end)
        return FrameWalk(ReadAhead(self._store, plan, self._pool), descriptor, position, self.offset)

    def _index_position(self, descriptor: ObjectDescriptor) -> int:
        try:
            index = self._pool.indexes.get(self._store, descriptor)
        except DamagedError as error:
            check_described(self._objects, self.offset, error)
            raise
        return index.position_of_offset(self.offset) or 0


def offset_at_time(objects: ObjectMap, store: ObjectStore, pool: ReadPool, time_us: int, first: int = 0) -> int | None:
    """Return the first offset in the objects that begin at `first` or later, published at or after a time.

    None if there is none. Publish times do not go back in these objects.
    """
    for _ in range(_MAX_TRIES):
        span = objects.span_at_time(time_us, first)
        if span is None:
            return None
        try:
            return _offset_at_time(objects, store, pool, span.first_offset, time_us)
        except ObjectRemovedError as error:
            cause = error.cause
    raise cause


def _offset_at_time(objects: ObjectMap, store: ObjectStore, pool: ReadPool, first: int, time_us: int) -> int:
    descriptor = find_descriptor(objects, first)
    if descriptor is None:
        raise _removed(first)
    try:
        position = pool.indexes.get(store, descriptor).position_of_time(time_us) or 0
        plan = _plan(objects, descriptor, position, descriptor.end_offset)
        walk = FrameWalk(ReadAhead(store, plan, pool), descriptor, position, descriptor.end_offset - 1)
        try:
            while frames := walk.take(DEFAULT_READ_BYTES):
                for frame in frames:
                    if frame.publish_time_us >= time_us:
                        return frame.base_offset
        finally:
            walk.close()
    except DamagedError as error:
        check_described(objects, first, error)
        raise
    return descriptor.end_offset


def find_descriptor(objects: ObjectMap, offset: int) -> ObjectDescriptor | None:
    """Return the descriptor of the object that holds an offset, or None.

    Raises `ObjectRemovedError` if retention has removed that object meanwhile.
    """
    descriptor = objects.find(offset)
    if descriptor is None and objects.span_at(offset) is not None:
        objects.refresh()
        raise _removed(offset)
    return descriptor


def check_described(objects: ObjectMap, offset: int, error: DamagedError) -> None:
    """Raise `ObjectRemovedError` if the object that cannot be read is no longer described."""
    descriptor = find_descriptor(objects, offset)
    if descriptor is None or descriptor.key != error.details.get("object"):
        raise _removed(offset) from error


def _removed(offset: int) -> ObjectRemovedError:
    return ObjectRemovedError(
        OffsetOutOfRangeError(
            f"the cloud object with offset {offset} was removed",
            operation="read cloud object",
            remedy="start at earliest, latest or an offset in between",
            details={"offset": offset},
        )
    )


def _plan(objects: ObjectMap, descriptor: ObjectDescriptor, position: int, end: int | None) -> Iterator[ObjectRange]:
    """Yield consecutive ranges, from a position in an object to the end of the objects."""
    size = _FIRST_RANGE_BYTES
    found: ObjectDescriptor | None = descriptor
    while found is not None:
        while position < found.data_bytes:
            length = min(size, found.data_bytes - position)
            yield ObjectRange(found, position, length)
            position += length
            size = min(size * _GROWTH, _MAX_RANGE_BYTES)
        if end is not None and found.end_offset >= end:
            return
        found, position = objects.find(found.end_offset), 0


def _from(frames: list[Frame], offset: int) -> list[Frame]:
    return [frame for frame in frames if frame.end_offset > offset]
