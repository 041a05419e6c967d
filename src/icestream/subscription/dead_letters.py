"""Dead letters: messages that failed too often go to another topic, and are acknowledged once they are durable there.

A separate thread does that, started with the first such message: neither consumers nor timers wait for it. If the
broker is killed in between, a message can be in the dead-letter topic twice. It is never lost.
"""

import threading
from collections.abc import Callable
from time import monotonic
from typing import Protocol

import numpy as np
import pyarrow as pa
import structlog

from icestream.model.messages import ATTRIBUTES, ENVELOPE_COLUMNS, OFFSET, STREAM_SCHEMA
from icestream.model.names import TopicName
from icestream.subscription.cursor import SubscriptionSource
from icestream.subscription.options import SubscriptionOptions
from icestream.subscription.progress import Offsets, Ranges, as_ranges, ranges_where

_log = structlog.get_logger(__name__)
_READ_BYTES = 1 << 20
_RETRY_SECONDS = 5.0

ORIGIN_COLUMNS = (
    pa.field("origin_topic", pa.string()),
    pa.field("origin_offset", pa.int64()),
    pa.field("origin_subscription", pa.string()),
    pa.field("origin_redelivery_count", pa.int32()),
)
"""Where a dead letter comes from: attributes `icestream.origin_topic` … of a plain message, columns of another."""


PublishDeadLetters = Callable[[TopicName, TopicName, pa.RecordBatch], None]
"""Store a batch from `dead_letter_batch` in a topic, which is made if it is missing; the second name is the origin's.

Returns when the batch is durable."""


class DeadLetterOrigin(Protocol):
    """What dead letters need of a subscription."""

    @property
    def topic(self) -> TopicName: ...

    @property
    def name(self) -> str: ...

    @property
    def place(self) -> str:
        """For errors."""

    @property
    def options(self) -> SubscriptionOptions: ...

    @property
    def source(self) -> SubscriptionSource: ...

    def dead_offsets(self) -> Offsets: ...

    def redelivery_counts(self, offsets: Offsets, /) -> Offsets: ...

    def dead_letters_stored(self, ranges: Ranges, count: int, /) -> None: ...


class DeadLetters:
    def __init__(self, publish: PublishDeadLetters, *, background: bool) -> None:
        self._publish = publish
        self._background = background
        self._changed = threading.Condition()
        self._waiting: dict[DeadLetterOrigin, float] = {}
        """With the time of the next try."""
        self._stopping = False
        self._thread: threading.Thread | None = None

    def expect(self, subscription: DeadLetterOrigin) -> None:
        with self._changed:
            self._waiting.setdefault(subscription, 0.0)
            if self._background and self._thread is None and not self._stopping:
                self._thread = threading.Thread(target=self._run, name="dead-letters", daemon=True)
                self._thread.start()
            self._changed.notify()

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def tick(self) -> None:
        """Store all dead letters that can be stored now."""
        while (subscription := self._take()) is not None:
            self._store_all(subscription)

    def _take(self) -> DeadLetterOrigin | None:
        with self._changed:
            now = monotonic()
            for subscription, earliest in self._waiting.items():
                if earliest <= now:
                    del self._waiting[subscription]
                    return subscription
        return None

    def _run(self) -> None:
        while True:
            self.tick()
            with self._changed:
                if self._stopping:
                    return
                earliest = min(self._waiting.values(), default=None)
                self._changed.wait(None if earliest is None else max(0.0, earliest - monotonic()))

    def _store_all(self, subscription: DeadLetterOrigin) -> None:
        try:
            while len(offsets := subscription.dead_offsets()) and not self._stopping:
                self._move(subscription, offsets)
        except Exception as error:  # noqa: BLE001 - the thread serves all subscriptions: nothing may end it
            _log.warning("dead_letters_store_failed", subscription=subscription.place, error=repr(error))
            with self._changed:
                self._waiting[subscription] = monotonic() + _RETRY_SECONDS

    def _move(self, subscription: DeadLetterOrigin, offsets: Offsets) -> None:
        """Read the first of these messages, store them, acknowledge them."""
        topic = subscription.options.dead_letters_of(subscription.topic, subscription.name)
        if topic is None:
            return  # the options have changed, and these messages are delivered again
        first = int(offsets[0])
        reader = subscription.source.reader(first)
        try:
            batches = reader.read(_READ_BYTES)
            end = reader.offset
        finally:
            reader.close()
        found = offsets[offsets < end]
        moved = 0
        for batch in batches:
            rows_found = np.flatnonzero(np.isin(batch.column(OFFSET).to_numpy(), found, assume_unique=True))
            if len(rows_found):
                counts = subscription.redelivery_counts(batch.column(OFFSET).to_numpy()[rows_found])
                rows = batch.take(pa.array(rows_found))
                self._publish(
                    topic, subscription.topic, dead_letter_batch(rows, subscription.topic, subscription.name, counts)
                )
                moved += len(rows_found)
        done = ranges_where(np.isin(np.arange(first, end), found), first)
        subscription.dead_letters_stored(as_ranges(done.tolist(), operation="dead letters"), moved)


def dead_letter_batch(rows: pa.RecordBatch, topic: TopicName, subscription: str, counts: Offsets) -> pa.RecordBatch:
    """Return messages as they are published again: without the envelope, with their origin."""
    count = rows.num_rows
    origin = [
        pa.array([str(topic)] * count, pa.string()),
        rows.column(OFFSET),
        pa.array([subscription] * count, pa.string()),
        pa.array(counts.astype(np.int32)),
    ]
    body = rows.select(range(ENVELOPE_COLUMNS, rows.num_columns))
    if not rows.schema.equals(STREAM_SCHEMA):
        taken = set(body.schema.names)
        extra = [
            (field, column) for field, column in zip(ORIGIN_COLUMNS, origin, strict=True) if field.name not in taken
        ]
        return pa.RecordBatch.from_arrays(
            [*body.columns, *(column for _, column in extra)], schema=pa.schema([*body.schema, *(f for f, _ in extra)])
        )
    names = [f"icestream.{field.name}" for field in ORIGIN_COLUMNS]
    texts = zip(*(column.cast(pa.string()).to_pylist() for column in origin), strict=True)
    index = body.schema.get_field_index(ATTRIBUTES)
    attributes = [
        [*(pair for pair in (before or []) if pair[0] not in names), *zip(names, values, strict=True)]
        for before, values in zip(body.column(index).to_pylist(), texts, strict=True)
    ]
    field = body.schema.field(index)
    return body.set_column(index, field, pa.array(attributes, field.type))
