"""One connection of the socket door, from `hello` to its end."""

import contextlib
import secrets
import socket
import struct
import threading
from functools import partial

import pyarrow as pa

from icestream.model.callers import Caller, Callers
from icestream.model.errors import IcestreamError, InvalidMessageError, InvalidRequestError, UnavailableError
from icestream.model.messages import MESSAGE_SCHEMA, is_compressed
from icestream.protocol.parsing import parse
from icestream.protocol.read import ReadTicket
from icestream.protocol.socket import (
    LENGTH,
    MAX_HELLO_BYTES,
    MAX_OVERHEAD_BYTES,
    VERSION,
    Hello,
    MessageKind,
    MessageSocket,
    SocketAddress,
    Welcome,
    message,
    split_batch,
)
from icestream.server.metrics import BrokerMetrics
from icestream.server.publish_stream import PublishStream
from icestream.server.socket.listener import Listener
from icestream.server.socket.read import SocketRead
from icestream.storage import IcebergStorage

_DOOR = "socket"
_HELLO_SECONDS = 10.0
_OUTCOME = MessageKind.OUTCOME.to_bytes()


class SocketDoor:
    def __init__(
        self,
        storage: IcebergStorage,
        metrics: BrokerMetrics,
        callers: Callers,
        *,
        host: str,
        port: int,
        flight_port: int,
    ) -> None:
        self._storage = storage
        self._metrics = metrics
        self._callers = callers
        server = storage.settings.server
        self._max_bytes = server.max_batch_bytes + MAX_OVERHEAD_BYTES
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        self._publishing: set[MessageSocket] = set()
        """Connections that publish, and get their acknowledgements before a stop ends them."""
        self._listener = Listener(
            host,
            port,
            self._serve,
            door=_DOOR,
            setting="server.socket_port",
            max_connections=server.max_connections,
        )
        self.address = SocketAddress(secrets.token_hex(16), self._listener.port, flight_port)
        self._listener.start()

    def stop(self) -> None:
        """Receive no more, acknowledge what was received, then end all connections."""
        self._stopping.set()
        self._listener.close()
        timeout_seconds = self._storage.settings.server.shutdown_timeout_ms / 1000
        with self._changed:
            for peer in self._publishing:
                peer.end_receiving()
            self._changed.wait_for(lambda: not self._publishing, timeout_seconds)
        self._listener.end_connections()

    def _serve(self, connection: socket.socket) -> None:
        peer = MessageSocket(connection)
        try:
            caller = self._hello(peer)
            with self._metrics.open_stream(_DOOR):
                self._converse(peer, caller)
        except IcestreamError as error:
            peer.send(message(MessageKind.ERROR, error.to_dict()))

    def _hello(self, peer: MessageSocket) -> Caller:
        """Return the caller, once it has said who it is."""
        peer.set_timeout(_HELLO_SECONDS)
        first = peer.receive(MAX_HELLO_BYTES)
        if first is None or first[0] != MessageKind.HELLO:
            raise InvalidRequestError("a connection begins with a hello", operation="connect")
        hello = parse(first[1:], Hello, operation="connect")
        if hello.version != VERSION:
            raise InvalidRequestError(f"version {hello.version} is not known here", operation="connect")
        caller = self._callers.identify(None if hello.token is None else f"Bearer {hello.token}", operation="connect")
        if hello.broker != self.address.broker:
            raise UnavailableError(
                "the broker was started again, or this is another one", operation="connect", remedy="connect again"
            )
        peer.send(message(MessageKind.HELLO, Welcome(VERSION)))
        peer.set_timeout(None)
        return caller

    def _converse(self, peer: MessageSocket, caller: Caller) -> None:
        """Serve what the first message begins: publishing, or one read."""
        first = peer.receive(self._max_bytes)
        if first is None:
            return
        if first[0] == MessageKind.READ:
            ticket = parse(first[1:], ReadTicket, operation="read")
            with contextlib.closing(SocketRead(self._storage, ticket, caller)) as read:
                read.run(peer, self._metrics, self._stopping.is_set)
        else:
            self._publish(peer, caller, first)

    def _publish(self, peer: MessageSocket, caller: Caller, first: memoryview) -> None:
        def send(outcome: bytes) -> None:
            peer.send(LENGTH.pack(1 + len(outcome)) + _OUTCOME + outcome)

        stream = PublishStream(self._storage, send, self._metrics, caller)
        received: memoryview | None = first
        with self._changed:
            self._publishing.add(peer)
        try:
            while received is not None and not self._stopping.is_set():
                kind = received[0]
                if kind == MessageKind.LONE_MESSAGES:
                    stream.receive(None, received)
                elif kind == MessageKind.BATCH:
                    request, data = split_batch(received)
                    stream.receive(_batch(data), request)
                else:
                    raise InvalidRequestError(f"a message of kind {kind} is not expected here", operation="publish")
                received = peer.receive(self._max_bytes)
        finally:
            stream.finish(partial(self._is_over, peer))
            with self._changed:
                self._publishing.discard(peer)
                self._changed.notify_all()
        if self._stopping.is_set():
            raise UnavailableError("the broker is stopping", operation="publish", remedy="connect again")

    def _is_over(self, peer: MessageSocket) -> bool:
        """Tell whether nobody waits any more for acknowledgements, or they may take too long: from the table."""
        return not self._storage.budget.used_bytes if self._stopping.is_set() else peer.is_gone


def _batch(data: memoryview) -> pa.RecordBatch:
    """Return a published batch. Its columns are slices of the message, so it takes no memory of its own."""
    try:
        if is_compressed(data):
            raise InvalidMessageError(
                "the batch is compressed", operation="publish", remedy="send batches without compression"
            )
        return pa.ipc.read_record_batch(pa.py_buffer(data), MESSAGE_SCHEMA)
    except (pa.ArrowException, OSError, struct.error) as error:
        raise InvalidMessageError(f"the batch cannot be decoded: {error}", operation="publish") from error
