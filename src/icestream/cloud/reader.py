"""Reading a topic's frames out of its objects, from an offset on.

The object is found by the offset, the place in it by its sparse index. The first range that is read is small, so that
the first message comes soon; the following ones grow, and are read ahead of who asks, from object to object.
"""

from collections.abc import Iterator

from icestream.cloud.descriptor import ObjectDescriptor
from icestream.cloud.frame_walk import FrameWalk
from icestream.cloud.object_map import ObjectMap
from icestream.cloud.read_ahead import Range, ReadAhead
from icestream.cloud.read_pool import ReadPool
from icestream.cloud.store import ObjectStore
from icestream.model.errors import DamagedError, IcestreamError, OffsetOutOfRangeError
from icestream.model.frames import Frame

DEFAULT_READ_BYTES = 1 << 20
_FIRST_RANGE_BYTES = 512 << 10
_MAX_RANGE_BYTES = 4 << 20
_GROWTH = 4
_MAX_LOOKS = 5


class GoneError(Exception):
    """An object that was to be read is not on record any more: retention took it. `cause` is what a user is told."""

    def __init__(self, cause: IcestreamError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class CloudReader:
    """One reader's place in a topic's objects. Not thread-safe; make one each.

    Objects that begin at `end` or past it are not read. Raises `DamagedError`, which names object and offsets; what the
    store and the registry raise; and `GoneError`. After an error it reads on where it was.
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
        except GoneError as error:
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
    """The description of the object that holds an offset, None if none does; `GoneError` if one did until now."""
    descriptor = objects.find(offset)
    if descriptor is None and objects.span_at(offset) is not None:
        objects.refresh()
        raise _removed(offset)
    return descriptor


def check_on_record(objects: ObjectMap, offset: int, error: DamagedError) -> None:
    """Raise `GoneError` if the object that cannot be read is none of the topic's any more."""
    descriptor = described(objects, offset)
    if descriptor is None or descriptor.key != error.details.get("object"):
        raise _removed(offset) from error


def _removed(offset: int) -> GoneError:
    return GoneError(
        OffsetOutOfRangeError(
            f"the cloud object with offset {offset} was removed",
            operation="read cloud object",
            remedy="start at earliest, latest or an offset in between",
            details={"offset": offset},
        )
    )


def _plan(objects: ObjectMap, descriptor: ObjectDescriptor, position: int, end: int | None) -> Iterator[Range]:
    """Ranges one behind the other, from a position in an object to the end of the objects; read as far as needed."""
    size = _FIRST_RANGE_BYTES
    found: ObjectDescriptor | None = descriptor
    while found is not None:
        while position < found.data_bytes:
            length = min(size, found.data_bytes - position)
            yield Range(found, position, length)
            position += length
            size = min(size * _GROWTH, _MAX_RANGE_BYTES)
        if end is not None and found.end_offset >= end:
            return
        found, position = objects.find(found.end_offset), 0


def _from(frames: list[Frame], offset: int) -> list[Frame]:
    return [frame for frame in frames if frame.end_offset > offset]
