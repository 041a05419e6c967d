from collections.abc import Iterator
from pathlib import Path

import pytest

from icestream.metadata import CompactedError, MemoryMetadataStore, MetadataStore, Put, SqliteMetadataStore
from icestream.metadata.store import MAX_TRANSACTION_BYTES, MAX_TRANSACTION_OPERATIONS
from icestream.model.errors import InvalidRequestError

BYTES = 2 * MAX_TRANSACTION_BYTES


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MetadataStore]:
    opened: MetadataStore = (
        MemoryMetadataStore(history_events=MAX_TRANSACTION_OPERATIONS, history_bytes=BYTES)
        if request.param == "memory"
        else SqliteMetadataStore(
            tmp_path / "metadata.db", history_events=MAX_TRANSACTION_OPERATIONS, history_bytes=BYTES
        )
    )
    with opened:
        yield opened


def kept_from(store: MetadataStore) -> int:
    """The oldest revision a watch may start from."""
    for revision in range(1, store.revision() + 2):
        try:
            store.watch("/", start_revision=revision).close()
        except CompactedError:
            continue
        return revision
    raise AssertionError("not even the next change can be watched")


def test_exactly_the_newest_events_are_kept(store: MetadataStore) -> None:
    for n in range(MAX_TRANSACTION_OPERATIONS):
        store.put("/a", b"%d" % n)
    assert kept_from(store) == 1
    store.put("/a", b"one more")
    assert kept_from(store) == 2


def test_a_transaction_is_kept_or_dropped_as_a_whole(store: MetadataStore) -> None:
    store.transaction([], [Put("/a", b""), Put("/b", b""), Put("/c", b"")])
    whole = store.transaction([], [Put(f"/{n}", b"") for n in range(MAX_TRANSACTION_OPERATIONS)])
    assert kept_from(store) == whole.revision
    with store.watch("/", start_revision=whole.revision) as watch:
        assert len(watch.wait(0)) == MAX_TRANSACTION_OPERATIONS


def test_large_values_are_dropped_by_bytes(store: MetadataStore) -> None:
    size = BYTES // 4
    for n in range(8):
        store.put(f"/{n}", bytes(size))
    assert kept_from(store) == 6  # three of them with their keys; a fourth would be four keys too many


def test_a_history_too_small_for_one_transaction_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        MemoryMetadataStore(history_events=MAX_TRANSACTION_OPERATIONS - 1)
    with pytest.raises(InvalidRequestError):
        MemoryMetadataStore(history_bytes=MAX_TRANSACTION_BYTES - 1)
