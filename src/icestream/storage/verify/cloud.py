"""Checking a topic's cloud objects: their records, the store's list, and every frame; and joining them with the log."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from icestream.cloud import (
    ObjectDescriptor,
    ObjectInfo,
    ObjectName,
    ObjectStore,
    UploadHead,
    damaged_object,
    read_trailer,
    stream_prefix,
    topic_key,
)
from icestream.model.errors import DamagedError, ObjectNotFoundError
from icestream.model.frames import Complete, Corrupt, Scan, SparseIndex
from icestream.model.messages import (
    MESSAGE_SCHEMA,
    MESSAGES_SCHEMA_ID,
    OFFSET,
    Encoding,
    Frame,
    conform,
    slice_from,
    stream_batches,
)
from icestream.model.names import TopicName
from icestream.model.offsets import NO_OFFSETS, OffsetRanges
from icestream.storage.cloud.topic_cloud import TopicCloud
from icestream.storage.record import topic_schema
from icestream.storage.verify.findings import Finding, Kind, Verification
from icestream.storage.verify.logs import LogView
from icestream.storage.verify.reconcile import Side, differences
from icestream.storage.verify.tables import without_quarantined_frames, without_quarantined_rows

_READ_BYTES = 4 << 20


class ObjectCheck:
    """One object, read and checked as a whole. Iterate once: the frames with their positions, a few MiB at a time.

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
        """A window on the object for the scan, which goes forward and reads some bytes twice."""
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
        """Return whether a frame has a time of the object. Lost messages at the beginning of a segment have none."""
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
                raise damaged_object(descriptor, f"the {name} is {other}, its descriptor says {one}")
        if self._index is not None and self._index.to_bytes() != self._made_index.to_bytes():
            raise damaged_object(descriptor, "its index does not point at its frames")


_MAX_NOTES = 20


class CloudAudit:
    """Checks the records when it is made, and the objects while its batches are read.

    A broker may upload and prune meanwhile: later objects are not expected, and an object that was removed with its
    record is no finding.
    """

    def __init__(self, cloud: TopicCloud, report: Verification) -> None:
        self._cloud = cloud
        self._report = report
        head, self.objects = _records(cloud)
        self.first_offset = self.objects[0].first_offset if self.objects else 0
        """Moves when retention removes objects while they are read."""
        self.end_offset = self.objects[-1].end_offset if self.objects else 0
        self.unreadable: list[ObjectDescriptor] = []
        """Objects that are damaged or missing; their messages are not expected."""
        report.cloud_objects = len(self.objects)
        report.cloud_bytes = sum(one.size for one in self.objects)
        if self.objects:
            report.cloud_first, report.cloud_end = self.first_offset, self.end_offset
        self._check_records(head)
        self._check_store()

    @cached_property
    def storage(self) -> str:
        """The topic's kind, as the newest object that can be read says; used if there is no log."""
        for descriptor in reversed(self.objects):
            with contextlib.suppress(DamagedError):
                return str(read_trailer(self._cloud.store, descriptor).record.get("storage", "table"))
        return "table"

    def _check_records(self, head: UploadHead | None) -> None:
        for before, after in pairwise(self.objects):
            if after.first_offset > before.end_offset:
                text = "no object in the cloud has these offsets, and objects before and behind them are there"
                self._add("gap", text, before.end_offset, after.first_offset - 1, after.key)
            elif after.first_offset < before.end_offset:
                text = f"two objects have these offsets, the other one is {before.key}"
                self._add("overlap", text, after.first_offset, before.end_offset - 1, after.key)
        if head is None and self.objects:
            self._report.add(Finding("cloud", "there are objects on record, and no head that counts them"))
        elif head is not None:
            counted = (head.first_offset, head.uploaded_end, head.object_count, head.object_bytes)
            empty = (head.uploaded_end, head.uploaded_end, 0, 0)
            size = sum(one.size for one in self.objects)
            found = (self.first_offset, self.end_offset, len(self.objects), size) if self.objects else empty
            if counted != found:
                names = "first offset, end offset, objects and bytes"
                self._report.add(Finding("cloud", f"the head counts {counted} as {names}, the records {found}"))

    def _check_store(self) -> None:
        """Check that every described object is in the store with its size. Other files there are noted, no finding."""
        recorded = {one.key: one for one in self.objects}
        seen: set[str] = set()
        for info in self._cloud.store.list(stream_prefix(self._cloud.topic, self._cloud.stream_id)):
            descriptor = recorded.get(info.key)
            if descriptor is None:
                self._note_unknown(info)
                continue
            seen.add(info.key)
            if info.size != descriptor.size:
                text = f"the object has {info.size} bytes, {descriptor.size} were written"
                self._add("cloud", text, descriptor.first_offset, descriptor.end_offset - 1, info.key)
        for key, descriptor in recorded.items():
            if key not in seen and not self._is_pruned(descriptor):
                self.unreadable.append(descriptor)
                text = "the object is on record, and the store does not have it"
                self._add("cloud", text, descriptor.first_offset, descriptor.end_offset - 1, key)

    def _note_unknown(self, info: ObjectInfo) -> None:
        if info.key == topic_key(self._cloud.topic, self._cloud.stream_id):
            return
        name = ObjectName.parse(info.key)
        if name is None:
            why = "its name is none of icestream's"
        elif name.first_offset >= self.end_offset:
            why = "it may be an upload under way, or one that was broken off"
        else:
            why = "it may be one that retention is about to remove, or that an earlier owner left"
        if len(self._report.notes) < _MAX_NOTES:
            self._report.notes.append(f"no record names the object {info.key} of {info.size} bytes: {why}")

    def batches(self, aside: OffsetRanges = NO_OFFSETS) -> Iterator[pa.RecordBatch]:
        """Yield the messages of all objects in offset order. A damaged object is reported and skipped.

        Frames that are `aside` are checked and left out undecoded.
        """
        for descriptor in self.objects:
            if descriptor in self.unreadable:
                continue
            try:
                yield from self._object_batches(descriptor, aside)
            except DamagedError as error:
                if self._is_pruned(descriptor):
                    self.first_offset = descriptor.end_offset
                    continue
                self.unreadable.append(descriptor)
                first = error.details.get("first_offset", descriptor.first_offset)
                self._add("damaged", error.message, first, descriptor.end_offset - 1, error.place)

    def _object_batches(self, descriptor: ObjectDescriptor, aside: OffsetRanges) -> Iterator[pa.RecordBatch]:
        store = self._cloud.store
        trailer = read_trailer(store, descriptor)
        schemas = {number: topic_schema(text) for number, text in trailer.schemas.items()}
        frames = (frame for _, frame in ObjectCheck(store, descriptor, trailer.index))
        for batch in stream_batches(
            without_quarantined_frames(frames, aside), {MESSAGES_SCHEMA_ID: MESSAGE_SCHEMA, **schemas}
        ):
            kept = without_quarantined_rows(batch, aside)
            if kept.num_rows:
                yield kept

    def _is_pruned(self, descriptor: ObjectDescriptor) -> bool:
        """Whether retention took the record since the list was read."""
        return self._cloud.registry.get(descriptor.first_offset) is None

    def _add(self, kind: Kind, text: str, first: int, last: int, place: str) -> None:
        self._report.add(Finding(kind, text, first, last, place))


def _records(cloud: TopicCloud) -> tuple[UploadHead | None, list[ObjectDescriptor]]:
    """Return head and objects of one moment, also while a broker changes them."""
    while True:
        before, objects, after = cloud.registry.head(), cloud.registry.objects(), cloud.registry.head()
        if before == after:
            return after, objects


@dataclass
class JoinedLog:
    """Log and cloud joined into one `LogView`: the cloud for the pruned part, then the log, compared with the cloud.

    So each is read once. Without a log it is the cloud alone.
    """

    topic: TopicName
    stream_id: str
    log: LogView | None
    cloud: CloudAudit
    report: Verification
    known_committed: int = 0

    @property
    def start_offset(self) -> int:
        return self.cloud.first_offset if self.log is None else min(self.cloud.first_offset, self.log.start_offset)

    @property
    def durable_end(self) -> int:
        return self.cloud.end_offset if self.log is None else self.log.durable_end

    @property
    def problems(self) -> list[str]:
        return [] if self.log is None else self.log.problems

    @property
    def storage(self) -> str:
        return self.cloud.storage if self.log is None else self.log.storage

    def batches(self, aside: OffsetRanges = NO_OFFSETS) -> Iterator[pa.RecordBatch]:
        cloud = Side(self.cloud.batches(aside))
        if self.log is not None:
            for batch in self.log.batches(aside):
                yield from self._before(cloud, batch.column(OFFSET)[0].as_py())
                self._compare(cloud, batch)
                yield batch
        yield from self._rest(cloud)

    def _before(self, cloud: Side, first: int) -> Iterator[pa.RecordBatch]:
        """What the cloud has before the log's next message: of the pruned part, or lost in the log."""
        assert self.log is not None
        while cloud.batch is not None and cloud.first < first:
            kept = slice_from(cloud.take(first - 1), 0, self.log.start_offset)
            if kept.num_rows:
                yield kept

    def _compare(self, cloud: Side, batch: pa.RecordBatch) -> None:
        """Compare the cloud's messages of a batch's range with the log's."""
        first, last = batch.column(OFFSET)[0].as_py(), batch.column(OFFSET)[-1].as_py()
        reached = first
        while cloud.batch is not None and cloud.first <= last:
            found = cloud.take(last)
            through = found.column(OFFSET)[-1].as_py()
            expected = slice_from(batch, reached, through + 1)
            reached = through + 1
            if not found.column(OFFSET).equals(expected.column(OFFSET)):
                self._missing(expected.filter(pc.invert(pc.is_in(expected.column(OFFSET), found.column(OFFSET)))))
                found = found.filter(pc.is_in(found.column(OFFSET), expected.column(OFFSET)))
                expected = expected.filter(pc.is_in(expected.column(OFFSET), found.column(OFFSET)))
            for row, column in differences(conform(found, expected.schema), expected):
                offset = found.column(OFFSET)[row].as_py()
                text = f"column {column!r} in the cloud is not what the log has"
                self.report.add(Finding("content", text, offset, offset))
            self.report.cloud_compared += found.num_rows
        self._missing(slice_from(batch, reached, max(reached, self.cloud.end_offset)))

    def _missing(self, expected: pa.RecordBatch) -> None:
        """Report messages of the log that the described objects should have."""
        offsets = slice_from(expected, self.cloud.first_offset, self.cloud.end_offset).column(OFFSET)
        for one in self.cloud.unreadable:
            is_in = pc.and_(pc.greater_equal(offsets, one.first_offset), pc.less(offsets, one.end_offset))
            offsets = offsets.filter(pc.invert(is_in))
        if len(offsets):
            text = "messages that the log holds are not in the cloud"
            self.report.add(Finding("gap", text, offsets[0].as_py(), offsets[-1].as_py()))

    def _rest(self, cloud: Side) -> Iterator[pa.RecordBatch]:
        """Yield what only the cloud has. After the log's end there must be nothing."""
        while cloud.batch is not None:
            batch = cloud.take(cloud.last)
            if self.log is None:
                yield batch
                continue
            kept = slice_from(batch, 0, self.log.start_offset)
            if kept.num_rows:
                yield kept
            beyond = slice_from(batch, self.log.durable_end)
            if beyond.num_rows:
                first, last = beyond.column(OFFSET)[0].as_py(), beyond.column(OFFSET)[-1].as_py()
                text = f"the cloud has messages that the log, which ends at {self.log.durable_end}, does not"
                self.report.add(Finding("cloud", text, first, last))
