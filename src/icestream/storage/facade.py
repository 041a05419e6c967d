"""`IcebergStorage`: every topic of a data directory, usable with or without a server.

Doors run on threads and use the plain methods, and the parts: `topics`, `publishing`, `subscriptions`, `backlog`,
`table_watch`. Embedding programs use the `async` methods, which never block their loop.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeAlias

import pyarrow as pa

from icestream.config import Settings
from icestream.metadata import EtcdOptions, MetadataStore, open_metadata_store
from icestream.model.enums import AckLevel, StorageFormat, SyncMode
from icestream.model.errors import ClosedError, TopicNotFoundError
from icestream.model.messages import LoneMessage, Message, message_batch, messages_of
from icestream.model.names import TopicName
from icestream.model.offsets import StartPosition
from icestream.protocol.admin import TopicStats
from icestream.reader import Tails, TopicReader
from icestream.storage.backlog import Backlog
from icestream.storage.cloud.recovery import RecoveryReport
from icestream.storage.cloud.topic_cloud import Cloud
from icestream.storage.disk import DISK_WATCH_SECONDS, Disk
from icestream.storage.housekeeping import ClockWatch, Periodic, keep_logs, stop_all, sync_logs
from icestream.storage.logs import exclusive_directory
from icestream.storage.publishing import ByteBudget, Publishing, PublishItem
from icestream.storage.read_only import ReadOnlyStorage
from icestream.storage.record import TopicRecord
from icestream.storage.retention import Retention
from icestream.storage.stats import topic_stats
from icestream.storage.subscribing import MessageStream, store_dead_letters
from icestream.storage.table_watch import TableWatch
from icestream.storage.topic import ReadContext, Topic, TopicSource
from icestream.storage.topics import Topics
from icestream.subscription import ConsumerSession, Progress, SubscriptionOptions, Subscriptions
from icestream.wal import Append, CommitPool, FrameCache, LocalFiles, LogContext, LogOptions, LogState

if TYPE_CHECKING:
    from icestream.table import TopicTable

Messages: TypeAlias = pa.RecordBatch | pa.Table | Iterable[Message | bytes]

_HOUR_US = 3_600_000_000


class IcebergStorage:
    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.on_commit: Callable[[int, int, float], None] = lambda _frames, _bytes, _seconds: None
        """Called at every group commit with its frames, bytes and seconds of sync. Set before `open`."""
        self.budget = ByteBudget(self.settings.server.max_in_flight_bytes)
        self._resources = contextlib.ExitStack()
        self._lifecycle = threading.Lock()
        self._topics: Topics | None = None
        self._subscriptions: Subscriptions | None = None

    @staticmethod
    def read_only(settings: Settings | None = None) -> ReadOnlyStorage:
        """Return a storage that reads only the topics' tables, through the catalog: no broker, no lock."""
        return ReadOnlyStorage(settings)

    # Opening and closing

    def open(self) -> Self:
        """Lock the data directory and start the background work. A topic's first use opens, and recovers, its log."""
        with self._lifecycle:
            if self._topics is None:
                with contextlib.ExitStack() as resources:
                    self._topics = self._open(resources)
                    self._resources = resources.pop_all()
        return self

    def _open(self, resources: contextlib.ExitStack) -> Topics:
        wal = self.settings.wal
        resources.enter_context(exclusive_directory(wal.dir))
        metadata = resources.enter_context(open_store(self.settings))
        pool = resources.enter_context(contextlib.closing(CommitPool(wal.commit_threads)))
        self.files = LocalFiles(wal.max_open_files)
        self.cache = FrameCache(wal.cache_max_bytes, wal.cache_capacity)
        context = LogContext(
            self.files,
            cache=self.cache,
            options=log_options(self.settings),
            pool=pool,
            on_commit=self.on_commit,
        )
        cloud = Cloud.open(self.settings, metadata)
        if cloud is not None:
            resources.callback(cloud.close)
        reading = ReadContext(
            self.settings.reader,
            find_table=self._find_table,
            format=self.settings.storage.format,
            tails=Tails(self.settings.reader.tail_max_bytes),
        )
        resources.callback(reading.close)
        topics = Topics(
            wal.dir,
            metadata,
            context,
            max_topics=self.settings.server.max_topics,
            drop_table=self._drop_table,
            drop_subscriptions=self._drop_subscriptions,
            cloud=cloud,
            reading=reading,
        )
        resources.callback(topics.close)
        if cloud is not None:
            resources.callback(cloud.stop)
            cloud.start(lambda: [partial(getattr, topic, "log") for topic in topics.find()])
        self.table_watch = TableWatch(self.settings, topics.find)
        resources.callback(self.table_watch.stop)
        self.table_watch.start()
        self.backlog = Backlog(topics, self.table_watch, reading.format)
        self.disk = Disk(wal.dir, wal.min_free_mb)
        self.publishing = Publishing(self.settings.server, self.budget, self.disk, self.table_watch)
        interval_seconds = wal.file_sync.interval_ms / 1000
        clock_watch = ClockWatch()

        def keep() -> None:
            clock_watch.look(topics.opened())
            keep_logs(topics.opened(), keeper.rest)

        keeper = Periodic("log-keeper", interval_seconds, keep)
        self.retention = Retention(topics.find, self.settings, self.disk)
        pruner = Periodic("retention", wal.retention.check_interval_minutes * 60, self.retention.run)
        disk_watch = Periodic("disk", DISK_WATCH_SECONDS, self.retention.keep_room, max_share=0.5)
        # In its own thread, because it waits for stores and the catalog. A delete wakes it.
        deleter = Periodic("deleter", self.settings.reader.poll_interval_ms / 1000, topics.deletions.finish_all)
        topics.deletions.hurry = deleter.hurry
        regular = [keeper, pruner, disk_watch, deleter]
        if wal.sync_mode is SyncMode.INTERVAL:  # at any cost: the setting promises it
            regular.append(Periodic("log-syncer", interval_seconds, lambda: sync_logs(topics.opened()), max_share=1.0))
        for periodic in regular:
            periodic.start()
        resources.callback(stop_all, regular, self.settings.uploader.shutdown_timeout_seconds)
        resources.callback(self.retention.stop)
        self._subscriptions = Subscriptions(
            metadata,
            lambda name: TopicSource(topics.get(name)),
            partial(store_dead_letters, topics),
            self.settings.subscriptions,
        )
        topics.on_deleted = self._deleted
        # Started last and stopped first: progress and dead letters are written while everything else runs.
        resources.callback(self._subscriptions.close)
        return topics

    def _find_table(self, name: TopicName) -> "TopicTable | None":
        return self.table_watch.tables.find(name)

    def _drop_table(self, record: TopicRecord) -> None:
        for name in StorageFormat.BOTH.all_tables(record.name):
            self.table_watch.tables.drop(name, record.stream_id)

    def _drop_subscriptions(self, name: TopicName) -> None:
        self.subscriptions.delete_topic(name)

    def close(self) -> None:
        """Finish what was accepted, note the clean end of every log, unlock the data directory."""
        with self._lifecycle:
            self._topics = None
            self._resources.close()

    @property
    def topics(self) -> Topics:
        if self._topics is None:
            raise _not_open()
        return self._topics

    @property
    def subscriptions(self) -> Subscriptions:
        if self._topics is None or self._subscriptions is None:
            raise _not_open()
        return self._subscriptions

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Publishing and reading, for doors

    def topic(self, name: TopicName | str, *, create: bool = False, schema: pa.Schema | None = None) -> Topic:
        """Return a topic; with `create`, create it if it is missing and the settings allow that."""
        try:
            return self.topics.get(name)
        except TopicNotFoundError:
            if not create or not self.settings.topics.auto_create:
                raise
        return self.topics.create(name, ack=self.settings.topics.default_ack, schema=schema, if_not_exists=True)

    def publish(
        self,
        topic: Topic,
        batch: pa.RecordBatch | LoneMessage,
        *,
        producer: str = "",
        sequence: int = 0,
        session: int = 0,
        level: AckLevel = AckLevel.DISK,
    ) -> Append:
        """Publish a batch; return when it is at the level. `publishing` does not wait, and takes several batches."""
        acknowledged = threading.Event()
        item = PublishItem(batch, lambda _: acknowledged.set(), producer, sequence, session)
        append = self.publishing.submit(topic, item, level=level, inline=True)
        acknowledged.wait()
        if append.error is not None:
            raise append.error
        return append

    def delete(self, name: TopicName | str, *, keep_table: bool = False) -> None:
        """Delete a topic with its messages, its subscriptions and, unless it is to be kept, its table."""
        self.topics.delete(name, keep_table=keep_table)

    def recover_topic(self, name: TopicName | str) -> RecoveryReport:
        """Recover a topic whose log was lost, from cloud objects and table; report what is lost."""
        return self.topics.recover(name)

    def _deleted(self, topic: Topic) -> None:
        self.table_watch.deleted(topic)
        self.subscriptions.delete_topic(topic.name)

    def stats(self, name: TopicName | str | None = None) -> list[TopicStats]:
        topics = [self.topics.get(name)] if name is not None else self.topics.find()
        return [topic_stats(topic) for topic in topics]

    # The same for asyncio

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.open)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shutdown()

    async def initialize_topic(self, name: str, *, schema: pa.Schema | None = None) -> None:
        """Create a topic if it is missing, and recover its log."""

        def initialize() -> None:
            self.open()
            _ = self.topics.create(name, schema=schema, if_not_exists=True).log

        await asyncio.to_thread(initialize)

    async def store(self, name: str, messages: Messages, *, ack: str | None = None) -> range:
        """Publish messages; return their offsets when they are acknowledged at this level, or the topic's."""
        return await asyncio.to_thread(self._store, name, messages, ack)

    def _store(self, name: str, messages: Messages, ack: str | None) -> range:
        topic = self.topics.get(name)
        level = AckLevel.parse(ack, operation="publish") if ack is not None else topic.default_ack
        first, count = -1, 0
        for batch in _as_batches(messages, topic.body_schema):
            append = self.publish(topic, batch, level=level)
            first = append.base_offset if first < 0 else first
            count += batch.num_rows
        return range(first, first + count)

    async def create_reader(
        self, name: str, start: StartPosition | None = None, *, follow: bool = True
    ) -> AsyncIterator[Message]:
        """Return an iterator over the messages from a position on; with `follow` it waits for new ones."""
        topic = self.topics.get(name)
        reader = await asyncio.to_thread(topic.reader, start or StartPosition.earliest())
        return self._messages(topic, reader, follow=follow)

    async def _messages(self, topic: Topic, reader: TopicReader, *, follow: bool) -> AsyncIterator[Message]:
        loop, moved = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(moved.set)

        listeners = topic.log.listeners
        listeners.add(wake)
        try:
            while True:
                moved.clear()
                batches = await asyncio.to_thread(reader.read)
                for batch in batches:
                    for message in messages_of(batch):
                        yield message
                if not batches:
                    if not follow or topic.log.state is LogState.CLOSED:
                        return
                    await moved.wait()
        finally:
            listeners.discard(wake)
            reader.close()

    async def create_message_stream(
        self,
        name: str,
        subscription: str,
        options: SubscriptionOptions | None = None,
        *,
        start: StartPosition | None = None,
        consumer: str = "embedded",
        receiver_queue: int = 1_000,
    ) -> MessageStream:
        """Return the messages of a subscription, with ack and nack. It is created at a position if it is missing."""

        def connect() -> ConsumerSession:
            opened = self.subscriptions.open(name, subscription, options, start=start or StartPosition.earliest())
            return opened.connect(consumer, max_messages=receiver_queue, session_timeout_ms=0)

        return MessageStream(await asyncio.to_thread(connect))

    async def ack(self, name: str, subscription: str, offset: int, *, cumulative: bool = False) -> None:
        """Acknowledge a message, or all up to it, whichever consumer has them. Returns when that is durable."""

        def acknowledge() -> None:
            found = self.subscriptions.get(name, subscription)
            found.acknowledge([(0 if cumulative else offset, offset + 1)])
            found.flush()

        await asyncio.to_thread(acknowledge)

    async def get_progress(self, name: str, subscription: str) -> Progress:
        """Return how far a subscription is: all below the floor is acknowledged, and above it the ranges."""
        return await asyncio.to_thread(lambda: self.subscriptions.get(name, subscription).progress())

    async def get_topic_stats(self, name: str) -> TopicStats:
        return (await asyncio.to_thread(self.stats, name))[0]

    async def list_topics(self, prefix: str = "") -> list[str]:
        return [str(topic.name) for topic in self.topics.find(prefix)]

    async def delete_topic(self, name: str) -> None:
        await asyncio.to_thread(self.delete, name)

    async def shutdown(self) -> None:
        await asyncio.to_thread(self.close)


def _not_open() -> ClosedError:
    return ClosedError("the storage is not open", operation="storage", remedy="use it as a context manager")


def open_store(settings: Settings) -> MetadataStore:
    metadata = settings.metadata
    if metadata.in_memory:
        return open_metadata_store(in_memory=True)
    if metadata.etcd_endpoint:
        password = metadata.etcd_password
        return open_metadata_store(
            etcd=EtcdOptions(
                metadata.etcd_endpoint,
                ca_file=metadata.etcd_ca_file,
                cert_file=metadata.etcd_cert_file,
                key_file=metadata.etcd_key_file,
                user=metadata.etcd_user,
                password=password.get_secret_value() if password is not None else "",
                prefix=metadata.etcd_prefix,
                timeout_seconds=metadata.etcd_timeout_ms / 1000,
            )
        )
    return open_metadata_store(sqlite_path=metadata.sqlite_path)


def open_existing_store(settings: Settings) -> MetadataStore:
    """Open the metadata store for reading; an empty one if its SQLite file is missing: opening would create it."""
    path = settings.metadata.sqlite_path
    if not settings.metadata.etcd_endpoint and path is not None and not path.exists():
        return open_metadata_store(in_memory=True)
    return open_store(settings)


def log_options(settings: Settings) -> LogOptions:
    wal = settings.wal
    hours = wal.rotation.max_hours
    return LogOptions(
        sync_mode=wal.sync_mode,
        max_file_bytes=wal.max_file_size,
        max_age_us=int(hours * _HOUR_US) if hours is not None else None,
        max_group_bytes=wal.file_sync.max_batch_bytes,
        preallocate_bytes=wal.preallocate_bytes,
        index_interval_bytes=wal.index_interval_bytes,
        max_producers=wal.max_producers,
        lease_timeout_seconds=settings.reader.lease_timeout_ms / 1000,
    )


def _as_batches(messages: Messages, schema: pa.Schema) -> list[pa.RecordBatch]:
    if isinstance(messages, pa.RecordBatch):
        return [messages]
    if isinstance(messages, pa.Table):
        return messages.cast(schema).combine_chunks().to_batches()  # type: ignore[no-any-return]
    messages = list(messages)
    plain = [message if isinstance(message, bytes) else message.payload for message in messages]
    keys = [None if isinstance(message, bytes) else message.key for message in messages]
    attributes = [None if isinstance(message, bytes) else list(message.attributes.items()) for message in messages]
    return [message_batch(plain, keys, attributes)]
