"""The stores that the suite runs on. Another one is another function in `HARNESSES`."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import count

import pytest
from tests.tcp_proxy import TcpProxy

from icestream.metadata import EtcdOptions, MemoryMetadataStore, MetadataStore, Put, SqliteMetadataStore
from icestream.metadata.etcd.store import EtcdMetadataStore
from icestream_servers import EtcdCluster, EtcdServer, compact

HISTORY_EVENTS = 200
# Tests share an etcd, so each has a prefix of its own.
PREFIXES = (f"/test-{n}" for n in count(1))


class Harness(ABC):
    store: MetadataStore

    @abstractmethod
    def pass_time(self, seconds: float) -> None:
        """Let leases grow older: by moving a clock, or, where the store has its own, by waiting."""

    @abstractmethod
    def forget_history(self) -> None:
        """Make the store drop the changes it has kept so far."""

    @abstractmethod
    def change_and_forget(self, key: str) -> None:
        """Change a key, and drop the change before any watch can have it."""

    def close(self) -> None:
        self.store.close()


class EmbeddedHarness(Harness):
    def __init__(self, open_store: Callable[[Callable[[], int]], MetadataStore]) -> None:
        self.now_us = 1_700_000_000_000_000
        self.store = open_store(lambda: self.now_us)

    def pass_time(self, seconds: float) -> None:
        self.now_us += round(seconds * 1_000_000)

    def forget_history(self) -> None:
        for first in range(0, HISTORY_EVENTS, 100):
            self.store.transaction([], [Put(f"/noise/{first + n}", b"") for n in range(100)])

    def change_and_forget(self, key: str) -> None:
        self.store.put(key, b"")
        self.forget_history()


class EtcdHarness(Harness):
    """Through proxies, whose connections can be cut."""

    def __init__(self, options: EtcdOptions) -> None:
        self._direct = replace(options, prefix=next(PREFIXES))
        self._proxies = [TcpProxy(endpoint) for endpoint in options.endpoints]
        for proxy in self._proxies:
            proxy.allow()
        self.store = EtcdMetadataStore(replace(self._direct, endpoints=tuple(proxy.url for proxy in self._proxies)))

    def pass_time(self, seconds: float) -> None:
        time.sleep(seconds)

    def forget_history(self) -> None:
        compact(self._direct)

    def change_and_forget(self, key: str) -> None:
        for proxy in self._proxies:
            proxy.refuse()
        with EtcdMetadataStore(self._direct) as direct:
            direct.put(key, b"")
            direct.put("/noise", b"")
        self.forget_history()
        for proxy in self._proxies:
            proxy.allow()

    def close(self) -> None:
        super().close()
        for proxy in self._proxies:
            proxy.close()


class DyingLeader:
    """Kills the leader while every tenth test runs, and starts it again some tests later."""

    def __init__(self, cluster: EtcdCluster) -> None:
        self._cluster = cluster
        self._tests = 0
        self._dead: EtcdServer | None = None
        self._is_crippled = False
        """One member is out for good, so the others must stay."""

    @contextmanager
    def during_a_test(self) -> Iterator[None]:
        self._tests += 1
        if self._tests % 5 == 0 and self._dead is not None:
            self._is_crippled = not self._cluster.start_again(self._dead)
            self._dead = None
        if self._tests % 10 != 1 or self._is_crippled:
            yield
            return
        killing = threading.Timer(0.01, self._kill)
        killing.start()
        try:
            yield
        finally:
            killing.join()

    def _kill(self) -> None:
        self._dead = self._cluster.kill_leader()


def memory(request: pytest.FixtureRequest) -> Harness:
    del request
    return EmbeddedHarness(lambda clock: MemoryMetadataStore(history_events=HISTORY_EVENTS, clock=clock))


def sqlite(request: pytest.FixtureRequest) -> Harness:
    path = request.getfixturevalue("tmp_path") / "metadata.db"
    return EmbeddedHarness(lambda clock: SqliteMetadataStore(path, history_events=HISTORY_EVENTS, clock=clock))


def etcd(request: pytest.FixtureRequest) -> Harness:
    server: EtcdServer = request.getfixturevalue("etcd_server")
    return EtcdHarness(server.options())


def etcd_losing_leaders(request: pytest.FixtureRequest) -> Harness:
    cluster: EtcdCluster = request.getfixturevalue("etcd_cluster")
    dying: DyingLeader = request.getfixturevalue("dying_leader")
    request.getfixturevalue("resources").enter_context(dying.during_a_test())
    return EtcdHarness(cluster.options())


HARNESSES = [memory, sqlite, etcd, etcd_losing_leaders]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A new leader lets all leases begin anew, so tests of their time are not for a cluster that loses leaders."""
    items[:] = [
        item
        for item in items
        if not (etcd_losing_leaders.__name__ in item.name and "pass_time" in getattr(item, "fixturenames", ()))
    ]


@pytest.fixture(scope="session")
def dying_leader(etcd_cluster: EtcdCluster) -> DyingLeader:
    return DyingLeader(etcd_cluster)


@pytest.fixture
def resources() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(params=HARNESSES, ids=lambda make: str(make.__name__))
def harness(request: pytest.FixtureRequest, resources: ExitStack) -> Harness:
    made: Harness = request.param(request)
    resources.callback(made.close)
    return made


@pytest.fixture
def store(harness: Harness) -> MetadataStore:
    return harness.store


@pytest.fixture
def pass_time(harness: Harness) -> Callable[[float], None]:
    return harness.pass_time


@pytest.fixture
def forget_history(harness: Harness) -> Callable[[], None]:
    return harness.forget_history


@pytest.fixture
def change_and_forget(harness: Harness) -> Callable[[str], None]:
    return harness.change_and_forget
