"""The network side of the client: Flight calls to a broker, and the stream and threads under a `Publisher`.

`Connection` makes all calls, and returns the broker's errors as typed errors.

`PublishTransport` writes what the publisher decides, and reports to it what comes back. Any thread may write, one at a
time: the thread that sends a lone message writes it itself, so it pays for no hand-over. The rest is left to the sender
thread, which acknowledgements, timers and reconnects wake. A second thread reads the acknowledgements. So the producers
of one Arrow schema have two threads, however many they are: a stream has one schema. They end with the client.
The lock guards all state of the publisher and is never held during input or output.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from icestream.client.endpoint import BrokerEndpoint
from icestream.client.publisher import Callbacks, Outbox, PendingBatch, Publisher
from icestream.client.socket import SocketStream, connect
from icestream.model.errors import (
    ClosedError,
    DeadlineError,
    IcestreamError,
    InvalidRequestError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
    error_from_dict,
)
from icestream.model.messages import MESSAGE_SCHEMA
from icestream.protocol.publish import PublishOutcome, parse_outcome
from icestream.protocol.socket import MessageSocket, SocketAddress

CLIENT = "-event_engine_client"
SERVER = "-event_engine_listener"

_GRPC_SWITCHES = "GRPC_EXPERIMENTS"
_NOWHERE = "grpc://127.0.0.1:1"
_switch_lock = threading.Lock()
_is_switched = False


def poll_directly(side: str) -> None:
    """Have the thread that waits for the network poll it by itself. Call it before the first Flight client or server.

    By default every message passes through gRPC's event engine: a thread that polls wakes one that reads, which wakes
    the one that waits. With the engine switched off a round trip takes about half the time (docs/decisions/0006). The
    switch is an environment variable that gRPC reads once. It is set only until Flight's gRPC has read it, and never
    where it is set already. Each process switches its own side only: with both off, a server did not always end.
    """
    global _is_switched  # noqa: PLW0603 - gRPC's own switch is one for the whole process
    with _switch_lock:
        if _is_switched or _GRPC_SWITCHES in os.environ:
            return
        _is_switched = True
        os.environ[_GRPC_SWITCHES] = side
        try:
            fl.connect(_NOWHERE).close()  # connects to nothing, but makes gRPC read its switches
        finally:
            del os.environ[_GRPC_SWITCHES]


_CHANNEL = [
    # Clients in one process do not share each other's broken connections.
    ("grpc.use_local_subchannel_pool", 1),
    # Flight's streams cannot be cancelled from outside: keepalive notices a broker that stopped responding.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
]


_PING_SECONDS = 5.0
_NO_SOCKET_SECONDS = 30.0
"""How long a client stays with Flight after it could not reach the socket door."""

_REPEATABLE = frozenset(
    [
        "backlog",
        "cloud_objects",
        "cut_range",
        "describe_subscription",
        "describe_topic",
        "flush_topic",
        "list_subscriptions",
        "list_topics",
        "open_producer",
        "ping",
        "recoverable_topics",
        "stats",
        "tenant_stats",
        "wait_committed",
    ]
)
"""Calls that may be made twice: they read, or the second one changes nothing."""


class Connection:
    """Flight calls to one broker. Safe to use from several threads."""

    def __init__(self, endpoint: BrokerEndpoint, *, timeout_s: float) -> None:
        self.endpoint = endpoint
        self.url = endpoint.url
        self._no_socket_until = 0.0
        self._timeout_s = timeout_s
        self._closed = False
        headers = [] if endpoint.token is None else [(b"authorization", f"Bearer {endpoint.token}".encode())]
        self._options = partial(fl.FlightCallOptions, headers=headers)
        self._call = self._options(timeout=timeout_s)
        self._stream = self._options()
        poll_directly(CLIENT)
        self._new_client = partial(
            fl.FlightClient,
            endpoint.location,
            tls_root_certs=endpoint.root_certificates,
            generic_options=_CHANNEL,
        )
        self._client = self._new_client()

    def open_socket(self, operation: str) -> MessageSocket | None:
        """Connect to the broker's socket door; None if it has none, something lies between, or TLS is asked for.

        Raises why the broker refuses this client. A door that cannot be reached is tried again after a while.
        """
        if time.monotonic() < self._no_socket_until or self.endpoint.is_encrypted:
            return None
        try:
            told = self.action("ping", {}, timeout_s=_PING_SECONDS).get("socket")
        except IcestreamError as error:
            error.operation = operation
            raise
        address = None if told is None else msgspec.convert(told, SocketAddress)
        if address is not None and urlsplit(self.url).port == address.flight_port:
            with contextlib.suppress(OSError, InvalidRequestError):  # not reached, or another version of the protocol
                return connect(self.endpoint, address)
        self._no_socket_until = time.monotonic() + _NO_SOCKET_SECONDS
        return None

    def action(
        self, name: str, fields: dict[str, Any], *, timeout_s: float | None = None, hold_s: float = 0.0
    ) -> dict[str, Any]:
        """Make an administrative call; fields that are None are left out.

        `timeout_s` is for calls that take long. `hold_s`: how long the request allows the broker to wait before it
        responds. The client's timeout comes on top of it.
        """
        self.check_open(name)
        body = json.dumps({key: value for key, value in fields.items() if value is not None}).encode()
        retries = 1
        options = self._call
        if timeout_s is not None or hold_s:
            options = self._options(timeout=(self._timeout_s if timeout_s is None else timeout_s) + hold_s)
        while True:
            try:
                results = list(self._client.do_action(fl.Action(name, body), options))
            except (fl.FlightError, pa.ArrowException) as error:
                failure = self.typed(error, name)
                if not (retries and (_not_sent(error) or (name in _REPEATABLE and _closed_by_ping_policy(error)))):
                    raise failure from error
                retries -= 1  # the broker may be back since the channel last tried: try once more on the new channel
            else:
                break
        response: dict[str, Any] = json.loads(results[0].body.to_pybytes()) if results else {}
        return response

    def get(self, ticket: dict[str, Any], operation: str = "read") -> Any:
        """Return a reader of the ticket's stream. Errors of the broker show when it is read from."""
        self.check_open(operation)
        try:
            return self._client.do_get(fl.Ticket(json.dumps(ticket).encode()), self._stream)
        except (fl.FlightError, pa.ArrowException) as error:
            raise self.typed(error, operation) from error

    def put(self, schema: pa.Schema) -> tuple[Any, Any]:
        """Open a publish stream; return its writer, and the reader of its acknowledgements."""
        self.check_open("publish")
        try:
            writer, reader = self._client.do_put(fl.FlightDescriptor.for_path("publish"), schema, self._stream)
        except (fl.FlightError, pa.ArrowException) as error:
            raise self.typed(error, "publish") from error
        return writer, reader

    def exchange(self, path: str) -> tuple[Any, Any]:
        """Open a stream in both directions; return its writer and its reader. Errors show when it is read from."""
        self.check_open(path)
        try:
            writer, reader = self._client.do_exchange(fl.FlightDescriptor.for_path(path), self._stream)
        except (fl.FlightError, pa.ArrowException) as error:
            raise self.typed(error, path) from error
        return writer, reader

    def typed(self, error: Exception, operation: str) -> IcestreamError:
        """Return the broker's own error if the call carries one, else what the transport's error means."""
        fields = _error_fields(error)
        if fields is not None:
            return error_from_dict(fields)
        reason = _first_sentence(error)
        if isinstance(error, fl.FlightUnavailableError | fl.FlightCancelledError):
            if isinstance(error, fl.FlightUnavailableError):  # a cancelled call says nothing of its channel
                self.renew_channel()
            return UnavailableError(
                f"cannot reach a broker at {self.url}",
                operation=operation,
                place=reason,
                remedy="check the address and that the broker runs",
            )
        if isinstance(error, fl.FlightTimedOutError):
            return DeadlineError(f"no response from the broker at {self.url} in time", operation=operation)
        if isinstance(error, fl.FlightUnauthenticatedError | fl.FlightUnauthorizedError):
            is_known = isinstance(error, fl.FlightUnauthorizedError)
            return (PermissionDeniedError if is_known else UnauthenticatedError)(
                f"the broker at {self.url} refuses this client: {reason}", operation=operation, remedy="check the token"
            )
        if isinstance(error, pa.ArrowInvalid | pa.ArrowNotImplementedError | pa.ArrowKeyError):
            return InvalidRequestError(reason, operation=operation)
        return IcestreamError(f"the broker at {self.url} failed: {reason}", operation=operation)

    def renew_channel(self) -> None:
        """Use a new channel from now on: a broken one tries to connect only now and then.

        Streams on the old channel go on to their end; it is closed with the last of them.
        """
        if not self._closed:
            self._client = self._new_client()

    def check_open(self, operation: str) -> None:
        if self._closed:
            raise ClosedError("the client is closed", operation=operation)

    def close(self) -> None:
        self._closed = True
        self._client.close()


def _error_fields(error: Exception) -> dict[str, Any] | None:
    extra = getattr(error, "extra_info", None)
    if not extra:
        return None
    try:
        fields = json.loads(extra)
    except ValueError:
        return None
    return fields if isinstance(fields, dict) and "code" in fields else None


def _not_sent(error: Exception) -> bool:
    """Tell whether the call failed before it could have had any effect."""
    return isinstance(error, fl.FlightUnavailableError) and "failed to connect" in str(error)


def _closed_by_ping_policy(error: Exception) -> bool:
    """Tell whether gRPC closed a connection that was silent for minutes, because of our keepalive.

    Flight cannot tell its server to allow that. The call may have had its effect.
    """
    return isinstance(error, fl.FlightUnavailableError) and "too many pings" in str(error).lower()


def _first_sentence(error: Exception) -> str:
    """Return the error's text without the trace and gRPC's debug context that Flight appends."""
    text = str(error).split(". gRPC client debug context", 1)[0].split(". Detail: Python exception", 1)[0]
    return text.removeprefix("Flight returned ").split("with message: ", 1)[-1]


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
        except Exception as error:  # noqa: BLE001 - reported below: without it every receipt would wait for ever
            failure = error
        # A broken stream ends like a finished one; the reason comes when it is closed.
        with self._write_lock:
            try:
                self._writer.close()
            except (fl.FlightError, pa.ArrowException, OSError) as error:
                failure = error
        self._on_end(self, self._reason(failure))

    def _reason(self, failure: Exception | None) -> IcestreamError:
        if failure is None:
            return UnavailableError(f"the broker at {self._connection.url} ended the stream", operation="publish")
        error = self._connection.typed(failure, "publish")
        if type(error) is IcestreamError and not error.retryable:
            error.retryable = True  # the broker did not say what it means, so trying again may help
        return error


PublishConnection: TypeAlias = DoPutStream | SocketStream


class PublishTransport:
    """One publisher with its lock, its stream and its sender thread. Its producers share an Arrow schema."""

    def __init__(self, connection: Connection, schema: pa.Schema) -> None:
        self.lock = threading.Lock()
        self.publisher = Publisher(self._wake)
        self._connection = connection
        self._schema = schema
        self._changed = threading.Condition(self.lock)
        self._is_sleeping = False
        self._stream: PublishConnection | None = None
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def attach(self, outbox: Outbox) -> None:
        with self.lock:
            if self._is_closed:
                raise ClosedError("the client is closed", operation="publish")
            outbox.read_for = self._read_for
            self.publisher.attach(outbox)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="icestream-sender", daemon=True)
                self._thread.start()

    def detach(self, outbox: Outbox, error: IcestreamError) -> None:
        with self.lock:
            callbacks = self.publisher.detach(outbox, error)
        _run_callbacks(callbacks)

    def write(self, batches: list[PendingBatch]) -> None:
        """Write what the publisher gave to this thread."""
        try:
            if len(batches) == 1 and not batches[0].is_lone_message:
                batches[0].arrow()  # takes long, so it is made without the lock
            with self.lock:
                stream = self._stream
                request = None if stream is None else self.publisher.request(batches, seen=stream.acks_read)
            if stream is not None and request is not None:
                stream.write(*request)
        except BaseException:
            # Such as KeyboardInterrupt in the application's thread. Whether the batches were written is not known: on
            # the next stream they are sent again under their sequences, which the broker recognises.
            self._abandon_stream()
            raise
        finally:
            with self.lock:
                self.publisher.written(batches, time.monotonic())

    def _read_for(self, batch: PendingBatch, timeout: float | None) -> None:
        """Read acknowledgements in the thread that waits for one."""
        stream = self._stream
        if isinstance(stream, SocketStream) and batch in batch.outbox.sent:
            stream.read_for(batch, timeout)

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
            _run_callbacks(callbacks)
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
        if stream is not None and any(outbox.is_without_response for outbox in stalled):
            # The broker is connected and silent: the outcome of what it got on this stream is not known.
            self._stream = None
            callbacks.append(stream.finish)
            error = UnavailableError("the broker does not respond", operation="publish")
            callbacks += self.publisher.disconnected(error, now)
        return callbacks + self.publisher.give_up(stalled)

    # ---- the stream

    def _connect(self) -> None:
        try:
            stream = self._open_stream()
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

    def _open_stream(self) -> "PublishConnection":
        if self._schema.equals(MESSAGE_SCHEMA) and (peer := self._connection.open_socket("publish")) is not None:
            return SocketStream(peer, self._connection.url, on_outcome=self._on_outcome, on_end=self._on_stream_end)
        return DoPutStream(self._connection, self._schema, on_outcome=self._on_outcome, on_end=self._on_stream_end)

    def _abandon_stream(self) -> None:
        with self.lock:
            stream, self._stream = self._stream, None
            if stream is None:
                return
            error = UnavailableError("a write was interrupted", operation="publish")
            callbacks = self.publisher.disconnected(error, time.monotonic())
        _run_callbacks([*callbacks, stream.finish])

    def _on_outcome(self, outcome: PublishOutcome) -> None:
        now = time.monotonic()
        with self.lock:
            callbacks = self.publisher.settled(outcome, now)
        _run_callbacks(callbacks)

    def _on_stream_end(self, stream: "PublishConnection", error: IcestreamError) -> None:
        if isinstance(stream, SocketStream) and isinstance(error, UnavailableError):
            self._connection.renew_channel()  # Flight's connection to that broker is likely to be broken too
        callbacks: Callbacks = []
        with self.lock:
            if stream is self._stream:
                self._stream = None
                callbacks = self.publisher.disconnected(error, time.monotonic())
            self._wake()
        _run_callbacks(callbacks)

    def close(self, error: IcestreamError) -> None:
        """Fail what is not acknowledged with `error`, and end both threads."""
        with self.lock:
            self._is_closed = True
            stream, self._stream = self._stream, None
            callbacks = self.publisher.close(error)
        _run_callbacks(callbacks)
        if stream is not None:
            stream.finish()
            stream.join(_JOIN_TIMEOUT_S)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_TIMEOUT_S)


def _run_callbacks(callbacks: Callbacks) -> None:
    for callback in callbacks:
        callback()
