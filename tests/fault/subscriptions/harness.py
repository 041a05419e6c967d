"""Consumer processes, what they wrote down, and what must be true of it."""

import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from icestream import Client
from icestream.broker_process import BrokerProcess
from icestream.client import BatchReceipt

PATIENCE_SECONDS = 120.0
TOPIC = "fault/messages"
SUBSCRIPTION = "s"
KEYS = 13
SCRIPT = Path(__file__).with_name("consumer.py")


class Line(NamedTuple):
    """One delivery, as a consumer wrote it down."""

    time_ns: int
    """Of the machine's clock, which all processes share."""
    offset: int
    key: bytes
    number: int
    """The message's place among those of its key."""


class ConsumerProcess:
    def __init__(self, broker: BrokerProcess, kind: str, log: Path, seed: str, subscription: str) -> None:
        self._log = log
        self.name = log.stem
        arguments = [broker.flight, TOPIC, subscription, kind, log.stem, str(log), seed]
        self._process = subprocess.Popen([sys.executable, str(SCRIPT), *arguments])

    def lines(self) -> list[Line]:
        if not self._log.exists():
            return []
        *whole, _begun = self._log.read_bytes().split(b"\n")
        found = []
        for line in whole:
            time_ns, offset, payload = line.split(b" ")
            key, number = payload.split(b":")
            found.append(Line(int(time_ns), int(offset), key, int(number)))
        return found

    def count(self) -> int:
        return self._log.read_bytes().count(b"\n") if self._log.exists() else 0

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def check(self) -> None:
        assert self._process.poll() is None, "a consumer has ended by itself"


class Consumers:
    """Some consumers of one subscription, those that were killed included."""

    def __init__(self, broker: BrokerProcess, kind: str, folder: Path, seed: int, name: str = SUBSCRIPTION) -> None:
        self.name = name
        self._broker = broker
        self._kind = kind
        self._folder = folder
        self._seed = seed
        self._all: list[ConsumerProcess] = []
        self.alive: list[ConsumerProcess] = []

    def start(self) -> ConsumerProcess:
        number = len(self._all)
        log = self._folder / f"{self.name}-{number}.log"
        made = ConsumerProcess(self._broker, self._kind, log, f"{self._seed} {number}", self.name)
        self._all.append(made)
        self.alive.append(made)
        return made

    def kill(self, consumer: ConsumerProcess) -> None:
        self.alive.remove(consumer)
        consumer.kill()

    def lines(self) -> list[Line]:
        return sorted(line for consumer in self._all for line in consumer.lines())

    def count(self) -> int:
        return sum(consumer.count() for consumer in self._all)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            for consumer in self.alive:
                consumer.check()
            assert time.monotonic() < deadline, f"{self.count()} deliveries, and no more came"
            time.sleep(0.02)

    def wait_for_more(self, count: int) -> None:
        """Wait for so many more deliveries."""
        target = self.count() + count
        self.wait_until(lambda: self.count() >= target)

    def wait_for_more_of(self, consumer: ConsumerProcess) -> None:
        before = consumer.count()
        self.wait_until(lambda: consumer.count() > before)

    def wait_until_gone(self, client: Client, consumer: ConsumerProcess) -> None:
        """Wait until the broker has found a consumer silent."""

        def gone() -> bool:
            connected = client.describe_subscription(TOPIC, self.name).consumers
            return consumer.name not in {found.name for found in connected}

        self.wait_until(gone)

    def wait_for_all(self, client: Client) -> None:
        """Wait until everything that was published is acknowledged."""

        def done() -> bool:
            found = client.describe_subscription(TOPIC, self.name)
            return found.floor_offset == found.durable_end and found.acknowledged_ranges == 0

        self.wait_until(done)

    def end(self) -> None:
        for consumer in self.alive:
            consumer.thaw()
            consumer.kill()


@contextmanager
def publishing(client: Client, seed: int) -> Iterator[list[int]]:
    """Messages of some keys, published until the end of the block; the list then has their number."""
    stop = threading.Event()
    published = [0]

    def publish() -> None:
        rng = random.Random(f"{seed} producer")
        numbers: dict[int, int] = defaultdict(int)
        receipts: list[BatchReceipt] = []
        with client.producer(TOPIC, retry_timeout=PATIENCE_SECONDS, block_timeout=PATIENCE_SECONDS) as producer:
            while not stop.wait(rng.random() * 0.05):
                keys = [rng.randrange(KEYS) for _ in range(rng.randint(1, 30))]
                payloads = []
                for key in keys:
                    payloads.append(b"k%d:%d" % (key, numbers[key]))
                    numbers[key] += 1
                batch = pa.table({"key": [b"k%d" % key for key in keys], "payload": payloads})
                receipts.append(producer.send_batch(batch))
                published[0] += len(keys)
            for receipt in receipts:
                receipt.result(PATIENCE_SECONDS)

    thread = threading.Thread(target=publish, name="publish")
    thread.start()
    try:
        yield published
    finally:
        stop.set()
        thread.join()


def check(kind: str, lines: list[Line], published: int) -> None:
    """At least once, in the order that the type promises."""
    assert {line.offset for line in lines} == set(range(published)), "a message was lost"
    if kind in {"exclusive", "failover"}:
        highest = -1
        for line in lines:
            assert line.offset <= highest + 1, f"offset {line.offset} came after {highest}"
            highest = max(highest, line.offset)
    if kind == "key-shared":
        highest_of: dict[bytes, int] = defaultdict(lambda: -1)
        for line in lines:
            highest = highest_of[line.key]
            assert line.number <= highest + 1, f"{line.key!r}: message {line.number} came after {highest}"
            highest_of[line.key] = max(highest, line.number)
