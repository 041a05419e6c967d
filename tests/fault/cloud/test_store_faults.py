"""An object store that is busy, slow or cut off: every call gives the whole right result or a typed error."""

import contextlib
import os
import random
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import Any
from uuid import uuid4

import pytest
from tests.http_proxy import Answer, CutReply, CutRequest, Delay, DropReply, Fault, FaultProxy, Hold
from tests.tcp_proxy import TcpProxy

from icestream.cloud import ObjectStore
from icestream.cloud.opendal_store import open_object_store
from icestream.config import CloudSettings
from icestream.model.errors import ObjectExistsError, UnavailableError
from icestream_servers import S3Server

MIB = 1024 * 1024
OPERATIONS = 4_000 if os.environ.get("ICESTREAM_SOAK") else 70
SEED = int(os.environ.get("ICESTREAM_SEED", "1"))
RETRIES = 2
TIMEOUT_MS = 500
PATIENT_MS = 20_000
PATIENCE_SECONDS = 60
FAULTS: list[Fault] = [
    Answer(503),
    Answer(503, after_server=True),
    Answer(500),
    Answer(500, after_server=True),
    Answer(429),
    DropReply(),
    CutReply(after_bytes=0),
    CutReply(after_bytes=100),
    CutReply(after_bytes=70_000),
    CutRequest(after_bytes=0),
    CutRequest(after_bytes=300),
    CutRequest(after_bytes=2 * MIB),
]
ABSENT = None
Content = bytes | None


def open_store(server: S3Server, prefix: str, endpoint: str | None = None, **changes: Any) -> ObjectStore:
    limits = {"max_retries": RETRIES, "timeout_ms": TIMEOUT_MS, "part_mb": 5, "parallel_parts": 2}
    return open_object_store(
        CloudSettings(**{**server.cloud_settings(endpoint=endpoint)["cloud"], **limits, **changes}), prefix
    )


class WatchedProxy(FaultProxy):
    """Knows when the server has nothing more to do.

    A request that its sender has given up may still be on its way, and change what is there later on.
    """

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self._open = 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def connected(self) -> Iterator[socket.socket]:
        with self._changed:
            self._open += 1
        try:
            with super().connected() as server:
                yield server
        finally:
            with self._changed:
                self._open -= 1
                self._changed.notify_all()

    def calm(self) -> None:
        """No more faults; waits until all requests have been answered."""
        self.clear()
        with self._changed:
            assert self._changed.wait_for(lambda: not self._open, PATIENCE_SECONDS)


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[WatchedProxy]:
    with WatchedProxy(s3_server.url) as proxy:
        yield proxy


@pytest.fixture
def prefix() -> str:
    """Of this test alone: tests share a server."""
    return f"faults/{uuid4().hex}"


@pytest.fixture
def direct(s3_server: S3Server, prefix: str) -> ObjectStore:
    """For a look at what is there."""
    return open_store(s3_server, prefix, timeout_ms=PATIENT_MS, max_retries=5)


@pytest.fixture
def store(s3_server: S3Server, prefix: str, proxy: FaultProxy) -> ObjectStore:
    """Does not wait long."""
    return open_store(s3_server, prefix, proxy.url)


@pytest.fixture
def patient(s3_server: S3Server, prefix: str, proxy: FaultProxy) -> ObjectStore:
    """A slow machine is no fault to it."""
    return open_store(s3_server, prefix, proxy.url, timeout_ms=PATIENT_MS)


def write(store: ObjectStore, key: str, content: bytes) -> None:
    writer = store.writer(key)
    try:
        for start in range(0, len(content), MIB):
            writer.write(content[start : start + MIB])
        writer.finish()
    except BaseException:
        writer.abort()
        raise


def content_of(store: ObjectStore, key: str) -> Content:
    info = store.stat(key)
    return ABSENT if info is None else store.read(key, 0, info.size)


class Model:
    """What each key holds, and what a call may make of it."""

    def __init__(self, rng: random.Random, store: ObjectStore, direct: ObjectStore, proxy: WatchedProxy) -> None:
        self._rng = rng
        self._store = store
        self._direct = direct
        self._proxy = proxy
        self._contents: dict[str, Content] = {f"key-{number}": ABSENT for number in range(4)}
        self._intended: Content = ABSENT
        self.failed = 0

    def step(self) -> None:
        key = self._rng.choice(list(self._contents))
        actions = [self._put, self._write, self._write, self._delete, self._read, self._read, self._look]
        before = self._contents[key]
        try:
            possible = [self._rng.choice(actions)(key, before)]
        except UnavailableError:
            self.failed += 1
            possible = [before, self._intended]
        self._proxy.calm()
        found = content_of(self._direct, key)
        assert found in possible
        self._contents[key] = found

    def _new_content(self) -> bytes:
        size = self._rng.choice([0, 1, 1000, 200_000, 11 * MIB])
        return self._rng.randbytes(min(size, MIB)) * max(1, size // MIB)

    def _put(self, key: str, _before: Content) -> Content:
        self._intended = self._new_content()[:MIB]
        self._store.put(key, self._intended)
        return self._intended

    def _write(self, key: str, before: Content) -> Content:
        self._intended = self._new_content()
        try:
            write(self._store, key, self._intended)
        except ObjectExistsError:
            assert before is not ABSENT
            return before
        assert before is ABSENT
        return self._intended

    def _delete(self, key: str, _before: Content) -> Content:
        self._intended = ABSENT
        self._store.delete(key)
        return ABSENT

    def _read(self, key: str, before: Content) -> Content:
        self._intended = before
        if before:
            start = self._rng.randrange(len(before))
            length = self._rng.randint(1, len(before) - start)
            assert self._store.read(key, start, length) == before[start : start + length]
        return before

    def _look(self, key: str, before: Content) -> Content:
        self._intended = before
        info = self._store.stat(key)
        assert (info and info.size) == (None if before is ABSENT else len(before))
        listed = {found.key: found.size for found in self._store.list("")}
        expected = {name: len(content) for name, content in self._contents.items() if content is not ABSENT}
        assert listed == expected
        return before


def test_any_series_of_faults_leaves_whole_objects(
    store: ObjectStore, direct: ObjectStore, proxy: WatchedProxy
) -> None:
    rng = random.Random(SEED)
    model = Model(rng, store, direct, proxy)
    for _ in range(OPERATIONS):
        for _ in range(rng.choice((0, 1, 1, 2))):
            fault = rng.choice([*FAULTS, Delay(0.05), Hold(reply=True)])
            proxy.inject(fault, method=rng.choice((None, "GET", "PUT", "POST")), times=rng.choice((1, 1, 2, 9)))
        model.step()
    faults = sum(exchange.fault is not None for exchange in proxy.exchanges())
    assert faults >= OPERATIONS // 2
    assert model.failed > 0


@pytest.mark.parametrize("fault", FAULTS, ids=str)
@pytest.mark.parametrize("path", [r"\?uploads", "partNumber=2", r"\?uploadId"])
def test_one_fault_of_an_upload_in_parts_is_overcome(
    patient: ObjectStore, direct: ObjectStore, proxy: FaultProxy, fault: Fault, path: str
) -> None:
    content = random.Random(2).randbytes(MIB) * 8
    injected = proxy.inject(fault, path=path)
    write(patient, "key", content)
    assert injected.count == 1
    assert content_of(direct, "key") == content


@pytest.mark.parametrize("path", [r"\?uploads", "partNumber=2", r"\?uploadId"])
def test_a_request_of_an_upload_in_parts_that_takes_too_long_is_sent_again(
    s3_server: S3Server, direct: ObjectStore, prefix: str, proxy: FaultProxy, path: str
) -> None:
    content = random.Random(2).randbytes(MIB) * 11
    hold = Hold(reply=True)
    proxy.inject(hold, path=path)
    write(open_store(s3_server, prefix, proxy.url, timeout_ms=2_000), "key", content)
    assert hold.reached.is_set()
    assert content_of(direct, "key") == content


def test_a_lost_answer_does_not_make_the_own_object_anothers(
    patient: ObjectStore, direct: ObjectStore, proxy: FaultProxy
) -> None:
    lost = proxy.inject(DropReply(), method="PUT")
    write(patient, "small", b"mine")
    assert lost.count == 1
    assert content_of(direct, "small") == b"mine"
    lost = proxy.inject(DropReply(), method="PUT")
    with pytest.raises(ObjectExistsError):
        write(patient, "small", b"mine")
    assert lost.count == 1


def test_an_upload_that_fails_for_good_leaves_nothing_and_can_be_repeated(
    patient: ObjectStore, direct: ObjectStore, proxy: FaultProxy
) -> None:
    proxy.inject(CutRequest(after_bytes=MIB), method="PUT", path="partNumber=2", times=None)
    writer = patient.writer("key")
    with pytest.raises(UnavailableError):
        deque(map(writer.write, repeat(bytes(MIB), 30)), maxlen=0)
    with pytest.raises(UnavailableError):
        writer.write(bytes(MIB))
    with pytest.raises(UnavailableError):
        writer.finish()
    writer.abort()
    assert list(direct.list("")) == []
    proxy.clear()
    write(patient, "key", b"again")
    assert content_of(direct, "key") == b"again"


def test_a_store_that_never_answers_is_unavailable_after_the_tries(store: ObjectStore, proxy: FaultProxy) -> None:
    silent = proxy.inject(Hold(), times=None)
    with pytest.raises(UnavailableError, match="timeout"):
        store.read("key", 0, 1)
    assert silent.count >= 1 + RETRIES


def test_a_store_that_comes_back_is_used_again(s3_server: S3Server, prefix: str) -> None:
    with TcpProxy(s3_server.url) as proxy:
        store = open_store(s3_server, prefix, proxy.url, timeout_ms=PATIENT_MS)
        store.put("key", b"1")
        proxy.refuse()
        with pytest.raises(UnavailableError):
            store.read("key", 0, 1)
        proxy.allow()
        assert store.read("key", 0, 1) == b"1"


def test_other_threads_run_while_the_store_is_waited_for(
    patient: ObjectStore, direct: ObjectStore, proxy: FaultProxy
) -> None:
    """The proxy is in this process: it could pass nothing on if a call kept Python to itself."""
    direct.put("key", b"1")
    calls: list[Callable[[], Any]] = [
        lambda: patient.read("key", 0, 1),
        lambda: patient.stat("key"),
        lambda: list(patient.list("")),
        lambda: patient.put("other", b"2"),
        lambda: write(patient, "written", bytes(11 * MIB)),
        lambda: patient.delete("other"),
    ]
    with ThreadPoolExecutor(1) as pool:
        for call in calls:
            hold = Hold(reply=True)
            proxy.inject(hold)
            running = pool.submit(call)
            assert hold.reached.wait(PATIENCE_SECONDS)
            assert not running.done()
            hold.release()
            running.result(PATIENCE_SECONDS)


class SlowProxy(TcpProxy):
    """A link of so many bytes a second, each way."""

    def __init__(self, upstream: str, bytes_per_second: int) -> None:
        super().__init__(upstream)
        self._piece = 16 * 1024
        self._pause = threading.Event()
        self._seconds = self._piece / bytes_per_second

    def serve(self, client: socket.socket) -> None:
        with self.connected() as server:
            back = threading.Thread(target=self._pump, args=(server, client), daemon=True)
            back.start()
            self._pump(client, server)
            back.join()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(self._piece):
                sink.sendall(data)
                self._pause.wait(self._seconds)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def test_a_slow_link_is_only_slow(s3_server: S3Server, direct: ObjectStore, prefix: str) -> None:
    content = random.Random(3).randbytes(6 * MIB)
    with SlowProxy(s3_server.url, 8 * MIB) as proxy:
        store = open_store(s3_server, prefix, proxy.url, timeout_ms=PATIENT_MS)
        write(store, "key", content)
        assert store.read("key", 0, len(content)) == content
    assert content_of(direct, "key") == content


def test_a_link_that_is_too_slow_makes_no_half_object(s3_server: S3Server, direct: ObjectStore, prefix: str) -> None:
    with SlowProxy(s3_server.url, MIB // 2) as proxy:
        store = open_store(s3_server, prefix, proxy.url, max_retries=1)
        with pytest.raises(UnavailableError):
            write(store, "key", bytes(6 * MIB))
    assert list(direct.list("")) == []
