import threading
from concurrent.futures import ThreadPoolExecutor

from tests.fault.metadata.lossy import LossyProxy

from icestream.metadata import Event, MetadataStore, Put, Watch
from icestream.metadata.etcd.store import EtcdMetadataStore
from icestream.metadata.etcd.watch import WatchStream
from icestream.metadata.store import MAX_VALUE_BYTES
from icestream_servers import EtcdCluster

PATIENCE_SECONDS = 30


def take(watch: Watch, count: int) -> list[Event]:
    return [next(watch) for _ in range(count)]


def test_a_watch_whose_connection_breaks_again_and_again_loses_and_repeats_nothing(
    store: MetadataStore, direct: MetadataStore, proxy: LossyProxy
) -> None:
    count = 300
    done = threading.Event()

    def cut() -> int:
        cuts = 0
        while not done.wait(0.1):
            proxy.cut()
            cuts += 1
        return cuts

    with ThreadPoolExecutor(2) as pool, store.watch("/w/") as watch:
        cutting, reading = pool.submit(cut), pool.submit(take, watch, 2 * count)
        try:
            for n in range(count):
                direct.transaction([], [Put("/w/a", b"%d" % n), Put("/w/b", b"%d" % n)])
            events = reading.result(PATIENCE_SECONDS)
        finally:
            done.set()
        assert cutting.result() > 0
        assert [(event.key, event.value) for event in events] == [
            (key, b"%d" % n) for n in range(count) for key in ("/w/a", "/w/b")
        ]
        assert watch.wait(0.2) == ()


def test_a_watch_goes_on_when_its_member_and_the_leader_die(etcd_cluster: EtcdCluster, prefix: str) -> None:
    with EtcdMetadataStore(etcd_cluster.options(prefix=prefix)) as store, store.watch("/w/") as watch:
        for n in range(2):
            store.put("/w/a", b"before %d" % n)
            killed = etcd_cluster.kill_leader()
            store.put("/w/a", b"after %d" % n)
            killed.start()
        assert [event.value for event in take(watch, 4)] == [b"before 0", b"after 0", b"before 1", b"after 1"]
        assert watch.wait(0.2) == ()


def test_a_watch_that_nobody_reads_holds_little_and_holds_up_nobody(
    store: MetadataStore, direct: MetadataStore
) -> None:
    count = 48
    with store.watch("/w/") as watch:
        for n in range(count):
            direct.put("/w/a", n.to_bytes() + bytes(MAX_VALUE_BYTES - 1))
        assert store.get("/w/a") is not None
        stream = watch._stream  # type: ignore[attr-defined]
        assert isinstance(stream, WatchStream)
        with stream.changed:
            held = sum(len(event.value or b"") for events in stream._arrived for event in events)
        assert held <= 4 * MAX_VALUE_BYTES
        values = [event.value for event in take(watch, count)]
        assert [value[0] for value in values if value is not None] == list(range(count))


def test_a_transaction_larger_than_a_message_of_the_stream_is_handed_out_whole(
    store: MetadataStore, direct: MetadataStore
) -> None:
    lease = direct.lease(60)
    keys = [f"/w/{n:04d}-{'k' * 1000}" for n in range(2_500)]
    for first in range(0, len(keys), 100):
        direct.transaction([], [Put(key, b"", lease.id) for key in keys[first : first + 100]])
    with store.watch("/w/", start_revision=direct.revision() + 1) as watch:
        lease.revoke()
        events = watch.wait(PATIENCE_SECONDS)
        assert {(event.kind, event.key) for event in events} == {("delete", key) for key in keys}
