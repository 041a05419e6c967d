"""A DoPut call spoken byte by byte: HTTP/2, gRPC and Flight's messages by hand.

No client library will send an Arrow message that is not sound, and one that did might itself fall over it. This one
sends what it is given. It understands of the answers only what it needs: the acknowledgements.
"""

import contextlib
import json
import socket
import struct
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import pyarrow as pa

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GO_AWAY = 0, 1, 3, 4, 6, 7
_ACK = _END_STREAM = 1
_END_HEADERS = 4
_STREAM = 1
_METHOD = "/arrow.flight.protocol.FlightService/DoPut"


class IpcMessage(NamedTuple):
    """An Arrow IPC message as Flight carries it."""

    header: bytes
    body: bytes

    @classmethod
    def of(cls, serialized: pa.Buffer) -> Self:
        message = pa.ipc.read_message(serialized)
        body = message.body
        return cls(message.metadata.to_pybytes(), body.to_pybytes() if body is not None else b"")


class RawPut:
    """One call on one connection; the schema is sent first, as a sound client does."""

    def __init__(self, address: str, schema: bytes, *, timeout_seconds: float) -> None:
        parts = urlsplit(address)
        self._socket = socket.create_connection((parts.hostname, parts.port), timeout_seconds)
        self._received = b""
        authority = f"{parts.hostname}:{parts.port}"
        self._socket.sendall(
            _PREFACE + _frame(_SETTINGS, 0, 0, b"") + _frame(_HEADERS, _END_HEADERS, _STREAM, _call(authority))
        )
        path_descriptor = b"\x08\x01" + _field(3, b"publish")
        self.send(schema, b"", b"", _field(1, path_descriptor))

    def send(self, header: bytes, body: bytes, metadata: bytes, descriptor: bytes = b"") -> None:
        """One FlightData message; errors of a connection that the broker has closed are left for `answers`."""
        data = descriptor + _field(2, header) + _field(3, metadata) + _field(1000, body)
        message = struct.pack(">BI", 0, len(data)) + data
        self._send(
            b"".join(_frame(_DATA, 0, _STREAM, message[at : at + 16_000]) for at in range(0, len(message), 16_000))
        )

    def send_bytes(self, data: bytes) -> None:
        """Anything, in the place of a frame."""
        self._send(data)

    def answers(self) -> list[dict[str, Any]]:
        """End the call; the acknowledgements until the broker ended it too, or hung up."""
        self._send(_frame(_DATA, _END_STREAM, _STREAM, b""))
        data = b""
        while (frame := self._next_frame()) is not None:
            kind, flags, payload = frame
            if kind == _DATA:
                data += payload
            elif kind == _SETTINGS and not flags & _ACK:
                self._send(_frame(_SETTINGS, _ACK, 0, b""))
            elif kind == _PING and not flags & _ACK:
                self._send(_frame(_PING, _ACK, 0, payload))
            if kind in (_RESET, _GO_AWAY) or (kind in (_DATA, _HEADERS) and flags & _END_STREAM):
                break
        return [json.loads(_metadata(message)) for message in _messages(data)]

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            self._socket.sendall(data)

    def _next_frame(self) -> tuple[int, int, bytes] | None:
        head = self._read(9)
        if head is None:
            return None
        payload = self._read(int.from_bytes(head[:3]))
        return None if payload is None else (head[3], head[4], payload)

    def _read(self, length: int) -> bytes | None:
        while len(self._received) < length:
            try:
                data = self._socket.recv(65536)
            except ConnectionError:
                return None
            if not data:
                return None
            self._received += data
        taken, self._received = self._received[:length], self._received[length:]
        return taken

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def _call(authority: str) -> bytes:
    """The request's headers, each a literal that is not indexed."""
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": _METHOD,
        ":authority": authority,
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return b"".join(b"\0" + _short(name) + _short(value) for name, value in headers.items())


def _short(text: str) -> bytes:
    data = text.encode()
    assert len(data) < 127  # longer ones need more than one byte of length
    return bytes((len(data),)) + data


def _varint(value: int) -> bytes:
    data = b""
    while value > 0x7F:
        data += bytes((value & 0x7F | 0x80,))
        value >>= 7
    return data + bytes((value,))


def _field(number: int, data: bytes) -> bytes:
    """A protobuf field of bytes."""
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _messages(data: bytes) -> list[bytes]:
    """The gRPC messages in a stream's data."""
    found = []
    while len(data) >= 5:  # a flag and four bytes of length
        length = int.from_bytes(data[1:5])
        found.append(data[5 : 5 + length])
        data = data[5 + length :]
    return found


def _metadata(put_result: bytes) -> bytes:
    """The only field of a PutResult."""
    assert put_result[:1] == b"\x0a"
    length, place = 0, 1
    for shift in range(0, 35, 7):
        byte = put_result[place]
        place += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:  # the last byte of a varint
            break
    return put_result[place : place + length]
