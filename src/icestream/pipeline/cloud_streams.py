"""What of topics lies in the cloud, for a pipeline that cannot ask a broker.

The metadata store tells where it can be opened; else the objects themselves do, by names and trailers. Topics without a
table are left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import structlog

from icestream.client.pipeline import TopicBacklog
from icestream.cloud import ObjectDescriptor, ObjectStore
from icestream.cloud.names import topic_prefix
from icestream.config import Settings
from icestream.metadata import MetadataStore, keys, scan
from icestream.model.errors import DamagedError, ObjectNotFoundError, UnavailableError
from icestream.model.names import TopicName
from icestream.storage.cloud import MetadataRegistry
from icestream.storage.cloud.found import (
    FoundObject,
    FoundStream,
    TopicFile,
    describe,
    find_streams,
    in_order,
    read_trailer,
    record_of,
)
from icestream.storage.facade import open_store
from icestream.storage.record import TopicRecord

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class CloudBacklog(TopicBacklog):
    """What the objects of a topic hold."""

    objects: tuple[ObjectDescriptor, ...] = ()
    schemas: dict[int, str] = field(default_factory=dict)


class CloudStreams:
    """Not thread-safe."""

    def __init__(self, settings: Settings, store: ObjectStore) -> None:
        self._settings = settings
        self._store = store
        self._described: dict[str, tuple[TopicRecord, ObjectDescriptor]] = {}
        """Of objects that were looked into; they do not change."""

    def find(self, pattern: str) -> list[CloudBacklog]:
        """The topics whose names match, each with what its objects hold."""
        return list(self._find(pattern, topic_prefix(TopicName.parse(pattern)) if _is_name(pattern) else ""))

    def _find(self, pattern: str, prefix: str) -> Iterator[CloudBacklog]:
        if self._has_metadata():
            try:
                with open_store(self._settings) as metadata:
                    yield from self._recorded(metadata, pattern)
                    return
            except UnavailableError as error:
                _log.warning("the metadata store is away: looking into the object store", error=str(error))
        yield from self._listed(pattern, prefix)

    def _has_metadata(self) -> bool:
        """Whether there is a store that others have written: a file that is missing would be made, empty."""
        metadata = self._settings.metadata
        if metadata.in_memory:
            return False
        return bool(metadata.etcd_endpoint) or (metadata.sqlite_path is not None and metadata.sqlite_path.exists())

    def _recorded(self, metadata: MetadataStore, pattern: str) -> list[CloudBacklog]:
        found: list[CloudBacklog] = []
        for entry in scan(metadata, keys.topics()):
            record = TopicRecord.from_bytes(entry.value)
            if record.deleting or not record.has_table or not fnmatchcase(record.topic, pattern):
                continue
            registry = MetadataRegistry(metadata, record.name, record.stream_id)
            head, objects = registry.head(), registry.objects()
            if head is not None and objects:
                found.append(_backlog(record, max(head.epoch, record.epoch), objects))
        return found

    def _listed(self, pattern: str, prefix: str) -> list[CloudBacklog]:
        """Of several streams of one name the newest counts: the others are of topics that were deleted."""
        newest: dict[TopicName, CloudBacklog] = {}
        ages: dict[TopicName, int] = {}
        for stream in find_streams(self._store, prefix):
            if not fnmatchcase(str(stream.topic), pattern):
                continue
            objects = self._descriptions(stream)
            if not objects:
                continue
            file = TopicFile.read(self._store, stream.topic, stream.stream_id)
            record = file.record if file is not None else self._described[objects[-1].key][0]
            epoch = max(record.epoch, *(one.epoch for one in objects))
            if record.has_table and record.created_us >= ages.get(stream.topic, 0):
                newest[stream.topic], ages[stream.topic] = _backlog(record, epoch, objects), record.created_us
        return list(newest.values())

    def _descriptions(self, stream: FoundStream) -> list[ObjectDescriptor]:
        found = (self._description(one) for one in in_order(stream.objects))
        return [one for one in found if one is not None]

    def _description(self, found: FoundObject) -> ObjectDescriptor | None:
        known = self._described.get(found.key)
        if known is None:
            try:
                trailer = read_trailer(self._store, found.key, found.size)
                known = record_of(trailer.record), describe(found, trailer)
            except (DamagedError, ObjectNotFoundError) as error:
                _log.warning("a cloud object cannot be used", error=str(error))
                return None
            self._described[found.key] = known
        return known[1]


def _is_name(pattern: str) -> bool:
    return not set(pattern) & set("*?[")


def _backlog(record: TopicRecord, epoch: int, objects: list[ObjectDescriptor]) -> CloudBacklog:
    return CloudBacklog(
        topic=record.name,
        stream_id=record.stream_id,
        epoch=epoch,
        schema=record.schema,
        partition_by=record.partition_by,
        sort_by=record.sort_by,
        start_offset=objects[0].first_offset,
        durable_end=objects[-1].end_offset,
        nbytes=sum(one.data_bytes for one in objects),
        objects=tuple(objects),
        schemas=record.schemas(),
    )
