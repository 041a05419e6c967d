"""A connection breaks when etcd has done what was asked, or before: nothing is done twice or taken for done."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import pytest
from tests.fault.metadata.lossy import LossyProxy

from icestream.metadata import Delete, Entry, Exists, MetadataStore, OutcomeUnknownError, Put, RevisionIs
from icestream.metadata.etcd import messages as m
from icestream.metadata.etcd.client import StreamEndedError
from icestream.metadata.etcd.store import EtcdMetadataStore
from icestream.metadata.store import MAX_TRANSACTION_OPERATIONS
from icestream.model.errors import ConflictError, UnavailableError
from icestream_servers import EtcdServer

PATIENCE_SECONDS = 60
Result = TypeVar("Result")


def with_lost_answer(proxy: LossyProxy, call: Callable[[], Result]) -> Result:
    """The first attempt of a call, done by etcd, but its answer is lost."""
    proxy.lose_answers.set()
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(call)
        assert proxy.lost.wait(PATIENCE_SECONDS)
        proxy.heal()
        return result.result(PATIENCE_SECONDS)


def with_lost_request(proxy: LossyProxy, call: Callable[[], Result], meanwhile: Callable[[], object]) -> Result:
    """The first attempt of a call never reaches etcd, though the connection took it."""
    proxy.lose_requests.set()
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(call)
        assert proxy.lost.wait(PATIENCE_SECONDS)
        meanwhile()
        proxy.heal()
        return result.result(PATIENCE_SECONDS)


def nothing() -> None:
    pass


def found(store: MetadataStore, key: str) -> Entry:
    entry = store.get(key)
    assert entry is not None
    return entry


@pytest.fixture
def first(store: MetadataStore) -> int:
    """The connection stands, and there is a ticket."""
    return store.create("/a", b"1")


def test_a_swap_whose_answer_is_lost_happened_once(
    store: MetadataStore, direct: MetadataStore, proxy: LossyProxy, first: int
) -> None:
    second = with_lost_answer(proxy, lambda: store.compare_and_swap("/a", first, b"2"))
    assert (found(direct, "/a").value, found(direct, "/a").mod_revision) == (b"2", second)
    with direct.watch("/a", start_revision=first + 1) as watch:
        assert [event.value for event in watch.wait(PATIENCE_SECONDS)] == [b"2"]
        assert watch.wait(0.2) == ()


def test_a_swap_that_was_lost_on_its_way_is_sent_again(
    store: MetadataStore, direct: MetadataStore, proxy: LossyProxy, first: int
) -> None:
    second = with_lost_request(proxy, lambda: store.compare_and_swap("/a", first, b"2"), nothing)
    assert (found(direct, "/a").value, found(direct, "/a").mod_revision) == (b"2", second)


def test_a_lost_swap_that_others_came_before_is_a_conflict_even_if_they_wrote_the_same(
    store: MetadataStore, direct: MetadataStore, proxy: LossyProxy, first: int
) -> None:
    with pytest.raises(ConflictError):
        with_lost_request(
            proxy,
            lambda: store.compare_and_swap("/a", first, b"2"),
            meanwhile=lambda: direct.compare_and_swap("/a", first, b"2"),
        )


def test_a_transaction_that_hangs_somewhere_cannot_happen_after_its_repetition(
    store: EtcdMetadataStore, direct: MetadataStore, first: int
) -> None:
    calls = store._client.endpoints.preferred().calls
    send: Any = calls.txn
    held: list[Callable[[], object]] = []

    def hold_the_first(request: m.TxnRequest, **options: Any) -> object:
        if held:
            return send(request, **options)
        held.append(partial(send, request, metadata=options["metadata"]))
        raise StreamEndedError("the connection broke")

    calls.txn = hold_the_first  # type: ignore[assignment]
    assert store.transaction([RevisionIs("/a", first)], [Put("/log", b"late")]).succeeded
    direct.put("/log", b"newer")
    held[0]()  # its condition still holds, so nothing but the ticket can stop it
    assert found(direct, "/log").value == b"newer"


def test_creates_and_deletes_whose_answers_are_lost_say_what_they_did(
    store: MetadataStore, direct: MetadataStore, proxy: LossyProxy, first: int
) -> None:
    made = with_lost_answer(proxy, lambda: store.create("/b", b""))
    assert found(direct, "/b").create_revision == made > first
    assert with_lost_answer(proxy, lambda: store.delete("/b")) is True
    assert direct.get("/b") is None


def test_a_put_whose_answer_is_lost_is_repeated(store: MetadataStore, direct: MetadataStore, proxy: LossyProxy) -> None:
    store.put("/a", b"1")
    revision = with_lost_answer(proxy, lambda: store.put("/a", b"2"))
    assert (found(direct, "/a").value, found(direct, "/a").mod_revision) == (b"2", revision)


def test_a_transaction_without_room_for_a_ticket_says_that_its_outcome_is_unknown(
    store: MetadataStore, proxy: LossyProxy, first: int
) -> None:
    changes = [Put(f"/many/{n}", b"") for n in range(MAX_TRANSACTION_OPERATIONS)]
    with pytest.raises(OutcomeUnknownError) as raised:
        with_lost_answer(proxy, lambda: store.transaction([RevisionIs("/a", first)], changes))
    assert raised.value.retryable
    found(store, "/a")  # a read is repeated until the broken connection is gone; such a transaction never is
    assert store.transaction([Exists("/a")], [Delete(change.key) for change in changes]).succeeded


def test_without_an_answer_in_time_the_error_says_whether_it_may_have_happened(
    etcd_server: EtcdServer, direct: MetadataStore, proxy: LossyProxy, prefix: str
) -> None:
    options = etcd_server.options(endpoints=(proxy.url,), prefix=prefix, timeout_seconds=0.5)
    with EtcdMetadataStore(options) as store:
        first = store.create("/a", b"1")
        proxy.lose_answers.set()
        with pytest.raises(OutcomeUnknownError):
            store.compare_and_swap("/a", first, b"2")
        assert found(direct, "/a").value == b"2"
        proxy.refuse()
        with pytest.raises(UnavailableError):
            store.get("/a")  # so that the connection is known to be gone
        with pytest.raises(UnavailableError) as raised:
            store.compare_and_swap("/a", first, b"3")
        assert not isinstance(raised.value, OutcomeUnknownError)
        assert raised.value.retryable
        assert found(direct, "/a").value == b"2"


def test_tickets_go_when_the_store_is_closed(etcd_server: EtcdServer) -> None:
    # A store without a prefix: what it keeps for itself is then a key of another store that has the first letters.
    with EtcdMetadataStore(etcd_server.options(prefix="/tickets")) as store:
        store.create("/a", b"")
        store.delete("/a")
    with EtcdMetadataStore(etcd_server.options()) as store:
        assert store.list("/tickets") == []
