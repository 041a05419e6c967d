"""The embedded default: one SQLite file, shared by the threads of a process and the processes of a machine.

There is one connection under one lock. A call returns after its commit was synced (WAL journal, synchronous=FULL).
Watches see this process's changes at once, and look for those of other processes every `poll_interval_seconds`.

The file holds these tables::

    schema_version  one row: the version of this layout
    head            one row: newest revision, newest revision dropped from history, size of the history
    entries         the keys, as bytes, so that order and prefixes are those of UTF-8 bytes, as in etcd
    leases          deadline in microseconds since 1970 UTC, so that every process sees what has expired
    history         one row per event, for watches; a NULL value is a delete

A new file is built in a temporary folder and linked to its path when it is complete and synced. So an empty or
incomplete file at the path is damage, never a new store.
"""

import os
import sqlite3
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from icestream.metadata.embedded import DEFAULT_HISTORY_BYTES, DEFAULT_HISTORY_EVENTS, EmbeddedStore
from icestream.metadata.store import Entry, Event, Events
from icestream.model.clock import Clock, now_us
from icestream.model.errors import DamagedError, IcestreamError, InvalidRequestError, UnavailableError

APPLICATION_ID = 0x4963_654D  # "IceM": tells icestream's files from other SQLite databases
SCHEMA_VERSION = 1

_SCHEMA = """
BEGIN;
CREATE TABLE schema_version (version INTEGER NOT NULL);
CREATE TABLE head (
    revision INTEGER NOT NULL,
    compacted INTEGER NOT NULL,
    history_events INTEGER NOT NULL,
    history_bytes INTEGER NOT NULL
);
INSERT INTO head VALUES (0, 0, 0, 0);
CREATE TABLE entries (
    key BLOB NOT NULL PRIMARY KEY,
    value BLOB NOT NULL,
    mod_revision INTEGER NOT NULL,
    create_revision INTEGER NOT NULL,
    lease INTEGER
);
CREATE INDEX entries_by_lease ON entries (lease) WHERE lease IS NOT NULL;
CREATE TABLE leases (id INTEGER PRIMARY KEY AUTOINCREMENT, deadline_us INTEGER NOT NULL);
CREATE INDEX leases_by_deadline ON leases (deadline_us);
CREATE TABLE history (
    revision INTEGER NOT NULL,
    position INTEGER NOT NULL,
    key BLOB NOT NULL,
    value BLOB,
    PRIMARY KEY (revision, position)
);
COMMIT;
"""

_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
# Errors with an outside cause: other processes, the disk, permissions. All others are bugs here, and are raised as they
# are.
_OUTSIDE = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_NOMEM,
}


def open_database(path: Path, *, busy_timeout_seconds: float) -> sqlite3.Connection:
    """Return a checked connection that one thread at a time may use. Create the file if it does not exist."""
    with translated("open metadata store", path):
        if not path.exists():
            _create(path)
        if path.stat().st_size == 0:
            raise _damaged("the file is empty", path)
        connection = _connect(path, busy_timeout_seconds)
        try:
            _check(connection, path)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
        except BaseException:
            connection.close()
            raise
        return connection


@contextmanager
def translated(operation: str, path: Path) -> Iterator[None]:
    """Raise errors of SQLite and the file system as icestream's."""
    try:
        yield
    except sqlite3.Error as error:
        if (known := _known(error, operation, path)) is None:
            raise
        raise known from error
    except OSError as error:
        raise UnavailableError(str(error), operation=operation, place=str(path)) from error


def _known(error: sqlite3.Error, operation: str, path: Path) -> IcestreamError | None:
    # The low byte is the kind of error. Errors of Python's module itself have no code.
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _DAMAGE:
        return _damaged(str(error), path, operation)
    if code in _OUTSIDE:
        # A commit whose sync failed may exist after a power loss. All others were rolled back.
        doubt = "; it is unknown whether the change was made" if code == sqlite3.SQLITE_IOERR else ""
        return UnavailableError(f"{error} ({error.sqlite_errorname}){doubt}", operation=operation, place=str(path))
    return None


def _damaged(message: str, path: Path, operation: str = "open metadata store") -> DamagedError:
    return DamagedError(
        message,
        operation=operation,
        place=str(path),
        remedy="restore the file from a copy, or move it away to start with an empty store",
    )


def _create(path: Path) -> None:
    """Create the file: 1. build it in a temporary folder, 2. sync it, 3. link it to its path, 4. sync the folder.

    A crash before step 3 leaves a stray folder and no store; after it, a complete store. Of several processes, one
    links its file.
    """
    _make_folder(path.parent)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.new-") as folder:
        fresh = Path(folder, "new")
        with closing(sqlite3.connect(fresh, isolation_level=None)) as connection:
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(_SCHEMA)
            connection.execute("INSERT INTO schema_version VALUES (?)", (SCHEMA_VERSION,))
        _sync(fresh)
        try:
            os.link(fresh, path)
        except FileExistsError:
            return  # another process was faster
        _sync(path.parent)


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync(folder.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _connect(path: Path, busy_timeout_seconds: float) -> sqlite3.Connection:
    # mode=rw: SQLite itself must never create an empty file.
    return sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?mode=rw",
        uri=True,
        timeout=busy_timeout_seconds,
        isolation_level=None,
        check_same_thread=False,
    )


def _check(connection: sqlite3.Connection, path: Path) -> None:
    if (found := connection.execute("PRAGMA application_id").fetchone()[0]) != APPLICATION_ID:
        raise InvalidRequestError(
            f"the file is a SQLite database of another program (application id {found})",
            operation="open metadata store",
            place=str(path),
            remedy="choose another path",
        )
    if (problem := connection.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
        raise _damaged(str(problem), path)
    (version,) = connection.execute("SELECT max(version) FROM schema_version").fetchone()
    if version != SCHEMA_VERSION:
        raise InvalidRequestError(
            f"the file has schema version {version}; this icestream reads {SCHEMA_VERSION}",
            operation="open metadata store",
            place=str(path),
            remedy="use the icestream release that wrote the file, or a newer one",
        )


class SqliteMetadataStore(EmbeddedStore):
    def __init__(
        self,
        path: Path,
        *,
        busy_timeout_seconds: float = 5.0,
        poll_interval_seconds: float = 0.05,
        history_events: int = DEFAULT_HISTORY_EVENTS,
        history_bytes: int = DEFAULT_HISTORY_BYTES,
        clock: Clock = now_us,
    ) -> None:
        super().__init__(str(path), history_events=history_events, history_bytes=history_bytes, clock=clock)
        self._path = path
        self._poll_interval_seconds = poll_interval_seconds
        self._db = open_database(path, busy_timeout_seconds=busy_timeout_seconds)

    def poll_seconds(self) -> float | None:
        return self._poll_interval_seconds

    @contextmanager
    def _isolated(self, operation: str, *, write: bool) -> Iterator[None]:
        with translated(operation, self._path):
            # IMMEDIATE takes the write lock first, so no other process can change what is read inside.
            self._db.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _find(self, key: str) -> Entry | None:
        row = self._db.execute("SELECT * FROM entries WHERE key = ?", (key.encode(),)).fetchone()
        return _entry(row) if row else None

    def _select(self, prefix: str, after: str | None, limit: int) -> Generator[Entry, None, None]:
        first, end = _range(prefix)
        cursor = self._db.execute(
            "SELECT * FROM entries WHERE key >= ? AND key < ? AND key > ? ORDER BY key LIMIT ?",
            (first, end, (after or "").encode(), limit),
        )
        try:
            for row in cursor:
                yield _entry(row)
        finally:
            cursor.close()  # an open cursor would keep its view of the file after the COMMIT

    def _write(self, entry: Entry) -> None:
        self._db.execute(
            "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?)",
            (entry.key.encode(), entry.value, entry.mod_revision, entry.create_revision, entry.lease),
        )

    def _remove(self, key: str) -> None:
        self._db.execute("DELETE FROM entries WHERE key = ?", (key.encode(),))

    def _head(self) -> int:
        return int(self._db.execute("SELECT revision FROM head").fetchone()[0])

    def _compacted(self) -> int:
        return int(self._db.execute("SELECT compacted FROM head").fetchone()[0])

    def _append(self, revision: int, events: Events) -> None:
        rows = [(revision, n, event.key.encode(), event.value) for n, event in enumerate(events)]
        self._db.executemany("INSERT INTO history VALUES (?, ?, ?, ?)", rows)
        compacted, count, size = self._db.execute(
            "SELECT compacted, history_events, history_bytes FROM head"
        ).fetchone()
        count += len(rows)
        size += sum(len(key) + len(value or b"") for _, _, key, value in rows)
        while count > self._history_events_limit or size > self._history_bytes_limit:
            compacted += 1
            dropped_events, dropped_bytes = self._db.execute(
                "SELECT count(*), sum(length(key) + ifnull(length(value), 0)) FROM history WHERE revision = ?",
                (compacted,),
            ).fetchone()
            self._db.execute("DELETE FROM history WHERE revision = ?", (compacted,))
            count -= dropped_events
            size -= dropped_bytes
        self._db.execute(
            "UPDATE head SET revision = ?, compacted = ?, history_events = ?, history_bytes = ?",
            (revision, compacted, count, size),
        )

    def _first_change(self, prefix: str, start_revision: int) -> tuple[Event, ...]:
        first, end = _range(prefix)
        rows = self._db.execute(
            "SELECT key, value, revision FROM history WHERE key >= :first AND key < :end AND revision = ("
            " SELECT revision FROM history WHERE revision >= :start AND key >= :first AND key < :end"
            " ORDER BY revision LIMIT 1"
            ") ORDER BY position",
            {"first": first, "end": end, "start": start_revision},
        )
        return tuple(
            Event("delete" if value is None else "put", key.decode(), value, revision) for key, value, revision in rows
        )

    def _add_lease(self, deadline_us: int) -> int:
        cursor = self._db.execute("INSERT INTO leases (deadline_us) VALUES (?)", (deadline_us,))
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def _set_lease(self, lease_id: int, deadline_us: int) -> None:
        self._db.execute("UPDATE leases SET deadline_us = ? WHERE id = ?", (deadline_us, lease_id))

    def _drop_lease(self, lease_id: int) -> None:
        self._db.execute("DELETE FROM leases WHERE id = ?", (lease_id,))

    def _lease_deadline_us(self, lease_id: int) -> int | None:
        row = self._db.execute("SELECT deadline_us FROM leases WHERE id = ?", (lease_id,)).fetchone()
        return int(row[0]) if row else None

    def _due_leases(self, now_us: int) -> Sequence[int]:
        rows = self._db.execute("SELECT id FROM leases WHERE deadline_us <= ? ORDER BY deadline_us, id", (now_us,))
        return [lease_id for (lease_id,) in rows]

    def _keys_of_lease(self, lease_id: int) -> Sequence[str]:
        rows = self._db.execute("SELECT key FROM entries WHERE lease = ? ORDER BY key", (lease_id,))
        return [key.decode() for (key,) in rows]

    def _release(self) -> None:
        self._db.close()


def _range(prefix: str) -> tuple[bytes, bytes]:
    """Return the first key with the prefix and the first one past all such keys."""
    first = prefix.encode()
    # UTF-8 has no byte 0xFF, so the last byte can always be incremented.
    return first, first[:-1] + bytes([first[-1] + 1]) if first else b"\xff"


def _entry(row: tuple[bytes, bytes, int, int, int | None]) -> Entry:
    key, value, mod_revision, create_revision, lease = row
    return Entry(key.decode(), value, mod_revision, create_revision, lease)
