"""HTTP/1.1 as it is on the wire: heads, and bodies with their framing, passed on byte for byte."""

import io
from collections.abc import Iterator
from dataclasses import dataclass

_PIECE_BYTES = 64 * 1024
_MAX_HEAD_BYTES = 256 * 1024
_BODILESS = (204, 304)


class WireError(OSError):
    """A peer that ended in the middle, or does not speak HTTP/1.1."""


@dataclass(frozen=True)
class Head:
    """The first line and the headers of a request or a reply; `raw` is what came."""

    raw: bytes
    words: tuple[str, str, str]
    headers: dict[str, str]

    @property
    def method(self) -> str:
        return self.words[0]

    @property
    def target(self) -> str:
        """Path and query."""
        return self.words[1]

    @property
    def status(self) -> int:
        return int(self.words[1])

    @property
    def closes(self) -> bool:
        return self.headers.get("connection", "").lower() == "close"

    @property
    def has_known_end(self) -> bool:
        return "content-length" in self.headers or self.is_chunked

    @property
    def is_chunked(self) -> bool:
        return "chunked" in self.headers.get("transfer-encoding", "").lower()


def read_head(source: io.BufferedIOBase) -> Head | None:
    """The next head, or None if the peer has ended."""
    raw = b""
    while not raw.endswith((b"\r\n\r\n", b"\n\n")):
        line = source.readline(_MAX_HEAD_BYTES)
        if not line and not raw:
            return None
        if not line or len(raw) > _MAX_HEAD_BYTES:
            raise WireError("a head without an end")
        raw += line
    first, *lines = raw.decode("latin-1").splitlines()
    words = [*first.split(" ", 2), "", ""][:3]
    named = (line.partition(":") for line in lines if line)
    headers = {name.strip().lower(): value.strip() for name, _, value in named}
    return Head(raw, (words[0], words[1], words[2]), headers)


def request_body(source: io.BufferedIOBase, head: Head) -> Iterator[bytes]:
    """The body of a request in pieces, chunk sizes included."""
    return _framed(source, head) if head.has_known_end else iter(())


def reply_body(source: io.BufferedIOBase, head: Head, method: str) -> Iterator[bytes]:
    """The body of a reply in pieces, chunk sizes included."""
    if method == "HEAD" or head.status in _BODILESS:
        return iter(())
    return _framed(source, head) if head.has_known_end else _until_end(source)


def _framed(source: io.BufferedIOBase, head: Head) -> Iterator[bytes]:
    return _chunks(source) if head.is_chunked else _exactly(source, int(head.headers["content-length"]))


def _exactly(source: io.BufferedIOBase, count: int) -> Iterator[bytes]:
    while count:
        piece = source.read1(min(count, _PIECE_BYTES))
        if not piece:
            raise WireError("a body without its end")
        count -= len(piece)
        yield piece


def _chunks(source: io.BufferedIOBase) -> Iterator[bytes]:
    size = -1
    while size:
        line = source.readline(_MAX_HEAD_BYTES)
        if not line:
            raise WireError("a body without its end")
        yield line
        size = int(line.split(b";")[0], 16)
        if size:
            yield from _exactly(source, size + len(b"\r\n"))
    while line := source.readline(_MAX_HEAD_BYTES):
        yield line
        if not line.strip():
            return


def _until_end(source: io.BufferedIOBase) -> Iterator[bytes]:
    while piece := source.read1(_PIECE_BYTES):
        yield piece
