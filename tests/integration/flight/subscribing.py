"""A consumer that knows `docs/protocol.md` and nothing of icestream's own client."""

import contextlib
import json
import queue
import threading
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
from tests.integration.flight.plain import PATIENCE_SECONDS, Answer


class Subscribing:
    """One DoExchange stream. What the broker sends is read by a thread and kept, so that a test can wait for it."""

    def __init__(self, client: fl.FlightClient, path: str = "subscribe") -> None:
        options = fl.FlightCallOptions(timeout=PATIENCE_SECONDS)
        self.writer, self.reader = client.do_exchange(fl.FlightDescriptor.for_path(path), options)
        self._received: queue.Queue[Any] = queue.Queue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @classmethod
    def to(cls, client: fl.FlightClient, topic: str, name: str, **fields: Any) -> "Subscribing":
        """A stream that the broker has accepted."""
        stream = cls(client)
        stream.say(topic=topic, subscription=name, **fields)
        stream.accepted = stream.message()["subscribed"]
        return stream

    accepted: Answer

    def say(self, data: bytes | None = None, **fields: Any) -> None:
        with contextlib.suppress(fl.FlightError):  # refused already: the reading thread has the reason
            self.writer.write_metadata(json.dumps(fields).encode() if data is None else data)

    def _read(self) -> None:
        try:
            while True:
                chunk = self.reader.read_chunk()
                self._received.put(
                    chunk.data if chunk.data is not None else json.loads(chunk.app_metadata.to_pybytes())
                )
        except StopIteration:
            self._received.put(None)
        except (fl.FlightError, pa.ArrowException) as error:
            self._received.put(error)

    def next(self) -> Any:
        """The next batch, message or error; None is the end."""
        return self._received.get(timeout=PATIENCE_SECONDS)

    def message(self) -> Answer:
        found = self.next()
        if isinstance(found, Exception):
            raise found
        assert isinstance(found, dict), found
        return found

    def batch(self) -> pa.RecordBatch:
        found = self.next()
        if isinstance(found, Exception):
            raise found
        assert isinstance(found, pa.RecordBatch), found
        return found

    def offsets(self, count: int) -> list[int]:
        """So many messages, however they are cut into batches."""
        found: list[int] = []
        while len(found) < count:
            found += self.batch().column(0).to_pylist()
        assert len(found) == count
        return found

    def wait(self, seconds: float) -> Any:
        """What came within the time, if anything."""
        with contextlib.suppress(queue.Empty):
            return self._received.get(timeout=seconds)
        return None

    def nothing(self) -> bool:
        """Whether nothing is there, once the broker has answered all that was said."""
        self.say(flush=99)
        return bool(self.message() == {"flushed": 99})

    def finish(self) -> Any:
        """Send no more; what the broker says to that: None, or an error."""
        self.writer.done_writing()
        while (found := self.next()) is not None and not isinstance(found, Exception):
            pass
        self.close()
        return found

    def vanish(self) -> None:
        """Break off, as a client that is killed."""
        self.reader.cancel()
        self.close()

    def close(self) -> None:
        self._thread.join(PATIENCE_SECONDS)
        with contextlib.suppress(fl.FlightError, pa.ArrowException):
            self.writer.close()
