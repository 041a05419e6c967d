"""The native door: Arrow Flight, as `docs/protocol.md` describes it."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyarrow import flight

from icestream.client.polling import SERVER, poll_directly
from icestream.model.errors import InvalidMessageError, InvalidRequestError, OverloadedError, UnavailableError
from icestream.model.offsets import StartPosition
from icestream.server.actions import Actions
from icestream.server.flight_errors import flight_errors
from icestream.server.metrics import BrokerMetrics
from icestream.server.publish_stream import PublishStream
from icestream.server.requests import parse_object, take
from icestream.storage import IcebergStorage, Topic, TopicReader

_TICKET_FIELDS = frozenset({"topic", "start", "end", "follow", "max_messages"})
_DOOR = "flight"


class FlightDoor(flight.FlightServerBase):
    """Listens from the moment it is made."""

    def __init__(self, storage: IcebergStorage, metrics: BrokerMetrics, *, host: str, port: int, version: str) -> None:
        self._storage = storage
        self._metrics = metrics
        self._streams = threading.BoundedSemaphore(storage.settings.server.max_connections)
        self._stopping = threading.Event()
        self._actions = Actions(storage, version, metrics.pipeline)
        check_port(host, port)
        poll_directly(SERVER)
        super().__init__(f"grpc://{host}:{port}")

    # Streams

    def do_put(
        self, _context: flight.ServerCallContext, descriptor: flight.FlightDescriptor, reader: Any, writer: Any
    ) -> None:
        with flight_errors("publish"), self._stream():
            if list(descriptor.path or []) != [b"publish"]:
                raise InvalidRequestError('the descriptor\'s path must be ["publish"]', operation="publish")
            stream = PublishStream(self._storage, writer, self._metrics)
            try:
                for chunk in _chunks(reader):
                    if self._stopping.is_set():
                        raise UnavailableError("the broker is stopping", operation="publish", remedy="connect again")
                    if chunk.data is not None:
                        metadata = chunk.app_metadata
                        stream.receive(chunk.data, metadata.to_pybytes() if metadata is not None else b"")
            finally:
                stream.finish()

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        with flight_errors("read"):
            fields = parse_object(ticket.ticket, operation="read", allowed=_TICKET_FIELDS)
            topic = self._storage.topic(take(fields, "topic", str, operation="read", required=True))
            reader = topic.reader(StartPosition.from_json(fields.get("start")))
            follow = take(fields, "follow", bool, operation="read", default=False)
            end = take(fields, "end", int, operation="read")
            if end is None and not follow:
                end = topic.log.durable_end
            start = reader.offset
            max_messages = take(fields, "max_messages", int, operation="read")
            batches = topic.read(
                reader,
                end=end,
                follow=follow,
                max_messages=max_messages,
                cancelled=lambda: self._stopping.is_set() or context.is_cancelled(),
            )
            if max_messages is not None:
                end = start + max_messages if end is None else min(end, start + max_messages)
            return flight.GeneratorStream(reader.schema, self._deliver(batches, reader, start, end))

    def _deliver(
        self, batches: Iterator[pa.RecordBatch], reader: TopicReader, expected: int, end: int | None
    ) -> Iterator[Any]:
        """Hand the batches over; one that comes after messages given up by a repair says how many these were.

        Where the range ends with such messages an empty batch says so: a range that just ends early is an error.
        """
        with flight_errors("read"), self._stream():
            for batch in batches:
                lost = batch.column(0)[0].as_py() - expected
                yield (batch, _loss(lost)) if lost else batch
                expected += lost + batch.num_rows
                self._metrics.delivered(batch.num_rows, batch.get_total_buffer_size())
            if self._stopping.is_set():
                raise UnavailableError("the broker is stopping", operation="read", remedy="connect again")
            if end is not None and (lost := min(end, reader.offset) - expected) > 0:
                yield pa.RecordBatch.from_pylist([], reader.schema), _loss(lost)

    @contextlib.contextmanager
    def _stream(self) -> Iterator[None]:
        """Count a stream that is open; one too many is refused."""
        if not self._streams.acquire(blocking=False):
            raise OverloadedError(
                f"{self._storage.settings.server.max_connections} streams are open already",
                operation="connect",
                remedy="close some or raise server.max_connections",
            )
        try:
            with self._metrics.open_stream(_DOOR):
                yield
        finally:
            self._streams.release()

    # Discovery, for generic Flight tools

    def list_flights(self, _context: flight.ServerCallContext, criteria: bytes) -> Iterator[flight.FlightInfo]:
        with flight_errors("list"):
            for topic in self._storage.topics.find(criteria.decode(errors="replace") if criteria else ""):
                yield self._flight_info(topic)

    def get_flight_info(
        self, _context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        with flight_errors("describe"):
            path = "/".join(part.decode(errors="replace") for part in descriptor.path or [])
            return self._flight_info(self._storage.topic(path))

    def _flight_info(self, topic: Topic) -> flight.FlightInfo:
        log = topic.log
        ticket = flight.Ticket(json.dumps({"topic": str(topic.name)}))
        return flight.FlightInfo(
            topic.stream_schema,
            flight.FlightDescriptor.for_path(*topic.name),
            [flight.FlightEndpoint(ticket, [])],
            log.durable_end - log.start_offset,
            log.nbytes,
        )

    # Administration

    def list_actions(self, _context: flight.ServerCallContext) -> list[tuple[str, str]]:
        return self._actions.descriptions()

    def do_action(self, _context: flight.ServerCallContext, action: flight.Action) -> list[flight.Result]:
        with flight_errors(action.type):
            body = action.body.to_pybytes() if action.body is not None else b""
            return [flight.Result(pa.py_buffer(json.dumps(self._actions.run(action.type, body)).encode()))]

    # Stopping

    def end_streams(self) -> None:
        """Have open reads end, and open publishes end at their next batch."""
        self._stopping.set()


def _loss(messages: int) -> pa.Buffer:
    return pa.py_buffer(json.dumps({"lost": messages}).encode())


def _chunks(reader: Any) -> Iterator[Any]:
    """What a client sends; what cannot be decoded is its mistake, not the broker's."""
    chunks = iter(reader)
    while True:
        try:
            yield next(chunks)
        except StopIteration:
            return
        except flight.FlightError:
            raise
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise InvalidMessageError(f"the batch cannot be decoded: {error}", operation="publish") from error


def check_port(host: str, port: int) -> None:
    """Raise a clear error if a port cannot be had, which Flight itself only says in riddles."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise UnavailableError(
            f"cannot listen at {host}:{port}: {error.strerror or error}",
            operation="open the Flight door",
            remedy="stop what listens there, or choose another server.flight_port",
            retryable=False,
        ) from error
