from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from icestream.metadata import LeaseExpiredError, MetadataStore, Put
from icestream.metadata.store import MAX_LEASE_SECONDS, MAX_TRANSACTION_OPERATIONS
from icestream.model.errors import ConflictError, InvalidRequestError

PassTime = Callable[[float], None]


def test_a_key_under_a_lease_names_it_and_vanishes_with_it(store: MetadataStore, pass_time: PassTime) -> None:
    lease = store.lease(1)
    store.put("/leased", b"1", lease=lease.id)
    store.put("/kept", b"1")
    entry = store.get("/leased")
    assert entry is not None
    assert entry.lease == lease.id
    pass_time(2)
    assert store.get("/leased") is None
    assert [entry.key for entry in store.list("/")] == ["/kept"]
    assert store.delete("/leased") is False


def test_a_lease_lasts_as_long_as_it_is_kept_alive(store: MetadataStore, pass_time: PassTime) -> None:
    lease = store.lease(2)
    store.put("/leased", b"1", lease=lease.id)
    for _ in range(3):
        pass_time(1)
        lease.keep_alive()
    assert store.get("/leased") is not None


def test_remaining_counts_down_and_begins_anew_when_kept_alive(store: MetadataStore, pass_time: PassTime) -> None:
    lease = store.lease(4)
    assert lease.ttl_seconds == 4
    assert 0 < lease.remaining <= 4
    pass_time(2)
    assert 0 < lease.remaining <= 2
    lease.keep_alive()
    assert 2 < lease.remaining <= 4


def test_an_ended_lease_cannot_be_revived_or_used(store: MetadataStore, pass_time: PassTime) -> None:
    lease = store.lease(1)
    pass_time(2)
    assert lease.remaining == 0.0
    with pytest.raises(LeaseExpiredError):
        lease.keep_alive()
    with pytest.raises(LeaseExpiredError):
        store.put("/a", b"1", lease=lease.id)
    with pytest.raises(LeaseExpiredError):
        store.transaction([], [Put("/b", b"1"), Put("/a", b"1", lease.id)])
    assert store.list("/") == []


def test_a_lease_that_nobody_took_is_refused(store: MetadataStore) -> None:
    with pytest.raises(LeaseExpiredError):
        store.put("/a", b"1", lease=987_654_321)


def test_revoke_deletes_the_keys_at_once_and_may_be_repeated(store: MetadataStore) -> None:
    lease, other = store.lease(60), store.lease(60)
    store.put("/a", b"1", lease=lease.id)
    store.put("/b", b"1", lease=other.id)
    lease.revoke()
    lease.revoke()
    assert [entry.key for entry in store.list("/")] == ["/b"]
    assert lease.remaining == 0.0
    with pytest.raises(LeaseExpiredError):
        lease.keep_alive()


def test_a_put_without_the_lease_detaches_the_key(store: MetadataStore) -> None:
    lease = store.lease(60)
    store.put("/a", b"1", lease=lease.id)
    store.put("/a", b"2")
    lease.revoke()
    entry = store.get("/a")
    assert entry is not None
    assert entry.lease is None


def test_a_put_under_another_lease_moves_the_key(store: MetadataStore) -> None:
    old, new = store.lease(60), store.lease(60)
    store.put("/a", b"1", lease=old.id)
    store.put("/a", b"2", lease=new.id)
    old.revoke()
    assert store.get("/a") is not None
    new.revoke()
    assert store.get("/a") is None


def test_a_key_made_again_after_its_delete_is_not_under_the_old_lease(store: MetadataStore) -> None:
    lease = store.lease(60)
    store.put("/a", b"1", lease=lease.id)
    store.delete("/a")
    store.put("/a", b"2")
    lease.revoke()
    assert store.get("/a") is not None


def test_ownership_passes_on_only_after_the_lease_ended(store: MetadataStore, pass_time: PassTime) -> None:
    first, second = store.lease(1), store.lease(60)
    store.create("/owner", b"first", lease=first.id)
    with pytest.raises(ConflictError):
        store.create("/owner", b"second", lease=second.id)
    pass_time(2)
    store.create("/owner", b"second", lease=second.id)
    entry = store.get("/owner")
    assert entry is not None
    assert (entry.value, entry.lease) == (b"second", second.id)


def test_an_expired_key_fails_a_swap(store: MetadataStore, pass_time: PassTime) -> None:
    lease = store.lease(1)
    revision = store.put("/a", b"1", lease=lease.id)
    pass_time(2)
    with pytest.raises(ConflictError):
        store.compare_and_swap("/a", revision, b"2")


def test_watchers_see_the_end_of_a_lease_as_deletes(store: MetadataStore, pass_time: PassTime) -> None:
    lease = store.lease(1)
    put = store.transaction([], [Put("/w/a", b"1", lease.id), Put("/w/b", b"1", lease.id)])
    with store.watch("/w/", start_revision=put.revision + 1) as watch:
        pass_time(2)
        events = [next(watch), next(watch)]
        assert {(event.kind, event.key, event.value) for event in events} == {
            ("delete", "/w/a", None),
            ("delete", "/w/b", None),
        }
        assert all(event.revision > put.revision for event in events)


def test_a_watch_that_is_waiting_notices_the_end_of_a_lease(store: MetadataStore, pass_time: PassTime) -> None:
    lease = store.lease(1)
    store.put("/w/a", b"1", lease=lease.id)
    with store.watch("/w/") as watch, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(watch.wait, 60)
        pass_time(2)
        assert [(event.kind, event.key) for event in waiting.result(60)] == [("delete", "/w/a")]


def test_a_lease_may_hold_more_keys_than_a_transaction(store: MetadataStore) -> None:
    lease = store.lease(60)
    count = MAX_TRANSACTION_OPERATIONS + 10
    for first in range(0, count, 100):
        store.transaction([], [Put(f"/m/{n:04d}", b"", lease.id) for n in range(first, min(first + 100, count))])
    start = store.revision() + 1
    lease.revoke()
    assert store.list("/m/") == []
    with store.watch("/m/", start_revision=start) as watch:
        assert {next(watch).key for _ in range(count)} == {f"/m/{n:04d}" for n in range(count)}


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), MAX_LEASE_SECONDS + 1])
def test_a_lifetime_out_of_bounds_is_refused(store: MetadataStore, ttl: float) -> None:
    with pytest.raises(InvalidRequestError):
        store.lease(ttl)
