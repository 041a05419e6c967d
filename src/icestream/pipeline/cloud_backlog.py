"""Finds what the cloud holds of topics, for a pipeline that cannot reach a broker.

It reads the metadata store if that can be opened, and else the names and trailers of the objects. Topics without a
table are left out.
"""

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

import structlog
from msgspec import field

from icestream.cloud import ObjectDescriptor, ObjectStore, topic_prefix
from icestream.config import Settings
from icestream.metadata import Entry, MetadataStore, keys, scan
from icestream.model.errors import DamagedError, ObjectNotFoundError, UnavailableError
from icestream.model.names import TopicName
from icestream.protocol.pipeline import TopicBacklog
from icestream.storage import TopicRecord, open_store
from icestream.storage.cloud import (
    FoundObject,
    FoundStream,
    MetadataRegistry,
    TopicFile,
    describe,
    find_streams,
    find_trailer,
    in_order,
    record_of,
)

_log = structlog.get_logger(__name__)


class CloudBacklog(TopicBacklog):
    """The messages in a topic's cloud objects."""

    objects: tuple[ObjectDescriptor, ...] = ()
    schemas: dict[int, str] = field(default_factory=dict)


class Described(NamedTuple):
    """What an object's trailer says of the object, and of its topic when the object was made."""

    record: TopicRecord
    descriptor: ObjectDescriptor


class KnownStream(NamedTuple):
    """A stream's objects by key, which do not change, and the topic's record when they last became others."""

    objects: dict[str, Described]
    record: TopicRecord | None = None


class CloudStreams:
    """Finds streams in an object store, and remembers what it has read. Not thread-safe."""

    def __init__(self, settings: Settings, store: ObjectStore) -> None:
        self._settings = settings
        self._store = store
        self._known: dict[str, KnownStream] = {}
        """By stream id, what the last listing found."""

    def find(self, pattern: str, *, reread_records: bool = False) -> list[CloudBacklog]:
        """Return the topics whose names match, each with what its objects hold.

        A topic's record is read again if its objects have changed, or if `reread_records` is set.
        """
        if reread_records:
            self._known = {stream_id: KnownStream(known.objects) for stream_id, known in self._known.items()}
        if self._has_metadata():
            try:
                with open_store(self._settings) as metadata:
                    return list(self._recorded(metadata, pattern))
            except UnavailableError as error:
                _log.warning("metadata_store_unreachable_listing_objects", reason=str(error))
        return self._listed(pattern)

    def _has_metadata(self) -> bool:
        """Return whether there is a metadata store. Opening a missing SQLite file would create an empty one."""
        metadata = self._settings.metadata
        if metadata.in_memory:
            return False
        return bool(metadata.etcd_endpoint) or (metadata.sqlite_path is not None and metadata.sqlite_path.exists())

    def _recorded(self, metadata: MetadataStore, pattern: str) -> Iterator[CloudBacklog]:
        for entry in _records(metadata, pattern):
            record = TopicRecord.from_bytes(entry.value)
            if record.deleting or not record.has_table or not fnmatchcase(record.topic, pattern):
                continue
            registry = MetadataRegistry(metadata, record.name, record.stream_id)
            head, objects = registry.head(), registry.objects()
            if head is not None and objects:
                yield _backlog(record, max(head.epoch, record.epoch), objects)

    def _listed(self, pattern: str) -> list[CloudBacklog]:
        """List the objects. Of several streams of one name the newest counts: the others belong to deleted topics."""
        newest: dict[TopicName, CloudBacklog] = {}
        ages: dict[TopicName, int] = {}
        streams = find_streams(self._store, topic_prefix(TopicName.parse(pattern)) if _is_name(pattern) else "")
        for stream in streams:
            if not fnmatchcase(str(stream.topic), pattern):
                continue
            known = self._known[stream.stream_id] = self._look_at(stream)
            record = known.record
            if record is None:
                continue
            objects = [one.descriptor for one in known.objects.values()]
            epoch = max(record.epoch, *(one.epoch for one in objects))
            if record.has_table and record.created_us >= ages.get(stream.topic, 0):
                newest[stream.topic], ages[stream.topic] = _backlog(record, epoch, objects), record.created_us
        if not _is_name(pattern):
            for gone in self._known.keys() - {stream.stream_id for stream in streams}:
                del self._known[gone]
        return list(newest.values())

    def _look_at(self, stream: FoundStream) -> KnownStream:
        known = self._known.get(stream.stream_id, KnownStream({}))
        found = {one.key: known.objects.get(one.key) or self._look_into(one) for one in in_order(stream.objects)}
        objects = {key: one for key, one in found.items() if one is not None}
        if not objects or (known.record is not None and objects.keys() == known.objects.keys()):
            return KnownStream(objects, known.record if objects else None)
        file = TopicFile.read(self._store, stream.topic, stream.stream_id) if stream.has_file else None
        return KnownStream(objects, file.record if file is not None else list(objects.values())[-1].record)

    def _look_into(self, found: FoundObject) -> Described | None:
        try:
            trailer = find_trailer(self._store, found.key, found.size)
            return Described(record_of(trailer.record), describe(found, trailer))
        except (DamagedError, ObjectNotFoundError) as error:
            _log.warning("cloud_object_unusable", reason=str(error))
            return None


def _records(metadata: MetadataStore, pattern: str) -> Iterable[Entry]:
    if not _is_name(pattern):
        return scan(metadata, keys.topics())
    entry = metadata.get(keys.topic(TopicName.parse(pattern)))
    return [entry] if entry is not None else []


def _is_name(pattern: str) -> bool:
    return not set(pattern) & set("*?[")


def _backlog(record: TopicRecord, epoch: int, objects: list[ObjectDescriptor]) -> CloudBacklog:
    return CloudBacklog(
        topic=record.topic,
        stream_id=record.stream_id,
        epoch=epoch,
        schema=record.encoded_schema,
        partition_by=record.partition_by,
        sort_by=record.sort_by,
        start_offset=objects[0].first_offset,
        durable_end=objects[-1].end_offset,
        nbytes=sum(one.data_bytes for one in objects),
        objects=tuple(objects),
        schemas=record.schemas(),
    )
