"""A DoExchange stream: a consumer of a subscription. Batches go out; acknowledgements and credit come in.

The thread of the call reads what the consumer sends, a second thread delivers. Flight cannot interrupt a read, and the
call must not return while either thread uses its stream. So when the broker ends a stream (it stops, the topic or the
subscription was deleted, the consumer was silent for too long) it closes the session at once and sends `{"error": …}`.
The client then ends its side, and the call ends with that error as its status.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from secrets import token_hex
from typing import Any

import msgspec
import pyarrow as pa
import structlog
from pyarrow import flight

from icestream.model.callers import Caller
from icestream.model.errors import ClosedError, IcestreamError, InvalidRequestError, UnavailableError
from icestream.model.names import check_producer
from icestream.protocol.parsing import MAX_REQUEST_BYTES, parse
from icestream.protocol.subscribe import ConsumerControl, Subscribe, Subscribed
from icestream.server.flight.actions import open_requested
from icestream.server.metrics import BrokerMetrics
from icestream.storage import IcebergStorage
from icestream.subscription import ConsumerSession


class Flushes:
    """Flushes that a consumer asks for, in a thread of their own: a slow metadata store does not delay its pings.

    There is one thread at most, and only during a flush. A reply to a flush covers all flushes before it.
    """

    def __init__(self, flush: Callable[[], None], tell: Callable[[dict[str, Any]], None]) -> None:
        self._flush = flush
        self._tell = tell
        self._lock = threading.Lock()
        self._wanted: int | None = None
        self._thread: threading.Thread | None = None

    def want(self, number: int) -> None:
        """Flush what is applied by now; send when it is stored, or why it is not."""
        with self._lock:
            self._wanted = number
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="flush", daemon=True)
                self._thread.start()

    def finish(self) -> None:
        """Wait for the flush that is running."""
        with self._lock:
            thread = self._thread
            self._wanted = None
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                number, self._wanted = self._wanted, None
                if number is None:
                    self._thread = None
                    return
            try:
                self._flush()
                self._tell({"flushed": number})
            except IcestreamError as error:
                self._tell({"flushed": number, "failure": error.to_dict()})


_OPERATION = "subscribe"
_GONE = (flight.FlightError, pa.ArrowException, OSError)
"""What a write raises when the client is gone."""
_log = structlog.get_logger(__name__)

_decode = msgspec.json.Decoder(ConsumerControl).decode
_encode = msgspec.json.Encoder().encode


class SubscribeStreams:
    """All open streams."""

    def __init__(self, storage: IcebergStorage, metrics: BrokerMetrics) -> None:
        self._storage = storage
        self._metrics = metrics
        self._lock = threading.Lock()
        self._open: dict[object, SubscribeStream] = {}
        self._stopping = False

    def serve(self, reader: Any, writer: Any, caller: Caller) -> None:
        """Serve one stream, from its first message to its end."""
        messages = _messages(reader)
        first = next(messages, None)
        if first is None:
            return
        request = parse(first, Subscribe, operation=_OPERATION)
        caller.check_topic(request.topic, operation=_OPERATION)
        key = (caller, request.instance or object())  # a caller can end only its own streams by name
        with self._lock:
            earlier = self._open.get(key)
        if earlier is not None:
            # The same client on a new connection: the broker has not noticed yet that the old one is broken.
            earlier.stop(ClosedError("the consumer has connected again", operation=_OPERATION))
        stream = SubscribeStream(self._storage, self._metrics, request, writer, caller)
        with self._lock:
            self._open[key] = stream
            stopping = self._stopping
        try:
            if stopping:
                raise _stopping()
            stream.run(messages)
        finally:
            stream.close()
            with self._lock:
                if self._open.get(key) is stream:
                    del self._open[key]

    def stop(self) -> None:
        """End all streams."""
        with self._lock:
            self._stopping = True
            streams = list(self._open.values())
        for stream in streams:
            stream.stop(_stopping())


class SubscribeStream:
    def __init__(
        self, storage: IcebergStorage, metrics: BrokerMetrics, request: Subscribe, writer: Any, caller: Caller
    ) -> None:
        self._metrics = metrics
        self._writer = writer
        self._flushes = Flushes(storage.subscriptions.flush, self._tell)
        self._write_lock = threading.Lock()
        self._failure: IcestreamError | None = None
        self._ending = False
        consumer = check_producer(request.consumer or f"consumer-{token_hex(6)}")
        self._subscription = open_requested(storage, request, caller, _OPERATION, create=request.create)
        self._session: ConsumerSession = self._subscription.connect(
            consumer, max_messages=request.max_messages, max_bytes=request.max_bytes
        )
        self._accepted = Subscribed(
            topic=str(self._subscription.topic),
            subscription=self._subscription.name,
            type=self._subscription.options.type,
            consumer=consumer,
            session_timeout_ms=storage.settings.subscriptions.session_timeout_ms,
        )

    def run(self, messages: Iterator[bytes]) -> None:
        """Run until both sides have ended; raise the error that ended the stream."""
        self._writer.begin(self._session.schema)
        self._tell({"subscribed": self._accepted})
        delivering = threading.Thread(target=self._deliver, name="deliver", daemon=True)
        delivering.start()
        try:
            for message in messages:
                self._apply(_parse(message))
        finally:
            self.close()
            delivering.join()
            self._flushes.finish()
        if self._failure is not None:
            raise self._failure

    def stop(self, reason: IcestreamError) -> None:
        """End the stream with an error, from any thread."""
        self._failure = self._failure or reason
        self._session.close()

    def close(self) -> None:
        """Close the session: other consumers get its messages."""
        self._ending = True
        self._session.close()

    # ---- what comes in

    def _apply(self, control: ConsumerControl) -> None:
        session = self._session
        session.touch()
        with session.fairness_lock:
            if control.ack:
                session.ack(control.ack)
            if control.ack_cumulative is not None:
                session.ack_cumulative(control.ack_cumulative)
            if control.nack:
                session.nack(control.nack, control.delay_ms)
            if control.grant is not None:
                session.grant(*control.grant)
            if control.flush is not None:
                self._flushes.want(control.flush)

    # ---- what goes out

    def _deliver(self) -> None:
        try:
            while True:
                batch = self._session.receive()
                if batch is not None:
                    self._send(batch)
        except _GONE as error:
            self._session.close()
            _log.debug("consumer_gone", subscription=self._subscription.name, error=str(error))
        except IcestreamError as error:
            self._announce(error)
        except Exception as error:  # noqa: BLE001 - the client is to hear of it
            _log.exception("delivery_failed", subscription=self._subscription.name)
            self._announce(IcestreamError(f"internal error: {error!r}", operation=_OPERATION))

    def _announce(self, error: IcestreamError) -> None:
        """Tell the client to end its side, unless it has done so."""
        if not self._ending:
            self.stop(error)
            self._tell({"error": (self._failure or error).to_dict()})

    def _send(self, batch: pa.RecordBatch) -> None:
        with self._write_lock:
            self._writer.write_batch(batch)
        self._metrics.delivered(batch.num_rows, batch.nbytes)

    def _tell(self, fields: dict[str, Any]) -> None:
        with self._write_lock, contextlib.suppress(*_GONE):  # a client that is gone is seen by the reading thread
            self._writer.write_metadata(pa.py_buffer(_encode(fields)))


def _messages(reader: Any) -> Iterator[bytes]:
    """Yield the metadata of what a client sends, until it ends its side or is gone."""
    read: Callable[[], Any] = reader.read_chunk
    while True:
        try:
            chunk = read()
        except StopIteration:
            return
        except flight.FlightError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise InvalidRequestError(f"the message cannot be decoded: {error}", operation=_OPERATION) from error
        if chunk.data is not None:
            raise InvalidRequestError("a consumer sends messages without data", operation=_OPERATION)
        metadata = chunk.app_metadata
        if metadata is not None and metadata.size > MAX_REQUEST_BYTES:
            raise InvalidRequestError(f"a message has at most {MAX_REQUEST_BYTES} bytes", operation=_OPERATION)
        yield metadata.to_pybytes() if metadata is not None else b""


def _parse(message: bytes) -> ConsumerControl:
    try:
        return _decode(message)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(
            str(error),
            operation=_OPERATION,
            remedy=f"a message is a JSON object of {', '.join(ConsumerControl.__struct_fields__)}",
        ) from error


def _stopping() -> UnavailableError:
    return UnavailableError("the broker is stopping", operation=_OPERATION, remedy="connect again")
