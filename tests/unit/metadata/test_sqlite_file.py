import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from icestream.metadata import Event, Put, SqliteMetadataStore
from icestream.metadata.sqlite import SCHEMA_VERSION
from icestream.metadata.store import Events
from icestream.model.errors import DamagedError, InvalidRequestError, UnavailableError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "meta data %41?#é.db"


def fill(path: Path) -> None:
    with SqliteMetadataStore(path) as store:
        for first in range(0, 1_000, 100):
            store.transaction([], [Put(f"/topics/{n:05d}", bytes(200)) for n in range(first, first + 100)])


def test_everything_survives_a_reopen(path: Path) -> None:
    now = [1_000_000]
    with SqliteMetadataStore(path, clock=lambda: now[0]) as store:
        lease = store.lease(10)
        first = store.put("/a", b"1")
        store.put("/leased", b"1", lease=lease.id)
        second = store.put("/a", b"2")
    with SqliteMetadataStore(path, clock=lambda: now[0]) as store:
        entry = store.get("/a")
        assert entry is not None
        assert (entry.value, entry.mod_revision, entry.create_revision) == (b"2", second, first)
        assert store.revision() == second
        with store.watch("/a", start_revision=first) as watch:
            assert [next(watch), next(watch)] == [Event("put", "/a", b"1", first), Event("put", "/a", b"2", second)]
        assert store.get("/leased") is not None
        now[0] += 10_000_000
    with SqliteMetadataStore(path, clock=lambda: now[0]) as store:
        assert store.get("/leased") is None
        assert store.lease(1).id > lease.id
        assert store.revision() > second


def test_commits_are_synced_and_the_journal_is_a_wal(path: Path) -> None:
    with SqliteMetadataStore(path) as store:
        assert store._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert store._db.execute("PRAGMA synchronous").fetchone() == (2,)


def test_making_a_store_leaves_only_its_file_behind(path: Path) -> None:
    SqliteMetadataStore(path).close()
    assert list(path.parent.iterdir()) == [path]


def test_an_error_in_the_middle_of_a_transaction_undoes_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SqliteMetadataStore(path) as store:
        store.put("/a", b"old")
        before = store.revision()

        def fail(revision: int, events: Events) -> None:
            raise RuntimeError((revision, events))

        with monkeypatch.context() as patched:
            patched.setattr(store, "_append", fail)
            with pytest.raises(RuntimeError):
                store.transaction([], [Put("/a", b"new"), Put("/b", b"new")])
        assert [(entry.key, entry.value) for entry in store.list("/")] == [("/a", b"old")]
        assert store.revision() == before
        assert store.put("/b", b"later") == before + 1


def test_a_file_locked_by_another_process_is_unavailable_until_it_is_free(path: Path) -> None:
    with SqliteMetadataStore(path, busy_timeout_seconds=0.01) as store:
        store.put("/a", b"1")
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(UnavailableError) as caught:
                store.put("/a", b"2")
            assert caught.value.retryable
            assert str(path) in str(caught.value)
            assert store.get("/a") is not None
            other.execute("ROLLBACK")
        store.put("/a", b"3")


@pytest.mark.parametrize("content", [b"", b"not a database, but text that is long enough" * 100, bytes(8192)])
def test_a_file_that_is_no_database_is_damage_and_left_as_it_is(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(DamagedError) as caught:
        SqliteMetadataStore(path)
    assert caught.value.place == str(path)
    assert caught.value.remedy
    assert path.read_bytes() == content


def test_a_shortened_file_is_damage(path: Path) -> None:
    fill(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DamagedError):
        SqliteMetadataStore(path)


def test_an_overwritten_page_is_damage(path: Path) -> None:
    fill(path)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 4096] = b"\xa5" * 4096
    path.write_bytes(content)
    with pytest.raises(DamagedError):
        SqliteMetadataStore(path)


def test_damage_that_is_met_later_has_the_same_name(path: Path) -> None:
    fill(path)
    with SqliteMetadataStore(path) as store:
        store._db.execute("PRAGMA shrink_memory")  # else the pages come from SQLite's cache
        content = path.read_bytes()
        path.write_bytes(content[:4096] + b"\xa5" * (len(content) - 4096))
        with pytest.raises(DamagedError):
            store.list("/topics/")
        path.write_bytes(content)


def test_another_programs_database_is_refused_and_left_as_it_is(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE theirs (a)")
    content = path.read_bytes()
    with pytest.raises(InvalidRequestError):
        SqliteMetadataStore(path)
    assert path.read_bytes() == content


def test_a_newer_schema_is_refused(path: Path) -> None:
    fill(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as later:
        later.execute("UPDATE schema_version SET version = ?", (SCHEMA_VERSION + 1,))
    with pytest.raises(InvalidRequestError, match="schema version"):
        SqliteMetadataStore(path)


def test_a_place_that_cannot_hold_a_file_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError):
        SqliteMetadataStore(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UnavailableError):
        SqliteMetadataStore(tmp_path / "file" / "metadata.db")
