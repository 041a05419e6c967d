"""All topics of a data directory: their records, and their logs opened on demand."""

import contextlib
import threading
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import structlog

from icestream.metadata import MetadataStore, keys, scan
from icestream.model.clock import Clock, now_us
from icestream.model.errors import (
    ConflictError,
    IcestreamError,
    LimitReachedError,
    LogUnavailableError,
    TopicExistsError,
    TopicNotFoundError,
)
from icestream.model.messages import check_topic_schema
from icestream.model.names import TopicName
from icestream.storage.record import AckLevel, TopicRecord, check_positive, encode_schema
from icestream.storage.topic import Topic
from icestream.wal import Log, LogContext
from icestream.wal.stream import STREAM_FILE, load_stream

_DELETED = ".deleted"
_log = structlog.get_logger(__name__)


class Topics:
    def __init__(
        self, directory: Path, metadata: MetadataStore, context: LogContext, *, max_topics: int, clock: Clock = now_us
    ) -> None:
        self._directory = directory
        self._metadata = metadata
        self._context = context
        self._max_topics = max_topics
        self._clock = clock
        self._lock = threading.Lock()
        self._topics: dict[TopicName, Topic] = {}
        self._load()

    def __len__(self) -> int:
        return len(self._topics)

    def get(self, name: TopicName | str) -> Topic:
        topic = self._topics.get(TopicName.parse(name))
        if topic is None:
            raise TopicNotFoundError(
                "there is no such topic", place=str(name), remedy="create it with `icestream topic create`"
            )
        return topic

    def find(self, prefix: str = "") -> list[Topic]:
        """The topics whose name begins with `prefix`, by name."""
        with self._lock:
            found = [topic for name, topic in self._topics.items() if str(name).startswith(prefix)]
        return sorted(found, key=lambda topic: topic.name)

    def opened(self) -> list[Log]:
        with self._lock:
            return [log for topic in self._topics.values() if (log := topic.opened_log) is not None]

    def create(
        self,
        name: TopicName | str,
        *,
        ack: str | None = None,
        schema: pa.Schema | None = None,
        retention_minutes: int | None = None,
        retention_mb: int | None = None,
        if_not_exists: bool = False,
    ) -> Topic:
        name = TopicName.parse(name)
        check_positive("retention_minutes", retention_minutes)
        check_positive("retention_mb", retention_mb)
        record = TopicRecord(
            topic=str(name),
            stream_id=str(uuid4()),
            created_us=self._clock(),
            ack=AckLevel.parse(ack or AckLevel.DISK.value).value,
            retention_minutes=retention_minutes,
            retention_mb=retention_mb,
            schema=encode_schema(check_topic_schema(schema)) if schema is not None else None,
        )
        with self._lock:
            if name in self._topics:
                if if_not_exists:
                    return self._topics[name]
                raise TopicExistsError("the topic exists already", operation="create topic", place=str(name))
            if len(self._topics) >= self._max_topics:
                raise LimitReachedError(
                    f"there are {len(self._topics)} topics already",
                    operation="create topic",
                    place=str(name),
                    remedy="delete some or raise server.max_topics",
                )
            self._metadata.create(keys.topic(name), record.to_bytes())
            topic = self._topics[name] = Topic(record, self._open_log)
        return topic

    def update(self, name: TopicName | str, changes: dict[str, Any]) -> Topic:
        topic = self.get(name)
        with self._lock:
            entry = self._metadata.get(keys.topic(topic.name))
            if entry is None:
                raise TopicNotFoundError("there is no such topic", operation="update topic", place=str(topic.name))
            record = TopicRecord.from_bytes(entry.value).changed(changes)
            self._metadata.compare_and_swap(keys.topic(topic.name), entry.mod_revision, record.to_bytes())
            topic.record = record
        return topic

    def delete(self, name: TopicName | str) -> None:
        """Delete a topic and its messages.

        1. mark the record. *The next start goes on from here.*
        2. set the log's directory aside and remove it.
        3. remove the record; only now the name is free.
        """
        topic = self.get(name)
        with self._lock:
            if self._topics.pop(topic.name, None) is None:
                return
            self._metadata.put(keys.topic(topic.name), topic.record.marked_for_deletion().to_bytes())
        with contextlib.suppress(IcestreamError):  # a damaged or failed log can be deleted too
            topic.close(deleted=True)
        self._finish_delete(topic.record)

    def _finish_delete(self, record: TopicRecord) -> None:
        files, directory = self._context.files, self._log_directory(record.name)
        if files.exists(directory):
            deleted = self._directory / _DELETED
            files.make_directory(deleted)
            aside = deleted / record.stream_id
            files.replace(directory, aside)
            files.sync_directory(directory.parent)
            files.remove_tree(aside)
        self._metadata.delete(keys.topic(record.name))

    def close(self) -> None:
        """Close every log; one that cannot be closed well does not keep the others from it."""
        for topic in self.find():
            try:
                topic.close()
            except IcestreamError as error:
                _log.error("a log did not close cleanly", topic=str(topic.name), error=str(error))

    def _log_directory(self, name: TopicName) -> Path:
        return self._directory / name.namespace / name.name

    def _open_log(self, record: TopicRecord) -> Log:
        directory = self._log_directory(record.name)
        try:
            return Log.create(self._context, directory, record.to_stream())
        except OSError as error:
            raise LogUnavailableError(
                f"the log cannot be opened: {error}", operation="open log", place=str(directory)
            ) from error

    def _load(self) -> None:
        for entry in scan(self._metadata, keys.topics()):
            record = TopicRecord.from_bytes(entry.value)
            if record.deleting:
                self._finish_delete(record)
            else:
                self._topics[record.name] = Topic(record, self._open_log)
        self._adopt_unknown_logs()

    def _adopt_unknown_logs(self) -> None:
        """Take in logs that no record knows of: the metadata was lost, the messages were not."""
        files = self._context.files
        for namespace in files.names(self._directory):
            if namespace.startswith("."):
                continue
            for name in files.names(self._directory / namespace):
                known = TopicName(namespace, name) in self._topics
                directory = self._directory / namespace / name
                if known or not files.exists(directory / STREAM_FILE):
                    continue
                record = TopicRecord.from_stream(load_stream(files, directory), self._clock())
                with contextlib.suppress(ConflictError):
                    self._metadata.create(keys.topic(record.name), record.to_bytes())
                self._topics[record.name] = Topic(record, self._open_log)
                _log.warning("took in a log that had no record", topic=record.topic, directory=str(directory))
