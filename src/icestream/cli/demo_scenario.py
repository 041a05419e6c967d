"""What `icestream demo` runs: publish, consume live, kill the broker, continue, replay, read the table, verify."""

import contextlib
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from zlib import crc32

import pyarrow as pa

from icestream.broker_process import BrokerProcess
from icestream.client import Client, Producer, Receipt
from icestream.config import Settings
from icestream.model.errors import DeadlineError, IcestreamError
from icestream.model.messages import message_batch
from icestream.model.names import TopicName
from icestream.table import Tables

PAYLOAD_BYTES = 250
_NUMBER = b"%012d "
_NUMBER_BYTES = 13
_filler = random.Random(1).randbytes(64 * 1024).hex().encode()  # noqa: S311 - the same in every run


def payload(index: int) -> bytes:
    """Return the payload of message `index`: its number, and text that differs from its neighbours'."""
    start = index * 31 % (len(_filler) - PAYLOAD_BYTES)
    return _NUMBER % index + _filler[start : start + PAYLOAD_BYTES - _NUMBER_BYTES]


class Tally:
    """Counts messages, checks their order, and computes a checksum of their payloads."""

    def __init__(self) -> None:
        self.count = 0
        self.checksum = 0
        self.in_order = True

    def add(self, payloads: list[bytes]) -> None:
        self.checksum = crc32(b"".join(payloads), self.checksum)
        self.count += len(payloads)

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Add a batch of a consumer."""
        offsets = batch.column("offset")
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        self.in_order &= first == self.count and last - first + 1 == batch.num_rows
        self.add(batch.column("payload").to_pylist())


ProgressReport = Callable[[str, int], None]
"""Called with a step (`publish`, `live`, `replay`, `table`) and the number of messages it has done."""

BATCH_MESSAGES = 2_000
_TOPIC = "default/demo"
_WARM_UP_TOPIC = "demo/warm-up"
_MAX_SINGLES = 1_000
_LIVE_TIMEOUT_SECONDS = 30.0
_TABLE_TIMEOUT_SECONDS = 120.0
_TABLE_WAIT_SECONDS = 0.2


@dataclass(frozen=True)
class Check:
    what: str
    expected: Any
    found: Any

    @property
    def ok(self) -> bool:
        return bool(self.expected == self.found)


@dataclass
class DemoFigures:
    topic: str
    messages: int
    ack_s: list[float] = field(default_factory=list)
    live_s: list[float] = field(default_factory=list)
    batch_rate: float = 0.0
    send_rate: float = 0.0
    replay_rate: float = 0.0
    unacknowledged_at_kill: int = 0
    restart_s: float = 0.0
    table_s: float = 0.0
    """From the last acknowledgement until the table had all messages."""
    table_rate: float = 0.0
    table_files: int = 0
    snapshot_id: int = 0
    checks: list[Check] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)


class LiveConsumer(threading.Thread):
    """Follows the topic from its beginning in a thread."""

    def __init__(self, client: Client, topic: str, messages: int, progress: ProgressReport) -> None:
        super().__init__(name="demo-live", daemon=True)
        self.tally = Tally()
        self.arrivals: list[float] = []
        """When each message arrived."""
        self._consumer = client.consume(topic, follow=True, max_messages=messages)
        self._progress = progress

    def run(self) -> None:
        for batch in self._consumer.batches():
            self.arrivals += [time.perf_counter()] * batch.num_rows
            self.tally.add_batch(batch)
            self._progress("live", self.tally.count)

    def stop(self) -> None:
        self._consumer.close()
        self.join()


class DemoScenario:
    """Publishes single messages, batches, sends, and sends during which the broker is killed; then reads all back."""

    def __init__(self, broker: BrokerProcess, settings: Settings, messages: int, progress: ProgressReport) -> None:
        singles = max(1, min(_MAX_SINGLES, messages // 20))
        sends, crash = messages // 4, messages // 8
        self._bounds = [0, singles, messages - sends - crash, messages - crash, messages]
        self._broker = broker
        self._settings = settings
        self._progress = progress
        self._sent = Tally()
        self._misplaced = 0
        self._published_at = 0.0
        self._figures = DemoFigures(_TOPIC, messages)

    def run(self) -> DemoFigures:
        figures = self._figures
        with Client(self._broker.flight) as client, Client(self._broker.flight) as other:
            self._start_spark(client)
            figures.topic = free_topic(client)
            live = LiveConsumer(other, figures.topic, figures.messages, self._progress)
            live.start()
            try:
                self._publish(client, live)
                live.join(_LIVE_TIMEOUT_SECONDS)
            finally:
                live.stop()
            replayed = self._replay(client)
            self._wait_for_table(client)
        self._verify(live.tally, replayed, self._read_table())
        return figures

    def _start_spark(self, client: Client) -> None:
        """Wait until a first message is in a table, so that the start of the JVM is not measured."""
        with client.producer(_WARM_UP_TOPIC) as producer:
            producer.send(b"hello").wait_committed(_TABLE_TIMEOUT_SECONDS)
        client.delete_topic(_WARM_UP_TOPIC)

    def _publish(self, client: Client, live: LiveConsumer) -> None:
        ranges = [range(first, end) for first, end in pairwise(self._bounds)]
        with client.producer(self._figures.topic) as producer:
            began = self._singles(producer, ranges[0], live)
        self._figures.live_s = [arrival - start for start, arrival in zip(began, live.arrivals, strict=False)]
        with client.producer(self._figures.topic, linger_ms=2) as producer:
            self._figures.batch_rate = self._batches(producer, ranges[1])
            self._figures.send_rate = self._sends(producer, ranges[2])
            self._crash(producer, ranges[3])
        self._published_at = time.monotonic()

    def _singles(self, producer: Producer, indexes: range, live: LiveConsumer) -> list[float]:
        """Send one at a time, each acknowledged before the next; return when each was sent."""
        began = []
        for index in indexes:
            message = payload(index)
            start = time.perf_counter()
            self._await_offsets([producer.send(message)], index)
            self._figures.ack_s.append(time.perf_counter() - start)
            began.append(start)
            self._count_sent([message])
        deadline = time.monotonic() + _LIVE_TIMEOUT_SECONDS
        while len(live.arrivals) < len(began) and live.is_alive() and time.monotonic() < deadline:
            time.sleep(0.001)
        return began

    def _batches(self, producer: Producer, indexes: range) -> float:
        started = time.perf_counter()
        receipts = []
        for first in range(indexes.start, indexes.stop, BATCH_MESSAGES):
            messages = [payload(index) for index in range(first, min(first + BATCH_MESSAGES, indexes.stop))]
            receipts.append((first, producer.send_batch(message_batch(messages))))
            self._count_sent(messages)
        for first, receipt in receipts:
            expected = first
            for offset, count in receipt.ranges:
                self._misplaced += count if offset != expected else 0
                expected += count
        return len(indexes) / (time.perf_counter() - started)

    def _sends(self, producer: Producer, indexes: range) -> float:
        started = time.perf_counter()
        self._await_offsets(self._send(producer, indexes), indexes.start)
        return len(indexes) / (time.perf_counter() - started)

    def _crash(self, producer: Producer, indexes: range) -> None:
        """Send, kill the broker while messages are in flight, start it again, and send the rest."""
        middle = indexes.start + len(indexes) // 2
        receipts = self._send(producer, range(indexes.start, middle))
        producer.pending()
        self._broker.kill()
        self._figures.unacknowledged_at_kill = sum(not receipt.done() for receipt in receipts)
        started = time.perf_counter()
        self._broker.start()
        self._figures.restart_s = time.perf_counter() - started
        receipts += self._send(producer, range(middle, indexes.stop))
        self._await_offsets(receipts, indexes.start)

    def _send(self, producer: Producer, indexes: range) -> list[Receipt]:
        receipts = []
        for first in range(indexes.start, indexes.stop, BATCH_MESSAGES):
            messages = [payload(index) for index in range(first, min(first + BATCH_MESSAGES, indexes.stop))]
            receipts += [producer.send(message) for message in messages]
            self._count_sent(messages)
        return receipts

    def _await_offsets(self, receipts: list[Receipt], first: int) -> None:
        """Wait for the acknowledgements. There is no other producer, so message n has offset n."""
        for index, receipt in enumerate(receipts, first):
            self._misplaced += receipt.offset != index

    def _count_sent(self, messages: list[bytes]) -> None:
        self._sent.add(messages)
        self._progress("publish", self._sent.count)

    def _replay(self, client: Client) -> Tally:
        replayed = Tally()
        started = time.perf_counter()
        with client.consume(self._figures.topic, 0) as consumer:
            for batch in consumer.batches():
                replayed.add_batch(batch)
                self._progress("replay", replayed.count)
        self._figures.replay_rate = replayed.count / (time.perf_counter() - started)
        return replayed

    def _wait_for_table(self, client: Client) -> None:
        """Wait until Spark has committed all messages; the broker reports the progress."""
        figures, began = self._figures, time.monotonic()
        while time.monotonic() - began < _TABLE_TIMEOUT_SECONDS:
            with contextlib.suppress(DeadlineError):
                snapshot = client.wait_committed(figures.topic, figures.messages - 1, _TABLE_WAIT_SECONDS)
                figures.snapshot_id = snapshot.snapshot_id
                figures.table_s = time.monotonic() - self._published_at
                return
            self._progress("table", client.describe_topic(figures.topic).committed_offset or 0)

    def _read_table(self) -> Tally:
        """Read the table through the catalog, without the broker, as any engine does."""
        figures, found = self._figures, Tally()
        with contextlib.closing(Tables(self._settings)) as tables:
            table = tables.find(TopicName.parse(figures.topic))
            if table is None:
                return found
            figures.table_files = sum(1 for _ in table.iceberg.scan().plan_files())
            started = time.perf_counter()
            for batch in table.scan(0, figures.messages):
                found.add_batch(batch)
                self._progress("table", found.count)
            figures.table_rate = found.count / (time.perf_counter() - started)
        return found

    def _verify(self, live: Tally, replayed: Tally, in_table: Tally) -> None:
        messages = self._figures.messages
        checks = [
            Check("published and acknowledged", messages, self._sent.count),
            Check("acknowledged at a wrong offset", 0, self._misplaced),
        ]
        for who, tally in (("live", live), ("replayed", replayed), ("table", in_table)):
            checks += [
                Check(f"{who}: messages", messages, tally.count),
                Check(f"{who}: in order, no gap, no duplicate", expected=True, found=tally.in_order),
                Check(f"{who}: checksum", f"{self._sent.checksum:08x}", f"{tally.checksum:08x}"),
            ]
        self._figures.checks = checks


def free_topic(client: Client) -> str:
    """Create a new topic. An earlier demo in the same directory may have taken the plain name."""
    taken = {topic.topic for topic in client.list_topics(_TOPIC)}
    names = (_TOPIC if number == 1 else f"{_TOPIC}-{number}" for number in range(1, len(taken) + 2))
    return client.create_topic(next(name for name in names if name not in taken)).topic


def quantile(values: list[float], share: float) -> float:
    """Return the value that `share` of all values do not exceed."""
    if not values:
        raise IcestreamError("nothing was measured", operation="demo")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
