"""One DoPut stream: batches out, acknowledgements in."""

import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from icestream.client.connection import Connection
from icestream.model.errors import IcestreamError, UnavailableError


class PublishStream:
    """Writers take turns by the caller's rules; a thread of its own reads the acknowledgements.

    Reading them in the thread that waits for its receipt was measured too: it saves one hand-over, 25 to 30 µs or 7 %
    of a lone message's round trip, but a thread inside Flight's read can neither time out nor be interrupted.
    """

    def __init__(
        self,
        connection: Connection,
        schema: pa.Schema,
        *,
        on_answer: Callable[[dict[str, Any]], None],
        on_end: Callable[["PublishStream", IcestreamError], None],
    ) -> None:
        self._connection = connection
        self._on_answer = on_answer
        self._on_end = on_end
        self.answers = 0
        """How many were read."""
        self._write_lock = threading.Lock()
        self._writer, self._reader = connection.put(schema)
        self._thread = threading.Thread(target=self._read, name="icestream-acks", daemon=True)

    def start(self) -> None:
        """Begin to read: not before the owner knows the stream, whose end may be told at once."""
        self._thread.start()

    def write(self, batch: pa.RecordBatch | None, metadata: bytes) -> None:
        """Write a batch, or a lone message, which is all in the metadata."""
        with self._write_lock:
            if batch is None:
                self._writer.write_metadata(metadata)
            else:
                self._writer.write_with_metadata(batch, metadata)

    def finish(self) -> None:
        """Say that no more comes; the broker then ends the stream, and so does the reading thread."""
        if self._write_lock.acquire(timeout=1.0):
            try:
                self._writer.done_writing()
            except (fl.FlightError, pa.ArrowException):
                pass  # broken already: the reading thread sees it too
            finally:
                self._write_lock.release()

    def join(self, timeout: float) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _read(self) -> None:
        failure: Exception | None = None
        try:
            while (message := self._reader.read()) is not None:
                self.answers += 1
                self._on_answer(msgspec.json.decode(message))
        except (fl.FlightError, pa.ArrowException, ValueError) as error:
            failure = error
        # A broken stream ends like a finished one; what happened is told when it is closed.
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
            # The broker did not say what it means, so it may pass.
            error.retryable = True
        return error
