"""Compressed bodies, a piece at a time, so that a small body cannot become a large one unseen."""

import contextlib
from collections.abc import Iterator

import pyarrow as pa

from icestream.model.errors import InvalidMessageError, TooLargeError
from icestream.server.http.errors import UnsupportedMediaTypeError
from icestream.storage.budget import ByteBudget

CODECS = ("gzip", "zstd")
_PIECE_BYTES = 1 << 18


def check_encoding(text: str) -> str | None:
    """The codec that a header `Content-Encoding` names; None for a plain body."""
    name = text.strip().lower()
    if name in ("", "identity"):
        return None
    if name not in CODECS:
        raise UnsupportedMediaTypeError(
            f"a body in the encoding {name[:80]!r} is not taken here",
            operation="receive telemetry",
            remedy=f"use {' or '.join(CODECS)}, or none",
        )
    return name


@contextlib.contextmanager
def plain_body(body: bytearray, codec: str | None, *, max_bytes: int, budget: ByteBudget) -> Iterator[bytes]:
    """The body as it was before compression; what it takes counts as in flight until the block ends."""
    if codec is None:
        yield bytes(body)
        return
    pieces: list[bytes] = []
    taken = 0
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
            while piece := _read(stream, codec):
                budget.take(len(piece))
                taken += len(piece)
                if taken > max_bytes:
                    raise TooLargeError(
                        f"the body has more than {max_bytes} bytes when decompressed",
                        operation="receive telemetry",
                        remedy="send less at a time",
                        details={"max_bytes": max_bytes},
                    )
                pieces.append(piece)
        yield b"".join(pieces)
    finally:
        budget.give_back(taken)


def _read(stream: pa.CompressedInputStream, codec: str) -> bytes:
    try:
        piece: bytes = stream.read(_PIECE_BYTES)
    except (OSError, pa.ArrowException) as error:
        raise InvalidMessageError(f"the body is not {codec}: {error}", operation="receive telemetry") from error
    return piece
