"""The records about cloud objects in the metadata store."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

from icestream.cloud import Head, ObjectDescriptor
from icestream.metadata import Absent, Delete, Exists, MetadataStore, Put, RevisionIs, keys, scan
from icestream.metadata.store import Condition, Entry, Operation, OutcomeUnknownError
from icestream.model.errors import StaleEpochError
from icestream.model.names import TopicName


class MetadataRegistry:
    """`icestream.cloud.Registry` for one stream."""

    def __init__(self, metadata: MetadataStore, topic: TopicName, stream_id: str) -> None:
        self._metadata = metadata
        self._topic = topic
        self._stream_id = stream_id
        self._key = keys.cloud_head(topic)
        self._lock = threading.Lock()
        self._revision = 0
        self._epoch = 0

    def head(self) -> Head | None:
        entry = self._metadata.get(self._key)
        head = Head.from_bytes(entry.value) if entry is not None else None
        return head if head is not None and head.stream_id == self._stream_id else None

    def claim(self, head: Head) -> None:
        with self._lock:
            entry = self._metadata.get(self._key)
            known = Head.from_bytes(entry.value) if entry is not None else None
            if known is not None and known.stream_id == head.stream_id and known.epoch > head.epoch:
                raise self._stale(known.epoch)
            self._revision = entry.mod_revision if entry is not None else 0
            self._epoch = head.epoch
            self._change(head, [], [])

    def publish(self, descriptor: ObjectDescriptor, head: Head) -> None:
        key = keys.cloud_object(self._topic, descriptor.first_offset)
        with self._lock:
            self._change(head, [Absent(key)], [Put(key, descriptor.to_bytes())])

    def update(self, head: Head) -> None:
        with self._lock:
            self._change(head, [], [])

    def remove(self, descriptors: list[ObjectDescriptor], head: Head) -> None:
        found = [keys.cloud_object(self._topic, descriptor.first_offset) for descriptor in descriptors]
        with self._lock:
            self._change(head, [Exists(key) for key in found], [Delete(key) for key in found])

    def get(self, first_offset: int) -> ObjectDescriptor | None:
        entry = self._metadata.get(keys.cloud_object(self._topic, first_offset))
        descriptor = ObjectDescriptor.from_bytes(entry.value) if entry is not None else None
        return descriptor if descriptor is not None and descriptor.stream_id == self._stream_id else None

    def objects(self) -> list[ObjectDescriptor]:
        found = (ObjectDescriptor.from_bytes(entry.value) for entry in self._entries())
        return [replace(one, index=None) for one in found if one.stream_id == self._stream_id]

    def forget(self) -> None:
        """Remove all records of the topic, whatever stream they are of: it is deleted."""
        with self._lock:
            for entry in self._entries():
                self._metadata.delete(entry.key)
            self._metadata.delete(self._key)

    def _entries(self) -> Iterator[Entry]:
        return scan(self._metadata, keys.cloud_objects(self._topic))

    def _change(self, head: Head, conditions: Sequence[Condition], operations: Sequence[Operation]) -> None:
        """Under the lock. A transaction whose outcome is not known is looked for before it is called a failure."""
        wanted = [RevisionIs(self._key, self._revision), *conditions]
        value = head.to_bytes()
        try:
            result = self._metadata.transaction(wanted, [Put(self._key, value), *operations])
        except OutcomeUnknownError:
            entry = self._metadata.get(self._key)
            if entry is None or entry.value != value:
                raise
            self._revision = entry.mod_revision
            return
        if not result.succeeded:
            raise self._stale(None)
        self._revision = result.revision

    def _stale(self, epoch: int | None) -> StaleEpochError:
        owner = f"an owner of epoch {epoch}" if epoch is not None else "another owner"
        return StaleEpochError(
            f"{owner} has taken the topic's cloud objects over",
            operation="upload",
            place=str(self._topic),
            remedy="stop this broker: it does not own the topic any more",
            details={"epoch": self._epoch},
        )
