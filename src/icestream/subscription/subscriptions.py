"""All subscriptions of a storage, and the few threads that serve them."""

import contextlib
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self
from uuid import uuid4

import structlog

from icestream.config import SubscriptionSettings
from icestream.metadata import MetadataStore, keys, scan
from icestream.model.clock import Clock, now_us
from icestream.model.errors import (
    ClosedError,
    ConflictError,
    DamagedError,
    IcestreamError,
    LimitReachedError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
    UnavailableError,
)
from icestream.model.names import TopicName, check_part
from icestream.model.offsets import StartPosition
from icestream.subscription.cursor import SubscriptionSource
from icestream.subscription.dead_letters import DeadLetters, PublishDeadLetters
from icestream.subscription.hub import Hub
from icestream.subscription.options import SubscriptionOptions
from icestream.subscription.progress import Progress, ProgressWriter, SubscriptionRecord
from icestream.subscription.subscription import BrokerSubscription, SubscriptionServices

FindSource = Callable[[TopicName], SubscriptionSource]
"""Returns the topic of a name, or raises TopicNotFoundError."""

_log = structlog.get_logger(__name__)
_EARLIEST = StartPosition.earliest()


class Subscriptions:
    """Thread-safe. A topic is opened when its first consumer comes."""

    def __init__(
        self,
        metadata: MetadataStore,
        find_source: FindSource,
        publish_dead_letters: PublishDeadLetters,
        settings: SubscriptionSettings | None = None,
        *,
        clock: Clock = now_us,
        background: bool = True,
    ) -> None:
        """Without `background` no thread starts: `tick` does what is due, for tests with their own clock."""
        settings = settings or SubscriptionSettings()
        self._metadata = metadata
        self._find_source = find_source
        self._services = SubscriptionServices(
            settings=settings,
            clock=clock,
            hub=Hub(clock, max_delay_ms=settings.max_dispatch_delay_ms),
            writer=ProgressWriter(metadata, str(uuid4()), interval_ms=settings.progress_interval_ms),
            dead_letters=DeadLetters(publish_dead_letters, background=background),
        )
        self._lock = threading.Lock()
        self._changing = threading.Lock()
        """Held while a subscription is created, changed or deleted; the metadata store may delay that."""
        self._records: dict[TopicName, dict[str, tuple[SubscriptionRecord, int]]] = {}
        """Of subscriptions that were not opened yet."""
        self._opened: dict[TopicName, dict[str, BrokerSubscription]] = {}
        self._closed = False
        self._load()
        if background:
            self._services.hub.start()
            self._services.writer.start()

    def _load(self) -> None:
        for entry in scan(self._metadata, keys.subscriptions()):
            try:
                record = SubscriptionRecord.from_bytes(entry.value, entry.key)
            except DamagedError as error:
                _log.error("subscription_record_unreadable", key=entry.key, error=str(error))
                continue
            self._records.setdefault(record.topic, {})[record.name] = (record, entry.mod_revision)

    def __len__(self) -> int:
        with self._lock:
            return sum(len(named) for known in (self._records, self._opened) for named in known.values())

    # Finding and making

    def open(
        self,
        topic: TopicName | str,
        name: str,
        options: SubscriptionOptions | None = None,
        *,
        start: StartPosition = _EARLIEST,
        create: bool = True,
    ) -> BrokerSubscription:
        """Open a subscription; create it durably, at a position, if it is missing.

        Options change an existing subscription; without them it keeps its own.
        """
        topic = TopicName.parse(topic)
        check_part(name, what="subscription name")
        source = self._find_source(topic)
        if options is not None:
            options.check(topic, name, source.stream_schema)
        with self._changing:
            self._check_open()
            found = self._find(source, name)
            if found is None:
                if not create:
                    raise _missing(topic, name)
                return self._create(source, name, options or SubscriptionOptions(), start)
            if options is not None:
                found.use_options(options)
            return found

    def get(self, topic: TopicName | str, name: str) -> BrokerSubscription:
        topic = TopicName.parse(topic)
        source = self._find_source(topic)
        found = self._opened.get(topic, {}).get(name)
        if found is None or found.ended or found.stream_id != source.stream_id:
            with self._changing:
                self._check_open()
                found = self._find(source, name)
        if found is None:
            raise _missing(topic, name)
        return found

    def find(self, topic: TopicName | str | None = None) -> list[BrokerSubscription]:
        """Return all subscriptions, or those of a topic, by topic and name."""
        with self._lock:
            topics = {*self._records, *self._opened} if topic is None else {TopicName.parse(topic)}
            names = [
                (each, name)
                for each in sorted(topics)
                for name in sorted({*self._records.get(each, {}), *self._opened.get(each, {})})
            ]
        found = []
        for each, name in names:
            # It was deleted meanwhile, or its topic was.
            with contextlib.suppress(TopicNotFoundError, SubscriptionNotFoundError):
                found.append(self.get(each, name))
        return found

    def _find(self, source: SubscriptionSource, name: str) -> BrokerSubscription | None:
        """Return a subscription that is open or has a record; restart it if the topic was created again."""
        topic = source.name
        with self._lock:
            found = self._opened.get(topic, {}).get(name)
            if found is None and name in (records := self._records.get(topic, {})):
                record, revision = records.pop(name)
                found = BrokerSubscription(self._services, source, record, revision)
                self._opened.setdefault(topic, {})[name] = found
        if found is not None and found.ended:
            found = self._load_again(source, name)
        if found is not None and found.stream_id != source.stream_id:
            found.restart(source, source.start_offset_of(_EARLIEST))
        return found

    def _load_again(self, source: SubscriptionSource, name: str) -> BrokerSubscription | None:
        """Read a subscription again that another broker has served or deleted."""
        entry = self._metadata.get(keys.subscription_progress(name, source.name))
        with self._lock:
            self._opened.get(source.name, {}).pop(name, None)
            if entry is None:
                return None
            record = SubscriptionRecord.from_bytes(entry.value, entry.key)
            found = BrokerSubscription(self._services, source, record, entry.mod_revision)
            self._opened.setdefault(source.name, {})[name] = found
        return found

    def _create(
        self, source: SubscriptionSource, name: str, options: SubscriptionOptions, start: StartPosition
    ) -> BrokerSubscription:
        if len(self) >= (most := self._services.settings.max_subscriptions):
            raise LimitReachedError(
                f"there are {most} subscriptions already",
                operation="open subscription",
                place=f"{source.name} {name}",
                remedy="delete some or raise subscriptions.max_subscriptions",
            )
        record = SubscriptionRecord(
            topic=source.name,
            name=name,
            stream_id=source.stream_id,
            options=options,
            progress=Progress(source.start_offset_of(start)),
            created_us=self._services.clock(),
            writer=self._services.writer.writer,
        )
        try:
            revision = self._metadata.create(record.key, record.to_bytes())
        except ConflictError:  # another broker created it, or this one did and the response was lost
            found = self._load_again(source, name)
            if found is None:
                raise
            return found
        found = BrokerSubscription(self._services, source, record, revision)
        with self._lock:
            self._opened.setdefault(source.name, {})[name] = found
        return found

    # Changing

    def seek(self, topic: TopicName | str, name: str, position: StartPosition) -> int:
        """Continue from another position; return its offset. Consumers stay connected."""
        found = self.get(topic, name)
        offset = found.source.start_offset_of(position)
        found.seek(offset)
        return offset

    def delete(self, topic: TopicName | str, name: str) -> None:
        """Delete a subscription; raise if the metadata store cannot be reached. May be tried again."""
        found = self.get(topic, name)
        with self._changing:
            self._delete(found)

    def delete_topic(self, topic: TopicName | str) -> None:
        """Delete the subscriptions of a deleted topic; their consumers get the error. May be tried again."""
        topic = TopicName.parse(topic)
        gone = TopicNotFoundError("the topic was deleted", operation="receive", place=str(topic))
        with self._changing:
            with self._lock:
                opened = list(self._opened.get(topic, {}).values())
                records = [record.key for record, _ in self._records.get(topic, {}).values()]
            for found in opened:
                found.end(gone)
                self._services.writer.forget(found)
            for key in (*records, *(found.key for found in opened)):
                self._metadata.delete(key)
            with self._lock:
                self._opened.pop(topic, None)
                self._records.pop(topic, None)

    def _delete(self, found: BrokerSubscription) -> None:
        # The record first: the subscription exists as long as its record.
        self._metadata.delete(found.key)
        found.end(SubscriptionNotFoundError("the subscription was deleted", operation="receive", place=found.place))
        self._services.writer.forget(found)
        with self._lock:
            self._opened.get(found.topic, {}).pop(found.name, None)

    # Keeping and ending

    def flush(self) -> None:
        """Return when the metadata store has all acknowledgements so far."""
        self._services.writer.flush()

    def tick(self) -> None:
        """Do what is due now; only for subscriptions without `background`."""
        self._services.hub.tick()
        self._services.dead_letters.tick()

    def close(self) -> None:
        """Disconnect all consumers and persist all progress."""
        with self._changing:
            self._closed = True
            with self._lock:
                opened = [found for named in self._opened.values() for found in named.values()]
        self._services.dead_letters.stop()
        for found in opened:
            found.end(UnavailableError("the broker is stopping", operation="receive", remedy="connect again"))
        self._services.hub.stop()
        self._services.writer.stop()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the subscriptions are closed", operation="open subscription")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _missing(topic: TopicName, name: str) -> IcestreamError:
    return SubscriptionNotFoundError(
        "there is no such subscription",
        operation="subscription",
        place=f"{topic} {name}",
        remedy="create it, or subscribe with creation allowed",
    )
