"""The state machine of one subscription: its consumers, what each of them has, and how far all is acknowledged.

```
   not read ──read──▶ ready ──deliver──▶ delivered ──ack──▶ acknowledged
                        ▲                  │ nack, ack timeout, consumer gone
                        ├── delayed ◀──────┤
                        └──────────────────┤
                                           └── nacked too often ───▶ dead ──stored──▶ acknowledged
```

A dead message becomes ready again if the options change to no dead letters before it is stored.

One `BrokerSubscription` owns it and makes every call under its lock. Nothing here waits, starts a thread, or calls the
hub, the progress writer or the dead letters: a transition leaves `Effects`, and the owner carries them out before it
lets the lock go. Messages live in arrays (`window`) and batches (`cursor`); a transition handles many at once. Programs
hold a `ConsumerSession` in place of a `ConnectedConsumer`.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from icestream.model.errors import IcestreamError, InvalidRequestError
from icestream.model.filters import Filter
from icestream.protocol.subscribe import ConsumerDescription
from icestream.subscription.cursor import (
    Cursor,
    CursorLimits,
    ReadJob,
    SubscriptionSource,
    as_delivery,
    delivery_schema,
)
from icestream.subscription.modes import make_mode
from icestream.subscription.options import SubscriptionOptions
from icestream.subscription.progress import Offsets, Progress, Ranges, SubscriptionRecord, as_ranges
from icestream.subscription.window import MessageState, Rows

_MAX_DEAD_AT_ONCE = 10_000
_GRAIN_MS = 10


class Credit:
    """How much a consumer may be sent: what it can queue, less what it was sent and has not taken out of its queue.

    The broker counts bytes both ways, so that a consumer that counts otherwise loses no credit.
    """

    def __init__(self, messages: int, nbytes: int) -> None:
        self.messages = messages
        self.nbytes = nbytes
        self._sent: deque[tuple[int, int]] = deque()
        """Messages and bytes of deliveries that are in the consumer's queue."""

    def left(self, max_messages: int | None, max_bytes: int | None) -> tuple[int, int]:
        """Return how many messages and bytes may be sent now, within these limits."""
        return (
            self.messages if max_messages is None else min(self.messages, max_messages),
            self.nbytes if max_bytes is None else min(self.nbytes, max_bytes),
        )

    def take(self, messages: int, nbytes: int) -> None:
        """Count a delivery."""
        self.messages -= messages
        self.nbytes -= nbytes
        self._sent.append((messages, nbytes))

    def grant(self, messages: int, nbytes: int) -> None:
        """Count messages that left the queue. More than were in it make the queue larger."""
        self.messages += messages
        left = messages
        while left and self._sent:
            count, size = self._sent.popleft()
            if count > left:
                share = size * left // count
                self._sent.appendleft((count - left, size - share))
                count, size = left, share
            self.nbytes += size
            left -= count
        if left == messages:
            self.nbytes += nbytes
        elif left:
            self.nbytes += nbytes * left // messages


class ConnectedConsumer:
    """One consumer, as the state keeps it: its credit, its position, its signs of life."""

    def __init__(
        self,
        name: str,
        number: int,
        *,
        ready: threading.Condition,
        schema: pa.Schema,
        credit: Credit,
        connected_us: int,
        timeout_ms: int,
    ) -> None:
        self.name = name
        self.number = number
        """A small number that no other connected consumer has; the window's arrays name consumers by it."""
        self.ready = ready
        """Of the subscription's lock; notified when there may be messages for this consumer."""
        self.listeners: set[Callable[[], None]] = set()
        """Called, by any thread and under the lock, when there may be messages: for consumers that cannot wait."""
        self.schema = schema
        """Of its deliveries. It stays when the topic gains columns."""
        self.credit = credit
        self.connected_us = connected_us
        self.timeout_ms = timeout_ms
        """The consumer is disconnected when it is silent for so long; 0: never."""
        self.seen_us = connected_us
        self.scan_from = 0
        """No message below this offset is ready for it."""
        self.delivered_end = 0
        """The offset after the last message that it got."""
        self.ended: IcestreamError | None = None
        """Why it was disconnected."""

    @property
    def deadline_ms(self) -> int:
        """When the consumer counts as gone unless it is heard of."""
        return self.seen_us // 1000 + self.timeout_ms

    def wake(self) -> None:
        """Tell the consumer that there may be something to receive."""
        self.ready.notify_all()
        self.notify_listeners()

    def notify_listeners(self) -> None:
        for listener in tuple(self.listeners):
            listener()


def round_up(time_ms: int) -> int:
    """Round a time up, so that messages become due in groups."""
    return -(-time_ms // _GRAIN_MS) * _GRAIN_MS


@dataclass(slots=True)
class Effects:
    """What transitions ask of the owner."""

    write: bool = False
    """The record has changed and has to be written."""
    urgent: bool = False
    """It has to be written now, not at the next interval."""
    wake_all: bool = False
    """Every consumer may have something to receive."""
    due_ms: int | None = None
    """Call `expire` then, or earlier."""
    store_dead_letters: bool = False


class SubscriptionState:
    def __init__(
        self,
        source: SubscriptionSource,
        record: SubscriptionRecord,
        limits: CursorLimits,
        now_ms: Callable[[], int],
    ) -> None:
        self._source = source
        self._record = record
        """Its progress is out of date while there is a cursor."""
        self._limits = limits
        self._now_ms = now_ms
        self._mode = make_mode(record.options.type)
        self._cursor: Cursor | None = None
        """As long as there are consumers."""
        self._consumers: dict[int, ConnectedConsumer] = {}
        self._job: ReadJob | None = None
        """The read that is under way for the cursor."""
        self._at_limit = False
        """A consumer waits for the floor to move."""
        self._version = 0
        """Counts changes of the record."""
        self._effects: Effects | None = None

    def take_effects(self) -> Effects | None:
        """Return what transitions have asked for since the last call; None: nothing."""
        effects, self._effects = self._effects, None
        return effects

    def _ask(self) -> Effects:
        if self._effects is None:
            self._effects = Effects()
        return self._effects

    def _changed(self, *, urgent: bool = False) -> None:
        self._version += 1
        effects = self._ask()
        effects.write = True
        effects.urgent |= urgent

    # What it is

    @property
    def source(self) -> SubscriptionSource:
        return self._source

    @property
    def options(self) -> SubscriptionOptions:
        return self._record.options

    @property
    def version(self) -> int:
        return self._version

    @property
    def record(self) -> SubscriptionRecord:
        """The record as it has to be written now."""
        return replace(self._record, progress=self.progress)

    @property
    def stream_id(self) -> str:
        return self._record.stream_id

    @property
    def progress(self) -> Progress:
        return self._record.progress if self._cursor is None else self._cursor.progress()

    @property
    def consumers(self) -> list[ConnectedConsumer]:
        return list(self._consumers.values())

    @property
    def has_cursor(self) -> bool:
        return self._cursor is not None

    @property
    def cursor(self) -> Cursor:
        """Only while there are consumers."""
        assert self._cursor is not None
        return self._cursor

    @property
    def divides_by_key(self) -> bool:
        return self._mode.by_key

    def admits_one_more(self) -> bool:
        return self._mode.admits_one_more()

    def is_active(self, consumer: ConnectedConsumer) -> bool:
        """Return whether a consumer gets messages; the others of a failover subscription wait."""
        return self._mode.is_active(consumer.number)

    def use_options(self, options: SubscriptionOptions) -> None:
        if options.type is not self.options.type:
            self._mode = make_mode(options.type)
        self._record = replace(self._record, options=options)
        self._changed()
        if options.max_redeliveries is None and self._cursor is not None:
            # There is no dead-letter topic any more: what was to be stored there is delivered again.
            window = self._cursor.window
            dead = window.in_state(MessageState.DEAD)
            window.wake(dead)
            self._came_ready(dead)

    # Consumers

    def connect(
        self, name: str, *, ready: threading.Condition, credit: Credit, connected_us: int, timeout_ms: int
    ) -> ConnectedConsumer:
        schema = self._source.stream_schema
        if self._cursor is None:
            self._cursor = self._cursor_at(self._record.progress)
            # The first write is a claim: a broker that served the subscription before cannot write any more.
            self._changed(urgent=True)
        self._cursor.use_schema(schema)
        number = next(number for number in range(len(self._consumers) + 1) if number not in self._consumers)
        consumer = self._consumers[number] = ConnectedConsumer(
            name,
            number,
            ready=ready,
            schema=delivery_schema(schema),
            credit=credit,
            connected_us=connected_us,
            timeout_ms=timeout_ms,
        )
        self._mode.joined(number)
        self._scan_again()
        return consumer

    def _cursor_at(self, progress: Progress) -> Cursor:
        where = self.options.filter
        return Cursor(
            self._source,
            progress,
            where=Filter.parse(where) if where is not None else None,
            by_key=self._mode.by_key,
            limits=self._limits,
        )

    def disconnect(self, consumer: ConnectedConsumer, reason: IcestreamError) -> None:
        """End a consumer. Others get what it has; the cursor goes with the last one."""
        if consumer.ended is not None:
            return
        consumer.ended = reason
        cursor = self.cursor
        self._take_back(cursor.window.held_by(consumer.number), failed=False)
        del self._consumers[consumer.number]
        self._mode.left(consumer.number)
        consumer.wake()
        if self._consumers:
            self._scan_again()
        else:
            self._record = replace(self._record, progress=cursor.progress())
            self._close_cursor()
            self._changed(urgent=True)

    def _close_cursor(self) -> None:
        self.cursor.close()
        self._cursor = self._job = None

    def move_to(self, progress: Progress, source: SubscriptionSource | None = None) -> None:
        """Forget what is in flight, and go on from another position, or in the topic that was created again."""
        if source is not None:
            self._source = source
            self._record = replace(self._record, stream_id=source.stream_id)
        self._record = replace(self._record, progress=progress)
        if self._cursor is not None:
            self._close_cursor()
            self._cursor = self._cursor_at(progress)
            self._mode.forget_deliveries()
            for consumer in self._consumers.values():
                consumer.delivered_end = 0
            self._scan_again()
        self._changed()

    def _scan_again(self) -> None:
        """It has changed who may have which message: all consumers look from the floor on."""
        floor = self.cursor.window.floor
        for consumer in self._consumers.values():
            consumer.scan_from = floor
        self._ask().wake_all = True

    # Delivering

    def could_serve(self, consumer: ConnectedConsumer) -> bool:
        """Return whether a consumer could get something now, at once or after a read."""
        messages, nbytes = consumer.credit.left(None, None)
        cursor = self._cursor
        if cursor is None or messages <= 0 or nbytes <= 0 or not self._mode.is_active(consumer.number):
            return False
        allowed = self._mode.allowed(consumer.number)
        return cursor.can_read_on or cursor.window.first_ready(consumer.scan_from, cursor.limit, allowed) is not None

    def deliver(
        self, consumer: ConnectedConsumer, max_messages: int, max_bytes: int
    ) -> tuple[pa.RecordBatch | None, int | None]:
        """Give a consumer its next messages; or return the offset of one that has to be read again first."""
        cursor, mode = self.cursor, self._mode
        window, allowed = cursor.window, mode.allowed(consumer.number)
        offset = window.first_ready(consumer.scan_from, cursor.limit, allowed)
        if offset is None:
            consumer.scan_from = min(window.end, cursor.limit)
            return None, None
        consumer.scan_from = offset
        found = cursor.buffered(offset)
        if found is None:
            return None, offset
        buffered, index = found
        share = mode.share(cursor.buffered_rows)
        batch, rows, nbytes = cursor.cut(buffered, index, allowed, min(max_messages, share), max_bytes)
        counts = window.redeliveries(rows)
        if counts is not None and (again := int(np.count_nonzero(counts))):
            self._record = replace(self._record, redeliveries=self._record.redeliveries + again)
        self._put_delivered(consumer, rows)
        consumer.credit.take(len(rows), nbytes)
        cursor.delivered_from(buffered)
        return as_delivery(batch, counts, consumer.schema), None

    def _put_delivered(self, consumer: ConnectedConsumer, rows: Rows) -> None:
        window, timeout_ms = self.cursor.window, self.options.ack_timeout_ms
        due_ms = None
        if timeout_ms is not None:
            due_ms = round_up(self._now_ms() + timeout_ms)
            self._schedule(due_ms)
        if self._mode.by_key:
            self._mode.delivered(window.slots(rows))
        window.deliver(rows, consumer.number, due_ms)
        end = int(window.offsets(rows[-1:])[0]) + 1
        consumer.scan_from = end
        consumer.delivered_end = max(consumer.delivered_end, end)

    def _schedule(self, due_ms: int) -> None:
        effects = self._ask()
        effects.due_ms = due_ms if effects.due_ms is None else min(due_ms, effects.due_ms)

    @property
    def can_read_on(self) -> bool:
        """Whether there are messages that were not read yet and may be."""
        return self._cursor is not None and self._cursor.can_read_on

    def note_limit(self) -> None:
        """A consumer found nothing to read: wake it when the floor moves, if it is the limit that holds it back."""
        self._at_limit |= self.cursor.window.end >= self.cursor.limit

    def begin_read(self, again_from: int | None) -> ReadJob:
        """Return the read of what follows, or of a message that has to be read again; it runs without the lock."""
        self._job = self.cursor.job(again_from)
        return self._job

    def finish_read(self, job: ReadJob) -> None:
        """Take in what a job has read, unless the cursor was moved or closed meanwhile."""
        if job is not self._job:
            job.close()
            return
        self._job = None
        cursor = self.cursor
        floor = cursor.window.floor
        arrived = cursor.finish(job)
        if cursor.window.floor != floor:
            self._floor_moved()
        self._restore(cursor)
        if arrived and self._mode.by_key:
            self._ask().wake_all = True  # only now it is known for which consumers they are

    def _restore(self, cursor: Cursor) -> None:
        """Treat messages that a consumer had nacked before the subscription was opened."""
        found, due_ms = cursor.take_restored()
        if found:
            for state in (MessageState.READY, MessageState.DELAYED):
                self._set_dead_aside(cursor.window.in_state(state))
        if due_ms is not None:
            self._schedule(due_ms)

    # Acknowledging

    def ack_held(self, consumer: ConnectedConsumer, ranges: Ranges) -> None:
        """Acknowledge the messages of these ranges that a consumer has. A consumer that has ended has none."""
        if consumer.ended is None:
            self._acknowledge(self.cursor.window.held_in(ranges, consumer.number))

    def ack_up_to(self, consumer: ConnectedConsumer, offset: int, place: str) -> None:
        """Acknowledge a message and all before it, as far as the consumer got them."""
        if not self.options.type.acks_cumulatively:
            raise InvalidRequestError(
                f"a {self.options.type.value} subscription has no cumulative acknowledgement",
                operation="ack",
                place=place,
                remedy="acknowledge the messages themselves",
            )
        if consumer.ended is None:
            window = self.cursor.window
            below = as_ranges([(window.floor, min(offset + 1, consumer.delivered_end))], operation="ack")
            self._acknowledge(window.open_in(below))

    def nack(self, consumer: ConnectedConsumer, ranges: Ranges, delay_ms: int) -> None:
        if consumer.ended is None:
            due_ms = round_up(self._now_ms() + delay_ms) if delay_ms else None
            self._take_back(self.cursor.window.held_in(ranges, consumer.number), failed=True, due_ms=due_ms)

    def acknowledge(self, ranges: Ranges) -> None:
        """Acknowledge messages, whichever consumer has them, also those that were not read yet."""
        if self._cursor is not None:
            self._cursor.acknowledge_ahead(ranges)
            self._acknowledge(self._cursor.window.open_in(ranges))
        else:
            progress = self._record.progress.acknowledge(ranges, self._limits.max_unacknowledged_messages)
            self._record = replace(self._record, progress=progress)
        self._changed()

    def _acknowledge(self, rows: Rows) -> None:
        if not len(rows):
            return
        window = self.cursor.window
        moved = self._release_slots(window.delivered_of(rows))
        window.put_acknowledged(rows)
        if window.settle():
            self._floor_moved()
        self._changed()
        if moved:
            self._scan_again()

    def _floor_moved(self) -> None:
        self._changed()
        if self._at_limit:
            self._at_limit = False
            self._ask().wake_all = True

    def _take_back(self, rows: Rows, *, failed: bool, due_ms: int | None = None) -> None:
        """Have delivered messages come again, at once or when they are due; set those aside that failed too often."""
        if not len(rows):
            return
        moved = self._release_slots(rows)
        self.cursor.window.take_back(rows, failed=failed, due_ms=due_ms)
        self._changed()
        if failed:
            rows = self._set_dead_aside(rows)
        if moved:
            self._scan_again()
        if due_ms is None:
            self._came_ready(rows)
        elif len(rows):
            self._schedule(due_ms)

    def _release_slots(self, rows: Rows) -> bool:
        """Count messages as no longer with their consumer; return whether a key slot got another owner by that."""
        return self._mode.by_key and len(rows) > 0 and self._mode.settled(self.cursor.window.slots(rows))

    def _came_ready(self, rows: Rows) -> None:
        """Messages that were delivered before can be delivered again."""
        if len(rows):
            first = int(self.cursor.window.offsets(rows[:1])[0])
            for consumer in self._consumers.values():
                consumer.scan_from = min(consumer.scan_from, first)
            self._ask().wake_all = True

    # Time

    def schedule_timeout(self, consumer: ConnectedConsumer) -> None:
        if consumer.timeout_ms:
            self._schedule(consumer.deadline_ms)

    def silent_consumers(self, now_ms: int) -> Iterable[ConnectedConsumer]:
        return [one for one in self._consumers.values() if one.timeout_ms and one.deadline_ms <= now_ms]

    def expire(self, now_ms: int) -> int | None:
        """Have messages come again that are due; return when to call next."""
        following = [consumer.deadline_ms for consumer in self._consumers.values() if consumer.timeout_ms]
        if self._cursor is not None:
            window = self._cursor.window
            overdue, delayed, due_ms = window.due(now_ms)
            window.wake(delayed)
            self._came_ready(delayed)
            self._take_back(overdue, failed=True)
            if due_ms is not None:
                following.append(due_ms)
        return min(following, default=None)

    # Dead letters

    def _set_dead_aside(self, rows: Rows) -> Rows:
        """Set those aside that failed too often; return the others."""
        most = self.options.max_redeliveries
        if most is None or not len(rows):
            return rows
        window = self.cursor.window
        dead = window.failures(rows) > most
        if dead.any():
            window.put_dead(rows[dead])
            self._ask().store_dead_letters = True
        return rows[~dead]

    def dead_offsets(self) -> Offsets:
        """Return messages that wait to be stored as dead letters, a bounded number of them."""
        if self._cursor is None:
            return np.empty(0, np.int64)
        window = self._cursor.window
        return window.offsets(window.in_state(MessageState.DEAD)[:_MAX_DEAD_AT_ONCE])

    def redelivery_counts(self, offsets: Offsets) -> Offsets:
        """Return how often these dead messages were delivered again."""
        window = self._cursor.window if self._cursor is not None else None
        if window is None or int(offsets[0]) < window.floor or int(offsets[-1]) >= window.end:
            return np.zeros(len(offsets), np.int64)
        counts = window.redeliveries(window.rows(offsets))
        # The window has counted the delivery that does not take place.
        return np.zeros(len(offsets), np.int64) if counts is None else np.maximum(counts.astype(np.int64) - 1, 0)

    def dead_letters_stored(self, ranges: Ranges, count: int) -> None:
        self._record = replace(self._record, dead_letters=self._record.dead_letters + count)
        self.acknowledge(ranges)

    # Figures

    def consumer_stats(self) -> tuple[ConsumerDescription, ...]:
        if self._cursor is None or not self._consumers:
            return ()
        held = self._cursor.window.held_counts(max(self._consumers) + 1)
        return tuple(
            ConsumerDescription(
                name=consumer.name,
                connected_us=consumer.connected_us,
                unacknowledged=held[number],
                credit_messages=max(0, consumer.credit.messages),
                is_active=self._mode.is_active(number),
            )
            for number, consumer in self._consumers.items()
        )
