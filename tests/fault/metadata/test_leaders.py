import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from icestream.metadata import MetadataStore
from icestream.metadata.etcd.store import EtcdMetadataStore
from icestream.model.errors import ConflictError, UnavailableError
from icestream_servers import EtcdCluster, EtcdServer, free_port


def increment_until(store: MetadataStore, key: str, stop: threading.Event) -> int:
    done = 0
    while not stop.is_set():
        entry = store.get(key)
        assert entry is not None
        try:
            store.compare_and_swap(key, entry.mod_revision, b"%d" % (int(entry.value) + 1))
        except ConflictError:
            continue
        done += 1
    return done


def test_no_increment_is_lost_or_doubled_while_leaders_die(etcd_cluster: EtcdCluster, prefix: str) -> None:
    stop = threading.Event()
    options = etcd_cluster.options(prefix=prefix)
    with EtcdMetadataStore(options) as one, EtcdMetadataStore(options) as two, ThreadPoolExecutor(6) as pool:
        one.put("/counter", b"0")
        try:
            counting = [pool.submit(increment_until, store, "/counter", stop) for store in (one, two) * 3]
            for _ in range(3):
                killed = etcd_cluster.kill_leader()
                etcd_cluster.leader()
                killed.start()
        finally:
            stop.set()
        total = sum(counter.result() for counter in counting)
        entry = one.get("/counter")
        assert entry is not None
        assert int(entry.value) == total > 0


def test_a_lease_that_is_kept_alive_outlives_the_leader(etcd_cluster: EtcdCluster, prefix: str) -> None:
    with EtcdMetadataStore(etcd_cluster.options(prefix=prefix)) as store:
        lease = store.lease(2)
        store.put("/a", b"1", lease=lease.id)
        killed = etcd_cluster.kill_leader()
        lease.keep_alive()
        assert lease.remaining > 0
        killed.start()
        assert store.get("/a") is not None


def test_a_majority_that_is_gone_is_a_retryable_error_and_comes_back(etcd_cluster: EtcdCluster, prefix: str) -> None:
    options = etcd_cluster.options(prefix=prefix, timeout_seconds=1.0)
    with EtcdMetadataStore(options) as store:
        store.put("/a", b"1")
        gone = etcd_cluster.members[:2]
        for member in gone:
            member.kill()
        for call in (lambda: store.get("/a"), lambda: store.put("/a", b"2"), lambda: store.create("/b", b"")):
            with pytest.raises(UnavailableError) as raised:
                call()
            assert raised.value.retryable
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(EtcdServer.start, gone))
    with EtcdMetadataStore(etcd_cluster.options(prefix=prefix)) as store:
        assert store.get("/a") is not None


def test_an_endpoint_that_is_not_there_is_passed_over(etcd_server: EtcdServer, prefix: str) -> None:
    endpoints = (f"127.0.0.1:{free_port()}", etcd_server.url)
    with EtcdMetadataStore(etcd_server.options(endpoints=endpoints, prefix=prefix)) as store:
        store.create("/a", b"1")
        assert store._client.endpoints.preferred() is store._client.endpoints._endpoints[1]


def test_a_member_that_says_nothing_is_left_for_another(etcd_cluster: EtcdCluster, prefix: str) -> None:
    silent = next(member for member in etcd_cluster.members if not member.is_leader)
    others = tuple(member.url for member in etcd_cluster.members if member is not silent)
    options = etcd_cluster.options(endpoints=(silent.url, *others), prefix=prefix)
    with EtcdMetadataStore(options) as store:
        first = store.create("/a", b"1")
        silent.pause()
        try:
            assert store.compare_and_swap("/a", first, b"2") > first
        finally:
            silent.resume()


def test_a_member_that_is_started_again_agrees_with_the_others_or_is_left_out(
    etcd_cluster: EtcdCluster, prefix: str
) -> None:
    """Of the tests' own cluster: its etcd may be one that forgets."""
    with EtcdMetadataStore(etcd_cluster.options(prefix=prefix)) as store:
        store.put("/a", b"1")
        killed = etcd_cluster.kill_leader()
        store.put("/a", b"2")
    agrees = etcd_cluster.start_again(killed)
    assert killed.is_running == agrees
    assert len({member.revision() for member in etcd_cluster.members if member.is_running}) == 1
    if not agrees:
        killed.start()
