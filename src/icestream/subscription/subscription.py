"""A subscription: its consumers, its progress, its options.

What it guarantees: a message is with at most one consumer at a time, and is sent until it is acknowledged or stored as
a dead letter. Acknowledged messages are not sent again, except after a crash of the broker, and then those of the
last moments only. Nothing that consumers do waits for the metadata store.
"""

import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from icestream.model.errors import (
    ClosedError,
    IcestreamError,
    InvalidRequestError,
    LimitReachedError,
    SubscriptionBusyError,
)
from icestream.model.filters import Filter
from icestream.model.names import TopicName, check_producer
from icestream.subscription.acks import Answers, silent
from icestream.subscription.consumer import ConsumerSession, Credit
from icestream.subscription.cursor import Cursor, Limits, delivery_schema
from icestream.subscription.dispatch import Dispatch
from icestream.subscription.engine import Engine
from icestream.subscription.offset_ranges import Offsets, Ranges, as_ranges, clipped, total
from icestream.subscription.options import SubscriptionOptions
from icestream.subscription.progress import Progress, SubscriptionRecord
from icestream.subscription.source import Source
from icestream.subscription.state import Live
from icestream.subscription.stats import SubscriptionStats, consumer_figures, lag_seconds
from icestream.subscription.window import State

DEFAULT_CREDIT_MESSAGES = 10_000
DEFAULT_CREDIT_BYTES = 8 << 20
_MAX_DEAD_AT_ONCE = 10_000


class Subscription:
    """Thread-safe. Made by `Subscriptions.open`."""

    def __init__(self, engine: Engine, source: Source, record: SubscriptionRecord, revision: int) -> None:
        self._engine = engine
        self.source = source
        self._record = record
        """Its progress is that of the time before the consumers came, while there are any."""
        self._live = Live(engine, self, record.options)
        self.answers = Answers(self._live)
        self.dispatch = Dispatch(self._live, self.answers)
        self._ended: IcestreamError | None = None
        self._written = 0
        self.revision = revision
        """Of the record in the metadata store, as this process read or wrote it last."""

    @property
    def topic(self) -> TopicName:
        return self._record.topic

    @property
    def name(self) -> str:
        return self._record.name

    @property
    def options(self) -> SubscriptionOptions:
        return self._live.options

    @property
    def schema(self) -> pa.Schema:
        """Of what a consumer that connects now is sent."""
        return delivery_schema(self.source.stream_schema)

    @property
    def turns(self) -> threading.Lock:
        return self._engine.turns

    @property
    def key(self) -> str:
        return self._record.key

    @property
    def place(self) -> str:
        return f"{self.topic} {self.name}"

    # Consumers

    def connect(
        self,
        consumer: str,
        *,
        max_messages: int = DEFAULT_CREDIT_MESSAGES,
        max_bytes: int = DEFAULT_CREDIT_BYTES,
        session_timeout_ms: int | None = None,
    ) -> ConsumerSession:
        """A new consumer, with its first credit.

        It is disconnected when it is silent for the set time, or for this one; 0 stands for never, for consumers that
        nothing can cut off from here.
        """
        check_producer(consumer)
        if max_messages < 0 or max_bytes < 0:
            raise InvalidRequestError("a credit is 0 or more", operation="connect", place=self.place)
        live, schema = self._live, self.source.stream_schema
        timeout_ms = self._engine.settings.session_timeout_ms if session_timeout_ms is None else session_timeout_ms
        with live.lock:
            self._check_admits()
            cursor = live.cursor or self._open_cursor()
            cursor.use_schema(schema)
            number = next(number for number in range(len(live.sessions) + 1) if number not in live.sessions)
            session = live.sessions[number] = ConsumerSession(
                self,
                live.lock,
                consumer,
                number,
                schema=delivery_schema(schema),
                credit=Credit(max_messages, max_bytes),
                connected_us=self._engine.clock(),
                timeout_ms=timeout_ms,
            )
            live.mode.joined(number)
            live.look_again()
            if timeout_ms:
                self._engine.hub.schedule(self, self._engine.now_ms() + timeout_ms)
        return session

    def _check_admits(self) -> None:
        self._check_alive()
        live, most = self._live, self._engine.settings.max_consumers
        if not live.mode.admits_one_more():
            other = next(iter(live.sessions.values())).name
            raise SubscriptionBusyError(
                f"the subscription is exclusive, and consumer {other!r} has it",
                operation="connect",
                place=self.place,
                remedy="close the other consumer, or use another type of subscription",
            )
        if len(live.sessions) >= most:
            raise LimitReachedError(
                f"the subscription has {len(live.sessions)} consumers already",
                operation="connect",
                place=self.place,
                remedy="close some or raise subscriptions.max_consumers",
            )

    def _check_alive(self) -> None:
        if self._ended is not None:
            raise self._ended.with_traceback(None)

    def _open_cursor(self) -> Cursor:
        self._engine.hub.watch(self.source)
        # The first write is a claim: whoever served the subscription before cannot write any more.
        self._live.changed(urgent=True)
        self._live.cursor = self._cursor_at(self._record.progress)
        return self._live.cursor

    def _cursor_at(self, progress: Progress) -> Cursor:
        options, settings = self.options, self._engine.settings
        return Cursor(
            self.source,
            progress,
            where=Filter.parse(options.filter) if options.filter is not None else None,
            by_key=self._live.mode.by_key,
            limits=Limits(settings.max_unacknowledged_messages, settings.max_buffer_bytes),
        )

    def disconnect(self, session: ConsumerSession, reason: IcestreamError) -> None:
        with self._live.lock:
            self._disconnect(session, reason)

    def _disconnect(self, session: ConsumerSession, reason: IcestreamError) -> None:
        live = self._live
        if session.closed:
            return
        session.ended = reason
        cursor = live.cursor
        if cursor is not None:
            self.answers.take_back(cursor, cursor.window.held_by(session.number), failed=False)
        del live.sessions[session.number]
        live.mode.left(session.number)
        session.wake()
        if live.sessions:
            live.look_again()
        elif cursor is not None:
            self._record = replace(self._record, progress=cursor.progress())
            cursor.close()
            live.cursor = None
            self._engine.hub.unwatch(self.source)
            live.changed(urgent=True)

    def end(self, reason: IcestreamError) -> None:
        """Disconnect everybody; nothing can be done with it any more."""
        with self._live.lock:
            self._ended = reason
            for session in list(self._live.sessions.values()):
                self._disconnect(session, reason)
        self._engine.hub.forget(self)

    # Woken by the hub

    def data_arrived(self) -> None:
        with self._live.lock:
            self._live.wake_one()

    def on_time(self, now_ms: int) -> int | None:
        with self._live.lock:
            for session in list(self._live.sessions.values()):
                if session.timeout_ms and session.deadline_ms <= now_ms:
                    self._disconnect(session, silent(session, self.place))
            following = [session.deadline_ms for session in self._live.sessions.values() if session.timeout_ms]
            if self._live.cursor is not None:
                due_ms = self.answers.expire(self._live.cursor, now_ms)
                following += [due_ms] if due_ms is not None else []
            return min(following, default=None)

    # Progress

    def acknowledge(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Messages `[first, end)` are done, whoever has them, and also if nobody had them yet."""
        self._acknowledge(as_ranges(ranges, operation="ack"))

    def _acknowledge(self, ranges: Ranges) -> None:
        live, ranges = self._live, clipped(ranges, 0, self.source.durable_end)
        with live.lock:
            self._check_alive()
            if live.cursor is not None:
                live.cursor.acknowledge_ahead(ranges)
                self.answers.acknowledge(live.cursor, live.cursor.window.open_in(ranges))
            else:
                most = self._engine.settings.max_unacknowledged_messages
                self._record = replace(self._record, progress=self._record.progress.acknowledge(ranges, most))
            live.changed()

    def progress(self) -> Progress:
        with self._live.lock:
            return self._progress()

    def _progress(self) -> Progress:
        cursor = self._live.cursor
        return self._record.progress if cursor is None else cursor.progress()

    def seek(self, offset: int) -> None:
        """Forget what is in flight, and go on from an offset. Returns when that is durable."""
        with self._live.lock:
            self._check_alive()
            self._start_at(Progress(offset))
        self.flush()

    def _start_at(self, progress: Progress) -> None:
        live = self._live
        self._record = replace(self._record, progress=progress)
        if live.cursor is not None:
            live.cursor.close()
            live.cursor = self._cursor_at(progress)
            live.mode.forget_deliveries()
            for session in live.sessions.values():
                session.delivered_end = 0
            live.look_again()
        live.changed()

    def restart(self, source: Source, offset: int) -> None:
        """The topic was deleted and made again: begin anew in the new one."""
        with self._live.lock:
            for session in list(self._live.sessions.values()):
                self._disconnect(session, ClosedError("the topic was made anew", operation="receive", retryable=True))
            self.source = source
            self._record = replace(self._record, stream_id=source.stream_id)
            self._start_at(Progress(offset))
        self.flush()

    @property
    def ended(self) -> bool:
        return self._ended is not None

    @property
    def created_us(self) -> int:
        return self._record.created_us

    @property
    def stream_id(self) -> str:
        return self._record.stream_id

    def use_options(self, options: SubscriptionOptions) -> None:
        """Change the options. Type and filter stay as they are while there are consumers."""
        live = self._live
        with live.lock:
            self._check_alive()
            before = live.options
            if options == before:
                return
            if live.sessions and (options.type, options.filter) != (before.type, before.filter):
                raise SubscriptionBusyError(
                    "the subscription's type and filter cannot change while it has consumers",
                    operation="open subscription",
                    place=self.place,
                    remedy=f"close them, or use type {before.type.value}"
                    + (f" and filter {before.filter}" if before.filter else " and no filter"),
                )
            live.use_options(options)
            live.changed()
        self.flush()

    def flush(self) -> None:
        """Returns when all that was acknowledged so far is in the metadata store."""
        self._engine.writer.flush([self])

    # For the progress writer

    def snapshot(self) -> tuple[int, bytes]:
        """What is to be written, and which version of it that is."""
        live = self._live
        with live.lock:
            record = replace(
                self._record,
                options=live.options,
                progress=self._progress(),
                redeliveries=self._record.redeliveries + live.redeliveries,
                dead_letters=self._record.dead_letters + live.dead_letters,
                writer=self._engine.writer.writer,
            )
            return live.version, record.to_bytes()

    def written(self, version: int, revision: int) -> None:
        self.revision = revision
        self._written = version

    @property
    def unwritten(self) -> bool:
        return self._written != self._live.version

    # For the dead letters

    def dead_offsets(self) -> Offsets:
        """Messages that wait to be stored as dead letters, some of them at a time."""
        with self._live.lock:
            cursor = self._live.cursor
            if cursor is None:
                return np.empty(0, np.int64)
            return cursor.window.offsets(cursor.window.in_state(State.DEAD)[:_MAX_DEAD_AT_ONCE])

    def redelivery_counts(self, offsets: Offsets) -> Offsets:
        """How often these dead messages were delivered again."""
        with self._live.lock:
            cursor = self._live.cursor
            if cursor is None or int(offsets[0]) < cursor.window.floor or int(offsets[-1]) >= cursor.window.end:
                return np.zeros(len(offsets), np.int64)
            counts = cursor.window.redeliveries(cursor.window.rows(offsets))
            # The window has counted the delivery that is not going to take place.
            return np.zeros(len(offsets), np.int64) if counts is None else np.maximum(counts.astype(np.int64) - 1, 0)

    def buried(self, ranges: Ranges, count: int) -> None:
        self._live.dead_letters += count
        self._acknowledge(ranges)

    # Figures

    def stats(self) -> SubscriptionStats:
        source, live = self.source, self._live
        durable_end = source.durable_end
        with live.lock:
            cursor, progress = live.cursor, self._progress()
            floor_time_us = cursor.floor_time_us() if cursor is not None else None
            mean_bytes = cursor.mean_message_bytes if cursor is not None else None
            consumers = consumer_figures(live)
            read_offset = cursor.window.end if cursor is not None else progress.floor
            redeliveries = self._record.redeliveries + live.redeliveries
            dead_letters = self._record.dead_letters + live.dead_letters
        lag = max(0, durable_end - progress.floor - total(progress.acknowledged))
        mean_bytes = source.mean_message_bytes if lag and mean_bytes is None else mean_bytes
        return SubscriptionStats(
            topic=str(self.topic),
            subscription=self.name,
            type=self.options.type.value,
            filter=self.options.filter,
            floor_offset=progress.floor,
            read_offset=read_offset,
            durable_end=durable_end,
            acknowledged_ranges=len(progress.acknowledged),
            unacknowledged=sum(consumer.unacknowledged for consumer in consumers),
            redeliveries=redeliveries,
            dead_letters=dead_letters,
            lag_messages=lag,
            lag_bytes=int(lag * (mean_bytes or 0)),
            lag_seconds=lag_seconds(source, progress.floor, floor_time_us, self._engine.clock()) if lag else 0.0,
            consumers=consumers,
        )
