"""Lines from a file or a pipe, many at a time and in bounded memory."""

import os
import select
import time
from collections.abc import Iterator

from icestream.model.errors import TooLargeError

CHUNK_BYTES = 1024 * 1024
MAX_LINE_BYTES = 1024 * 1024 * 1024
"""No broker can be set to take a larger message."""


def read_lines(
    descriptor: int, *, chunk_bytes: int = CHUNK_BYTES, linger_s: float = 0.0, max_line_bytes: int = MAX_LINE_BYTES
) -> Iterator[list[bytes]]:
    """Lists of lines without their newline, as they come; a last line needs no newline.

    A pipe that is not full is given `linger_s` to bring more, so that a slow writer does not make a list a line.
    """
    begun: list[bytes] = []
    begun_bytes = 0
    while data := _read_some(descriptor, chunk_bytes, linger_s):
        end = data.rfind(b"\n")
        if end >= 0:
            begun.append(data[:end])
            yield b"".join(begun).split(b"\n")
            begun = [data[end + 1 :]]
            begun_bytes = len(begun[0])
            continue
        begun.append(data)
        begun_bytes += len(data)
        if begun_bytes > max_line_bytes:
            raise TooLargeError(f"a line has more than {max_line_bytes} bytes", operation="read")
    if last := b"".join(begun):
        yield [last]


def _read_some(descriptor: int, limit: int, linger_s: float) -> bytes:
    """Up to `limit` bytes: what is there, and what comes within `linger_s` of it; nothing only at the end."""
    data = os.read(descriptor, limit)
    if not data or len(data) == limit or linger_s <= 0:
        return data
    parts, size = [data], len(data)
    deadline = time.monotonic() + linger_s
    while size < limit:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        data = os.read(descriptor, limit - size)
        if not data:
            break
        parts.append(data)
        size += len(data)
    return b"".join(parts)
