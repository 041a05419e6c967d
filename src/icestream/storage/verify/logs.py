"""Where logs, records and objects to verify come from: a running broker, or the files of a stopped one. Read only."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import pyarrow as pa

from icestream.client import Client, TopicDescription
from icestream.config import Settings
from icestream.metadata import MetadataStore, keys, scan
from icestream.model.enums import StorageKind
from icestream.model.errors import DamagedError, IcestreamError, OffsetOutOfRangeError, TopicNotFoundError
from icestream.model.messages import MESSAGE_SCHEMA, MESSAGES_SCHEMA_ID, OFFSET, Frame, slice_from, stream_batches
from icestream.model.names import TopicName
from icestream.model.offsets import NO_OFFSETS, OffsetRanges
from icestream.protocol.pipeline import TopicBacklog
from icestream.storage.cloud.discovery import find_streams
from icestream.storage.cloud.topic_cloud import Cloud, TopicCloud
from icestream.storage.facade import open_existing_store
from icestream.storage.record import TopicRecord, topic_schema
from icestream.storage.verify.tables import without_quarantined_frames, without_quarantined_rows
from icestream.wal import (
    STREAM_FILE,
    LocalFiles,
    LogReport,
    inspect_directory,
    load_stream,
    segment_offsets,
    segment_ranges,
)

_LOST = "its log is lost: recover it with `icestream topic recover`, or delete the topic"
_ONLY_IN_STORE = "only the object store knows of it: recover it with `icestream topic recover`"


class Clouds:
    """The metadata store and the object store of the settings, opened when they are needed, for reading only."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._resources = contextlib.ExitStack()

    @cached_property
    def _metadata(self) -> MetadataStore:
        return self._resources.enter_context(open_existing_store(self._settings))

    @cached_property
    def _cloud(self) -> Cloud | None:
        if not self.configured:
            return None
        cloud = Cloud.open(self._settings, self._metadata)
        if cloud is not None:
            self._resources.callback(cloud.close)
        return cloud

    @property
    def configured(self) -> bool:
        return self._settings.cloud.backend not in (None, "memory")  # memory belongs to the broker's process

    def find(self, topic: TopicName, stream_id: str | None = None) -> TopicCloud | None:
        """Return a topic's cloud objects, of this stream or else of the record's stream."""
        if self._cloud is None:
            return None
        if stream_id is None:
            entry = self._metadata.get(keys.topic(topic))
            if entry is None:
                return None
            stream_id = TopicRecord.from_bytes(entry.value).stream_id
        return self._cloud.of(topic, stream_id)

    def missing(self, logs: set[TopicName]) -> dict[TopicName, str]:
        """Return the topics that should have a log and have none among these, with the reason."""
        records = [TopicRecord.from_bytes(entry.value) for entry in scan(self._metadata, keys.topics())]
        known = {record.name for record in records} | logs
        missing = {
            record.name: _LOST
            for record in records
            if record.name not in logs and not record.deleting and (record.has_log or self._is_uploaded(record))
        }
        if self._cloud is not None:
            streams = find_streams(self._cloud.store)
            missing |= {stream.topic: _ONLY_IN_STORE for stream in streams if stream.topic not in known}
        return missing

    def _is_uploaded(self, record: TopicRecord) -> bool:
        cloud = self.find(record.name, record.stream_id)
        head = cloud.registry.head() if cloud is not None else None
        return head is not None and head.uploaded_end > 0

    def close(self) -> None:
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_UNKNOWN = "the broker does not know it, its object store does: recover it with `icestream topic recover`"


class LogView(Protocol):
    """One topic's log at one moment."""

    @property
    def topic(self) -> TopicName: ...
    @property
    def stream_id(self) -> str: ...
    @property
    def start_offset(self) -> int:
        """The first kept offset; it may grow while the log is read."""

    @property
    def durable_end(self) -> int: ...
    @property
    def known_committed(self) -> int:
        """The committed offset, as far as the owner of the log knows it."""

    @property
    def storage(self) -> str:
        """`table`, or `log` for a topic that has none."""

    @property
    def problems(self) -> list[str]:
        """What is wrong with the log, known before it is read."""

    def batches(self, aside: OffsetRanges = NO_OFFSETS, /) -> Iterator[pa.RecordBatch]:
        """Yield the messages from the first kept one to the end, in order, without the lost ones.

        Frames that are `aside` are left out undecoded: they may be such that nobody can open them.
        """


class AuditedLogs(Protocol):
    def topics(self) -> list[TopicName]: ...

    def view(self, topic: TopicName) -> LogView | None: ...

    def missing(self, clouds: Clouds, /) -> dict[TopicName, str]:
        """Return the topics that should have a log and have none, with the reason."""

    def is_uploaded(self, topic: TopicName, /) -> bool:
        """Return whether the cloud is known to have messages of the topic."""


@dataclass
class BrokerLogs:
    client: Client

    def topics(self) -> list[TopicName]:
        return sorted(TopicName.parse(found.topic) for found in self.client.list_topics())

    def missing(self, _clouds: Clouds) -> dict[TopicName, str]:
        """Return the topics that only the object store has; the broker lists the others like any topic."""
        return {TopicName.parse(topic): _UNKNOWN for topic in self.client.recoverable_topics()["recoverable"]}

    def is_uploaded(self, topic: TopicName) -> bool:
        try:
            return bool(self.client.describe_topic(topic).uploaded_offset)
        except IcestreamError:  # other findings say so
            return False

    def view(self, topic: TopicName) -> LogView | None:
        while True:
            response = self.client.backlog(str(topic))
            for one in response.topics:
                if one.name == topic:
                    return _BrokerLog(self.client, one)
            if response.complete:
                return self._without_table(topic)

    def _without_table(self, topic: TopicName) -> LogView | None:
        """Return the log of a topic without a table, which the backlog does not list."""
        try:
            described = self.client.describe_topic(topic)
        except TopicNotFoundError:
            return None
        if described.storage == StorageKind.TABLE:  # just created: there is nothing to check yet
            return None
        return _BrokerLog(self.client, _as_backlog(described), storage=described.storage)


@dataclass
class _BrokerLog:
    client: Client
    backlog: TopicBacklog
    pruned_to: int = 0
    storage: str = StorageKind.TABLE

    @property
    def topic(self) -> TopicName:
        return self.backlog.name

    @property
    def stream_id(self) -> str:
        return self.backlog.stream_id

    @property
    def start_offset(self) -> int:
        return max(self.backlog.start_offset, self.pruned_to)

    @property
    def durable_end(self) -> int:
        return self.backlog.durable_end

    @property
    def known_committed(self) -> int:
        return self.client.describe_topic(self.topic).committed_offset or 0

    @property
    def problems(self) -> list[str]:
        return [] if self.backlog.error is None else [self.backlog.error]

    def batches(self, aside: OffsetRanges = NO_OFFSETS) -> Iterator[pa.RecordBatch]:
        """Read the log. If the broker prunes it meanwhile, continue where the log begins then."""
        start = self.start_offset
        while start < self.durable_end:
            reached = start
            try:
                for batch in self._read(start, aside):
                    reached = batch.column(OFFSET)[-1].as_py() + 1
                    yield batch
            except OffsetOutOfRangeError:
                begins = self.client.describe_topic(self.topic).start_offset
                if begins <= reached:
                    raise
                start = self.pruned_to = begins
            else:
                return

    def _read(self, start: int, aside: OffsetRanges) -> Iterator[pa.RecordBatch]:
        if not aside:
            yield from self.client.read_range(self.topic, self.stream_id, start, self.durable_end).batches()
            return
        reader = self.client.read_frames(self.topic, self.stream_id, start, self.durable_end)
        for frames in reader:
            schemas = {number: topic_schema(text) for number, text in reader.schemas.items()}
            for batch in stream_batches(
                without_quarantined_frames(frames, aside), {MESSAGES_SCHEMA_ID: MESSAGE_SCHEMA, **schemas}
            ):
                kept = without_quarantined_rows(slice_from(batch, start, self.durable_end), aside)
                if kept.num_rows:
                    yield kept


def _as_backlog(topic: TopicDescription) -> TopicBacklog:
    """Describe a topic without a table as the backlog would describe it, if it listed such topics."""
    return TopicBacklog(
        topic=topic.topic,
        stream_id=topic.stream_id,
        epoch=topic.epoch,
        schema=None,
        partition_by=(),
        sort_by=(),
        start_offset=topic.start_offset,
        durable_end=topic.durable_end,
        nbytes=0,
    )


@dataclass
class DirectoryLogs:
    """The logs in the data directory of a stopped broker."""

    directory: Path
    files: LocalFiles = field(default_factory=LocalFiles)

    def topics(self) -> list[TopicName]:
        found = self.directory.glob(f"*/*/{STREAM_FILE}")
        return sorted(TopicName(path.parts[-3], path.parts[-2]) for path in found if not path.parts[-3].startswith("."))

    def missing(self, clouds: Clouds) -> dict[TopicName, str]:
        return clouds.missing(set(self.topics()))

    def is_uploaded(self, _topic: TopicName) -> bool:
        return False

    def view(self, topic: TopicName) -> LogView | None:
        directory = self.directory / topic.namespace / topic.name
        if not (directory / STREAM_FILE).exists():
            return None
        return _DirectoryLog(self.files, directory, topic, inspect_directory(self.files, directory))


@dataclass
class _DirectoryLog:
    files: LocalFiles
    directory: Path
    topic: TopicName
    report: LogReport
    known_committed: int = 0

    @property
    def stream_id(self) -> str:
        return str(self.report.stream_id)

    @property
    def storage(self) -> str:
        return load_stream(self.files, self.directory).storage

    @property
    def start_offset(self) -> int:
        return self.report.start_offset or 0

    @property
    def durable_end(self) -> int:
        return self.report.end_offset or 0

    @property
    def problems(self) -> list[str]:
        return [f"{problem.file}, byte {problem.position}: {problem.reason}" for problem in self.report.problems]

    def batches(self, aside: OffsetRanges = NO_OFFSETS) -> Iterator[pa.RecordBatch]:
        frames = without_quarantined_frames(self._frames(), aside)
        schemas = {
            number: topic_schema(text) for number, text in load_stream(self.files, self.directory).schemas.items()
        }
        for batch in stream_batches(frames, {MESSAGES_SCHEMA_ID: MESSAGE_SCHEMA, **schemas}):
            kept = without_quarantined_rows(slice_from(batch, self.start_offset), aside)
            if kept.num_rows:
                yield kept

    def _frames(self) -> Iterator[Frame]:
        expected: int | None = None
        for base_offset in segment_offsets(self.files, self.directory):
            for found in segment_ranges(self.files, self.directory, base_offset):
                if found.complete is None:
                    continue
                frame = found.complete.frame
                if expected is not None and frame.base_offset != expected:
                    raise DamagedError(
                        f"offset {frame.base_offset} follows where {expected} was to come",
                        operation="read log",
                        place=str(self.directory),
                        remedy="see `icestream wal inspect`",
                    )
                expected = frame.end_offset
                yield frame
