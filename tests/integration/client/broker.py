"""A real broker behind a proxy, which can be restarted, can hold its acknowledgements, and misbehaves as told.

`faults` is a script: the fault for each publish request as it arrives, `None` for none.

- `retry`: say that the log is not available, store nothing
- `fatal`: say that the message is invalid, of this copy of the batch and of all others
- `gap`: forget the producer's numbering, and refuse everything new that it sends under this name
- `drop`: end the stream, store nothing
- `lost_ack`: store, then end the stream without an acknowledgement
- `linger`: end the stream; the broker gets the batch later, after two others
"""

import json
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.flight as fl
from tests.tcp_proxy import HOST, TcpProxy

from icestream import Client
from icestream.config import Settings
from icestream.model.errors import IcestreamError, InvalidMessageError, LogUnavailableError, SequenceError
from icestream.model.messages import MESSAGE_SCHEMA, decode_lone
from icestream.protocol.publish import split_lone_message
from icestream.server.flight.door import FlightDoor
from icestream.server.metrics import BrokerMetrics
from icestream.storage import IcebergStorage

BROKEN = "the connection broke"
VERSION = "1.2.3"


class Script:
    """What the broker is told to do, and what it got. It outlives restarts of the broker."""

    def __init__(self) -> None:
        self.faults: deque[str | None] = deque()
        self.requests: list[dict[str, Any]] = []
        self.tickets: list[dict[str, Any]] = []
        self.streams = 0
        self.subscribed: list[dict[str, Any]] = []
        """The first message of each subscription's stream."""
        self.controls: list[dict[str, Any]] = []
        """The other messages of consumers."""
        self.deliveries: Counter[int] = Counter()
        """How often each offset was delivered to consumers."""
        self.most_in_flight = 0
        """The most messages that were delivered and whose credit was not given back."""
        self.forgotten: set[str] = set()
        """Producers whose numbering was forgotten."""
        self.max_batches_read: int | None = None
        """So many batches of the next read come; then its stream breaks."""
        self._lock = threading.RLock()
        self._bad: set[Any] = set()
        self._stored: set[tuple[str, str, int]] = set()
        self._lingering: list[tuple[int, Any]] = []
        self._is_held = False
        self._held: list[tuple[ScriptedStream, Any]] = []

    def hold_acks(self) -> None:
        """Keep acknowledgements back until `release_acks`."""
        with self._lock:
            self._is_held = True

    def release_acks(self) -> None:
        with self._lock:
            self._is_held = False
            held, self._held = self._held, []
            for stream, message in held:
                stream.write_now(message)

    def reset(self, script: Sequence[str | None]) -> None:
        """Begin anew with these faults."""
        with self._lock:
            self.faults = deque(script)
            self.requests.clear()
            self._bad.clear()
            self._lingering.clear()
            self.forgotten.clear()

    def said(self, name: str) -> list[Any]:
        """Return what consumers have sent under a name."""
        return [control[name] for control in tuple(self.controls) if name in control]

    @property
    def acked(self) -> set[int]:
        """The offsets that consumers have acknowledged."""
        ranges = [(first, end) for acked in self.said("ack") for first, end in acked]
        ranges += [(0, last + 1) for last in self.said("ack_cumulative")]
        return {offset for first, end in ranges for offset in range(first, end)}

    # ---- for the door

    def due_batch(self) -> Any:
        """Return a batch of a broken stream whose time has come."""
        with self._lock:
            due = next((entry for entry in self._lingering if entry[0] <= len(self.requests)), None)
            if due is None:
                return None
            self._lingering.remove(due)
            request, payload = _opened(due[1])
            is_refused = payload in self._bad or request["producer"] in self.forgotten
            return None if is_refused else due[1]

    def arrived(self, chunk: Any) -> tuple[dict[str, Any], str | IcestreamError | None]:
        """Return the request and what becomes of it: an error that refuses it, `drop`, `lost_ack`, or None."""
        request, payload = _opened(chunk)
        with self._lock:
            self.requests.append(request)
            fault = self.faults.popleft() if self.faults else None
            if "parts" in request or fault == "drop":
                return request, fault
            if fault == "linger":
                self._lingering.append((len(self.requests) + 2, chunk))
                return request, "drop"
            if self._key(request) in self._stored:
                return request, "lost_ack" if fault == "lost_ack" else None
            if fault == "fatal":
                self._bad.add(payload)
            if fault == "gap":
                self.forgotten.add(request["producer"])
            if payload in self._bad:
                return request, InvalidMessageError("never")
            if request["producer"] in self.forgotten:
                return request, SequenceError("a hole", details={"expected": -1, "sequence": request["sequence"]})
            return request, LogUnavailableError("try again") if fault == "retry" else fault

    def acknowledge(self, stream: "ScriptedStream", message: Any, request: dict[str, Any] | None) -> None:
        """Write an acknowledgement, or keep it back."""
        with self._lock:
            if request is not None and "base_offset" in json.loads(message.to_pybytes()):
                self._stored.add(self._key(request))
            if self._is_held:
                self._held.append((stream, message))
            else:
                stream.write_now(message)

    def ended(self, stream: "ScriptedStream") -> None:
        """The call is over: its writer must not be used any more."""
        with self._lock:
            stream.is_ended = True

    def stored(self, request: dict[str, Any]) -> None:
        with self._lock:
            self._stored.add(self._key(request))

    @staticmethod
    def _key(request: dict[str, Any]) -> tuple[str, str, int]:
        return request["topic"], request["producer"], request["sequence"]


def _opened(chunk: Any) -> tuple[dict[str, Any], Any]:
    """Return a request and the first payload, or first column, that it publishes."""
    metadata = chunk.app_metadata.to_pybytes()
    if chunk.data is not None:
        batch = chunk.data
        return json.loads(metadata), batch.column("payload" if "payload" in batch.schema.names else 0)[0].as_py()
    head, body = split_lone_message(metadata)
    request = json.loads(bytes(head))
    if "parts" in request:
        return request, None
    return request, decode_lone([body], MESSAGE_SCHEMA).column("payload")[0].as_py()


class ScriptedStream:
    """One DoPut call as the real door sees it: both its reader and its writer."""

    def __init__(self, script: Script, reader: Any, writer: Any) -> None:
        self._script = script
        self._chunks = iter(reader)
        self._writer = writer
        self._requests: dict[int, dict[str, Any]] = {}
        self._lost: int | None = None
        """The id of the request whose acknowledgement is lost."""
        self._is_lost = threading.Event()
        self._late: int | None = None
        """The id of a batch of a broken stream that the broker has just got."""
        self._is_late_done = threading.Event()
        self.is_ended = False

    def write_now(self, message: Any) -> None:
        if not self.is_ended:
            self._writer.write(message)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._lost is not None:
            self._is_lost.wait()
            raise fl.FlightUnavailableError(BROKEN)
        if self._late is not None:
            self._is_late_done.wait()  # whether it was stored decides what later faults may do to its copies
            self._late = None
        while True:
            due = self._script.due_batch()
            if due is not None:
                request, _ = _opened(due)
                self._requests[request["id"]] = request
                self._late, self._is_late_done = request["id"], threading.Event()
                return due
            chunk = next(self._chunks)
            request, fate = self._script.arrived(chunk)
            if isinstance(fate, IcestreamError):
                message = json.dumps({"id": request["id"], "error": fate.to_dict()}).encode()
                self._script.acknowledge(self, pa.py_buffer(message), None)
                continue
            if fate == "drop":
                raise fl.FlightUnavailableError(BROKEN)
            if "id" in request:
                self._requests[request["id"]] = request
            if fate == "lost_ack":
                self._lost = request["id"]
            return chunk

    def write(self, message: Any) -> None:
        ack = json.loads(message.to_pybytes())
        request = self._requests.pop(ack.get("id"), None)
        if self._lost is not None and ack.get("id") == self._lost:
            if request is not None:
                self._script.stored(request)
            self._is_lost.set()
            return
        self._script.acknowledge(self, message, request)
        if ack.get("id") == self._late:
            self._is_late_done.set()


class RecordedExchange:
    """One DoExchange call as the real door sees it: both its reader and its writer."""

    def __init__(self, script: Script, reader: Any, writer: Any) -> None:
        self._script = script
        self._reader = reader
        self._writer = writer
        self._is_first = True
        self._in_flight = 0

    def read_chunk(self) -> Any:
        chunk = self._reader.read_chunk()
        control = json.loads(chunk.app_metadata.to_pybytes())
        (self._script.subscribed if self._is_first else self._script.controls).append(control)
        self._is_first = False
        self._in_flight -= control.get("grant", (0, 0))[0]
        return chunk

    def begin(self, schema: pa.Schema) -> None:
        self._writer.begin(schema)

    def write_batch(self, batch: pa.RecordBatch) -> None:
        self._script.deliveries.update(batch.column(0).to_pylist())
        self._in_flight += batch.num_rows
        self._script.most_in_flight = max(self._script.most_in_flight, self._in_flight)
        self._writer.write_batch(batch)

    def write_metadata(self, metadata: Any) -> None:
        self._writer.write_metadata(metadata)


class ScriptedDoor(FlightDoor):
    """The real door; publish and read streams follow the script."""

    script: Script

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        self.script.streams += 1
        stream = ScriptedStream(self.script, reader, writer)
        try:
            super().do_put(context, descriptor, stream, stream)
        finally:
            self.script.ended(stream)

    def do_get(self, context: Any, ticket: Any) -> Any:
        self.script.tickets.append(json.loads(ticket.ticket))
        return super().do_get(context, ticket)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        exchange = RecordedExchange(self.script, reader, writer)
        super().do_exchange(context, descriptor, exchange, exchange)

    def _deliver(self, stream: Any) -> Iterator[Any]:
        limit, self.script.max_batches_read = self.script.max_batches_read, None
        for number, batch in enumerate(super()._deliver(stream)):
            if number == limit:
                raise fl.FlightUnavailableError(BROKEN)
            yield batch


class ScriptedBroker(Script):
    """The broker. Its address stays the same when it is restarted."""

    def __init__(self, data_dir: Path, **settings: Any) -> None:
        super().__init__()
        self._settings = settings
        self.data_dir = data_dir
        self._port = 0
        self._is_running = False
        self._start()
        self._proxy = TcpProxy(f"{HOST}:{self._port}")
        self._proxy.allow()
        self.url = f"grpc://{self._proxy.address}"

    def _start(self) -> None:
        self.storage = IcebergStorage(Settings(data_dir=self.data_dir, **self._settings))
        metrics = BrokerMetrics(self.storage)
        self.storage.on_commit = metrics.committed
        self.storage.open()
        self._door = ScriptedDoor(self.storage, metrics, host=HOST, port=self._port, version=VERSION)
        self._door.script = self
        self._port = self._door.port
        self._is_running = True

    def cut(self) -> None:
        """Break all connections; new ones are taken."""
        self._proxy.cut()

    def stop(self) -> None:
        """Break all connections and end, as far as clients can see."""
        if self._is_running:
            self._is_running = False
            self._proxy.refuse()
            self._door.end_streams()
            self._door.shutdown()
            self.storage.close()
            with self._lock:
                self._held = []
                self._is_held = False

    def start(self, data_dir: Path | None = None) -> None:
        """Start again at the same address, on the same data or on others."""
        self.data_dir = data_dir or self.data_dir
        self._start()
        self._proxy.allow()

    def close(self) -> None:
        self.stop()
        self._proxy.close()

    def payloads(self, topic: str = "default/t") -> list[bytes]:
        """Return what the log holds."""
        with Client(f"grpc://{HOST}:{self._port}") as client:
            return [message.payload for message in client.consume(topic)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
