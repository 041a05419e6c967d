import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.http_proxy import Answer, CutReply, CutRequest, Delay, DropReply, FaultProxy, Hold

PATIENCE_SECONDS = 30


class Upstream(ThreadingHTTPServer):
    """Answers with what it was sent, and remembers it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[tuple[str, str, bytes]] = []
        self.asked = threading.Event()
        self.hosts: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Upstream

    def do_POST(self) -> None:
        body = self._chunked() if "chunked" in self.headers.get("Transfer-Encoding", "") else self._plain()
        self.server.seen.append((self.command, self.path, body))
        self.server.asked.set()
        self.server.hosts.append(self.headers["Host"])
        self.send_response(200)
        if self.path.startswith("/chunked"):
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
        else:
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    do_GET = do_PUT = do_HEAD = do_POST  # noqa: N815  # names that http.server asks for

    def _plain(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _chunked(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def log_message(self, *_args: object) -> None:
        pass


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with Upstream() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(upstream: Upstream) -> Iterator[FaultProxy]:
    with FaultProxy(upstream.url) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=PATIENCE_SECONDS)
    yield connection
    connection.close()


def ask(client: http.client.HTTPConnection, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    client.request(method, path, body)
    reply = client.getresponse()
    return reply.status, reply.read()


def test_requests_pass_unchanged_on_one_connection(
    client: http.client.HTTPConnection, upstream: Upstream, proxy: FaultProxy
) -> None:
    large = bytes(range(256)) * 4_000
    assert ask(client, "POST", "/one?x=1", b"body") == (200, b"body")
    assert ask(client, "PUT", "/two", large) == (200, large)
    assert ask(client, "HEAD", "/three") == (200, b"")
    assert ask(client, "POST", "/chunked", large) == (200, large)
    client.request("POST", "/sent-in-chunks", iter([b"ab", b"cd"]), encode_chunked=True)
    assert client.getresponse().read() == b"abcd"
    assert upstream.seen[0] == ("POST", "/one?x=1", b"body")
    assert set(upstream.hosts) == {proxy.address}
    assert [one.status for one in proxy.exchanges()] == [200] * 5


def test_a_client_that_waits_for_100_continue_goes_on(client: http.client.HTTPConnection) -> None:
    client.putrequest("PUT", "/waiting")
    client.putheader("Expect", "100-continue")
    client.putheader("Content-Length", "4")
    client.endheaders()
    client.send(b"body")
    reply = client.getresponse()
    assert (reply.status, reply.read()) == (200, b"body")


def test_a_dropped_reply_was_processed(
    client: http.client.HTTPConnection, upstream: Upstream, proxy: FaultProxy
) -> None:
    lost = proxy.inject(DropReply(), method="POST", path="/commit")
    assert ask(client, "POST", "/other", b"a") == (200, b"a")
    with pytest.raises(http.client.RemoteDisconnected):
        ask(client, "POST", "/commit", b"b")
    client.close()
    assert upstream.seen[-1] == ("POST", "/commit", b"b")
    assert lost.count == 1
    assert ask(client, "POST", "/commit", b"c") == (200, b"c")


def test_an_answer_of_the_proxy_never_reaches_the_server(
    client: http.client.HTTPConnection, upstream: Upstream, proxy: FaultProxy
) -> None:
    proxy.inject(Answer(503, b"later"), times=2)
    assert ask(client, "PUT", "/a", b"x" * 100_000) == (503, b"later")
    assert ask(client, "GET", "/a") == (503, b"later")
    assert ask(client, "GET", "/a") == (200, b"")
    assert len(upstream.seen) == 1


def test_an_answer_after_the_server_hides_what_it_did(
    client: http.client.HTTPConnection, upstream: Upstream, proxy: FaultProxy
) -> None:
    proxy.inject(Answer(502, after_server=True))
    assert ask(client, "POST", "/commit", b"done") == (502, b"")
    assert upstream.seen == [("POST", "/commit", b"done")]


def test_a_reply_is_cut_in_the_middle_of_its_body(client: http.client.HTTPConnection, proxy: FaultProxy) -> None:
    proxy.inject(CutReply(after_bytes=10))
    with pytest.raises(http.client.IncompleteRead) as caught:
        ask(client, "POST", "/file", b"x" * 1_000)
    assert caught.value.partial == b"x" * 10


def test_a_request_is_cut_in_the_middle_of_its_body(
    client: http.client.HTTPConnection, upstream: Upstream, proxy: FaultProxy
) -> None:
    proxy.inject(CutRequest(after_bytes=10))
    with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
        ask(client, "PUT", "/file", b"x" * 1_000)
    assert upstream.seen == [("PUT", "/file", b"x" * 10)]  # by now, so that it cannot come after the next attempt


def test_a_held_request_arrives_after_its_client_is_gone(
    client: http.client.HTTPConnection, upstream: Upstream, proxy: FaultProxy
) -> None:
    hold = Hold()
    proxy.inject(hold, path="/commit")
    client.request("POST", "/commit", b"late")
    assert hold.reached.wait(PATIENCE_SECONDS)
    client.close()
    assert upstream.seen == []
    hold.release()
    assert upstream.asked.wait(PATIENCE_SECONDS)
    assert upstream.seen == [("POST", "/commit", b"late")]


def test_a_held_reply_comes_when_it_is_released(
    client: http.client.HTTPConnection, upstream: Upstream, proxy: FaultProxy
) -> None:
    hold = Hold(reply=True)
    proxy.inject(hold)
    client.request("POST", "/commit", b"done")
    assert hold.reached.wait(PATIENCE_SECONDS)
    assert upstream.seen == [("POST", "/commit", b"done")]
    hold.release()
    assert client.getresponse().read() == b"done"


def test_a_delayed_request_arrives(client: http.client.HTTPConnection, proxy: FaultProxy) -> None:
    delayed = proxy.inject(Delay(0.05), times=None)
    assert ask(client, "POST", "/a", b"1") == (200, b"1")
    assert ask(client, "POST", "/a", b"2") == (200, b"2")
    proxy.clear()
    assert ask(client, "POST", "/a", b"3") == (200, b"3")
    assert delayed.count == 2


def test_refused_connections_are_taken_again_at_the_same_port(
    client: http.client.HTTPConnection, proxy: FaultProxy
) -> None:
    assert ask(client, "GET", "/a") == (200, b"")
    proxy.refuse()
    with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
        ask(client, "GET", "/a")
    client.close()
    with pytest.raises(ConnectionRefusedError):
        ask(client, "GET", "/a")
    client.close()
    proxy.allow()
    assert ask(client, "GET", "/a") == (200, b"")
