"""One cloud object, read wholly and checked: every frame, the checksum of all, its trailer and its index."""

from collections.abc import Iterator

import xxhash

from icestream.cloud import ObjectDescriptor, ObjectStore, Trailer, check_trailer, damaged_object
from icestream.model.errors import ObjectNotFoundError
from icestream.model.frame_bytes import Complete, Corrupt
from icestream.model.frame_scan import Scan
from icestream.model.frames import Frame
from icestream.model.messages import Encoding
from icestream.model.sparse_index import SparseIndex

_READ_BYTES = 4 << 20


def read_trailer(store: ObjectStore, descriptor: ObjectDescriptor) -> Trailer:
    """The object's trailer, if it belongs to the description; a `DamagedError` if not, or if the object is gone."""
    try:
        data = store.read(descriptor.key, descriptor.data_bytes, descriptor.size - descriptor.data_bytes)
    except ObjectNotFoundError as error:
        raise damaged_object(descriptor, "the object is gone") from error
    return check_trailer(data, descriptor)


class ObjectCheck:
    """Iterate over it once: the frames with their positions, a few MiB in memory at a time.

    With an index it is checked too. The first thing that is wrong is raised as a `DamagedError`; what came before it
    was sound.
    """

    def __init__(self, store: ObjectStore, descriptor: ObjectDescriptor, index: SparseIndex | None = None) -> None:
        self._store = store
        self._descriptor = descriptor
        self._hash = xxhash.xxh3_64()
        self._hashed = 0
        self._expected = descriptor.first_offset
        self._epoch = 0
        self._frames = 0
        self._index = index
        self._made_index = SparseIndex(index.interval_bytes if index is not None else 1)

    def __iter__(self) -> Iterator[tuple[int, Frame]]:
        descriptor = self._descriptor
        for part in descriptor.parts:
            scan = Scan(self, part.position, descriptor.part_end(part), seed=part.seed, read_bytes=_READ_BYTES)
            for position, found in scan:
                self._check(position, found)
                if self._index is not None:
                    self._made_index.add(found.frame.base_offset, position, found.frame.publish_time_us)
                yield position, found.frame
            if scan.stop is not None:
                reason = scan.stop.reason if isinstance(scan.stop, Corrupt) else "a frame is cut short"
                raise damaged_object(descriptor, reason, position=scan.position, first=self._expected)
        self._check_whole()

    def read(self, length: int, position: int) -> bytes:
        """For the scan, which goes forward, and over some bytes twice."""
        try:
            data = self._store.read(self._descriptor.key, position, length)
        except ObjectNotFoundError as error:
            raise damaged_object(self._descriptor, "the object is gone", first=self._expected) from error
        self._hash.update(memoryview(data)[self._hashed - position :])
        self._hashed = max(self._hashed, position + len(data))
        return data

    def _check(self, position: int, found: Complete) -> None:
        frame, descriptor = found.frame, self._descriptor
        wrong: str | None = None
        if frame.base_offset != self._expected:
            wrong = f"a frame begins at offset {frame.base_offset}, where {self._expected} is due"
        elif not self._epoch <= frame.epoch <= descriptor.epoch:
            wrong = f"a frame has the epoch {frame.epoch}, the one before {self._epoch}, the object {descriptor.epoch}"
        elif not self._is_in_time(frame):
            wrong = f"a frame was published at {frame.publish_time_us}, which is outside of the object's times"
        if wrong is not None:
            raise damaged_object(descriptor, wrong, position=position, first=self._expected)
        self._expected, self._epoch = frame.end_offset, frame.epoch
        self._frames += 1

    def _is_in_time(self, frame: Frame) -> bool:
        """What a repair gave up at the beginning of a segment has no time."""
        first, last = self._descriptor.first_time_us, self._descriptor.last_time_us
        no_time = frame.encoding == Encoding.LOST and frame.publish_time_us == 0
        return no_time or first <= frame.publish_time_us <= last

    def _check_whole(self) -> None:
        descriptor = self._descriptor
        told = (descriptor.end_offset, descriptor.frame_count, descriptor.data_bytes, descriptor.checksum)
        found = (self._expected, self._frames, self._hashed, self._hash.intdigest())
        names = ("end offset", "number of frames", "length of the frames", "checksum of the frames")
        for name, one, other in zip(names, told, found, strict=True):
            if one != other:
                raise damaged_object(descriptor, f"the {name} is {other}, its description says {one}")
        if self._index is not None and self._index.to_bytes() != self._made_index.to_bytes():
            raise damaged_object(descriptor, "its index does not point at its frames")
