"""The records about cloud objects in the metadata store."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

from icestream.cloud import ObjectDescriptor, UploadHead
from icestream.metadata import (
    Absent,
    Condition,
    Delete,
    Entry,
    Exists,
    MetadataStore,
    Operation,
    OutcomeUnknownError,
    Put,
    RevisionIs,
    keys,
    scan,
)
from icestream.model.errors import ConflictError, StaleEpochError
from icestream.model.names import TopicName
from icestream.storage.record import TopicRecord

_DESCRIBED_AT_ONCE = 50
"""How many operations fit into one transaction of a metadata store."""


class MetadataRegistry:
    """`icestream.cloud.Registry` for one stream.

    When the store refuses a change, the head is read again. If another owner wrote it, `StaleEpochError` is raised. If
    this owner wrote it, an earlier change of unknown outcome came through late: a retryable `ConflictError` is raised,
    and the next change starts from what the store has now.
    """

    def __init__(self, metadata: MetadataStore, topic: TopicName, stream_id: str) -> None:
        self._metadata = metadata
        self._topic = topic
        self.stream_id = stream_id
        self._key = keys.cloud_head(topic)
        self._lock = threading.Lock()
        self._revision = 0
        self._epoch = 0
        self._owned: UploadHead | None = None

    @property
    def owned(self) -> UploadHead | None:
        """The head as this owner wrote it last; None before the claim, or when the last outcome is not known."""
        return self._owned

    def head(self) -> UploadHead | None:
        head, _ = self._read()
        return head if head is not None and head.stream_id == self.stream_id else None

    def claim(self, head: UploadHead, *, record_revision: int | None = None) -> UploadHead:
        """Change the owner, never how far the topic is; an update may follow.

        The holder of the topic's log claims it again after a restart, with the epoch that the log has. A new owner
        names the revision of the topic's record that it has read (`record_revision`), and needs an epoch that nobody
        had: of two that recover the topic at once, the second one takes a higher epoch, or is refused once the first
        one is done.

        The reservation becomes the larger one of the head and of the store: the owner until now may have reserved
        more, and used it, since the head was read.
        """
        with self._lock:
            known, revision = self._read()
            if known is not None and known.stream_id != head.stream_id:
                self._clear_other_stream()
            elif known is not None and known.epoch > head.epoch:
                raise self._stale(known)
            elif known is not None and (
                _progress(known) != _progress(head) or (record_revision is not None and known.epoch == head.epoch)
            ):
                raise self._moved()
            elif known is not None:
                head = replace(head, reserved_end=max(known.reserved_end, head.reserved_end))
            self._revision = revision
            self._epoch = head.epoch
            self._change(head, self._record_is(record_revision), [])
            return head

    def describe(self, descriptors: Sequence[ObjectDescriptor]) -> None:
        """Describe objects of a stream that has no head yet; the claim that follows makes them valid."""
        with self._lock:
            known, revision = self._read()
            if known is not None and known.stream_id == self.stream_id:
                raise self._moved()
            if known is not None:
                self._clear_other_stream()
            for first in range(0, len(descriptors), _DESCRIBED_AT_ONCE):
                some = descriptors[first : first + _DESCRIBED_AT_ONCE]
                puts = [Put(keys.cloud_object(self._topic, one.first_offset), one.to_bytes()) for one in some]
                if not self._metadata.transaction([RevisionIs(self._key, revision)], puts).succeeded:
                    raise self._moved()

    def refresh(self) -> UploadHead:
        """Read the head from the store; raise `StaleEpochError` unless this owner wrote it."""
        with self._lock:
            return self._refresh()

    def publish(self, descriptor: ObjectDescriptor, head: UploadHead) -> None:
        key = keys.cloud_object(self._topic, descriptor.first_offset)
        with self._lock:
            self._change(head, [Absent(key)], [Put(key, descriptor.to_bytes())])

    def update(self, head: UploadHead) -> None:
        with self._lock:
            self._change(head, [], [])

    def put_record(self, record: TopicRecord, revision: int, head: UploadHead) -> None:
        """Put the topic's record and the head in one transaction, unless either of them has changed."""
        with self._lock:
            self._change(head, self._record_is(revision), [Put(keys.topic(self._topic), record.to_bytes())])

    def _record_is(self, revision: int | None) -> list[Condition]:
        return [] if revision is None else [RevisionIs(keys.topic(self._topic), revision)]

    def remove(self, descriptors: list[ObjectDescriptor], head: UploadHead) -> None:
        found = [keys.cloud_object(self._topic, descriptor.first_offset) for descriptor in descriptors]
        with self._lock:
            self._change(head, [Exists(key) for key in found], [Delete(key) for key in found])

    def get(self, first_offset: int) -> ObjectDescriptor | None:
        entry = self._metadata.get(keys.cloud_object(self._topic, first_offset))
        descriptor = ObjectDescriptor.from_bytes(entry.value) if entry is not None else None
        return descriptor if descriptor is not None and descriptor.stream_id == self.stream_id else None

    def objects(self) -> list[ObjectDescriptor]:
        found = (ObjectDescriptor.from_bytes(entry.value) for entry in self._entries())
        return [replace(one, index=None) for one in found if one.stream_id == self.stream_id]

    def page(self, after: int, limit: int) -> list[ObjectDescriptor]:
        """Return the first objects that begin after an offset, at most `limit`."""
        found: list[ObjectDescriptor] = []
        last = keys.cloud_object(self._topic, after) if after >= 0 else None
        while len(found) < limit:
            entries = self._metadata.list(keys.cloud_objects(self._topic), limit=limit, start_after=last)
            if not entries:
                break
            described = (ObjectDescriptor.from_bytes(entry.value) for entry in entries)
            found += [replace(one, index=None) for one in described if one.stream_id == self.stream_id]
            last = entries[-1].key
        return found[:limit]

    def forget(self) -> None:
        """Remove all records of a deleted topic, of any stream."""
        with self._lock:
            self._owned = None
            found = [entry.key for entry in self._entries()]
            for first in range(0, len(found), _DESCRIBED_AT_ONCE):
                some = found[first : first + _DESCRIBED_AT_ONCE]
                self._metadata.transaction([], [Delete(key) for key in some])
            self._metadata.delete(self._key)

    def _entries(self) -> Iterator[Entry]:
        return scan(self._metadata, keys.cloud_objects(self._topic))

    def _read(self) -> tuple[UploadHead | None, int]:
        """Return the head, of any stream, and its revision."""
        entry = self._metadata.get(self._key)
        return (UploadHead.from_bytes(entry.value), entry.mod_revision) if entry is not None else (None, 0)

    def _refresh(self) -> UploadHead:
        head, revision = self._read()
        if head is None or (head.stream_id, head.epoch) != (self.stream_id, self._epoch):
            self._owned = None
            raise self._stale(head)
        self._revision, self._owned = revision, head
        return head

    def _change(self, head: UploadHead, conditions: Sequence[Condition], operations: Sequence[Operation]) -> None:
        """Write the head and the operations. If the outcome is unknown, read the head first. Under the lock."""
        wanted = [RevisionIs(self._key, self._revision), *conditions]
        value = head.to_bytes()
        try:
            self._revision = self._transaction(wanted, [Put(self._key, value), *operations], value)
        except BaseException:
            self._owned = None
            raise
        self._owned = head

    def _transaction(self, conditions: Sequence[Condition], operations: Sequence[Operation], value: bytes) -> int:
        try:
            result = self._metadata.transaction(conditions, operations)
        except OutcomeUnknownError:
            entry = self._metadata.get(self._key)
            if entry is None or entry.value != value:
                raise
            return entry.mod_revision
        if not result.succeeded:
            head, _ = self._read()
            ours = head is not None and head.stream_id == self.stream_id and head.epoch <= self._epoch
            raise self._moved() if ours else self._stale(head)
        return result.revision

    def _clear_other_stream(self) -> None:
        """Remove the records of an earlier topic of this name, left by a broker without an object store."""
        entry = self._metadata.get(keys.topic(self._topic))
        if entry is None or TopicRecord.from_bytes(entry.value).stream_id != self.stream_id:
            raise self._stale(None)
        for left in self._entries():
            if ObjectDescriptor.from_bytes(left.value).stream_id != self.stream_id:
                self._metadata.delete(left.key)

    def _moved(self) -> ConflictError:
        return ConflictError(
            "the topic's record in the metadata store changed meanwhile",
            operation="upload",
            place=str(self._topic),
            remedy="it is read again and the change is tried again",
        )

    def _stale(self, found: UploadHead | None) -> StaleEpochError:
        owner = "another stream"
        if found is not None and found.stream_id == self.stream_id:
            owner = f"an owner of epoch {found.epoch}"
        return StaleEpochError(
            f"{owner} has taken over the topic's cloud objects",
            operation="upload",
            place=str(self._topic),
            remedy="publish to the new owner, and stop this broker: it does not own the topic any more",
            details={"epoch": self._epoch, "found_epoch": found.epoch if found is not None else None},
        )


def _progress(head: UploadHead) -> UploadHead:
    """Return the head without its owner: how far the topic is."""
    return replace(head, epoch=0, reserved_end=0, updated_us=0)
