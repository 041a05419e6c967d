"""A stream that publishes: batches and lone messages come in, an acknowledgement goes out for each.

The thread that receives a batch which the client waits for makes it durable and acknowledges it, unless another thread
is busy with the topic's log: there is no hand-over. Otherwise it goes back to reading, and the thread that commits the
batch acknowledges it. A client that does not read its acknowledgements could block that thread. So a stream with many
acknowledgements that may be unread sends them through a queue with a thread of its own. If too many wait in the queue,
no more batches are read from the stream.
"""

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from time import perf_counter
from typing import Any, Protocol

import msgspec
import pyarrow as pa
import structlog

from icestream.model.callers import Caller
from icestream.model.enums import AckLevel
from icestream.model.errors import IcestreamError, InvalidRequestError
from icestream.model.messages import LoneMessage
from icestream.protocol.publish import PublishAck, PublishPart, PublishRequest, parse_publish, split_lone_message
from icestream.storage import IcebergStorage, PublishItem, Topic
from icestream.wal import Append

_OPERATION = "publish"
_MAX_WAITING_ACKS = 1000
_GONE_CHECK_SECONDS = 1.0
_MAX_UNSEEN_ACKS = 64
"""So many acknowledgements fit into the buffers between broker and client, even if nobody reads them."""
_log = structlog.get_logger(__name__)


class PublishMetrics(Protocol):
    def published(self, messages: int, nbytes: int, seconds: float) -> None: ...

    def refused(self, code: str) -> None: ...

    def duplicate(self) -> None: ...


SendAck = Callable[[bytes], None]
"""Sends an acknowledgement, as JSON. Raises OSError or ArrowException if the client is gone."""

_encode = msgspec.json.Encoder().encode


class PublishStream:
    def __init__(self, storage: IcebergStorage, send: SendAck, metrics: PublishMetrics, caller: Caller) -> None:
        self._storage = storage
        self._caller = caller
        self._metrics = metrics
        self._acks = AckWriter(send)
        self._received = 0
        self._seen = 0

    def receive(self, batch: pa.RecordBatch | None, metadata: bytes | memoryview) -> None:
        """Publish a batch, or the message in the metadata. An error is its acknowledgement; the stream stays."""
        number = self._received
        self._received += 1
        self._acks.expect(through_queue=number - self._seen > _MAX_UNSEEN_ACKS)
        request: PublishRequest | None = None
        try:
            if batch is None:
                text, body = split_lone_message(metadata)
                batch, request = LoneMessage(bytes(body)), parse_publish(text)
            else:
                request = parse_publish(metadata)
            self._seen = request.seen
            number = number if request.id is None else request.id
            if request.parts is None:
                self._publish(request, number, batch)
            else:
                self._publish_parts(request, request.parts, batch)
        except IcestreamError as error:
            self._refuse_all(request, number, error)
        except Exception as error:  # noqa: BLE001 - the client waits for an outcome, whatever the error is
            _log.exception("publish_failed", topic=None if request is None else request.topic)
            self._refuse_all(request, number, IcestreamError(f"internal error: {error!r}", operation=_OPERATION))

    def finish(self, is_gone: Callable[[], bool]) -> None:
        """Return once everything is acknowledged, or the client is gone. Called when the client sends no more."""
        self._acks.finish(is_gone)

    def _topic(self, request: PublishRequest) -> Topic:
        name = self._caller.check_topic(request.topic, operation=_OPERATION)
        return self._storage.topic(name, create=True)

    def _publish(self, request: PublishRequest, number: int, batch: pa.RecordBatch | LoneMessage) -> None:
        started, count = perf_counter(), batch.num_rows
        topic = self._topic(request)
        level = AckLevel.parse(request.ack, operation="publish") if request.ack is not None else topic.default_ack

        in_table = level is AckLevel.TABLE

        def acknowledge(append: Append) -> None:
            if append.error is None:
                snapshot_id = topic.committed.snapshot_id if in_table else None
                self._acks.send(_ack_of(number, append, count, snapshot_id))
                # Counted once the producer has its acknowledgement, which it waits for.
                self._count(append, count, started)
            else:
                self._refuse(number, append.error)

        if in_table:  # many are acknowledged at once, by the thread that all topics share
            self._acks.use_queue()
        self._storage.publishing.submit(
            topic,
            PublishItem(batch, acknowledge, request.producer, request.sequence or 0, request.session),
            level=level,
            inline=not request.more and level is not AckLevel.MEMORY,
        )

    def _publish_parts(
        self, request: PublishRequest, parts: list[PublishPart], batch: pa.RecordBatch | LoneMessage
    ) -> None:
        """Commit together what several producers sent together; acknowledge it by one message."""
        shares = _bodies(parts, batch.body) if isinstance(batch, LoneMessage) else _slices(parts, batch)
        started = perf_counter()
        topic = self._topic(request)
        level = AckLevel.parse(request.ack, operation="publish") if request.ack is not None else topic.default_ack
        in_table = level is AckLevel.TABLE
        if in_table:
            self._acks.use_queue()
        combined = _CombinedAck(len(parts), self._acks.send)

        def acknowledge(part: PublishPart, append: Append) -> None:
            if append.error is None:
                snapshot_id = topic.committed.snapshot_id if in_table else None
                combined.add(_ack_of(part.id, append, part.count, snapshot_id))
                self._count(append, part.count, started)
            else:
                self._metrics.refused(append.error.code)
                combined.add({"id": part.id, "error": append.error.to_dict()})

        published = [
            PublishItem(share, partial(acknowledge, part), part.producer, part.sequence or 0, part.session)
            for part, share in zip(parts, shares, strict=True)
        ]
        self._storage.publishing.submit_all(topic, published, level=level, inline=not request.more)

    def _count(self, append: Append, count: int, started: float) -> None:
        self._metrics.published(count, append.nbytes, perf_counter() - started)
        if append.duplicate:
            self._metrics.duplicate()

    def _refuse_all(self, request: PublishRequest | None, number: int, error: IcestreamError) -> None:
        if request is not None and request.parts:
            self._refuse_parts(request.parts, error)
        else:
            self._refuse(number, error)

    def _refuse_parts(self, parts: list[PublishPart], error: IcestreamError) -> None:
        """Refuse what several producers sent together, before any of it is accepted."""
        for _ in parts:
            self._metrics.refused(error.code)
        self._acks.send({"answers": [{"id": part.id, "error": error.to_dict()} for part in parts]})

    def _refuse(self, number: int, error: IcestreamError) -> None:
        self._metrics.refused(error.code)
        self._acks.send({"id": number, "error": error.to_dict()})


def _slices(parts: list[PublishPart], batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    if not parts or min(part.count for part in parts) < 1 or sum(part.count for part in parts) != batch.num_rows:
        raise InvalidRequestError(
            f"the parts do not make up the batch's {batch.num_rows} messages", operation=_OPERATION
        )
    ends = accumulate(part.count for part in parts)
    return [batch.slice(end - part.count, part.count) for part, end in zip(parts, ends, strict=True)]


def _bodies(parts: list[PublishPart], bodies: bytes) -> list[LoneMessage]:
    sizes = [part.nbytes if part.nbytes is not None and part.count == 1 else -1 for part in parts]
    if not sizes or min(sizes) < 0 or sum(sizes) != len(bodies):
        raise InvalidRequestError(f"the parts do not make up {len(bodies)} bytes, a message each", operation=_OPERATION)
    ends = accumulate(sizes)
    return [LoneMessage(bodies[end - size : end]) for size, end in zip(sizes, ends, strict=True)]


class _CombinedAck:
    """Collects the acknowledgements of producers that share a batch, and sends them as one message."""

    def __init__(self, count: int, send: Callable[[Any], None]) -> None:
        self._lock = threading.Lock()
        self._missing = count
        self._send = send
        self._acks: list[Any] = []

    def add(self, ack: Any) -> None:
        with self._lock:
            self._acks.append(ack)
            self._missing -= 1
            if self._missing:
                return
        self._send({"answers": self._acks})


def _ack_of(number: int, append: Append, count: int, snapshot_id: int | None) -> PublishAck:
    return PublishAck(number, append.base_offset, count, append.publish_time_us, append.duplicate, snapshot_id)


class AckWriter:
    """Writes acknowledgements: directly, or through a queue once the client may have left many unread."""

    def __init__(self, send: SendAck) -> None:
        self._send_ack = send
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._queue: deque[Any] = deque()
        self._expected = 0
        self._finishing = False
        self._broken = False
        self._thread: threading.Thread | None = None

    def expect(self, *, through_queue: bool) -> None:
        """Announce an acknowledgement that any thread will send. Wait while too many are unread."""
        if through_queue:
            self.use_queue()
        with self._lock:
            if self._queue:
                self._changed.wait_for(lambda: self._broken or len(self._queue) < _MAX_WAITING_ACKS)
            self._expected += 1

    def use_queue(self) -> None:
        """Write in a thread of its own from now on."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="acks", daemon=True)
                self._thread.start()

    def send(self, ack: Any) -> None:
        with self._lock:
            self._expected -= 1
            if self._broken:
                self._changed.notify_all()
                return
            if self._thread is None:
                self._write(ack)
            else:
                self._queue.append(ack)
            if self._finishing or self._thread is not None:
                self._changed.notify_all()

    def finish(self, is_gone: Callable[[], bool]) -> None:
        with self._lock:
            self._finishing = True
            self._changed.notify_all()
            while self._expected and not is_gone():
                self._changed.wait(_GONE_CHECK_SECONDS)
            if self._expected:
                # Nobody reads the acknowledgements that are still to come, perhaps much later: from the table.
                self._broken = True
                self._queue.clear()
                self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._changed.wait_for(
                    lambda: self._queue or (self._finishing and (self._broken or not self._expected))
                )
                if not self._queue:
                    return
                acks, self._queue = self._queue, deque()
                self._changed.notify_all()
            for ack in acks:
                self._write(ack)

    def _write(self, ack: Any) -> None:
        if self._broken:
            return
        try:
            self._send_ack(_encode(ack))
        except (pa.ArrowException, OSError) as error:
            self._broken = True  # the client is gone; it sends again what was not acknowledged, and is recognised
            _log.debug("publish_ack_not_delivered", error=str(error))
