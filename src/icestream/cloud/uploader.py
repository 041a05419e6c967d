"""Shipping a topic's log to the object store, one object a cycle.

The order of a cycle, with what a crash after each step leaves behind:

1. note beside the log which object is to be made. *Nothing in the store, or a part of an object that nobody can see.*
2. send the frames, each of them checked, and the trailer; finish the object. *A whole object without a description: the
   next cycle finds it by the note, compares it with the log and describes it; nothing is sent again.*
3. read the object's size and trailer back. *As after 2.*
4. describe it and move the head, in one transaction of the metadata store. *It counts. The note is older than the head,
   and is replaced.*
5. note how far the log is uploaded, and let readers know of the object.

An object that was begun is finished, by the same name and with the same frames, before the next one is planned. So a
request whose outcome was never heard of cannot leave a second object behind: whoever comes later finds it there.

Only whole durable frames are sent, and only by who owns the topic: a `StaleEpochError` in step 4 leaves the store
with an object that no description names, and that the new owner removes.
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

# --------------------
# What an uploader notes beside the log: how far it is, and which object it is making.
#
# The metadata store's head is the truth. The notes say what it cannot: that an object was begun which may be there and
# has no description yet. So after a crash that object is found again, and not sent again.


@dataclass(frozen=True)
class PendingObject:
    """An object that was begun; it may be in the store."""

    key: str
    first_offset: int
    end_offset: int


@dataclass(frozen=True)
class UploadNotes:
    stream_id: str
    epoch: int
    uploaded_end: int
    file_seq: int
    byte_pos: int
    """Where in the log the next object begins."""
    pending: PendingObject | None = None

    @property
    def place(self) -> LogPosition:
        return LogPosition(self.file_seq, self.byte_pos)

    def to_fields(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        pending = fields["pending"]
        return cls(**(fields | {"pending": PendingObject(**pending) if pending is not None else None}))


class NotesFile(Protocol):
    """Where the notes are kept; after any crash there are the old ones or the new ones."""

    @property
    def name(self) -> str: ...

    def load(self) -> UploadNotes | None:
        """None where there are none, or none that can be read."""

    def save(self, notes: UploadNotes, /) -> None: ...


# --------------------
# Objects in the store that no description names: what an earlier owner, or a lost note, left behind the head.
#
# Those that follow on the head and hold what the log holds are described and need not be sent again; the others are
# removed. Never touched are objects of a later owner, objects before the head, and objects with offsets that the
# log does
# not have: where the metadata store was set back, they may be all that is left of these.


_log = structlog.get_logger(__name__)


class StrayObjects:
    def __init__(self, store: ObjectStore, pending: list[PendingObject] | None = None) -> None:
        self._store = store
        self._found = deque(pending or ())

    def __bool__(self) -> bool:
        return bool(self._found)

    @classmethod
    def find(
        cls, store: ObjectStore, topic: TopicName, stream_id: str, head: UploadHead, bounds: tuple[int, int]
    ) -> "StrayObjects":
        """By offset. Once the topic was claimed, nobody can describe them but this owner."""
        found: list[PendingObject] = []
        start_offset, durable_end = bounds
        for info in store.list(stream_prefix(topic, stream_id)):
            name = ObjectName.parse(info.key)
            if name is None or name.epoch > head.epoch or name.first_offset < head.uploaded_end:
                continue
            if name.first_offset < start_offset or name.end_offset > durable_end:
                _log.warning("an object has messages that the log does not have; it is left alone", object=info.key)
            else:
                found.append(PendingObject(info.key, name.first_offset, name.end_offset))
        return cls(store, sorted(found, key=lambda one: one.first_offset))

    def take(self, offset: int) -> PendingObject | None:
        """The next one that begins at an offset, to be described if it is sound; those that cannot be are removed."""
        while self._found:
            stray = self._found.popleft()
            if stray.first_offset == offset:
                return stray
            _log.info("an object that nothing describes is removed", object=stray.key)
            self._store.delete(stray.key)
        return None


_REMOVED_AT_ONCE = 50
"""Descriptions in one transaction; stores allow some more than a hundred."""


class Uploader:
    """One topic's. The registry was claimed; cycles come one at a time, from whatever thread."""

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
        """Held by who reads the head, changes it and writes it."""
        self._has_table = has_table
        self._max_object_bytes = max_object_bytes
        self._clock = clock
        self._strays = StrayObjects(builder.store)
        self._notes: UploadNotes | None = None
        """None when they are to be read, or compared with the head, before anything else is done."""

    def cycle(self) -> ObjectDescriptor | None:
        """Ship what is durable, at most one object of it; None if there was nothing to ship."""
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
        """Bring notes and head together: the head is the truth."""
        with self._changing:  # who is about to change the head goes by the one that was read before
            head = self._registry.refresh()
        notes = self._notes_file.load()
        if notes is not None and notes.stream_id != self._stream_id:
            notes = None
        if notes is not None and notes.uploaded_end > head.uploaded_end:
            raise ConflictError(
                f"{self._notes_file.name} says that everything below offset {notes.uploaded_end} is uploaded, the "
                f"metadata store says {head.uploaded_end}: it was set back to an older state",
                operation="upload",
                place=str(self._topic),
                remedy="restore the metadata store; or, to describe the objects anew as far as the log has their "
                "messages, stop the broker and remove that file",
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
        """Not before all that an earlier owner left is dealt with: until then it has to be looked for again."""
        if not self._strays:
            self._notes_file.save(notes)
        self._notes = notes

    def _next_range(self, notes: UploadNotes) -> LogRange | None:
        start_offset, _ = self._source.bounds()
        if start_offset > notes.uploaded_end:
            notes = self._skip_to(start_offset)
        return self._source.plan(notes.uploaded_end, notes.place, self._max_object_bytes)

    def _skip_to(self, start_offset: int) -> UploadNotes:
        """The log was pruned past what is uploaded: nothing was uploaded for a while, and the table has it.

        Objects never leave a gap between them, so the older ones are taken off the record and removed; the table has
        what they have.
        """
        if not self._has_table:
            raise DamagedError(
                f"the log begins at offset {start_offset}, and not everything before it is uploaded",
                operation="upload",
                place=str(self._topic),
                remedy="the topic has no table: look with `icestream verify`",
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
        """Step 1."""
        assert self._notes is not None
        name = ObjectName(log_range.first_offset, log_range.end_offset, self._source.epoch)
        key = object_key(self._topic, self._stream_id, name)
        pending = PendingObject(key, log_range.first_offset, log_range.end_offset)
        self._save(replace(self._notes, pending=pending))
        return pending

    # The object

    def _made_before(self, notes: UploadNotes) -> ObjectDescriptor | None:
        """An object that somebody else has left where the next one begins, if it is sound."""
        while notes.pending is None and (stray := self._strays.take(notes.uploaded_end)) is not None:
            log_range = self._source.find_range(stray.first_offset, stray.end_offset)
            if log_range is not None and (descriptor := self._builder.adopt(stray.key, log_range)) is not None:
                return descriptor
            self._store.delete(stray.key)
        return None

    def _make_next(self, notes: UploadNotes) -> ObjectDescriptor | None:
        """The object that was begun, or a new one."""
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

    # Its description

    def _describe(self, descriptor: ObjectDescriptor) -> None:
        """Steps 4 and 5."""
        with self._changing:
            head = self._registry.owned or self._registry.refresh()
            if head.uploaded_end != descriptor.first_offset:
                raise ConflictError(
                    f"the metadata store says {head.uploaded_end} is next, the object begins at "
                    f"{descriptor.first_offset}",
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
