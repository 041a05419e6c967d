"""An HTTP proxy that makes chosen requests fail, as networks and servers do.

    with FaultProxy(catalog.url) as proxy:
        lost = proxy.inject(DropReply(), method="POST", path="/tables/")
        commit(Settings(**catalog.settings(endpoint=proxy.url)))    # the catalog commits, the client never hears of it
        assert lost.count == 1

Clients use its address as the endpoint. It passes requests on byte for byte, `Host` included, so signatures stay valid.
It streams bodies and never holds one in memory.
"""

import contextlib
import io
import re
import socket
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus

from tests.tcp_proxy import TcpProxy

# HTTP/1.1 on the wire: heads, and bodies with their framing.

_CHUNK_BYTES = 64 * 1024
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
    """The body of a request in parts, chunk sizes included."""
    return _framed(source, head) if head.has_known_end else iter(())


def reply_body(source: io.BufferedIOBase, head: Head, method: str) -> Iterator[bytes]:
    """The body of a reply in parts, chunk sizes included."""
    if method == "HEAD" or head.status in _BODILESS:
        return iter(())
    return _framed(source, head) if head.has_known_end else _until_end(source)


def _framed(source: io.BufferedIOBase, head: Head) -> Iterator[bytes]:
    return _chunks(source) if head.is_chunked else _exactly(source, int(head.headers["content-length"]))


def _exactly(source: io.BufferedIOBase, count: int) -> Iterator[bytes]:
    while count:
        chunk = source.read1(min(count, _CHUNK_BYTES))
        if not chunk:
            raise WireError("a body without its end")
        count -= len(chunk)
        yield chunk


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
    while chunk := source.read1(_CHUNK_BYTES):
        yield chunk


_MAX_KEPT_EXCHANGES = 10_000
_END_SECONDS = 10


@dataclass(frozen=True)
class DropReply:
    """The server does what is asked, and the connection ends without a reply."""


@dataclass(frozen=True)
class Answer:
    """The proxy answers itself; the server is asked first only if `after_server` is set, and its reply thrown away."""

    status: int = 503
    body: bytes = b""
    after_server: bool = False


@dataclass(frozen=True)
class Delay:
    """The server is asked this much later."""

    seconds: float


@dataclass(frozen=True)
class CutReply:
    """The connection ends after so many bytes of the reply's body."""

    after_bytes: int


@dataclass(frozen=True)
class CutRequest:
    """Both connections end after so many bytes of the request's body were passed on, the client's last.

    Some servers take what came for the whole (fasthttp's do, S3 itself does not). They are done with it before the
    client hears of the fault, so that its next attempt has the last word.
    """

    after_bytes: int


@dataclass(frozen=True)
class Hold:
    """The request, or with `reply` the reply, waits until `release`; `reached` tells that it does."""

    reply: bool = False
    reached: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def release(self) -> None:
        self.released.set()


Fault = DropReply | Answer | Delay | CutReply | CutRequest | Hold


@dataclass(eq=False)
class Injected:
    """A fault, the requests it is for, and how often it came to pass."""

    fault: Fault
    method: str | None
    path: re.Pattern[str]
    times: int | None
    count: int = 0
    happened: threading.Event = field(default_factory=threading.Event)

    def takes(self, request: Head) -> bool:
        is_meant = self.method in {None, request.method} and self.path.search(request.target) is not None
        return is_meant and (self.times is None or self.count < self.times)


@dataclass
class Exchange:
    """A request that came, what the server answered (0: it was not asked, or did not), and what went wrong."""

    method: str
    target: str
    status: int
    fault: Fault | None


class FaultProxy(TcpProxy):
    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self._injected: list[Injected] = []
        self._exchanges: deque[Exchange] = deque(maxlen=_MAX_KEPT_EXCHANGES)
        self._rules = threading.Lock()
        self._closing = threading.Event()

    def inject(self, fault: Fault, *, method: str | None = None, path: str = "", times: int | None = 1) -> Injected:
        """Let a fault befall the next `times` requests (None: all) of a method whose path and query match a pattern.

        Each request meets at most one fault: the first injected that is meant for it.
        """
        injected = Injected(fault, method, re.compile(path), times)
        with self._rules:
            self._injected.append(injected)
        return injected

    def clear(self) -> None:
        """All goes right from now on; what is held is released."""
        with self._rules:
            injected, self._injected = self._injected, []
        for one in injected:
            if isinstance(one.fault, Hold):
                one.fault.release()

    def exchanges(self) -> list[Exchange]:
        """The latest requests, in the order in which they came."""
        with self._rules:
            return list(self._exchanges)

    def close(self) -> None:
        self._closing.set()
        self.clear()
        super().close()

    def serve(self, client: socket.socket) -> None:
        with client.makefile("rb") as source:
            while (request := read_head(source)) is not None:
                if "100-continue" in request.headers.get("expect", "").lower():
                    client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")  # the server's own is thrown away
                if not self._exchange(request, request_body(source, request), client):
                    return

    def _exchange(self, request: Head, body: Iterator[bytes], client: socket.socket) -> bool:
        """One request and its reply; whether the connection to the client goes on."""
        fault = self._fault_for(request)
        exchange = Exchange(request.method, request.target, 0, fault)
        with self._rules:
            self._exchanges.append(exchange)
        if isinstance(fault, Answer) and not fault.after_server:
            _drain(body)
            return _answer(client, request, fault)
        self._before_server(fault)
        with self.connected() as server, server.makefile("rb") as source:
            server.sendall(request.raw)
            is_cut = _pass_on(body, server, fault.after_bytes if isinstance(fault, CutRequest) else None)
            if is_cut:
                _end(server)
                return False
            reply = _final_head(source)
            if reply is None:
                return False
            exchange.status = reply.status  # before the client has the reply: who got it may look at once
            return self._reply(reply, source, request, client, fault)

    def _reply(
        self, reply: Head, source: io.BufferedIOBase, request: Head, client: socket.socket, fault: Fault | None
    ) -> bool:
        body = reply_body(source, reply, request.method)
        if isinstance(fault, DropReply | Answer):
            _drain(body)
            return _answer(client, request, fault) if isinstance(fault, Answer) else False
        if isinstance(fault, Hold) and fault.reply:
            self._hold(fault)
        client.sendall(reply.raw)
        is_cut = _pass_on(body, client, fault.after_bytes if isinstance(fault, CutReply) else None)
        is_framed = reply.has_known_end or request.method == "HEAD" or reply.status == HTTPStatus.NO_CONTENT
        return is_framed and not is_cut and not reply.closes and not request.closes

    def _before_server(self, fault: Fault | None) -> None:
        if isinstance(fault, Delay):
            self._closing.wait(fault.seconds)
        elif isinstance(fault, Hold) and not fault.reply:
            self._hold(fault)

    def _hold(self, fault: Hold) -> None:
        fault.reached.set()
        fault.released.wait()

    def _fault_for(self, request: Head) -> Fault | None:
        with self._rules:
            for injected in self._injected:
                if injected.takes(request):
                    injected.count += 1
                    injected.happened.set()
                    return injected.fault
        return None


def _final_head(source: io.BufferedIOBase) -> Head | None:
    """The head of the reply proper, after interim ones such as `100 Continue`."""
    while (head := read_head(source)) is not None:
        if head.status >= HTTPStatus.OK:
            return head
    return None


def _pass_on(chunks: Iterable[bytes], sink: socket.socket, limit_bytes: int | None) -> bool:
    """Send all chunks, or only so many bytes of them; whether something was cut off."""
    room = limit_bytes
    for chunk in chunks:
        if room is not None and len(chunk) > room:
            sink.sendall(chunk[:room])
            return True
        sink.sendall(chunk)
        room = None if room is None else room - len(chunk)
    return False


def _end(server: socket.socket) -> None:
    """Nothing more is coming: wait until the server has closed its side too."""
    server.settimeout(_END_SECONDS)
    with contextlib.suppress(OSError):
        server.shutdown(socket.SHUT_WR)
        while server.recv(_CHUNK_BYTES):
            pass


def _drain(chunks: Iterable[bytes]) -> None:
    deque(chunks, maxlen=0)


def _answer(client: socket.socket, request: Head, answer: Answer) -> bool:
    reason = HTTPStatus(answer.status).phrase
    head = f"HTTP/1.1 {answer.status} {reason}\r\nContent-Length: {len(answer.body)}\r\n\r\n"
    client.sendall(head.encode() + (b"" if request.method == "HEAD" else answer.body))
    return not request.closes
