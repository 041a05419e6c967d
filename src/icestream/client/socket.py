"""The client's side of the socket door: a connection for publishing."""

import socket
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa

from icestream.client.endpoint import BrokerEndpoint
from icestream.model.errors import IcestreamError, UnavailableError, error_from_dict
from icestream.model.messages import STREAM_SCHEMA, Frame
from icestream.protocol.publish import PublishOutcome, parse_outcome
from icestream.protocol.socket import (
    VERSION,
    Hello,
    Kind,
    MessageSocket,
    ReadBegins,
    SocketAddress,
    batch_message,
    lone_messages,
    message,
    split_batch,
    split_frames,
)

_CONNECT_SECONDS = 5.0
_RESPONSE_SECONDS = 60.0
_MAX_RESPONSE_BYTES = 1 << 31


def connect(endpoint: BrokerEndpoint, address: SocketAddress) -> MessageSocket:
    """Connect to the door and say hello; raise why the broker refuses, or OSError."""
    host = urlsplit(endpoint.url).hostname
    peer = MessageSocket(socket.create_connection((host, address.port), _CONNECT_SECONDS))
    try:
        peer.send(message(Kind.HELLO, Hello(VERSION, address.broker, endpoint.token)))
        _received(peer)
        peer.set_timeout(None)
    except BaseException:
        peer.close()
        raise
    return peer


def _received(peer: MessageSocket) -> memoryview:
    """Return the next message; raise the broker's error, or OSError at the end."""
    received = peer.receive(_MAX_RESPONSE_BYTES)
    if received is None:
        raise ConnectionResetError("the broker closed the connection")
    if received[0] == Kind.ERROR:
        raise error_from_dict(msgspec.json.decode(received[1:]))
    return received


class SocketStream:
    """A connection that publishes: batches out, acknowledgements in. It takes the place of a `DoPutStream`."""

    def __init__(
        self,
        peer: MessageSocket,
        url: str,
        *,
        on_outcome: Callable[[PublishOutcome], None],
        on_end: Callable[[Any, IcestreamError], None],
    ) -> None:
        self._peer = peer
        self._url = url
        self._on_outcome = on_outcome
        self._on_end = on_end
        self.acks_read = 0
        self._thread = threading.Thread(target=self._read, name="icestream-acks", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def write(self, batch: pa.RecordBatch | None, metadata: bytes) -> None:
        try:
            if batch is None:
                self._peer.send(*lone_messages(metadata))
            else:
                self._peer.send(*batch_message(metadata, batch))
        except OSError:
            self._peer.end()

    def finish(self) -> None:
        self._peer.end()

    def join(self, timeout: float) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _read(self) -> None:
        try:
            while True:
                received = _received(self._peer)
                self.acks_read += 1
                self._on_outcome(parse_outcome(received[1:]))
        except IcestreamError as error:
            reason = error
        except (OSError, msgspec.DecodeError) as error:
            reason = UnavailableError(
                f"the connection to the broker at {self._url} broke: {error}", operation="publish"
            )
        self._peer.end()
        self._on_end(self, reason)
        self._peer.close()


class SocketReader:
    """A connection that reads a topic. One thread at a time calls `next`; any thread may call `end`."""

    def __init__(self, peer: MessageSocket, ticket: dict[str, Any]) -> None:
        """Ask for messages; see `is_served`."""
        self._peer = peer
        peer.set_timeout(_RESPONSE_SECONDS)
        peer.send(message(Kind.READ, ticket))
        first = _received(peer)
        self.is_served = first[0] == Kind.READ
        """Whether the broker reads this topic in this way. If not, Flight does."""
        self.offset = msgspec.json.decode(first[1:], type=ReadBegins).offset if self.is_served else -1
        """Of the first message."""

    def next(self, timeout: float | None) -> "list[Frame] | pa.RecordBatch | None":
        """Return frames or a batch; None at the end. Raises TimeoutError if nothing comes in time."""
        if not self._peer.wait(timeout):
            raise TimeoutError
        received = _received(self._peer)
        if received[0] == Kind.FRAMES:
            return split_frames(received)
        if received[0] == Kind.BATCH:
            return pa.ipc.read_record_batch(pa.py_buffer(split_batch(received)[1]), STREAM_SCHEMA)
        return None

    def end(self) -> None:
        self._peer.end()

    def close(self) -> None:
        self._peer.close()
