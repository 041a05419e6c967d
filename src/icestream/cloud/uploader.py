"""Uploads a topic's log to the object store, one object per cycle.

The steps of a cycle, and what a crash after each leaves behind:

1. Note in the log's directory which object comes next. *Nothing in the store, or invisible parts of an object.*
2. Send the frames, each of them checked, and the trailer; finish the object. *A whole object without a descriptor: the
   next cycle finds it by the note, compares it with the log and describes it. Nothing is sent again.*
3. Read the object's size and trailer back. *As after 2.*
4. Describe the object and move the head, in one transaction of the metadata store. *The object counts. The note is
   older than the head, and is replaced.*
5. Note how far the log is uploaded, and add the object to the object map.

An object that was begun is finished, with the same name and the same frames, before the next one is planned. So a
request with an unknown outcome cannot leave a second object behind.

Only whole durable frames are sent, and only by the owner of the topic. A `StaleEpochError` in step 4 leaves an object
without a descriptor in the store; the new owner removes it.

The metadata store's head is authoritative. The notes add what it cannot say: that an object was begun, which may be in
the store without a descriptor. So it is found after a crash, and not sent again.
"""

import threading
from collections import deque
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, Self

import structlog

from icestream.cloud.object import ObjectDescriptor, ObjectName, UploadHead, object_key, stream_prefix
from icestream.cloud.object_builder import LogPosition, LogRange, ObjectBuilder
from icestream.cloud.registry import ObjectMap, Registry
from icestream.cloud.store import ObjectStore
from icestream.model.clock import Clock, now_us
from icestream.model.errors import ConflictError, DamagedError
from icestream.model.names import TopicName


@dataclass(frozen=True)
class PendingObject:
    """An object that was begun and may be in the store."""

    key: str
    first_offset: int
    end_offset: int


@dataclass(frozen=True)
class UploadNotes:
    """What an uploader notes in the log's directory: how far it is, and which object it makes."""

    stream_id: str
    epoch: int
    uploaded_end: int
    file_seq: int
    byte_pos: int
    """Segment number and position where the next object begins."""
    pending: PendingObject | None = None

    @property
    def position(self) -> LogPosition:
        return LogPosition(self.file_seq, self.byte_pos)

    def to_fields(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        pending = fields["pending"]
        return cls(**(fields | {"pending": PendingObject(**pending) if pending is not None else None}))


class NotesFile(Protocol):
    """Keeps the notes. After any crash it holds the old notes or the new ones."""

    @property
    def name(self) -> str: ...

    def load(self) -> UploadNotes | None:
        """Return the notes; None if there are none that can be read."""

    def save(self, notes: UploadNotes, /) -> None: ...


_log = structlog.get_logger(__name__)


class StrayObjects:
    """Objects in the store without a descriptor, after the head: an earlier owner or a lost note left them.

    An object that follows the head and holds the log's bytes is described, and need not be sent again. The others are
    removed. Three kinds are never touched: objects of a later owner, objects before the head, and objects with offsets
    that the log does not have. If the metadata store was set back, the last may be the only copy of these messages.
    """

    def __init__(self, store: ObjectStore, pending: list[PendingObject] | None = None) -> None:
        self._store = store
        self._found = deque(pending or ())

    def __bool__(self) -> bool:
        return bool(self._found)

    @classmethod
    def find(
        cls, store: ObjectStore, topic: TopicName, stream_id: str, head: UploadHead, bounds: tuple[int, int]
    ) -> "StrayObjects":
        """Find them, by offset. After the claim only this owner can describe them."""
        found: list[PendingObject] = []
        start_offset, durable_end = bounds
        for info in store.list(stream_prefix(topic, stream_id)):
            name = ObjectName.parse(info.key)
            if name is None or name.epoch > head.epoch or name.first_offset < head.uploaded_end:
                continue
            if name.first_offset < start_offset or name.end_offset > durable_end:
                _log.warning("object_outside_log_kept", object=info.key)
            else:
                found.append(PendingObject(info.key, name.first_offset, name.end_offset))
        return cls(store, sorted(found, key=lambda one: one.first_offset))

    def take(self, offset: int) -> PendingObject | None:
        """Return the next one that begins at an offset. Those before it can never be described, and are removed."""
        while self._found:
            stray = self._found.popleft()
            if stray.first_offset == offset:
                return stray
            _log.info("stray_object_removed", object=stray.key)
            self._store.delete(stray.key)
        return None


_REMOVED_AT_ONCE = 50
"""Descriptors removed in one transaction. Metadata stores allow a little more than a hundred."""


class Uploader:
    """Uploads one topic. The registry is claimed before the first cycle. Cycles run one at a time, on any thread."""

    def __init__(
        self,
        builder: ObjectBuilder,
        registry: Registry,
        notes: NotesFile,
        objects: ObjectMap,
        *,
        changing: "threading.Lock | None" = None,
        has_table: bool = True,
        max_object_bytes: int | None = None,
        clock: Clock = now_us,
    ) -> None:
        self._builder = builder
        self._topic, self._stream_id = builder.topic, builder.stream_id
        self._source, self._store = builder.source, builder.store
        self._registry = registry
        self._notes_file = notes
        self._objects = objects
        self._changing = changing or threading.Lock()
        """Held from the read of the head to the write of its successor."""
        self._has_table = has_table
        self._max_object_bytes = max_object_bytes
        self._clock = clock
        self._strays = StrayObjects(builder.store)
        self._notes: UploadNotes | None = None
        """None if they must be read and compared with the head first."""

    def cycle(self) -> ObjectDescriptor | None:
        """Upload durable frames, at most one object; return None if there is nothing to upload."""
        try:
            known = self._notes if self._registry.owned is not None else None
            notes = known if known is not None else self._settle()
            descriptor = self._made_before(notes) or self._make_next(notes)
            if descriptor is not None:
                self._describe(descriptor)
        except BaseException:
            self._notes = None
            raise
        return descriptor

    # Before a cycle

    def _settle(self) -> UploadNotes:
        """Reconcile the notes with the head, which is authoritative."""
        with self._changing:  # a thread that is about to change the head relies on the one it read
            head = self._registry.refresh()
        # A publish with an unknown outcome may have happened: the map then lacks an object that the head counts.
        self._objects.forget()
        notes = self._notes_file.load()
        if notes is not None and notes.stream_id != self._stream_id:
            notes = None
        if notes is not None and notes.uploaded_end > head.uploaded_end:
            raise ConflictError(
                f"{self._notes_file.name} says that all messages below offset {notes.uploaded_end} are uploaded, the "
                f"metadata store says {head.uploaded_end}: the metadata store was set back to an older state",
                operation="upload",
                place=str(self._topic),
                remedy="restore the metadata store; or stop the broker and remove that file: then the objects whose "
                "messages the log still has are described again",
                retryable=False,
            )
        settled = _notes_of(head)
        if notes is None or notes.epoch != head.epoch:
            self._strays = StrayObjects.find(self._store, self._topic, self._stream_id, head, self._source.bounds())
        elif notes.pending is not None and notes.pending.first_offset == head.uploaded_end:
            settled = replace(settled, pending=notes.pending)
        if settled != notes:
            self._save(settled)
        self._notes = settled
        return settled

    def _save(self, notes: UploadNotes) -> None:
        """Save the notes, unless stray objects are left: after a crash they must be looked for again."""
        if not self._strays:
            self._notes_file.save(notes)
        self._notes = notes

    def _next_range(self, notes: UploadNotes) -> LogRange | None:
        start_offset, _ = self._source.bounds()
        if start_offset > notes.uploaded_end:
            notes = self._skip_to(start_offset)
        return self._source.plan(notes.uploaded_end, notes.position, self._max_object_bytes)

    def _skip_to(self, start_offset: int) -> UploadNotes:
        """Skip messages that were pruned from the log before they were uploaded; the table holds them.

        Objects have no gap between them. So the older objects, whose messages the table holds too, are removed.
        """
        if not self._has_table:
            raise DamagedError(
                f"the log begins at offset {start_offset}, and messages before it are not uploaded",
                operation="upload",
                place=str(self._topic),
                remedy="the topic has no table: check it with `icestream verify`",
            )
        described = self._registry.objects()
        with self._changing:
            head = self._registry.refresh()
            for first in range(0, len(described), _REMOVED_AT_ONCE):
                some = described[first : first + _REMOVED_AT_ONCE]
                head = replace(
                    head,
                    first_offset=some[-1].end_offset,
                    object_count=head.object_count - len(some),
                    object_bytes=head.object_bytes - sum(one.size for one in some),
                )
                self._registry.remove(some, head)
            skipped = replace(
                head,
                first_offset=start_offset,
                uploaded_end=start_offset,
                file_seq=0,
                byte_pos=0,
                updated_us=self._clock(),
            )
            self._registry.update(skipped)
        self._objects.remove_before(start_offset)
        for one in described:
            self._store.delete(one.key)
        self._notes = _notes_of(skipped)
        return self._notes

    def _begin(self, log_range: LogRange) -> PendingObject:
        """Run step 1."""
        assert self._notes is not None
        name = ObjectName(log_range.first_offset, log_range.end_offset, self._source.epoch)
        key = object_key(self._topic, self._stream_id, name)
        pending = PendingObject(key, log_range.first_offset, log_range.end_offset)
        self._save(replace(self._notes, pending=pending))
        return pending

    # The object

    def _made_before(self, notes: UploadNotes) -> ObjectDescriptor | None:
        """Return a stray object that begins where the next one should, if it is sound."""
        while notes.pending is None and (stray := self._strays.take(notes.uploaded_end)) is not None:
            log_range = self._source.find_range(stray.first_offset, stray.end_offset)
            if log_range is not None and (descriptor := self._builder.adopt(stray.key, log_range)) is not None:
                return descriptor
            self._store.delete(stray.key)
        return None

    def _make_next(self, notes: UploadNotes) -> ObjectDescriptor | None:
        """Make the object that was begun, or a new one."""
        pending, log_range = notes.pending, None
        if pending is not None:
            log_range = self._source.find_range(pending.first_offset, pending.end_offset)
            if log_range is None:  # the log was pruned meanwhile, or repaired to other frames
                self._store.delete(pending.key)
                self._save(replace(notes, pending=None))
                pending = None
        if pending is None or log_range is None:
            log_range = self._next_range(notes)
            if log_range is None:
                return None
            pending = self._begin(log_range)
        return self._builder.build(pending.key, log_range)

    # Its descriptor

    def _describe(self, descriptor: ObjectDescriptor) -> None:
        """Run steps 4 and 5."""
        with self._changing:
            head = self._registry.owned or self._registry.refresh()
            if head.uploaded_end != descriptor.first_offset:
                raise ConflictError(
                    f"the object begins at offset {descriptor.first_offset}, the metadata store expects "
                    f"{head.uploaded_end}",
                    operation="upload",
                    place=descriptor.key,
                )
            moved = replace(
                head,
                uploaded_end=descriptor.end_offset,
                file_seq=descriptor.file_seq,
                byte_pos=descriptor.byte_pos,
                object_count=head.object_count + 1,
                object_bytes=head.object_bytes + descriptor.size,
                updated_us=self._clock(),
            )
            self._registry.publish(descriptor, moved)
            self._objects.add(descriptor)
        self._save(_notes_of(moved))


def _notes_of(head: UploadHead) -> UploadNotes:
    return UploadNotes(head.stream_id, head.epoch, head.uploaded_end, head.file_seq, head.byte_pos)
