"""The threads and the stream under a `Publisher`: what it decides is written here, what comes back is reported to it.

Any thread may write, one at a time: the thread that sends a lone message writes it itself, so it pays for no hand-over.
The rest is left to the sender thread, which acknowledgements, timers and reconnects wake. A second thread reads the
acknowledgements. So there are two threads, however many producers there are. The lock guards all state of the publisher
and is never held during input or output.
"""

import threading
import time
from collections.abc import Callable

import pyarrow as pa
import pyarrow.flight as fl

from icestream.client.connection import Connection
from icestream.client.publisher import Callbacks, Outbox, PendingBatch, Publisher
from icestream.model.errors import ClosedError, IcestreamError, UnavailableError
from icestream.protocol.publish import PublishOutcome, parse_outcome

_JOIN_TIMEOUT_S = 2.0


class DoPutStream:
    """One DoPut call: batches out, acknowledgements in.

    A thread of its own reads the acknowledgements. Reading them in the thread that waits for its receipt was measured
    too: it saves one hand-over, 25 to 30 µs or 7 % of a lone message's round trip, but a thread inside Flight's read
    can neither time out nor be interrupted.
    """

    def __init__(
        self,
        connection: Connection,
        schema: pa.Schema,
        *,
        on_outcome: Callable[[PublishOutcome], None],
        on_end: Callable[["DoPutStream", IcestreamError], None],
    ) -> None:
        self._connection = connection
        self._on_outcome = on_outcome
        self._on_end = on_end
        self.acks_read = 0
        self._write_lock = threading.Lock()
        self._writer, self._reader = connection.put(schema)
        self._thread = threading.Thread(target=self._read, name="icestream-acks", daemon=True)

    def start(self) -> None:
        """Begin to read. Call it once the owner has the stream: its end may be reported at once."""
        self._thread.start()

    def write(self, batch: pa.RecordBatch | None, metadata: bytes) -> None:
        """Write a batch, or lone messages, which are all in the metadata.

        A failure is not raised: the reading thread notices the end of the stream and reports it.
        """
        try:
            with self._write_lock:
                if batch is None:
                    self._writer.write_metadata(metadata)
                else:
                    self._writer.write_with_metadata(batch, metadata)
        except (fl.FlightError, pa.ArrowException):
            self.finish()

    def finish(self) -> None:
        """Write no more; the broker then ends the stream, and so does the reading thread."""
        if self._write_lock.acquire(timeout=1.0):
            try:
                self._writer.done_writing()
            except (fl.FlightError, pa.ArrowException):
                pass  # broken already: the reading thread notices it too
            finally:
                self._write_lock.release()

    def join(self, timeout: float) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _read(self) -> None:
        failure: Exception | None = None
        try:
            while (message := self._reader.read()) is not None:
                self.acks_read += 1
                self._on_outcome(parse_outcome(message))
        except (fl.FlightError, pa.ArrowException, ValueError) as error:
            failure = error
        # A broken stream ends like a finished one; the reason comes when it is closed.
        with self._write_lock:
            try:
                self._writer.close()
            except (fl.FlightError, pa.ArrowException) as error:
                failure = error
        self._on_end(self, self._reason(failure))

    def _reason(self, failure: Exception | None) -> IcestreamError:
        if failure is None:
            return UnavailableError(f"the broker at {self._connection.url} ended the stream", operation="publish")
        error = self._connection.typed(failure, "publish")
        if type(error) is IcestreamError and not error.retryable:
            error.retryable = True  # the broker did not say what it means, so trying again may help
        return error


class PublishTransport:
    """One publisher with its lock, its stream and its sender thread. Its producers share an Arrow schema."""

    def __init__(self, connection: Connection, schema: pa.Schema) -> None:
        self.lock = threading.Lock()
        self.publisher = Publisher(self._wake)
        self._connection = connection
        self._schema = schema
        self._changed = threading.Condition(self.lock)
        self._is_sleeping = False
        self._stream: DoPutStream | None = None
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def attach(self, outbox: Outbox) -> None:
        with self.lock:
            if self._is_closed:
                raise ClosedError("the client is closed", operation="publish")
            self.publisher.attach(outbox)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="icestream-sender", daemon=True)
                self._thread.start()

    def detach(self, outbox: Outbox, error: IcestreamError) -> None:
        with self.lock:
            callbacks = self.publisher.detach(outbox, error)
        _call(callbacks)

    def write(self, batches: list[PendingBatch]) -> None:
        """Write what the publisher gave to this thread."""
        if len(batches) == 1 and not batches[0].is_lone_message:
            batches[0].arrow()  # takes long, so it is made without the lock
        with self.lock:
            stream = self._stream
            request = None if stream is None else self.publisher.request(batches, seen=stream.acks_read)
        if stream is not None and request is not None:
            stream.write(*request)
        with self.lock:
            self.publisher.written(batches, time.monotonic())

    # ---- the sender thread

    def _run(self) -> None:
        while True:
            with self.lock:
                while True:
                    if self._is_closed:
                        return
                    now = time.monotonic()
                    self.publisher.advance(now)
                    callbacks = self._give_up_stalled(now)
                    connect = self.publisher.wants_connection(now)
                    batches = self.publisher.next_batches(now)
                    if connect or batches or callbacks:
                        break
                    self._sleep(now)
            _call(callbacks)
            if connect:
                self._connect()
            if batches:
                self.write(batches)

    def _sleep(self, now: float) -> None:
        due = self.publisher.next_due()
        self._is_sleeping = True
        self._changed.wait(None if due is None else max(0.0, due - now))
        self._is_sleeping = False

    def _wake(self) -> None:
        """Wake the sender thread. Needs the lock."""
        if self._is_sleeping:
            self._is_sleeping = False
            self._changed.notify()

    def _give_up_stalled(self, now: float) -> Callbacks:
        stalled = self.publisher.stalled(now)
        callbacks: Callbacks = []
        stream = self._stream
        if stream is not None and any(outbox.is_unanswered for outbox in stalled):
            # The broker is connected and silent: the outcome of what it got on this stream is not known.
            self._stream = None
            callbacks.append(stream.finish)
            error = UnavailableError("the broker does not answer", operation="publish")
            callbacks += self.publisher.disconnected(error, now)
        return callbacks + self.publisher.give_up(stalled)

    # ---- the stream

    def _connect(self) -> None:
        try:
            stream = DoPutStream(
                self._connection, self._schema, on_outcome=self._on_outcome, on_end=self._on_stream_end
            )
        except IcestreamError as error:
            with self.lock:
                self.publisher.connect_failed(error, time.monotonic())
            return
        with self.lock:
            stream.start()
            if not self._is_closed:
                self._stream = stream
                self.publisher.connected()
                return
        stream.finish()
        stream.join(_JOIN_TIMEOUT_S)

    def _on_outcome(self, outcome: PublishOutcome) -> None:
        now = time.monotonic()
        with self.lock:
            callbacks = self.publisher.settled(outcome, now)
        _call(callbacks)

    def _on_stream_end(self, stream: DoPutStream, error: IcestreamError) -> None:
        callbacks: Callbacks = []
        with self.lock:
            if stream is self._stream:
                self._stream = None
                callbacks = self.publisher.disconnected(error, time.monotonic())
            self._wake()
        _call(callbacks)

    def close(self, error: IcestreamError) -> None:
        """Fail what is not acknowledged with `error`, and end both threads."""
        with self.lock:
            self._is_closed = True
            stream, self._stream = self._stream, None
            callbacks = self.publisher.close(error)
        _call(callbacks)
        if stream is not None:
            stream.finish()
            stream.join(_JOIN_TIMEOUT_S)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_TIMEOUT_S)


def _call(callbacks: Callbacks) -> None:
    for callback in callbacks:
        callback()
