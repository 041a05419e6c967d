"""One DoExchange stream of a subscription: batches in; acknowledgements, credit and signs of life out.

The broker cannot break off a stream that it reads from, so it announces the end: `{"error": …}`. The stream is then
ended from this side, and the broker ends the call with that error.
"""

import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.flight as fl

from icestream.client.connection import Connection
from icestream.model.errors import IcestreamError, UnavailableError, error_from_dict

_OPERATION = "subscribe"


class Received(NamedTuple):
    """A batch and what it costs of the credit, or a message of the broker's."""

    batch: pa.RecordBatch | None
    fields: dict[str, Any]


class SubscriptionStream:
    """Any thread may send; one thread reads."""

    def __init__(self, connection: Connection, request: dict[str, Any]) -> None:
        self._connection = connection
        self._write_lock = threading.Lock()
        self._writer, self._reader = connection.exchange(_OPERATION)
        self.send(request)

    def send(self, fields: dict[str, Any]) -> bool:
        """Whether it went out. A broken stream is told to the reading thread, with the reason."""
        with self._write_lock:
            try:
                self._writer.write_metadata(json.dumps(fields).encode())
            except (fl.FlightError, pa.ArrowException):
                return False
            return True

    def read(self) -> Iterator[Received]:
        """What the broker sends; raises what ended the stream, always."""
        announced: IcestreamError | None = None
        failure: Exception | None = None
        try:
            while True:
                chunk = self._reader.read_chunk()
                fields = json.loads(chunk.app_metadata.to_pybytes()) if chunk.app_metadata is not None else {}
                if "error" in fields:
                    announced = error_from_dict(fields["error"])
                    self.finish()
                elif announced is None:
                    yield Received(chunk.data, fields)
        except StopIteration:
            pass
        except (fl.FlightError, pa.ArrowException) as error:
            failure = error
        except ValueError as error:  # not the protocol: the broker does not know that it is over
            failure = error
            self.cancel()
        finally:
            failure = self._close() or failure
        if announced is None and failure is not None:
            raise self._connection.typed(failure, _OPERATION) from failure
        raise announced or UnavailableError(
            f"the broker at {self._connection.url} ended the stream", operation=_OPERATION
        )

    def finish(self) -> None:
        """Say that no more comes; the broker then ends the stream."""
        with self._write_lock, contextlib.suppress(fl.FlightError, pa.ArrowException):
            self._writer.done_writing()  # broken already? The reading thread sees it too

    def cancel(self) -> None:
        """End the reading thread's wait."""
        self._reader.cancel()

    def _close(self) -> Exception | None:
        """Let the stream go; the reason for its end, if it was broken."""
        failure: Exception | None = None
        with self._write_lock:
            try:
                self._writer.close()
            except (fl.FlightError, pa.ArrowException) as error:
                failure = error
        return failure
