"""Producers and followers that do not mind what becomes of the broker, and tell the oracle."""

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pyarrow as pa

from icestream import Client, aio
from icestream.client import BatchReceipt, Consumer, Receipt
from icestream.testing.history import PATIENCE_SECONDS, HistoryChecker, StoredMessage, rows

BUFFER_BYTES = 128 << 10
OPTIONS = {"retry_timeout": PATIENCE_SECONDS, "block_timeout": PATIENCE_SECONDS, "max_buffer_bytes": BUFFER_BYTES}


class Load:
    """Senders to some topics until `stop` is set; each is a function that runs on a thread of its own."""

    def __init__(self, url: str, oracle: HistoryChecker, topics: tuple[str, ...], seed: int) -> None:
        self._url = url
        self._oracle = oracle
        self._topics = topics
        self._seed = seed
        self._stop = threading.Event()
        self._client = Client(url)
        self._opened = threading.Semaphore(0)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Begins when all have opened their producers; at the end all that was sent is acknowledged, or this raises."""
        senders: list[Callable[[], None]] = [self._send_asynchronously]
        for number, topic in enumerate(self._topics):
            senders += [
                partial(self._send_singly, topic, f"single-{number}", named=True),
                partial(self._send_batches, topic, f"batch-{number}"),
            ]
        senders.append(partial(self._send_singly, self._topics[0], "nameless", named=False))
        with ThreadPoolExecutor(len(senders)) as pool:
            futures: list[Future[None]] = [pool.submit(sender) for sender in senders]
            for future in futures:
                future.add_done_callback(self._ended)
            try:
                for _ in range(len(senders) - 1 + 2 * len(self._topics)):
                    assert self._opened.acquire(timeout=PATIENCE_SECONDS), "not all producers could be opened"
                yield
                self._stop.set()
                for future in futures:
                    future.result(PATIENCE_SECONDS)
            finally:
                self._stop.set()
                self._client.close(0)  # whoever still waits for a dead broker fails now

    def _ended(self, future: "Future[None]") -> None:
        error = future.exception()
        if error is not None:
            self._oracle.failed(error)

    def _filler(self, rng: random.Random) -> bytes:
        return rng.randbytes(rng.choice((0, 20, 100, 100, 300, 3000)))

    def _send_singly(self, topic: str, sender: str, *, named: bool) -> None:
        rng = random.Random(f"{self._seed} {sender}")
        with self._client.producer(
            topic,
            name=sender if named else None,
            retry_timeout=PATIENCE_SECONDS,
            block_timeout=PATIENCE_SECONDS,
            max_buffer_bytes=BUFFER_BYTES,
        ) as producer:
            self._opened.release()
            while not self._stop.is_set():
                receipt: Receipt | None = None
                for _ in range(rng.randint(1, 20)):
                    payload = self._oracle.sending(topic, sender, self._filler(rng))
                    receipt = producer.send(payload, key=payload[:8])
                    receipt.add_done_callback(partial(self._heard, topic, payload))
                assert receipt is not None
                receipt.result(PATIENCE_SECONDS)

    def _heard(self, topic: str, payload: bytes, receipt: Receipt) -> None:
        if receipt.exception() is None:
            self._oracle.acknowledged(topic, receipt.offset, payload)

    def _send_batches(self, topic: str, sender: str) -> None:
        rng = random.Random(f"{self._seed} {sender}")
        with self._client.producer(
            topic,
            name=sender,
            retry_timeout=PATIENCE_SECONDS,
            block_timeout=PATIENCE_SECONDS,
            max_buffer_bytes=BUFFER_BYTES,
        ) as producer:
            self._opened.release()
            sent: list[tuple[BatchReceipt, list[bytes]]] = []
            while not self._stop.is_set() or sent:
                if len(sent) < rng.randint(1, 4) and not self._stop.is_set():
                    payloads = [
                        self._oracle.sending(topic, sender, self._filler(rng)) for _ in range(rng.randint(1, 30))
                    ]
                    sent.append((producer.send_batch(pa.table({"payload": payloads})), payloads))
                    continue
                receipt, payloads = sent.pop(0)
                self._all_acknowledged(topic, receipt.result(PATIENCE_SECONDS), payloads)

    def _all_acknowledged(self, topic: str, first: int, payloads: list[bytes]) -> None:
        for place, payload in enumerate(payloads):
            self._oracle.acknowledged(topic, first + place, payload)

    # The same from one event loop

    def _send_asynchronously(self) -> None:
        asyncio.run(self._asynchronously())

    async def _asynchronously(self) -> None:
        async with aio.Client(self._url) as client, asyncio.TaskGroup() as group:
            for number, topic in enumerate(self._topics):
                group.create_task(self._aio_singly(client, topic, f"aio-single-{number}"))
                group.create_task(self._aio_batches(client, topic, f"aio-batch-{number}"))

    async def _aio_singly(self, client: aio.Client, topic: str, sender: str) -> None:
        rng = random.Random(f"{self._seed} {sender}")
        async with client.producer(topic, name=sender, **OPTIONS) as producer:
            self._opened.release()
            while not self._stop.is_set():
                payloads = [self._oracle.sending(topic, sender, self._filler(rng)) for _ in range(rng.randint(1, 10))]
                receipts = [await producer.send(payload) for payload in payloads]
                for receipt, payload in zip(receipts, payloads, strict=True):
                    self._oracle.acknowledged(topic, await receipt, payload)

    async def _aio_batches(self, client: aio.Client, topic: str, sender: str) -> None:
        rng = random.Random(f"{self._seed} {sender}")
        async with client.producer(topic, name=sender, **OPTIONS) as producer:
            self._opened.release()
            while not self._stop.is_set():
                payloads = [self._oracle.sending(topic, sender, self._filler(rng)) for _ in range(rng.randint(1, 30))]
                receipt = await producer.send_batch(pa.table({"payload": payloads}))
                self._all_acknowledged(topic, await receipt, payloads)


class Follower:
    """Follows a topic on a thread of its own and keeps what it sees."""

    def __init__(self, client: Client, topic: str) -> None:
        self._consumer: Consumer = client.consume(topic, "earliest", follow=True)
        self._changed = threading.Condition()
        self._rows: list[StoredMessage] = []
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._follow, name=f"follow-{topic}", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        try:
            for batch in self._consumer.batches():
                with self._changed:
                    self._rows += rows(batch)
                    self._changed.notify_all()
        except Exception as error:  # noqa: BLE001 - told to whoever asks for the rows
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def rows_up_to(self, end: int) -> list[StoredMessage]:
        """What it saw, once that is at least up to an offset."""
        with self._changed:
            self._changed.wait_for(lambda: self._error or len(self._rows) >= end, PATIENCE_SECONDS)
            if self._error is not None:
                raise self._error
            assert len(self._rows) >= end, f"the follower saw {len(self._rows)} of {end} messages"
            return list(self._rows)

    def close(self) -> None:
        self._consumer.close()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()
