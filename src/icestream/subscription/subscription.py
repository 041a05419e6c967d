"""A subscription as a broker serves it, and the session of each of its consumers.

What it guarantees: a message is with at most one consumer at a time, and is sent until it is acknowledged or stored as
a dead letter. Acknowledged messages are not sent again, except after a crash of the broker, and then only the last
ones before it. Nothing that consumers do waits for the metadata store.

`BrokerSubscription` owns everything: the one lock, the state machine that the lock guards (`state`), and the threads
that wait for messages. Two locks exist, and they are taken in this order:

1. `SubscriptionServices.fairness_lock`, one for all subscriptions: held by the one thread that works for a consumer.
2. the subscription's lock: held for each transition of the state, never while something is read, written or waited for.

A consumer's thread that finds nothing waits. When messages arrive, only the one that has waited longest is woken. It
takes its share, and wakes the next one if something is left. Consumers without a thread have listeners instead, and
all of them are called.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic

import pyarrow as pa

from icestream.config import SubscriptionSettings
from icestream.model.clock import Clock
from icestream.model.errors import (
    ClosedError,
    IcestreamError,
    InvalidRequestError,
    LimitReachedError,
    SubscriptionBusyError,
)
from icestream.model.names import TopicName, check_producer
from icestream.protocol.subscribe import MAX_DELAY_MS, SubscriptionDescription, SubscriptionStats
from icestream.subscription.cursor import CursorLimits, SubscriptionSource, delivery_schema
from icestream.subscription.dead_letters import DeadLetters
from icestream.subscription.hub import Hub
from icestream.subscription.options import SubscriptionOptions
from icestream.subscription.progress import (
    Offsets,
    Progress,
    ProgressWriter,
    Ranges,
    SubscriptionRecord,
    as_ranges,
    clipped,
    total,
)
from icestream.subscription.state import ConnectedConsumer, Credit, SubscriptionState

DEFAULT_CREDIT_MESSAGES = 10_000
DEFAULT_CREDIT_BYTES = 8 << 20
_MANY_MESSAGES = 4_096


@dataclass(frozen=True)
class SubscriptionServices:
    """What all subscriptions of a storage share."""

    settings: SubscriptionSettings
    clock: Clock
    hub: Hub
    writer: ProgressWriter
    dead_letters: DeadLetters
    fairness_lock: threading.Lock = field(default_factory=threading.Lock)
    """Held by the one thread that works for a consumer, and taken before any subscription's lock.

    Hundreds of threads that all want the interpreter pass it around at every call that lets go of it, and spend more
    time on that than on their work. A thread that waits, or reads what is not in memory, lets the next one work."""

    def now_ms(self) -> int:
        return self.clock() // 1000


class ConsumerSession:
    """One consumer's connection to a subscription. Thread-safe. Made by `BrokerSubscription.connect`."""

    def __init__(self, subscription: "BrokerSubscription", consumer: ConnectedConsumer) -> None:
        self.subscription = subscription
        self._consumer = consumer

    @property
    def name(self) -> str:
        return self._consumer.name

    @property
    def number(self) -> int:
        return self._consumer.number

    @property
    def schema(self) -> pa.Schema:
        """The schema of its deliveries. It stays when the topic gains columns."""
        return self._consumer.schema

    @property
    def listeners(self) -> set[Callable[[], None]]:
        """Called, by any thread and under a lock, when `receive` may have something: for those who cannot wait."""
        return self._consumer.listeners

    @property
    def closed(self) -> bool:
        return self._consumer.ended is not None

    @property
    def fairness_lock(self) -> threading.Lock:
        """To be held during several calls in a row, of which none may be `receive`."""
        return self.subscription.fairness_lock

    def receive(
        self,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        timeout_seconds: float | None = None,
    ) -> pa.RecordBatch | None:
        """Return the next messages, within the credit, which one message larger than what is left may overdraw.

        Return None when there is nothing within the time; without a time it waits. Raise ClosedError once the session
        is closed, and TopicNotFoundError when the topic was deleted. A call is no sign of life of the consumer.
        """
        return self.subscription.receive(
            self._consumer, max_messages=max_messages, max_bytes=max_bytes, timeout_seconds=timeout_seconds
        )

    def grant(self, messages: int, nbytes: int) -> None:
        """Add credit: the consumer has taken so much out of its queue, or has room for more."""
        if messages < 0 or nbytes < 0:
            raise InvalidRequestError("a credit is 0 or more", operation="grant")
        self.subscription.grant(self._consumer, messages, nbytes)

    def ack(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Acknowledge messages `[first, end)`. Those that this consumer does not have are passed over."""
        self.subscription.ack(self._consumer, ranges)

    def ack_cumulative(self, offset: int) -> None:
        """Acknowledge a message and all before it; for subscriptions in which one consumer gets all."""
        self.subscription.ack_cumulative(self._consumer, offset)

    def nack(self, ranges: Sequence[tuple[int, int]], delay_ms: int | None = None) -> None:
        """Nack messages `[first, end)`: they come again, after this delay or the subscription's."""
        self.subscription.nack(self._consumer, ranges, delay_ms)

    def touch(self) -> None:
        """Note that the consumer is alive."""
        self.subscription.touch(self._consumer)

    def close(self) -> None:
        """Disconnect. Others get what the consumer has, at once. May be called again."""
        self.subscription.disconnect(self._consumer, ClosedError("the consumer was closed", operation="receive"))


class BrokerSubscription:
    """Thread-safe. Made by `Subscriptions.open`."""

    def __init__(
        self, services: SubscriptionServices, source: SubscriptionSource, record: SubscriptionRecord, revision: int
    ) -> None:
        self._services = services
        self.topic: TopicName = record.topic
        self.name = record.name
        self.key = record.key
        self.created_us = record.created_us
        self.revision = revision
        """Of the record in the metadata store, as this process read or wrote it last."""
        settings = services.settings
        limits = CursorLimits(settings.max_unacknowledged_messages, settings.max_buffer_bytes)
        self._lock = threading.Lock()
        """Guards everything below."""
        self._state = SubscriptionState(source, record, limits, services.now_ms)
        self._waiting: deque[ConnectedConsumer] = deque()
        """Consumers whose threads wait for messages, the longest first."""
        self._reading = False
        """A thread reads, with the lock let go."""
        self._read_again_at = 0.0
        """By the monotonic clock: until then messages may collect."""
        self._ended: IcestreamError | None = None
        self._written = 0
        """The version of the state that is in the metadata store."""

    @property
    def source(self) -> SubscriptionSource:
        return self._state.source

    @property
    def options(self) -> SubscriptionOptions:
        return self._state.options

    @property
    def stream_id(self) -> str:
        return self._state.stream_id

    @property
    def schema(self) -> pa.Schema:
        """The schema of what a consumer that connects now is sent."""
        return delivery_schema(self.source.stream_schema)

    @property
    def fairness_lock(self) -> threading.Lock:
        return self._services.fairness_lock

    @property
    def place(self) -> str:
        return f"{self.topic} {self.name}"

    @property
    def ended(self) -> bool:
        return self._ended is not None

    def _check_alive(self) -> None:
        if self._ended is not None:
            raise self._ended.with_traceback(None)

    @contextlib.contextmanager
    def _transition(self) -> Iterator[SubscriptionState]:
        """Hold the lock while the state changes, and carry out what the change asks for."""
        with self._lock:
            try:
                yield self._state
            finally:
                self._carry_out()

    def _carry_out(self) -> None:
        """Carry out the effects of transitions. Under the lock."""
        effects = self._state.take_effects()
        if effects is None:
            return
        services = self._services
        if effects.write:
            services.writer.expect(self, urgent=effects.urgent)
        if effects.due_ms is not None:
            services.hub.schedule(self, effects.due_ms)
        if effects.store_dead_letters:
            services.dead_letters.expect(self)
        if effects.wake_all:
            self._wake_all()

    # Consumers

    def connect(
        self,
        consumer: str,
        *,
        max_messages: int = DEFAULT_CREDIT_MESSAGES,
        max_bytes: int = DEFAULT_CREDIT_BYTES,
        session_timeout_ms: int | None = None,
    ) -> ConsumerSession:
        """Connect a consumer, with its first credit.

        It is disconnected when it is silent for the time of the settings, or for this one; 0 stands for never, for
        consumers whose end is noticed otherwise.
        """
        check_producer(consumer)
        if max_messages < 0 or max_bytes < 0:
            raise InvalidRequestError("a credit is 0 or more", operation="connect", place=self.place)
        services = self._services
        timeout_ms = services.settings.session_timeout_ms if session_timeout_ms is None else session_timeout_ms
        with self._transition() as state:
            self._check_admits(state)
            if not state.has_cursor:
                services.hub.watch(state.source)
            connected = state.connect(
                consumer,
                ready=threading.Condition(self._lock),
                credit=Credit(max_messages, max_bytes),
                connected_us=services.clock(),
                timeout_ms=timeout_ms,
            )
            state.schedule_timeout(connected)
        return ConsumerSession(self, connected)

    def _check_admits(self, state: SubscriptionState) -> None:
        self._check_alive()
        connected = state.consumers
        if not state.admits_one_more():
            raise SubscriptionBusyError(
                f"the subscription is exclusive, and consumer {connected[0].name!r} has it",
                operation="connect",
                place=self.place,
                remedy="close the other consumer, or use another type of subscription",
            )
        if len(connected) >= self._services.settings.max_consumers:
            raise LimitReachedError(
                f"the subscription has {len(connected)} consumers already",
                operation="connect",
                place=self.place,
                remedy="close some or raise subscriptions.max_consumers",
            )

    def disconnect(self, consumer: ConnectedConsumer, reason: IcestreamError) -> None:
        with self._transition() as state:
            self._disconnect(state, consumer, reason)

    def _disconnect(self, state: SubscriptionState, consumer: ConnectedConsumer, reason: IcestreamError) -> None:
        was_open = state.has_cursor
        state.disconnect(consumer, reason)
        if was_open and not state.has_cursor:
            self._services.hub.unwatch(state.source)

    def end(self, reason: IcestreamError) -> None:
        """Disconnect all consumers. The subscription cannot be used any more."""
        with self._transition() as state:
            self._ended = reason
            for consumer in state.consumers:
                self._disconnect(state, consumer, reason)
        self._services.hub.forget(self)

    def touch(self, consumer: ConnectedConsumer) -> None:
        consumer.seen_us = self._services.clock()

    def grant(self, consumer: ConnectedConsumer, messages: int, nbytes: int) -> None:
        with self._lock:
            self.touch(consumer)
            consumer.credit.grant(messages, nbytes)
            consumer.wake()

    # Receiving

    def receive(
        self,
        consumer: ConnectedConsumer,
        *,
        max_messages: int | None,
        max_bytes: int | None,
        timeout_seconds: float | None,
    ) -> pa.RecordBatch | None:
        """See `ConsumerSession.receive`."""
        deadline = None if timeout_seconds is None else monotonic() + timeout_seconds
        state = self._state
        with self._services.fairness_lock, self._lock:
            try:
                while True:
                    if consumer.ended is not None:
                        raise consumer.ended.with_traceback(None)
                    messages, nbytes = consumer.credit.left(max_messages, max_bytes)
                    served = messages > 0 and nbytes > 0 and state.is_active(consumer)
                    if served:
                        batch, again_from = state.deliver(consumer, messages, nbytes)
                        if batch is not None:
                            return batch
                        if self._read(again_from, paced=not consumer.listeners):
                            continue
                    seconds = None if deadline is None else deadline - monotonic()
                    if seconds is not None and seconds <= 0:
                        return None
                    self._wait(consumer, seconds, served=served)
            finally:
                self._carry_out()
                self._pass_on()

    def _read(self, again_from: int | None, *, paced: bool) -> bool:
        """Read what is missing, with the lock let go; return False if there is nothing to read or another one reads."""
        state = self._state
        if again_from is None and not state.can_read_on:
            state.note_limit()
            return False
        if self._reading or (paced and again_from is None and self._pause_seconds() > 0):
            return False
        job = state.begin_read(again_from)
        self._reading = True
        far = not job.source.in_memory(job.offset)
        self._carry_out()
        self._lock.release()
        if far:
            self._services.fairness_lock.release()
        try:
            job.run()
        except BaseException as error:
            job.close()
            gone = job.source.gone_error() if isinstance(error, IcestreamError) else None
            raise gone or error from error
        finally:
            if far:
                self._services.fairness_lock.acquire()
            self._lock.acquire()
            self._reading = False
            if state.divides_by_key:
                self._wake_all()  # the one that waits longest may get nothing, and others something
            else:
                self._wake_one()
        self._read_again_at = monotonic() + self._services.hub.pause_seconds(self.topic)
        state.finish_read(job)
        self._carry_out()
        return True

    def _pause_seconds(self) -> float:
        """Return how long to let messages collect; 0 or less where there are many already."""
        state = self._state
        if state.source.durable_end - state.cursor.window.end >= _MANY_MESSAGES:
            return 0.0
        return self._read_again_at - monotonic()

    def _wait(self, consumer: ConnectedConsumer, seconds: float | None, *, served: bool) -> None:
        self._carry_out()
        if not served:
            self._sleep(consumer, seconds)
            return
        self._waiting.append(consumer)
        try:
            pause = self._pause_seconds() if self._state.has_cursor else 0.0
            if pause > 0 and not consumer.listeners:
                self._sleep(consumer, pause if seconds is None else min(pause, seconds))
                return
            self._services.hub.expect(self)
            if self._reading or not self._state.can_read_on:
                self._sleep(consumer, seconds)
        finally:
            if consumer in self._waiting:
                self._waiting.remove(consumer)

    def _sleep(self, consumer: ConnectedConsumer, seconds: float | None) -> None:
        fairness_lock = self._services.fairness_lock
        fairness_lock.release()
        try:
            consumer.ready.wait(seconds)
        finally:
            self._lock.release()
            fairness_lock.acquire()
            self._lock.acquire()

    # Waking. Under the lock

    def _pass_on(self) -> None:
        """Have the next message wake those that wait now; wake one at once if there is a message already."""
        listening = [consumer for consumer in self._state.consumers if consumer.listeners]
        if not listening and not self._waiting:
            return
        self._services.hub.expect(self)
        if self._reading:
            return  # the thread that reads wakes the next one afterwards
        if self._waiting and self._state.could_serve(self._waiting[0]):
            self._waiting.popleft().ready.notify_all()
        for consumer in listening:
            if self._state.could_serve(consumer):
                consumer.notify_listeners()

    def _wake_one(self) -> None:
        if self._waiting:
            self._waiting.popleft().ready.notify_all()
        for consumer in self._state.consumers:
            consumer.notify_listeners()

    def _wake_all(self) -> None:
        for consumer in self._state.consumers:
            consumer.wake()

    # Called by the hub

    def data_arrived(self) -> None:
        with self._lock:
            self._wake_one()

    def on_time(self, now_ms: int) -> int | None:
        """Disconnect silent consumers, and have messages come again that are due; return when to call next."""
        with self._transition() as state:
            for consumer in state.silent_consumers(now_ms):
                self._disconnect(state, consumer, self._silent(consumer))
            return state.expire(now_ms)

    def _silent(self, consumer: ConnectedConsumer) -> ClosedError:
        return ClosedError(
            f"the consumer was silent for {consumer.timeout_ms} ms",
            operation="receive",
            place=self.place,
            remedy="connect again, and send heartbeats or raise subscriptions.session_timeout_ms",
            retryable=True,
        )

    # Acknowledging

    def ack(self, consumer: ConnectedConsumer, ranges: Sequence[tuple[int, int]]) -> None:
        wanted = as_ranges(ranges, operation="ack")
        with self._transition() as state:
            self.touch(consumer)
            state.ack_held(consumer, wanted)

    def ack_cumulative(self, consumer: ConnectedConsumer, offset: int) -> None:
        with self._transition() as state:
            self.touch(consumer)
            state.ack_up_to(consumer, offset, self.place)

    def nack(self, consumer: ConnectedConsumer, ranges: Sequence[tuple[int, int]], delay_ms: int | None) -> None:
        delay_ms = self.options.nack_delay_ms if delay_ms is None else delay_ms
        if not 0 <= delay_ms <= MAX_DELAY_MS:
            raise InvalidRequestError(f"a delay is 0 to {MAX_DELAY_MS} ms, not {delay_ms}", operation="nack")
        wanted = as_ranges(ranges, operation="nack")
        with self._transition() as state:
            self.touch(consumer)
            state.nack(consumer, wanted, delay_ms)

    def acknowledge(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Acknowledge messages `[first, end)`, whichever consumer has them, also if none had them yet."""
        wanted = clipped(as_ranges(ranges, operation="ack"), 0, self.source.durable_end)
        with self._transition() as state:
            self._check_alive()
            state.acknowledge(wanted)

    # Progress and options

    def progress(self) -> Progress:
        with self._lock:
            return self._state.progress

    def seek(self, offset: int) -> None:
        """Forget what is in flight, and go on from an offset. Returns when that is durable."""
        with self._transition() as state:
            self._check_alive()
            state.move_to(Progress(offset))
        self.flush()

    def restart(self, source: SubscriptionSource, offset: int) -> None:
        """Begin again in a topic that was deleted and created again."""
        with self._transition() as state:
            for consumer in state.consumers:
                reason = ClosedError("the topic was created again", operation="receive", retryable=True)
                self._disconnect(state, consumer, reason)
            state.move_to(Progress(offset), source)
        self.flush()

    def use_options(self, options: SubscriptionOptions) -> None:
        """Change the options. Type and filter stay as they are while there are consumers."""
        with self._transition() as state:
            self._check_alive()
            before = state.options
            if options == before:
                return
            if state.consumers and (options.type, options.filter) != (before.type, before.filter):
                raise SubscriptionBusyError(
                    "the subscription's type and filter cannot change while it has consumers",
                    operation="open subscription",
                    place=self.place,
                    remedy=f"close them, or use type {before.type.value}"
                    + (f" and filter {before.filter}" if before.filter else " and no filter"),
                )
            state.use_options(options)
        self.flush()

    def flush(self) -> None:
        """Return when all that was acknowledged so far is in the metadata store."""
        self._services.writer.flush([self])

    # Called by the progress writer

    def snapshot(self) -> tuple[int, bytes]:
        """Return what has to be written, and which version of it that is."""
        with self._lock:
            state = self._state
            return state.version, replace(state.record, writer=self._services.writer.writer).to_bytes()

    def written(self, version: int, revision: int) -> None:
        self.revision = revision
        self._written = version

    @property
    def unwritten(self) -> bool:
        return self._written != self._state.version

    # Called by the dead letters

    def dead_offsets(self) -> Offsets:
        """Return messages that wait to be stored as dead letters, a bounded number of them."""
        with self._lock:
            return self._state.dead_offsets()

    def redelivery_counts(self, offsets: Offsets) -> Offsets:
        """Return how often these dead messages were delivered again."""
        with self._lock:
            return self._state.redelivery_counts(offsets)

    def dead_letters_stored(self, ranges: Ranges, count: int) -> None:
        wanted = clipped(ranges, 0, self.source.durable_end)
        with self._transition() as state:
            self._check_alive()
            state.dead_letters_stored(wanted, count)

    # Figures

    def stats(self) -> SubscriptionStats:
        source = self.source
        durable_end = source.durable_end
        with self._lock:
            state = self._state
            record, consumers = state.record, state.consumer_stats()
            cursor = state.cursor if state.has_cursor else None
            floor_time_us = cursor.floor_time_us() if cursor is not None else None
            mean_bytes = cursor.mean_message_bytes if cursor is not None else None
            read_offset = cursor.window.end if cursor is not None else record.progress.floor
        progress = record.progress
        lag = max(0, durable_end - progress.floor - total(progress.acknowledged))
        mean_bytes = source.mean_message_bytes if lag and mean_bytes is None else mean_bytes
        return SubscriptionStats(
            topic=str(self.topic),
            subscription=self.name,
            type=record.options.type,
            filter=record.options.filter,
            floor_offset=progress.floor,
            read_offset=read_offset,
            durable_end=durable_end,
            acknowledged_ranges=len(progress.acknowledged),
            unacknowledged=sum(consumer.unacknowledged for consumer in consumers),
            redeliveries=record.redeliveries,
            dead_letters=record.dead_letters,
            lag_messages=lag,
            lag_bytes=int(lag * (mean_bytes or 0)),
            lag_seconds=_lag_seconds(source, progress.floor, floor_time_us, self._services.clock()) if lag else 0.0,
            consumers=consumers,
        )


def _lag_seconds(source: SubscriptionSource, floor: int, floor_time_us: int | None, now_us: int) -> float:
    """Age of the message at the floor."""
    if floor_time_us is None:
        try:
            floor_time_us = source.time_at(floor)
        except IcestreamError:  # not readable: other figures say so
            return 0.0
    if floor_time_us is None:
        return 0.0
    return max(0.0, (now_us - floor_time_us) / 1e6)


def describe(subscription: BrokerSubscription) -> SubscriptionDescription:
    """Return a subscription's figures and options."""
    stats = subscription.stats()
    figures = {name: getattr(stats, name) for name in stats.__struct_fields__}
    return SubscriptionDescription(**figures, options=subscription.options.to_json())
