"""All topics of a data directory: their records, and their logs opened on demand."""

import contextlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Unpack
from uuid import uuid4

import msgspec
import pyarrow as pa
import structlog
from msgspec.structs import replace

from icestream.metadata import Entry, MetadataStore, keys, scan
from icestream.model.clock import Clock, now_us
from icestream.model.errors import (
    ConflictError,
    DamagedError,
    IcestreamError,
    LimitReachedError,
    TopicExistsError,
    TopicNotFoundError,
)
from icestream.model.messages import MESSAGE_SCHEMA, check_topic_schema, encode_schema, stream_schema
from icestream.model.names import COPY_SUFFIX, TopicName, is_copy
from icestream.protocol.admin import TopicKeywords
from icestream.protocol.parsing import convert
from icestream.storage.cloud.recovery import RecoveryReport
from icestream.storage.cloud.registry import MetadataRegistry
from icestream.storage.cloud.reservation import ReservationWithoutUploads
from icestream.storage.cloud.topic_cloud import Cloud
from icestream.storage.logs import Logs, log_id
from icestream.storage.lost_topics import LostTopics, nothing_to_recover
from icestream.storage.record import TopicRecord, check_storage
from icestream.storage.topic import ReadContext, Topic
from icestream.wal import Log, LogContext, LogStart, log_unavailable

_PATIENCE_SECONDS = 5.0
"""How long a caller waits for a deletion. It continues in the background."""
_log = structlog.get_logger(__name__)


class Deletions:
    """Deleted topics of which something is left: the log's files, the table, objects, the record.

    `finish` removes the rest of one topic, its record last. What fails is tried again.
    """

    def __init__(self, finish: Callable[[TopicRecord], None]) -> None:
        self._finish = finish
        self._finishing = threading.Lock()
        """Held while `finish` runs."""
        self._tried = threading.Condition()
        """Guards all below; notified after each try to finish a deletion."""
        self._unfinished: dict[TopicName, TopicRecord] = {}
        self._in_use: set[TopicName] = set()
        """Those whose log is still being closed: `finish` has to wait for that."""
        self._reasons: dict[TopicName, str] = {}
        """Why the last try failed."""
        self.hurry: Callable[[], None] | None = None
        """Wakes the thread that calls `finish_all`; None: no thread does, and `wait_for` finishes itself."""

    def __contains__(self, name: TopicName) -> bool:
        return name in self._unfinished

    def add(self, record: TopicRecord, *, in_use: bool = False) -> None:
        """Note a deletion. One that is in use is finished only after `release`."""
        with self._tried:
            self._unfinished[record.name] = record
            if in_use:
                self._in_use.add(record.name)

    def release(self, name: TopicName) -> None:
        with self._tried:
            self._in_use.discard(name)

    def still_deleting_error(self, name: TopicName) -> TopicExistsError:
        """Return the error for a create with the name of a topic that is still being deleted."""
        reason = self._reasons.get(name, "it has not been tried yet")
        return TopicExistsError(
            f"the topic of this name is being deleted, and not all of it is gone yet: {reason}",
            operation="create topic",
            place=str(name),
            remedy="it goes on by itself; try again later",
        )

    def wait_for(self, name: TopicName) -> None:
        """Try to finish a deletion, and wait for that for a bounded time."""
        if self.hurry is None:
            self.finish_all()
            return
        with self._tried:
            self._reasons.pop(name, None)
            self.hurry()
            self._tried.wait_for(lambda: name not in self._unfinished or name in self._reasons, _PATIENCE_SECONDS)

    def finish_all(self) -> None:
        """Try to finish each deletion once."""
        seen: set[str] = set()
        while (record := self._next(seen)) is not None:
            seen.add(record.stream_id)
            with self._finishing:
                if self._unfinished.get(record.name) is record:  # else another thread has finished it
                    self._try(record)

    def _try(self, record: TopicRecord) -> None:
        reason = None
        try:
            self._finish(record)
        except (IcestreamError, OSError) as error:
            reason = str(error)
            _log.warning("topic_delete_unfinished", topic=record.topic, error=reason)
        with self._tried:
            if reason is not None:
                self._reasons[record.name] = reason
            else:
                del self._unfinished[record.name]
                self._reasons.pop(record.name, None)
            self._tried.notify_all()

    def _next(self, seen: set[str]) -> TopicRecord | None:
        """Return a deletion that was not seen yet; untried ones first, because a caller may wait for them."""
        with self._tried:
            left = [
                record
                for record in self._unfinished.values()
                if record.stream_id not in seen and record.name not in self._in_use
            ]
            return min(left, key=lambda record: record.name in self._reasons, default=None)


class Topics:
    def __init__(
        self,
        directory: Path,
        metadata: MetadataStore,
        context: LogContext,
        *,
        max_topics: int,
        drop_table: Callable[[TopicRecord], None] = lambda _: None,
        drop_subscriptions: Callable[[TopicName], None] = lambda _: None,
        reading: ReadContext | None = None,
        cloud: Cloud | None = None,
        clock: Clock = now_us,
    ) -> None:
        self._metadata = metadata
        self._logs = Logs(directory, context)
        self._max_topics = max_topics
        self._drop_table = drop_table
        self._drop_subscriptions = drop_subscriptions
        self._reading = reading or ReadContext()
        self._cloud = cloud
        self._clock = clock
        self._lost = LostTopics(self._logs, metadata, cloud, self._reading, clock)
        self.deletions = Deletions(self._finish)
        self.on_deleted: Callable[[Topic], None] = lambda _: None
        """Called when a topic was deleted, before its name is free."""
        self._changing = threading.Lock()
        """Held while records change, which takes as long as the metadata store takes."""
        self._recovering = threading.Lock()
        """Held while a topic is recovered, one at a time."""
        self._in_recovery: TopicName | None = None
        self._lock = threading.Lock()
        """Guards `_topics` and `changes`; never held during I/O."""
        self._topics: dict[TopicName, Topic] = {}
        self._unreadable: dict[TopicName, IcestreamError] = {}
        """Topics whose record or log could not be read at the start, and why. Their names are not free."""
        self.changes = 0
        """Counts topics that were added or removed, so that a caller notices a change cheaply."""
        self._load()

    def __len__(self) -> int:
        return len(self._topics)

    def get(self, name: TopicName | str) -> Topic:
        name = TopicName.parse(name)
        topic = self._topics.get(name)
        if topic is None:
            self._check_readable(name)
            raise TopicNotFoundError(
                "there is no such topic", place=str(name), remedy="create it with `icestream topic create`"
            )
        return topic

    def _check_readable(self, name: TopicName) -> None:
        if (error := self._unreadable.get(name)) is not None:
            raise error.with_traceback(None)

    def has(self, name: TopicName) -> bool:
        return name in self._topics

    def find(self, prefix: str = "") -> list[Topic]:
        """Return the topics whose name begins with `prefix`, by name."""
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
        schema: pa.Schema | None = None,
        if_not_exists: bool = False,
        **attributes: Unpack[TopicKeywords],
    ) -> Topic:
        """Make a topic. `attributes` are its `TopicAttributes`; None means the default."""
        name = TopicName.parse(name)
        given = {key: value for key, value in attributes.items() if value is not None}
        if schema is not None:
            schema = check_topic_schema(schema)
            given["schema"] = encode_schema(schema)
        made = {"topic": str(name), "stream_id": str(uuid4()), "created_us": self._clock()}
        record = convert(given | made, TopicRecord, operation="create topic")
        if schema is not None or record.partition_by or record.sort_by:
            check_table(schema, record.partition_by, record.sort_by)
        check_storage(record, uploads=self._cloud is not None and self._cloud.uploads)
        self._check_readable(name)
        lost = self._free_name(name)
        with self._changing:
            if name in self.deletions:
                raise self.deletions.still_deleting_error(name)
            if name in self._topics:
                if if_not_exists:
                    return self._topics[name]
                raise TopicExistsError("the topic exists already", operation="create topic", place=str(name))
            if lost is not None:
                raise lost
            if len(self._topics) >= self._max_topics:
                raise LimitReachedError(
                    f"there are {len(self._topics)} topics already",
                    operation="create topic",
                    place=str(name),
                    remedy="delete some or raise server.max_topics",
                )
            try:
                self._metadata.create(keys.topic(name), record.to_bytes())
            except ConflictError:
                # An earlier try created it, and its response was lost; or another broker did.
                topic = self._adopt_stored(name)
                if not if_not_exists:
                    raise TopicExistsError(
                        "the topic exists already", operation="create topic", place=str(name)
                    ) from None
                return topic
            return self._register(record)

    def _free_name(self, name: TopicName) -> IcestreamError | None:
        """Finish the deletion of a topic that had the name; return the error if the object store has a lost one.

        The caller raises it unless the topic exists meanwhile.
        """
        if name in self.deletions:
            self.deletions.wait_for(name)
        if name not in self._topics and name not in self.deletions:
            return self._lost.unknown_topic_in_store_error(name)
        return None

    def _adopt_stored(self, name: TopicName) -> Topic:
        """Adopt a topic that is in the metadata store and not known here."""
        entry = self._metadata.get(keys.topic(name))
        record = TopicRecord.from_bytes(entry.value) if entry is not None else None
        if record is None or record.deleting:
            raise ConflictError(
                "the topic of this name is being deleted", operation="create topic", place=str(name), retryable=True
            )
        return self._register(record)

    def _register(self, record: TopicRecord) -> Topic:
        with self._lock:
            topic = self._topics[record.name] = self._topic(record)
            self.changes += 1
        return topic

    def _topic(self, record: TopicRecord) -> Topic:
        cloud = self._cloud.of(record.name, record.stream_id) if self._cloud is not None else None
        return Topic(record, self._open_log, self._reading, cloud, self._note_in_table)

    def update(self, name: TopicName | str, changes: dict[str, Any]) -> Topic:
        topic = self.get(name)
        if "schema" in changes:
            _ = topic.log  # before the lock: the first opening changes the record too
        with self._changing:
            self._check_not_in_recovery(topic.name, "update topic")
            entry = self._metadata.get(keys.topic(topic.name))
            if entry is None:
                raise TopicNotFoundError("there is no such topic", operation="update topic", place=str(topic.name))
            record = TopicRecord.from_bytes(entry.value).changed(changes)
            if record.schema_id != topic.schema_id:
                check_table(record.body_schema(), record.partition_by, record.sort_by)
                # The log has the schema before a publish can use it.
                topic.log.set_schemas(record.schemas())
            self._metadata.compare_and_swap(keys.topic(topic.name), entry.mod_revision, record.to_bytes())
            topic.use(record)
            if topic.cloud is not None:
                topic.cloud.changed(record)
        return topic

    def delete(self, name: TopicName | str, *, keep_table: bool = False) -> Topic:
        """Delete a topic, its messages and, unless told otherwise, its table.

        1. mark the record. *The next start goes on from here.*
        2. close the log, and call `on_deleted`. *The topic cannot be used any more.*
        3. move the log's directory aside and remove it.
        4. drop the subscriptions and the table, and remove the cloud objects. *While disk, metadata store, catalog or
           object store fail, 3 and 4 are tried again.*
        5. remove the record. *The name is free.*

        From 3 on it continues in the background if it takes long.
        """
        topic = self.get(name)
        with self._changing:
            if self._topics.get(topic.name) is not topic:
                return topic
            self._check_not_in_recovery(topic.name, "delete topic")
            record = topic.record.marked_for_deletion(keep_table=keep_table)
            self._metadata.put(keys.topic(topic.name), record.to_bytes())
            # Before the name leaves the topics: a create in between would take the deleted topic for a lost one.
            self.deletions.add(record, in_use=True)
            with self._lock:
                del self._topics[topic.name]
                self.changes += 1
        try:
            with contextlib.suppress(IcestreamError):  # a damaged or failed log can be deleted too
                topic.close(deleted=True)
            self.on_deleted(topic)
        except IcestreamError as error:
            _log.warning("topic_delete_cleanup_failed", topic=record.topic, error=str(error))
        finally:
            self.deletions.release(topic.name)
        self.deletions.wait_for(topic.name)
        return topic

    def _finish(self, record: TopicRecord) -> None:
        """Do steps 3 to 5 of `delete`."""
        self._logs.remove(record)
        # After a crash `on_deleted` may not have run; a topic of the same name must not get these subscriptions.
        self._drop_subscriptions(record.name)
        if record.has_table and not record.keep_table:
            self._drop_table(record)
        if self._cloud is not None:
            self._cloud.of(record.name, record.stream_id).delete()
        with self._changing:
            self._metadata.delete(keys.topic(record.name))

    def close(self) -> None:
        """Close every log; a failure does not keep the others from being closed."""
        for topic in self.find():
            try:
                topic.close()
            except IcestreamError as error:
                _log.error("log_close_failed", topic=str(topic.name), error=str(error))

    # Logs, and topics that lost theirs

    def _open_log(self, record: TopicRecord) -> Log:
        """Open a topic's log, or make it the first time, as the one log that may take the topic's messages.

        1. read the record as the metadata store has it now, and refuse what it excludes. *Nothing has changed.*
        2. open the log, or make an empty one. *The next try completes it.*
        3. note the log's identity in the record, by compare-and-swap. *The topic's messages go here from now on. A log
           that is missing later is lost.*
        4. reserve offsets where the topic was uploaded once and is not any more.

        A broker that finds another log noted is refused, and removes the one it made, which is empty.
        """
        # 1
        _, found = self._current(record)
        made = not self._logs.is_there(record.name)
        if made and found.log_id and not record.has_log:
            raise self._logs.held_elsewhere_error(found)  # begun since this broker learned of the topic
        self._logs.check(found)
        if not found.has_log:
            self._lost.check_uploaded(found)
        # 2
        log = self._logs.open(record)
        try:
            # 3
            holder = self._note_log(record, log_id(log.stream))
            # 4
            if holder is None and (self._cloud is None or not self._cloud.uploads):
                registry = MetadataRegistry(self._metadata, record.name, record.stream_id)
                ReservationWithoutUploads(registry, log, self._clock).claim()
        except BaseException:
            log.close()
            raise
        if holder is not None:
            log.close()
            if made:
                self._logs.remove(record)
            raise self._logs.held_elsewhere_error(holder)
        return log

    def _note_log(self, record: TopicRecord, identity: str) -> TopicRecord | None:
        """Note a log as the topic's; return the record instead where it names another one."""
        key = keys.topic(record.name)
        while True:
            with self._changing:
                entry, found = self._current(record)
                if found.log_id and found.log_id != identity:
                    return found
                if not found.log_id:
                    self._logs.check(found)
                    found = replace(found, has_log=True, log_id=identity, log_location=self._logs.location)
                    try:
                        self._metadata.compare_and_swap(key, entry.mod_revision, found.to_bytes())
                    except ConflictError:
                        continue  # the record has changed: read it again
                topic = self._topics.get(record.name)
                if topic is not None and topic.record.stream_id == record.stream_id:
                    topic.record = replace(topic.record, has_log=True, log_id=identity, log_location=found.log_location)
                return None

    def _note_in_table(self, topic: Topic, below: int) -> None:
        """Note in the record that all messages below an offset have been in the table."""
        while True:
            with self._changing:
                entry, found = self._current(topic.record)
                found = replace(found, in_table_below=max(found.in_table_below, below))
                try:
                    self._metadata.compare_and_swap(keys.topic(found.name), entry.mod_revision, found.to_bytes())
                except ConflictError:
                    continue  # the record has changed: read it again
                topic.record = replace(topic.record, in_table_below=found.in_table_below)
                return

    def _current(self, record: TopicRecord) -> tuple[Entry, TopicRecord]:
        """Read a topic's record as the metadata store has it now."""
        entry = self._metadata.get(keys.topic(record.name))
        found = TopicRecord.from_bytes(entry.value) if entry is not None else None
        if entry is None or found is None or found.deleting or found.stream_id != record.stream_id:
            raise TopicNotFoundError("the topic was deleted", operation="open log", place=record.topic)
        return entry, found

    def lost(self) -> list[TopicName]:
        """Return the topics whose log is not here, by name."""
        return [topic.name for topic in self.find() if topic.opened_log is None and self._logs.is_lost(topic.record)]

    def recoverable(self) -> list[TopicName]:
        """Return the topics that only the object store has, by name."""
        found = self._lost.in_cloud()
        return sorted(name for name in found if name not in self._topics and name not in self.deletions)

    def recover(self, name: TopicName | str) -> RecoveryReport:
        """Recover a topic whose log is lost; see `icestream.storage.cloud.recovery`."""
        name = TopicName.parse(name)
        if not self._recovering.acquire(blocking=False):
            raise ConflictError(
                "a topic is being recovered, and only one is at a time",
                operation="recover topic",
                place=str(name),
                remedy="try again when that is done",
            )
        try:
            with self._changing:
                self._in_recovery = name
            topic = self._topics.get(name)
            if topic is not None and topic.opened_log is not None:
                raise nothing_to_recover(name)
            if name in self.deletions:
                raise TopicNotFoundError("the topic is being deleted", operation="recover topic", place=str(name))
            report = self._lost.recover(name, self._revive)
            _ = self.get(name).log
        finally:
            self._in_recovery = None
            self._recovering.release()
        return report

    def _check_not_in_recovery(self, name: TopicName, operation: str) -> None:
        """Raise while the topic is recovered, because that writes the record too. Call it under `_changing`."""
        if name == self._in_recovery:
            raise ConflictError(
                "the topic is being recovered", operation=operation, place=str(name), remedy="try again when it is back"
            )

    def _revive(self, record: TopicRecord, beginning: LogStart) -> None:
        """Use the recovered record, then make the log: a publish before that fails."""
        topic = self._topics.get(record.name)
        if topic is None:
            topic = self._register(record)
        else:
            topic.use(record)
        if topic.cloud is not None:
            topic.cloud.objects.refresh()
        self._logs.restore(record, beginning)

    def _load(self) -> None:
        self._logs.clean()
        for entry in scan(self._metadata, keys.topics()):
            try:
                record = TopicRecord.from_bytes(entry.value)
            except msgspec.MsgspecError as error:
                self._note_unreadable(
                    TopicName(*entry.key.removeprefix(keys.topics()).split("/", 1)),
                    DamagedError(
                        f"the topic's record cannot be read: {error}",
                        operation="load topic",
                        place=entry.key,
                        remedy="start the version of icestream that wrote it, or restore the metadata store",
                    ),
                )
                continue
            if record.topic.endswith(COPY_SUFFIX):
                _log.warning("topic_ignored_reserved_name", topic=record.topic)
            elif record.deleting:
                with contextlib.suppress(OSError):  # tried again with the rest of the deletion
                    self._logs.remove(record)
                self.deletions.add(record)
            else:
                self._topics[record.name] = self._topic(record)
        self._adopt_unknown_logs()

    def _adopt_unknown_logs(self) -> None:
        """Adopt logs without a record: the metadata was lost, the messages were not."""
        for name in self._logs.found():
            if name in self._topics or name in self.deletions or name in self._unreadable or is_copy(name):
                continue
            try:
                if not self._logs.is_there(name):
                    continue
                record = self._lost.record_of(self._logs.stream(name))
            except OSError as error:
                place = str(self._logs.path(name))
                reason = "the log cannot be opened"
                self._note_unreadable(name, log_unavailable(reason, error, operation="open log", place=place))
                continue
            except IcestreamError as error:
                self._note_unreadable(name, error)
                continue
            if record.name != name:  # a copy that an operator made: its topic has its own directory
                _log.warning("log_directory_ignored", path=str(self._logs.path(name)), error=f"log of {record.topic}")
                continue
            with contextlib.suppress(ConflictError):
                self._metadata.create(keys.topic(record.name), record.to_bytes())
            self._topics[record.name] = self._topic(record)
            _log.warning("log_adopted_without_record", topic=record.topic)

    def _note_unreadable(self, name: TopicName, error: IcestreamError) -> None:
        """Report a topic that cannot be read. It does not keep the others from being served."""
        self._unreadable[name] = error
        _log.error("topic_unreadable", topic=str(name), error=str(error))


def stored_records(metadata: MetadataStore) -> list[TopicRecord]:
    """Return the records of all topics that a metadata store has and that are not being deleted, by name."""
    found = (TopicRecord.from_bytes(entry.value) for entry in scan(metadata, keys.topics()))
    return sorted((record for record in found if not record.deleting), key=lambda record: record.name)


def check_table(schema: pa.Schema | None, partition_by: Sequence[str], sort_by: Sequence[str]) -> None:
    """Raise unless a table with these columns can be partitioned and sorted so."""
    # Imported here: the Iceberg library takes a second to import, and plain topics do not need it.
    from icestream.table import check_table_schema  # noqa: PLC0415

    check_table_schema(stream_schema(schema if schema is not None else MESSAGE_SCHEMA), partition_by, sort_by)
