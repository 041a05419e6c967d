"""One DoPut stream: batches come in, an answer goes out for each.

A batch that the client waits for is committed by the thread that received it, and answered by it too: no hand-over.
Batches of a client that sends on (`more`) are committed by the storage's pool; their answers pass through a queue with
a thread of its own, so that a client which does not read its answers cannot hold up anybody's commit. When too many
answers wait to be read, no more batches are taken from that client.
"""

import threading
from collections import deque
from time import perf_counter
from typing import Any, Protocol

import msgspec
import pyarrow as pa
import structlog
from msgspec import Struct

from icestream.model.errors import IcestreamError, InvalidRequestError
from icestream.storage import AckLevel, IcebergStorage, Topic
from icestream.wal import Append

_OPERATION = "publish"
_MAX_WAITING_ANSWERS = 1000
_log = structlog.get_logger(__name__)


class PublishMetrics(Protocol):
    def published(self, messages: int, nbytes: int, seconds: float) -> None: ...

    def refused(self, code: str) -> None: ...

    def duplicate(self) -> None: ...


class MetadataWriter(Protocol):
    def write(self, buffer: Any) -> None: ...


class PublishRequest(Struct, forbid_unknown_fields=True):
    """The application metadata of a batch."""

    topic: str
    producer: str = ""
    sequence: int | None = None
    ack: str | None = None
    more: bool = False
    id: int | None = None


_decode = msgspec.json.Decoder(PublishRequest).decode
_encode = msgspec.json.Encoder().encode


def parse_request(metadata: Any) -> PublishRequest:
    try:
        request = _decode(metadata)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(
            str(error),
            operation=_OPERATION,
            remedy=f"the application metadata is a JSON object of {', '.join(PublishRequest.__struct_fields__)}",
        ) from error
    if request.producer and request.sequence is None:
        raise InvalidRequestError("a named producer must number its batches: sequence is missing", operation=_OPERATION)
    return request


class PublishStream:
    def __init__(self, storage: IcebergStorage, writer: MetadataWriter, metrics: PublishMetrics) -> None:
        self._storage = storage
        self._metrics = metrics
        self._answers = Answers(writer)
        self._received = 0

    def receive(self, batch: pa.RecordBatch, metadata: bytes) -> None:
        """Publish one batch; whatever goes wrong with it is its answer, and the stream goes on."""
        number = self._received
        self._received += 1
        try:
            request = parse_request(metadata)
            number = number if request.id is None else request.id
            self._publish(request, number, batch)
        except IcestreamError as error:
            self._refuse(number, error)

    def finish(self) -> None:
        """Called when the client sends no more: returns once everything is answered."""
        self._answers.finish()

    def _publish(self, request: PublishRequest, number: int, batch: pa.RecordBatch) -> None:
        started = perf_counter()
        topic = self._storage.topic(request.topic, create=True)
        level = AckLevel.parse(request.ack) if request.ack is not None else topic.default_ack
        if request.more and level is not AckLevel.MEMORY:
            self._publish_in_background(topic, request, number, batch)
            return
        append = self._storage.publish(
            topic,
            batch,
            producer=request.producer,
            sequence=request.sequence or 0,
            background=level is AckLevel.MEMORY,
        )
        self._confirm(number, append, batch.num_rows, started)

    def _publish_in_background(self, topic: Topic, request: PublishRequest, number: int, batch: pa.RecordBatch) -> None:
        started, count = perf_counter(), batch.num_rows

        def answer(append: Append) -> None:
            if append.error is None:
                self._confirm(number, append, count, started)
            else:
                self._refuse(number, append.error)
            self._answers.expect(-1)

        self._answers.expect(1)
        try:
            self._storage.publish(
                topic, batch, producer=request.producer, sequence=request.sequence or 0, background=True, answer=answer
            )
        except IcestreamError:
            self._answers.expect(-1)
            raise

    def _confirm(self, number: int, append: Append, count: int, started: float) -> None:
        answer: dict[str, Any] = {
            "id": number,
            "base_offset": append.base_offset,
            "count": count,
            "publish_time_us": append.publish_time_us,
        }
        if append.duplicate:
            answer["duplicate"] = True
        self._answers.send(answer)
        # Counted once the producer has its answer, which it waits for.
        self._metrics.published(count, append.nbytes, perf_counter() - started)
        if append.duplicate:
            self._metrics.duplicate()

    def _refuse(self, number: int, error: IcestreamError) -> None:
        self._metrics.refused(error.code)
        self._answers.send({"id": number, "error": error.to_dict()})


class Answers:
    """Writes answers in order: directly while nothing is committed in the background, else through a queue."""

    def __init__(self, writer: MetadataWriter) -> None:
        self._writer = writer
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._queue: deque[dict[str, Any]] = deque()
        self._expected = 0
        self._finishing = False
        self._writing = False
        self._broken = False
        self._thread: threading.Thread | None = None

    def expect(self, change: int) -> None:
        """Count the answers that will come from other threads; waits while too many were not read."""
        with self._lock:
            if change > 0:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="answers", daemon=True)
                    self._thread.start()
                self._changed.wait_for(lambda: self._broken or len(self._queue) < _MAX_WAITING_ANSWERS)
            self._expected += change
            self._changed.notify_all()

    def send(self, answer: dict[str, Any]) -> None:
        with self._lock:
            if self._expected or self._queue or self._writing:
                self._queue.append(answer)
                self._changed.notify_all()
            else:
                self._write(answer)

    def finish(self) -> None:
        with self._lock:
            self._finishing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._writing = False
                self._changed.wait_for(lambda: self._queue or (self._finishing and not self._expected))
                if not self._queue:
                    return
                self._writing = True
                answers, self._queue = self._queue, deque()
                self._changed.notify_all()
            for answer in answers:
                self._write(answer)

    def _write(self, answer: dict[str, Any]) -> None:
        if self._broken:
            return
        try:
            self._writer.write(pa.py_buffer(_encode(answer)))
        except (pa.ArrowException, OSError) as error:
            self._broken = True  # the client is gone; it will send again what was not answered, and be recognised
            _log.debug("an answer could not be delivered", error=str(error))
