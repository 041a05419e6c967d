"""Recovering a topic whose log was lost with its disk, from cloud objects and table.

What it guarantees: every message that an object holds can be read again under its offset; an offset that any message
may have had is never given to another one; the previous owner can upload nothing more. It may be killed at any step and
run again:

1. find the stream, and how far it is: metadata store, `topic.json`, names and trailers of the objects, the
   table's ledger. *Nothing has changed.*
2. claim the head with a higher epoch, and note that in `topic.json` too. *The previous owner is kept out, also one
   with its own metadata store. The next run takes a still higher epoch.*
3. check the trailers of all objects, and the frames of the last one; describe those that the metadata store does not
   know. *The next run describes the others.*
4. in one transaction, move the head to where the new log begins, and put the record, with the new epoch. *The topic is
   known, and still without a log.*
5. make the log; see `icestream.wal.restore`. *The topic is live.*

Of two brokers that recover a topic at once only one gets past 4: the claim and the transaction of step 4 hold only as
long as the topic's record is as step 1 found it, and the later claim keeps the earlier one out.

Messages between the end of what was found and the end of the last owner's reservation may have been acknowledged. They
are lost. The new log records that, and its next offset is after them.
"""

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import msgspec

from icestream.cloud import (
    ObjectDescriptor,
    ObjectStore,
    Trailer,
    UploadHead,
    read_trailer,
    stream_prefix,
    topic_prefix,
)
from icestream.metadata import MetadataStore, keys
from icestream.model.clock import Clock
from icestream.model.errors import ConflictError, DamagedError, IcestreamError, ObjectNotFoundError, TopicNotFoundError
from icestream.model.names import TopicName
from icestream.storage.cloud.discovery import (
    READERS,
    FoundObject,
    FoundStream,
    TopicFile,
    check_frames,
    describe,
    find_streams,
    find_trailer,
    in_order,
    record_of,
)
from icestream.storage.cloud.registry import MetadataRegistry
from icestream.storage.cloud.reservation import STEP
from icestream.storage.record import TopicRecord
from icestream.wal import SEGMENT_HEADER_BYTES, LogStart, Producers


@dataclass(frozen=True)
class RecoveryReport:
    """What was recovered, and what is lost."""

    topic: str
    stream_id: str
    epoch: int
    start_offset: int
    """Where the new log begins."""
    next_offset: int
    """The offset of the next message."""
    cloud_first_offset: int | None
    cloud_end: int
    committed_offset: int | None
    """Of the table; None if there is no table."""
    lost_first: int | None
    lost_end: int | None
    """Messages from `lost_first` to before `lost_end` may have been acknowledged and are lost; None: none are."""
    objects: int
    bytes: int
    unreadable: list[tuple[int, int]] = field(default_factory=list)
    """Ranges of offsets, with their end, whose objects are gone or damaged, and that no table has."""
    sources: list[str] = field(default_factory=list)
    """What was found where, and what was wrong."""

    @property
    def message(self) -> str:
        said = []
        if self.unreadable:
            ranges = ", ".join(f"{first} to {end - 1}" for first, end in self.unreadable)
            said.append(f"offsets {ranges} cannot be read: their objects are gone or damaged, and no table has them")
        if self.lost_first is not None and self.lost_end is not None:
            said.append(
                f"offsets {self.lost_first} to {self.lost_end - 1} at most may have been acknowledged after the last "
                "upload and are lost"
            )
        return "; ".join(said) or "nothing is lost"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "message": self.message}


_OPERATION = "recover topic"
_MAX_CLAIMS = 100

Item = TypeVar("Item")
Result = TypeVar("Result")
Committed = Callable[[TopicRecord], int | None]
"""Returns the committed offset of a topic's table; None if it has no table of this stream."""
MakeLog = Callable[[TopicRecord, LogStart], None]
"""Creates the new log."""


class _Objects(NamedTuple):
    """All objects of the stream, those that are sound, and the trailer of the last one if it is sound."""

    descriptors: list[ObjectDescriptor]
    sound: list[ObjectDescriptor]
    last: Trailer | None
    begin: int
    """The first offset that objects should have."""

    @property
    def first_offset(self) -> int | None:
        return self.descriptors[0].first_offset if self.descriptors else None

    @property
    def end_offset(self) -> int:
        return self.descriptors[-1].end_offset if self.descriptors else 0


class TopicRecovery:
    """Recover one topic. `make_log` does step 5."""

    def __init__(
        self,
        store: ObjectStore,
        metadata: MetadataStore,
        name: TopicName,
        *,
        clock: Clock,
        max_producers: int,
        committed: Committed,
        make_log: MakeLog,
    ) -> None:
        self._store = store
        self._metadata = metadata
        self._name = name
        self._clock = clock
        self._max_producers = max_producers
        self._committed = committed
        self._make_log = make_log
        self._sources: list[str] = []
        self._revision = 0
        """Of the topic's record in the metadata store; 0 where there is none."""

    def run(self) -> RecoveryReport:
        # 1
        record, noted = self._identify()
        registry = MetadataRegistry(self._metadata, self._name, record.stream_id)
        committed = self._table_end(record)
        self._check_store(registry)
        # 2
        head = self._claim(registry, record, noted, committed)
        record = msgspec.structs.replace(
            record,
            epoch=head.epoch,
            has_log=True,
            log_id="",
            log_location="",
            in_table_below=_in_table_below(record, head, committed),
        )
        TopicFile(record, head).write(self._store)
        # 3
        objects = self._describe_all(registry, head)
        # 4
        uploaded_end = max(objects.end_offset, head.uploaded_end, noted.uploaded_end)
        next_offset = max(uploaded_end, committed or 0)
        end_offset = max(next_offset, self._reserved_end(head, objects))
        unreadable = _unreadable(objects, uploaded_end, committed or 0)
        head = self._moved_head(registry, objects, uploaded_end, end_offset)
        self._put(registry, head, record)
        # 5
        self._make_log(record, self._beginning(objects, head.file_seq, next_offset, end_offset))
        lost = end_offset > next_offset
        return RecoveryReport(
            topic=record.topic,
            stream_id=record.stream_id,
            epoch=record.epoch,
            start_offset=next_offset,
            next_offset=end_offset,
            cloud_first_offset=objects.first_offset,
            cloud_end=uploaded_end,
            committed_offset=committed,
            lost_first=next_offset if lost else None,
            lost_end=end_offset if lost else None,
            objects=len(objects.descriptors),
            bytes=sum(descriptor.size for descriptor in objects.descriptors),
            unreadable=unreadable,
            sources=self._sources,
        )

    # Step 1

    def _check_store(self, registry: MetadataRegistry) -> None:
        """Raise if none of the described objects exists: it is another store."""
        described = {descriptor.key for descriptor in registry.objects()}
        if described and described.isdisjoint(found.key for found in self._listed(registry.stream_id)):
            raise ObjectNotFoundError(
                f"not one of the topic's {len(described)} objects is in {self._store.name}: is this the right store?",
                operation=_OPERATION,
                place=str(self._name),
                remedy="check cloud.backend, cloud.root and uploader.root_prefix; where the objects are really gone, "
                "delete the topic (--keep-table keeps what its table has)",
            )

    def _listed(self, stream_id: str) -> list[FoundObject]:
        streams = find_streams(self._store, stream_prefix(self._name, stream_id))
        return [found for stream in streams for found in stream.objects]

    def _identify(self) -> tuple[TopicRecord, UploadHead]:
        """Return the topic's record, from the metadata store or else the object store, and the head in `topic.json`."""
        entry = self._metadata.get(keys.topic(self._name))
        if entry is not None:
            record = TopicRecord.from_bytes(entry.value)
            self._revision = entry.mod_revision
            last = f"; its log was last seen at {record.log_location}" if record.log_location else ""
            self._sources.append(f"metadata store: the topic's record{last}")
            file = TopicFile.read(self._store, self._name, record.stream_id)
            return record, file.head if file is not None else UploadHead(record.stream_id, 0)
        return self._identify_by_objects()

    def _identify_by_objects(self) -> tuple[TopicRecord, UploadHead]:
        streams = find_streams(self._store, topic_prefix(self._name))
        known = [(stream, self._file(stream)) for stream in streams]
        if not known:
            raise TopicNotFoundError(
                f"neither the metadata store nor {self._store.name} knows the topic",
                operation=_OPERATION,
                place=str(self._name),
                remedy="check the name, cloud.root and uploader.root_prefix",
            )
        stream, (record, noted) = max(known, key=lambda one: (one[1][0].created_us, one[1][0].epoch, one[0].end_offset))
        others = [other.stream_id for other, _ in known if other is not stream]
        also = f"; older streams of the same name are left alone: {', '.join(others)}" if others else ""
        self._sources.append(f"{self._store.name}: the topic's record, of stream {stream.stream_id}{also}")
        return record, noted

    def _file(self, stream: FoundStream) -> tuple[TopicRecord, UploadHead]:
        """Return record and head of a stream, from `topic.json` or else from the last object."""
        file = TopicFile.read(self._store, stream.topic, stream.stream_id)
        if file is not None:
            return file.record, file.head
        chain = in_order(stream.objects)
        if not chain:
            raise DamagedError(
                "neither topic.json nor any object tells what the topic is",
                operation=_OPERATION,
                place=f"{self._store.name}/{stream_prefix(stream.topic, stream.stream_id)}",
                remedy="restore topic.json from a copy or an older version of it",
            )
        return record_of(find_trailer(self._store, chain[-1].key, chain[-1].size).record), UploadHead(
            stream.stream_id, 0
        )

    def _table_end(self, record: TopicRecord) -> int | None:
        if not record.has_table:
            return None
        try:
            committed = self._committed(record)
        except IcestreamError as error:
            if error.retryable:
                raise
            self._sources.append(f"table: not used: {error}")
            return None
        text = "none of this stream" if committed is None else f"messages below {committed}"
        self._sources.append(f"table: {text}")
        return committed

    # Step 2

    def _claim(
        self, registry: MetadataRegistry, record: TopicRecord, noted: UploadHead, committed: int | None
    ) -> UploadHead:
        for _ in range(_MAX_CLAIMS):
            self._check_record_unchanged()
            head = registry.head()
            known = head or UploadHead(record.stream_id, record.epoch)
            reserved_end = known.reserved_end
            if head is None or head.updated_us < noted.updated_us:  # lost, or set back to an older state
                reserved_end = max(reserved_end, self._supposed_reservation(record, noted, committed or 0))
            head = replace(
                known,
                epoch=max(known.epoch, record.epoch, noted.epoch) + 1,
                reserved_end=reserved_end,
                updated_us=self._clock(),
            )
            try:
                return registry.claim(head, record_revision=self._revision)
            except ConflictError:
                continue  # the previous owner, or another recovery, was faster
        raise ConflictError(
            "the topic's head keeps changing", operation=_OPERATION, place=str(self._name), remedy="try again"
        )

    def _check_record_unchanged(self) -> None:
        entry = self._metadata.get(keys.topic(self._name))
        if (entry.mod_revision if entry is not None else 0) != self._revision:
            raise ConflictError(
                "another broker has changed or recovered the topic meanwhile",
                operation=_OPERATION,
                place=str(self._name),
                remedy="look whether it is live elsewhere; if it is not, run the recovery again",
            )

    def _supposed_reservation(self, record: TopicRecord, noted: UploadHead, committed: int) -> int:
        """Return how far offsets may have been used if the metadata store does not have the reservation."""
        last = max(self._listed(record.stream_id), key=lambda found: found.name.end_offset, default=None)
        ends = [noted.reserved_end, noted.uploaded_end, committed]
        if last is not None:
            ends.append(last.name.end_offset)
            with contextlib.suppress(DamagedError, ObjectNotFoundError):  # step 3 reports it
                ends.append(find_trailer(self._store, last.key, last.size).durable_end)
        if not record.has_log and not any(ends):
            return 0
        self._sources.append("no reservation is on record: the log goes on far behind all that is known of")
        return max(ends) + STEP

    # Step 3

    def _describe_all(self, registry: MetadataRegistry, head: UploadHead) -> _Objects:
        known = registry.objects()
        listed = self._listed(head.stream_id)
        new = in_order(listed, after=known[-1].end_offset if known else 0)
        self._sources.append(f"metadata store: {len(known)} described objects")
        if new:
            self._sources.append(f"{self._store.name}: {len(new)} objects that were not described")
        descriptors, sound, last = list(known), [], None
        begin = head.first_offset if head.uploaded_end or not new else new[0].name.first_offset
        with ThreadPoolExecutor(READERS) as pool:
            trailers = pool.map(lambda descriptor: self._sound(partial(read_trailer, self._store), descriptor), known)
            for descriptor, trailer in zip(known, trailers, strict=True):
                last = trailer
                if trailer is not None:
                    sound.append(descriptor)
            for described in pool.map(lambda found: self._sound(self._describe, found), new):
                if described is None:
                    continue
                descriptor, last = described
                descriptors.append(descriptor)
                sound.append(descriptor)
                head = _with_objects(head, descriptors, descriptor.end_offset, self._clock())
                registry.publish(descriptor, head)
        if last is not None and not self._sound(self._check_frames, sound[-1]):
            sound.pop()
        self._note_gaps(descriptors)
        return _Objects(descriptors, sound, last, begin)

    def _sound(self, action: Callable[[Item], Result], item: Item) -> Result | None:
        """Run an action on an object; return None, and report it, if the object is damaged or gone."""
        try:
            return action(item)
        except (DamagedError, ObjectNotFoundError) as error:
            self._sources.append(f"damaged: {error}")
            return None

    def _check_frames(self, descriptor: ObjectDescriptor) -> bool:
        check_frames(self._store, descriptor)
        return True

    def _describe(self, found: FoundObject) -> tuple[ObjectDescriptor, Trailer]:
        trailer = find_trailer(self._store, found.key, found.size)
        return describe(found, trailer), trailer

    def _note_gaps(self, descriptors: list[ObjectDescriptor]) -> None:
        for before, after in pairwise(descriptors):
            if before.end_offset != after.first_offset:
                gap = f"offsets {before.end_offset} to {after.first_offset - 1}"
                self._sources.append(f"no object has the {gap}: they can be read only where the table has them")

    # Steps 4 and 5

    def _reserved_end(self, head: UploadHead, objects: _Objects) -> int:
        """Return the reservation of the head; more if an object has later offsets: the metadata store was set back."""
        known_end = objects.last.durable_end if objects.last is not None else 0
        return head.reserved_end if known_end <= head.reserved_end else known_end + STEP

    def _moved_head(
        self, registry: MetadataRegistry, objects: _Objects, uploaded_end: int, end_offset: int
    ) -> UploadHead:
        """Return the head for the new log: the next object begins with its first frame, in a new segment."""
        head = registry.refresh()
        return replace(
            _with_objects(head, objects.descriptors, uploaded_end, self._clock()),
            file_seq=head.file_seq + 1,
            byte_pos=SEGMENT_HEADER_BYTES,
            reserved_end=end_offset,
        )

    def _put(self, registry: MetadataRegistry, head: UploadHead, record: TopicRecord) -> None:
        """Make the topic known, unless another recovery was faster."""
        registry.put_record(record, self._revision, head)

    def _beginning(self, objects: _Objects, number: int, next_offset: int, end_offset: int) -> LogStart:
        """Return where the new log begins. Producers that may have sent more than the last object has may continue."""
        producers = Producers(self._max_producers)
        last = objects.last
        if last is not None and last.producers:
            producers.take_bytes(last.producers)
        if last is None or last.descriptor.end_offset != next_offset:
            producers.note_lost(next_offset)
        return LogStart(
            offset=next_offset,
            end_offset=end_offset,
            segment_number=number,
            time_us=objects.descriptors[-1].last_time_us if objects.descriptors else self._clock(),
            producers=producers.to_bytes(),
        )


def _in_table_below(record: TopicRecord, head: UploadHead, committed: int | None) -> int:
    """Return the offset below which the table is known to have had all messages; objects go only when it has them."""
    if not record.has_table:
        return 0
    return max(record.in_table_below, committed or 0, head.first_offset if head.object_count else 0)


def _unreadable(objects: _Objects, uploaded_end: int, committed: int) -> list[tuple[int, int]]:
    """Return the ranges that were uploaded and are in no sound object and no table."""
    ranges = []
    end = max(objects.begin, committed)
    for descriptor in objects.sound:
        if descriptor.first_offset > end:
            ranges.append((end, descriptor.first_offset))
        end = max(end, descriptor.end_offset)
    return [*ranges, (end, uploaded_end)] if uploaded_end > end else ranges


def _with_objects(head: UploadHead, descriptors: list[ObjectDescriptor], uploaded_end: int, now_us: int) -> UploadHead:
    return replace(
        head,
        first_offset=descriptors[0].first_offset if descriptors else uploaded_end,
        uploaded_end=uploaded_end,
        object_count=len(descriptors),
        object_bytes=sum(descriptor.size for descriptor in descriptors),
        updated_us=now_us,
    )
