"""Reading a topic's frames out of its objects, from an offset on.

The object is found by the offset, the place in it by its sparse index. The first range that is read is small, so that
the first message comes soon; the following ones grow, and are read ahead of who asks, from object to object.
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
from icestream.model.frame_bytes import Complete, Corrupt, Decoded, Incomplete, decode
from icestream.model.frames import Frame
from icestream.model.sparse_index import SparseIndex

# --------------------
# The sparse indexes of objects, as readers need them: from the description, or from the object's own trailer.


_MAX_BYTES = 16 << 20
_ENTRY_BYTES = 24
_FIXED_BYTES = 256
_log = structlog.get_logger(__name__)


class ObjectIndexCache:
    """Thread-safe. Those that were read from objects are kept, so many bytes of them."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._free_bytes = max_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, SparseIndex] = OrderedDict()

    def get(self, store: ObjectStore, descriptor: ObjectDescriptor) -> SparseIndex:
        """The object's index. One that is damaged is passed over: without an index the frames tell the same."""
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
            raise damaged_object(descriptor, "the object is gone") from error
        except DamagedError as error:
            _log.warning("a cloud object's index cannot be used", object=descriptor.key, error=str(error))
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


# --------------------
# What all readers of cloud objects share: threads that read ahead, a bound on the bytes read ahead, indexes.


class ReadPool:
    """Thread-safe. The threads are made when they are first needed; a reader that does not read occupies none."""

    def __init__(self, settings: ReaderSettings | None = None) -> None:
        settings = settings or ReaderSettings()
        self.reader_bytes = settings.cloud_prefetch_bytes
        """Most bytes that one reader has read ahead."""
        self.indexes = ObjectIndexCache()
        self._free_bytes = settings.cloud_prefetch_max_bytes
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(settings.cloud_threads, thread_name_prefix="cloud-read")

    @property
    def free_bytes(self) -> int:
        """What may still be read ahead, by all readers together."""
        return self._free_bytes

    def start(self, read: Callable[[], bytes], nbytes: int) -> "Future[bytes] | None":
        """Begin to read in the background; None where all readers together have read too much ahead.

        The bytes count until they are given back.
        """
        with self._lock:
            if nbytes > self._free_bytes:
                return None
            self._free_bytes -= nbytes
        try:
            return self._threads.submit(read)
        except RuntimeError:  # closed: who still reads does so in its own thread
            self.give_back(nbytes)
            return None

    def give_back(self, nbytes: int) -> None:
        with self._lock:
            self._free_bytes += nbytes

    def close(self) -> None:
        """End the threads, as soon as they have read what they are reading."""
        self._threads.shutdown(wait=False, cancel_futures=True)


# --------------------
# Reading ranges of objects in the order of a plan, some of them ahead of who asks.


_MAX_RANGES = 16
"""That one reader has read ahead, however small they are."""


class ObjectRange(NamedTuple):
    """Bytes of an object's frames."""

    descriptor: ObjectDescriptor
    start: int
    length: int


class RangeRead:
    """A range, and its bytes once they are there."""

    def __init__(self, store: ObjectStore, wanted: ObjectRange, pool: ReadPool, *, ahead: bool) -> None:
        self.range = wanted
        self._read = partial(store.read, wanted.descriptor.key, wanted.start, wanted.length)
        self._pool = pool
        self._future: Future[bytes] | None = pool.start(self._read, wanted.length) if ahead else None

    @property
    def is_ahead(self) -> bool:
        return self._future is not None

    def data(self) -> bytes:
        """Its bytes; one that no thread has come to yet is read by the caller, who so waits for no other reader."""
        future, self._future = self._future, None
        if future is None:
            return self._read()
        self._give_back(future)
        return self._read() if future.cancel() else future.result()

    def drop(self) -> None:
        future, self._future = self._future, None
        if future is not None:
            self._give_back(future)
            future.cancel()

    def _give_back(self, future: "Future[bytes]") -> None:
        """The bytes are no longer read ahead: at once if they are there, else as soon as nobody reads them."""
        pool, nbytes = self._pool, self.range.length
        future.add_done_callback(lambda _: pool.give_back(nbytes))


class ReadAhead:
    """Not thread-safe."""

    def __init__(self, store: ObjectStore, plan: Iterator[ObjectRange], pool: ReadPool) -> None:
        self._store = store
        self._plan = plan
        self._pool = pool
        self._pending: deque[RangeRead] = deque()
        self._failure: IcestreamError | None = None
        # A reader that was forgotten gives back what it read ahead.
        self._forgotten = weakref.finalize(self, _drop_all, self._pending)
        self._forgotten.atexit = False

    def next(self, *, ahead: bool) -> RangeRead | None:
        """The following piece; None at the end of the plan. Raises as the plan does, after the pieces before.

        With `ahead` it begins to read those that follow too.
        """
        piece = self._pending.popleft() if self._pending else self._planned(ahead=False)
        if ahead:
            self._fill()
        return piece

    def close(self) -> None:
        self._forgotten()

    def _fill(self) -> None:
        pending = self._pending
        while self._failure is None and len(pending) < _MAX_RANGES:
            if sum(piece.range.length for piece in pending) >= self._pool.reader_bytes:
                return
            try:
                piece = self._planned(ahead=True)
            except IcestreamError as error:
                self._failure = error
                return
            if piece is None:
                return
            pending.append(piece)
            if not piece.is_ahead:
                return

    def _planned(self, *, ahead: bool) -> RangeRead | None:
        if self._failure is not None:
            raise self._failure
        wanted = next(self._plan, None)
        return RangeRead(self._store, wanted, self._pool, ahead=ahead) if wanted is not None else None


def _drop_all(pending: deque[RangeRead]) -> None:
    while pending:
        pending.popleft().drop()


# --------------------
# Walking over the frames of objects, one behind the other, and checking each.


class FrameWalk:
    """Frames are slices of the pieces; only one that reaches from a piece into the next is put together.

    A frame is taken if its checksums match where it stands, if it follows on the one before it, if its part of the
    object holds it wholly, and if its epoch is none that the object cannot have. An object ends with its last offset.
    """

    def __init__(self, pieces: ReadAhead, descriptor: ObjectDescriptor, position: int, offset: int) -> None:
        """The first piece begins at a position of an object; the first frame there does not begin after the offset."""
        self._pieces = pieces
        self._wanted = offset
        self._buffer = memoryview(b"")
        self._at = 0
        self._expected: int | None = None
        """The next frame's offset; not known before the first frame, unless it is an object's first."""
        self._failure: DamagedError | None = None
        self._goes_on = False
        """Nothing is read ahead for who may want no more than the first frames."""
        self._enter(descriptor, position)

    def take(self, max_bytes: int) -> list[Frame]:
        """What follows in one piece, about so many bytes; nothing at the end of all.

        What is sound before a damaged place is given before the error is raised.
        """
        if self._failure is not None:
            raise self._failure
        frames: list[Frame] = []
        nbytes = 0
        while nbytes < max_bytes:
            if self._at == len(self._buffer) and (frames or not self._next_piece()):
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
        self._goes_on = True
        return frames

    def close(self) -> None:
        self._pieces.close()

    def _next_piece(self) -> bool:
        piece = self._pieces.next(ahead=self._goes_on)
        if piece is None:
            return False
        if piece.range.descriptor is not self._object:
            self._enter(piece.range.descriptor, piece.range.start)
        try:
            data = piece.data()
        except ObjectNotFoundError as error:
            raise self._damaged("the object is gone", None) from error
        except DamagedError as error:
            raise self._damaged(error.message, piece.range.start) from error
        self._buffer, self._at = memoryview(data), 0
        if len(data) != piece.range.length:
            raise self._damaged("the object has fewer bytes than it had", piece.range.start + len(data))
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
        """Put a frame together that reaches into the following pieces."""
        joined = bytearray(self._buffer[self._at :])
        self._at = len(self._buffer)
        while isinstance(outcome, Incomplete):
            if self._position + outcome.needed > self._part_end:
                raise self._damaged("a frame is cut short", self._position)
            while (missing := outcome.needed - len(joined)) > 0:
                if self._at == len(self._buffer) and not self._next_piece():
                    raise self._damaged("a frame is cut short", self._position)
                joined += self._buffer[self._at : self._at + missing]
                self._at = min(self._at + missing, len(self._buffer))
            outcome = decode(memoryview(joined), 0, self._seed + self._position)
        return outcome

    def _accept(self, outcome: Decoded) -> Frame:
        """The frame at the position, which is moved behind it."""
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
_MAX_LOOKS = 5


class ObjectRemovedError(Exception):
    """An object that was to be read is not on record any more: retention took it. `cause` is what a user is told."""

    def __init__(self, cause: IcestreamError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class CloudReader:
    """One reader's place in a topic's objects. Not thread-safe; make one each.

    Objects that begin at `end` or past it are not read. Raises `DamagedError`, which names object and offsets; what the
    store and the registry raise; and `ObjectRemovedError`. After an error it reads on where it was.
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
        """The next message's."""

    def read(self, max_bytes: int = DEFAULT_READ_BYTES) -> list[Frame]:
        """The following frames, about `max_bytes` of them and at least one; none where the objects end.

        The first one may begin before the reader's offset when that lies within a batch.
        """
        walk = self._walk or self._seek()
        self._walk = None  # kept only if it goes on
        while walk is not None:
            try:
                taken = walk.take(max_bytes)
            except BaseException as error:
                walk.close()
                if isinstance(error, DamagedError):
                    check_on_record(self._objects, self.offset, error)
                raise
            if not taken:
                walk.close()
                return []
            frames = taken if taken[0].end_offset > self.offset else _from(taken, self.offset)
            if frames:  # else the index has pointed to a place well before the offset
                self.offset = frames[-1].end_offset
                self._walk = walk
                return frames
        return []

    def close(self) -> None:
        walk, self._walk = self._walk, None
        if walk is not None:
            walk.close()

    def _seek(self) -> FrameWalk | None:
        descriptor = described(self._objects, self.offset)
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
            check_on_record(self._objects, self.offset, error)
            raise
        return index.position_of_offset(self.offset) or 0


def offset_at_time(objects: ObjectMap, store: ObjectStore, pool: ReadPool, time_us: int) -> int | None:
    """The first offset published at or after a time, of those in the objects; None where there is none."""
    for _ in range(_MAX_LOOKS):
        span = objects.span_at_time(time_us)
        if span is None:
            return None
        try:
            return _offset_at_time(objects, store, pool, span.first_offset, time_us)
        except ObjectRemovedError as error:
            cause = error.cause
    raise cause


def _offset_at_time(objects: ObjectMap, store: ObjectStore, pool: ReadPool, first: int, time_us: int) -> int:
    descriptor = described(objects, first)
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
        check_on_record(objects, first, error)
        raise
    return descriptor.end_offset


def described(objects: ObjectMap, offset: int) -> ObjectDescriptor | None:
    """Return the description of the object that holds an offset, or None.

    Raises `ObjectRemovedError` if retention has removed that object meanwhile.
    """
    descriptor = objects.find(offset)
    if descriptor is None and objects.span_at(offset) is not None:
        objects.refresh()
        raise _removed(offset)
    return descriptor


def check_on_record(objects: ObjectMap, offset: int, error: DamagedError) -> None:
    """Raise `ObjectRemovedError` if the object that cannot be read is none of the topic's any more."""
    descriptor = described(objects, offset)
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
    """Ranges one behind the other, from a position in an object to the end of the objects; read as far as needed."""
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
