"""The SQLite file: made whole or not at all, checked when opened, its errors given icestream's names.

    schema_version  one row: the version of this layout
    head            one row: newest revision, newest revision dropped from history, size of the history
    entries         the keys. Stored as bytes, so that order and prefixes are those of UTF-8 bytes, as in etcd
    leases          deadline in microseconds since 1970 UTC, so that any process, at any time, sees what has expired
    history         one row per event, for watches; a NULL value is a delete

A new file is built beside its place and linked there when it is complete and synced: an empty or half-made file at
the place is damage, never a fresh store.
"""

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from icestream.model.errors import DamagedError, IcestreamError, InvalidRequestError, UnavailableError

APPLICATION_ID = 0x4963_654D  # "IceM" in the file header tells our files from other SQLite databases
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
# What the surroundings cause (other processes, the disk, permissions). All else is a mistake in this package and
# is raised as SQLite gave it.
_SURROUNDINGS = {
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
    """A checked connection that any thread may use, one at a time; makes the file if there is none."""
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
    """SQLite's and the file system's errors as icestream's."""
    try:
        yield
    except sqlite3.Error as error:
        if (known := _known(error, operation, path)) is None:
            raise
        raise known from error
    except OSError as error:
        raise UnavailableError(str(error), operation=operation, place=str(path)) from error


def _known(error: sqlite3.Error, operation: str, path: Path) -> IcestreamError | None:
    # The low byte is the kind of error; the rest, its variant. Errors of Python's module itself have no code.
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _DAMAGE:
        return _damaged(str(error), path, operation)
    if code in _SURROUNDINGS:
        # A commit whose sync failed may still turn up after a power loss. All others were undone.
        doubt = "; a change under way may or may not have been made" if code == sqlite3.SQLITE_IOERR else ""
        return UnavailableError(f"{error} ({error.sqlite_errorname}){doubt}", operation=operation, place=str(path))
    return None


def _damaged(message: str, path: Path, operation: str = "open metadata store") -> DamagedError:
    return DamagedError(
        message,
        operation=operation,
        place=str(path),
        remedy="restore the file from a copy, or move it away to begin with an empty store",
    )


def _create(path: Path) -> None:
    """1. Build the file in a folder of its own. 2. Sync it. 3. Link it to its place. 4. Sync the folder.

    A crash before 3 leaves a stray folder and no store; after it, a complete one. Of several processes, one links.
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
            return  # another process was faster; its file is as good
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
    # mode=rw: SQLite itself must never make an empty file.
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
            f"the file is a SQLite database of something else (application id {found})",
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
