"""The socket door: what travels between the native clients and the broker where a message is small and waited for.

    length: u32 | kind: u8 | the rest        little-endian; the length counts everything after itself

A connection begins with a `hello` in both directions, and then does one thing: it publishes, or it reads a topic.
`docs/protocol.md` describes every kind.
"""

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import msgspec
from msgspec import Struct

from icestream.model.errors import InvalidRequestError, TooLargeError
from icestream.model.messages import Frame
from icestream.protocol.parsing import Request, Response

VERSION = 1
LENGTH = struct.Struct("<I")
MAX_HELLO_BYTES = 8 * 1024
"""A longer message is refused before the caller is known."""
MAX_OVERHEAD_BYTES = 256 * 1024
"""What a message may have beside a batch of the largest size: the request, and Arrow's own header."""

_HEAD = struct.Struct("<BI")
_FRAME = struct.Struct("<QQqQqBBHIII")
_ALIGNMENT = 8
_encode_json = msgspec.json.Encoder().encode


class MessageKind(IntEnum):
    LONE_MESSAGES = 1
    """A publish request whose messages travel without Arrow; see `icestream.protocol.publish`."""
    BATCH = 2
    """JSON and an Arrow batch: a publish request with its messages, or messages that are read."""
    OUTCOME = 3
    """What became of a publish request, as JSON."""
    READ = 4
    """A read ticket, as JSON."""
    FRAMES = 5
    """Messages as the log stores them."""
    MISSING = 6
    """Messages that are missing for good before what follows, as JSON: the metadata of DoGet's batches."""
    END = 7
    """There is nothing more to read, as JSON."""
    HELLO = 16
    ERROR = 127
    """Why the broker closes the connection, as JSON."""


class Hello(Request):
    """The client's first message."""

    version: int
    broker: str
    """The id that the broker gave over Flight: behind another address there may be another broker."""
    token: str | None = None


class Welcome(Response):
    """The broker's response to it."""

    version: int


class ReadBegins(Response):
    """The broker's response to a read ticket that it serves; a bare `END` sends the client to Flight."""

    offset: int
    """Of the first message."""


class SocketAddress(Struct, omit_defaults=True):
    """Where the door is, told over Flight."""

    broker: str
    """An id that the broker takes at each start."""
    port: int
    flight_port: int
    """A client that reaches the broker by another port than this has something between, and stays with Flight."""


def message(kind: MessageKind, fields: Any) -> bytes:
    """Return a message of JSON."""
    text = _encode_json(fields)
    return b"".join((LENGTH.pack(1 + len(text)), kind.to_bytes(), text))


def lone_messages(request: bytes) -> list[bytes]:
    """Return a publish request of lone messages, which begins with its kind already."""
    return [LENGTH.pack(len(request)), request]


def batch_message(fields: bytes, batch: Any) -> list[Any]:
    """Return JSON and an Arrow batch as buffers to send one after the other. The batch begins at a multiple of 8."""
    data = batch.serialize()
    padded = fields.ljust(-(-(_HEAD.size + len(fields)) // _ALIGNMENT) * _ALIGNMENT - _HEAD.size)
    head = LENGTH.pack(_HEAD.size + len(padded) + data.size)
    return [b"".join((head, _HEAD.pack(MessageKind.BATCH, len(padded)), padded)), memoryview(data)]


def split_batch(body: memoryview) -> tuple[memoryview, memoryview]:
    """Return the JSON and the Arrow batch of a message of the kind BATCH."""
    if len(body) < _HEAD.size:
        raise InvalidRequestError("the message ends within its head", operation="socket")
    end = _HEAD.size + _HEAD.unpack_from(body)[1]
    if end > len(body):
        raise InvalidRequestError(f"the JSON ends at byte {end} of {len(body)}", operation="socket")
    return body[_HEAD.size : end], body[end:]


def frames_message(frames: list[Frame]) -> list[Any]:
    """Return frames as buffers to send one after the other. Bodies are not copied."""
    parts: list[Any] = [b""]
    nbytes = 1
    for frame in frames:
        name = frame.producer.encode()
        head = _FRAME.pack(
            frame.base_offset,
            frame.message_count,
            frame.publish_time_us,
            frame.epoch,
            frame.sequence,
            frame.encoding,
            0,
            frame.schema_id,
            len(name),
            0,
            len(frame.body),
        )
        parts.append(head + name)
        parts.append(frame.body)
        nbytes += len(head) + len(name) + len(frame.body)
    parts[0] = LENGTH.pack(nbytes) + MessageKind.FRAMES.to_bytes()
    return parts


def split_frames(body: memoryview) -> list[Frame]:
    """Return the frames of a message. Their bodies are slices of it."""
    frames: list[Frame] = []
    position = 1
    while position < len(body):
        offset, count, time_us, epoch, sequence, encoding, _, schema_id, name_bytes, _, body_bytes = _FRAME.unpack_from(
            body, position
        )
        position += _FRAME.size
        name = str(body[position : position + name_bytes], "utf-8")
        position += name_bytes
        frames.append(
            Frame(
                offset,
                count,
                time_us,
                epoch,
                name,
                sequence,
                encoding,
                schema_id,
                body[position : position + body_bytes],
            )
        )
        position += body_bytes
    return frames


_BUFFER_BYTES = 64 * 1024


_TCP_OPTIONS = {
    "TCP_NODELAY": 1,
    # A silent connection to a host that is gone is noticed within about 20 seconds. No TCP_USER_TIMEOUT: the kernel
    # would also cut off a reader that takes its time and leaves its buffers full.
    "TCP_KEEPIDLE": 10,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 2,
}
"""Those that the system has are set."""


class MessageSocket:
    """A connected socket that sends and receives messages with a length in front.

    One thread at a time receives. Any thread may send; `send` is not mixed with another thread's.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._sending = threading.Lock()
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _TCP_OPTIONS.items():
            if hasattr(socket, option):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

    def receive(self, max_bytes: int) -> memoryview | None:
        """Return the next message, without its length; None if the other side has ended. It may be kept."""
        prefix = LENGTH.size
        if not self._fill(prefix, may_end=True):
            return None
        (length,) = LENGTH.unpack_from(self._buffer, self._start)
        if not 0 < length <= max_bytes:
            raise TooLargeError(
                f"a message of {length} bytes comes, at most {max_bytes} are allowed", operation="receive"
            )
        if length + prefix <= _BUFFER_BYTES:
            self._fill(prefix + length)
            first = self._start + prefix
            self._start = first + length
            return memoryview(bytes(self._view[first : self._start]))
        return self._receive_large(length)

    def _receive_large(self, length: int) -> memoryview:
        """Receive a message that does not fit into the buffer, in memory of its own."""
        data = bytearray(length)
        view = memoryview(data)
        first = self._start + LENGTH.size
        at = self._end - first
        view[:at] = self._view[first : self._end]
        self._start = self._end = 0
        while at < length:
            count = self._socket.recv_into(view[at:], 0, socket.MSG_WAITALL)
            if not count:
                raise ConnectionResetError("the connection ended within a message")
            at += count
        return view

    def _fill(self, needed: int, *, may_end: bool = False) -> bool:
        """Receive until the buffer holds `needed` bytes; False if the other side ends before the first."""
        if self._start + needed > _BUFFER_BYTES or self._start == self._end:
            left = self._end - self._start
            self._buffer[:left] = self._buffer[self._start : self._end]
            self._start, self._end = 0, left
        while self._end - self._start < needed:
            count = self._socket.recv_into(self._view[self._end :])
            if not count:
                if may_end and self._start == self._end:
                    return False
                raise ConnectionResetError("the connection ended within a message")
            self._end += count
        return True

    def send(self, *parts: Any) -> None:
        """Send a message, given as its parts."""
        with self._sending:
            if len(parts) == 1:
                self._socket.sendall(parts[0])
            else:
                send_parts(self._socket, parts)

    def wait(self, seconds: float | None) -> bool:
        """Wait until something can be received; False if nothing comes in time."""
        if self._start < self._end:
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(None if seconds is None else max(0, seconds * 1000)))

    def set_timeout(self, seconds: float | None) -> None:
        self._socket.settimeout(seconds)

    def end(self) -> None:
        """End both directions: a thread that receives or sends gets the end. From any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def end_receiving(self) -> None:
        """Receive no more: the receiving thread gets the end. What it sends still arrives."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        with self._sending:
            self._socket.close()

    @property
    def is_gone(self) -> bool:
        """Whether the other side has closed the connection, as far as is known."""
        try:
            return self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True


_JOINED_BYTES = 16 * 1024
_MAX_PARTS = 512


def send_parts(sock: socket.socket, parts: Sequence[Any]) -> None:
    """Send buffers one after the other: joined if they are small, else without a copy."""
    if sum(map(len, parts)) <= _JOINED_BYTES:
        sock.sendall(b"".join(parts))
        return
    left = [memoryview(part) for part in parts if len(part)]
    while left:
        sent = sock.sendmsg(left[:_MAX_PARTS])
        while left and sent >= len(left[0]):
            sent -= len(left.pop(0))
        if sent:
            left[0] = left[0][sent:]
