"""The Flight door: the native protocol, as `docs/protocol.md` describes it."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import structlog
from pyarrow import flight

from icestream.client import SERVER, poll_directly
from icestream.model.callers import FULL_ACCESS, Caller, Callers
from icestream.model.errors import (
    IcestreamError,
    InvalidMessageError,
    InvalidRequestError,
    OverloadedError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
)
from icestream.model.names import url_host
from icestream.protocol.read import FramesTicket, QueryTicket, parse_ticket
from icestream.protocol.socket import SocketAddress
from icestream.query import BrokerTopics, QueryEngine
from icestream.server.access import VERBS, Access, callers_of
from icestream.server.calls import topics_of
from icestream.server.flight.actions import Actions
from icestream.server.flight.read_stream import FrameStream, QueryStream, ReadStream
from icestream.server.flight.subscribe_stream import SubscribeStreams
from icestream.server.metrics import BrokerMetrics
from icestream.server.publish_stream import PublishStream
from icestream.storage import IcebergStorage, Topic
from icestream.wal import Log

# Errors as Flight statuses: the error object is the status' extra information.


_MAX_TEXT = 1000  # statuses travel in HTTP/2 headers, which are small
_log = structlog.get_logger(__name__)


def to_flight_error(error: IcestreamError) -> flight.FlightError:
    fields = error.to_dict()
    for name in ("message", "place", "remedy"):
        fields[name] = fields[name][:_MAX_TEXT]
    if isinstance(error, UnauthenticatedError):
        kind = flight.FlightUnauthenticatedError
    elif isinstance(error, PermissionDeniedError):
        kind = flight.FlightUnauthorizedError
    else:
        kind = flight.FlightUnavailableError if error.retryable else flight.FlightServerError
    text = str(error)[:_MAX_TEXT].encode(errors="backslashreplace").decode()  # a name may hold half a surrogate pair
    return kind(text, json.dumps(fields).encode())


@contextlib.contextmanager
def flight_errors(operation: str) -> Iterator[None]:
    """Turn errors into Flight statuses; log a fault of icestream itself with its trace."""
    try:
        yield
    except IcestreamError as error:
        raise to_flight_error(error) from error
    except flight.FlightError:
        raise
    except pa.ArrowInvalid as error:
        raise to_flight_error(InvalidRequestError(f"not valid Arrow: {error}", operation=operation)) from error
    except Exception as error:
        _log.exception("flight_call_failed", operation=operation)
        raise to_flight_error(IcestreamError(f"internal error: {error!r}", operation=operation)) from error


# Authorization by the header `authorization` of each call, before anything else of the call is looked at.


_KEY = "caller"
_OPERATION = "connect"


class _AuthorizedCall(flight.ServerMiddleware):
    def __init__(self, caller: Caller) -> None:
        super().__init__()
        self.caller = caller


class _Authorization(flight.ServerMiddlewareFactory):
    def __init__(self, callers: Callers) -> None:
        super().__init__()
        self._callers = callers

    def start_call(self, info: flight.CallInfo, headers: dict[str, list[Any]]) -> _AuthorizedCall:
        """Return the caller; raise, and so end the call, if there is none."""
        given = headers.get("authorization", [])
        # Several headers are refused: which one counts would be a guess.
        authorization = given[0] if len(given) == 1 and isinstance(given[0], str) else None
        try:
            caller = self._callers.identify(authorization, operation=_OPERATION)
            if VERBS.get(info.method, Access.FULL) is Access.FULL:
                caller.check_everything(operation=info.method.name.lower())
        except IcestreamError as error:
            raise to_flight_error(error) from None
        return _AuthorizedCall(caller)


def middleware_for(callers: Callers) -> dict[str, flight.ServerMiddlewareFactory]:
    """Return the middleware of a Flight server; none if the broker has no tokens."""
    return {} if callers.has_no_authentication else {_KEY: _Authorization(callers)}


def caller_of(context: flight.ServerCallContext, callers: Callers) -> Caller:
    """Return the caller of a call."""
    if callers.has_no_authentication:
        return FULL_ACCESS
    caller: Caller = context.get_middleware(_KEY).caller
    return caller


_DOOR = "flight"


class FlightDoor(flight.FlightServerBase):
    """Listens from the moment it is made."""

    def __init__(
        self,
        storage: IcebergStorage,
        metrics: BrokerMetrics,
        *,
        host: str,
        port: int,
        version: str,
        queries: QueryEngine | None = None,
        callers: Callers | None = None,
    ) -> None:
        """Open the door. `callers` are by default those to whom the settings give tokens."""
        self._storage = storage
        self._metrics = metrics
        self._streams = threading.BoundedSemaphore(storage.settings.server.max_connections)
        self._stopping = threading.Event()
        self._actions = Actions(storage, version, metrics.pipeline, metrics.tenants)
        self._subscribers = SubscribeStreams(storage, metrics)
        self._queries = queries or QueryEngine(storage.settings.query, BrokerTopics(storage))
        self._callers = callers or callers_of(storage)
        check_port(host, port)
        poll_directly(SERVER)
        super().__init__(f"grpc://{url_host(host)}:{port}", middleware=middleware_for(self._callers))

    def tell_socket(self, address: SocketAddress) -> None:
        """Tell clients where the socket door is."""
        self._actions.socket_address = address

    def _caller(self, context: flight.ServerCallContext) -> Caller:
        return caller_of(context, self._callers)

    # Streams

    def do_put(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor, reader: Any, writer: Any
    ) -> None:
        with flight_errors("publish"), self._stream():
            if list(descriptor.path or []) != [b"publish"]:
                raise InvalidRequestError('the descriptor\'s path must be ["publish"]', operation="publish")
            stream = PublishStream(
                self._storage, lambda ack: writer.write(pa.py_buffer(ack)), self._metrics, self._caller(context)
            )
            try:
                for chunk in _chunks(reader):
                    if self._stopping.is_set():
                        raise UnavailableError("the broker is stopping", operation="publish", remedy="connect again")
                    metadata = chunk.app_metadata
                    stream.receive(chunk.data, metadata.to_pybytes() if metadata is not None else b"")
            finally:
                stream.finish(context.is_cancelled)

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        def cancelled() -> bool:
            return self._stopping.is_set() or bool(context.is_cancelled())

        with flight_errors("read"):
            asked = parse_ticket(ticket.ticket)
        if isinstance(asked, QueryTicket):
            with flight_errors("sql"):
                query = QueryStream(self._queries, asked, self._caller(context), cancelled)
                return flight.GeneratorStream(query.schema, self._deliver_rows(query))
        if isinstance(asked, FramesTicket):
            with flight_errors("read frames"):
                frames = FrameStream(self._storage, asked, self._caller(context), cancelled)
                return flight.GeneratorStream(frames.schema, self._deliver_frames(frames))
        with flight_errors("read"):
            stream = ReadStream(self._storage, asked, self._caller(context), cancelled)
            return flight.GeneratorStream(stream.schema, self._deliver(stream))

    def _deliver(self, stream: ReadStream) -> Iterator[Any]:
        with flight_errors("read"), self._stream():
            yield from stream.chunks(self._metrics)
            if self._stopping.is_set():
                raise UnavailableError("the broker is stopping", operation="read", remedy="connect again")

    def _deliver_rows(self, query: QueryStream) -> Iterator[pa.RecordBatch]:
        with flight_errors("sql"), self._stream():
            yield from query.chunks()

    def _deliver_frames(self, frames: FrameStream) -> Iterator[pa.RecordBatch]:
        with flight_errors("read frames"), self._stream():
            yield from frames.chunks()
            if self._stopping.is_set():
                raise UnavailableError("the broker is stopping", operation="read frames", remedy="connect again")

    def do_exchange(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor, reader: Any, writer: Any
    ) -> None:
        with flight_errors("subscribe"), self._stream():
            if list(descriptor.path or []) != [b"subscribe"]:
                raise InvalidRequestError('the descriptor\'s path must be ["subscribe"]', operation="subscribe")
            self._subscribers.serve(reader, writer, self._caller(context))

    @contextlib.contextmanager
    def _stream(self) -> Iterator[None]:
        """Count an open stream; refuse one too many."""
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

    def list_flights(self, context: flight.ServerCallContext, criteria: bytes) -> Iterator[flight.FlightInfo]:
        with flight_errors("list"):
            prefix = criteria.decode(errors="replace") if criteria else ""
            for topic in topics_of(self._storage, self._caller(context), prefix):
                # No log is opened, so a damaged topic cannot hide the others, and a listing stays cheap.
                yield _flight_info(topic, topic.opened_log)

    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        with flight_errors("describe"):
            path = "/".join(part.decode(errors="replace") for part in descriptor.path or [])
            name = self._caller(context).check_topic(path, operation="describe")
            topic = self._storage.topic(name)
            return _flight_info(topic, topic.log)

    # Administration

    def list_actions(self, _context: flight.ServerCallContext) -> list[tuple[str, str]]:
        return self._actions.descriptions()

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[flight.Result]:
        with flight_errors(action.type):
            body = action.body.to_pybytes() if action.body is not None else b""
            response = self._actions.run(action.type, body, self._caller(context))
            return [flight.Result(pa.py_buffer(response))]

    # Stopping

    def end_streams(self) -> None:
        """End open reads and subscriptions now, and open publishes at their next batch."""
        self._stopping.set()
        self._subscribers.stop()


_UNKNOWN = -1
"""Flight's word for a count that a server does not tell."""


def _flight_info(topic: Topic, log: Log | None) -> flight.FlightInfo:
    ticket = flight.Ticket(json.dumps({"topic": str(topic.name)}))
    return flight.FlightInfo(
        topic.stream_schema,
        flight.FlightDescriptor.for_path(*topic.name),
        [flight.FlightEndpoint(ticket, [])],
        _UNKNOWN if log is None else log.durable_end - log.start_offset,
        _UNKNOWN if log is None else log.nbytes,
    )


def _chunks(reader: Any) -> Iterator[Any]:
    """Yield what a client sends; data that cannot be decoded is the client's error."""
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
    """Raise a clear error if a port is taken; Flight's own error does not name the cause."""
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
