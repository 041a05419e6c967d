"""The client's side of the socket door: connections that publish, and connections that read a topic."""

import socket
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa

from icestream.client.endpoint import BrokerEndpoint
from icestream.client.publisher import PendingBatch
from icestream.model.errors import IcestreamError, UnavailableError, error_from_dict
from icestream.model.messages import STREAM_SCHEMA, Frame
from icestream.protocol.publish import PublishOutcome, parse_outcome
from icestream.protocol.socket import (
    VERSION,
    Hello,
    MessageKind,
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
_OTHERS_READ_SECONDS = 0.002
_MAX_RESPONSE_BYTES = 1 << 31


def connect(endpoint: BrokerEndpoint, address: SocketAddress) -> MessageSocket:
    """Connect to the door and say hello; raise why the broker refuses, or OSError."""
    host = urlsplit(endpoint.url).hostname
    peer = MessageSocket(socket.create_connection((host, address.port), _CONNECT_SECONDS))
    try:
        peer.send(message(MessageKind.HELLO, Hello(VERSION, address.broker, endpoint.token)))
        _received(peer)
        peer.set_timeout(None)
    except BaseException:
        peer.close()
        raise
    return peer


def _received(peer: MessageSocket) -> memoryview:
    """Return the next message; raise the broker's error, or ConnectionError at the end or if nothing comes."""
    try:
        received = peer.receive(_MAX_RESPONSE_BYTES)
    except TimeoutError as error:
        raise ConnectionResetError("the broker does not respond") from error
    if received is None:
        raise ConnectionResetError("the broker closed the connection")
    if received[0] == MessageKind.ERROR:
        raise error_from_dict(msgspec.json.decode(received[1:]))
    return received


class SocketStream:
    """A connection that publishes: batches out, acknowledgements in. It takes the place of a `DoPutStream`.

    A thread that waits for an acknowledgement reads the socket itself, which saves waking it. A thread of the stream's
    own reads what nobody waits for: it leaves the socket alone while others read, and comes back when they have not for
    a moment.
    """

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
        self._turn = threading.Lock()
        """Whoever has it reads the socket."""
        self._others_read_at = 0.0
        """When another thread than the stream's own last read, or wanted to."""
        self._reason: IcestreamError | None = None
        self._thread = threading.Thread(target=self._run, name="icestream-acks", daemon=True)

    def start(self) -> None:
        """Begin to read. Call it once the owner has the stream: its end may be reported at once."""
        self._thread.start()

    def write(self, batch: pa.RecordBatch | None, metadata: bytes) -> None:
        """Write a batch, or lone messages. A failure is not raised: the reading thread notices it."""
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

    def read_for(self, batch: PendingBatch, timeout: float | None) -> None:
        """Read acknowledgements until this one has come; return at once if another thread reads."""
        self._others_read_at = time.monotonic()
        if not self._turn.acquire(blocking=False):
            return
        try:
            deadline = None if timeout is None else time.monotonic() + timeout
            while not batch.done and self._reason is None:
                if not self._peer.wait(None if deadline is None else deadline - time.monotonic()):
                    return
                self._read_one()
        except BaseException:
            self._peer.end()  # an interrupt may have come within a message
            raise
        finally:
            self._others_read_at = time.monotonic()
            self._turn.release()

    def _read_one(self) -> None:
        try:
            received = _received(self._peer)
            self.acks_read += 1
            outcome = parse_outcome(received[1:])
            self._on_outcome(outcome)
        except IcestreamError as error:
            self._reason = error
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait have to hear of the end
            self._reason = UnavailableError(f"the connection to {self._url} broke: {error}", operation="publish")

    def _run(self) -> None:
        while self._reason is None:
            if time.monotonic() - self._others_read_at < _OTHERS_READ_SECONDS:
                time.sleep(_OTHERS_READ_SECONDS)
                continue
            with self._turn:
                if self._reason is None:
                    self._read_one()
        self._peer.end()
        self._on_end(self, self._reason)
        self._peer.close()


class SocketReader:
    """A connection that reads a topic. One thread at a time calls `next`; any thread may call `end`."""

    def __init__(self, peer: MessageSocket, ticket: dict[str, Any]) -> None:
        """Ask for messages; see `is_served`."""
        self._peer = peer
        try:
            peer.set_timeout(_RESPONSE_SECONDS)
            peer.send(message(MessageKind.READ, ticket))
            first = _received(peer)
        except BaseException:
            peer.close()
            raise
        self.is_served = first[0] == MessageKind.READ
        """Whether the broker reads this topic in this way. If not, Flight does."""
        self.offset = msgspec.json.decode(first[1:], type=ReadBegins).offset if self.is_served else -1
        """Of the first message."""

    def next(self, timeout: float | None) -> "list[Frame] | pa.RecordBatch | dict[str, int] | None":
        """Return frames, a batch, or what is said of missing messages; None at the end.

        Raises TimeoutError if nothing comes in time.
        """
        if not self._peer.wait(timeout):
            raise TimeoutError
        received = _received(self._peer)
        if received[0] == MessageKind.FRAMES:
            return split_frames(received)
        if received[0] == MessageKind.BATCH:
            return pa.ipc.read_record_batch(pa.py_buffer(split_batch(received)[1]), STREAM_SCHEMA)
        if received[0] == MessageKind.MISSING:
            return msgspec.json.decode(received[1:], type=dict[str, int])
        return None

    def end(self) -> None:
        self._peer.end()

    def close(self) -> None:
        self._peer.close()
