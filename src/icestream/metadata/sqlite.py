"""The embedded default: one SQLite file, shared by the threads of a process and by the processes of a machine.

One connection under one lock. A change is acknowledged after its commit was synced (WAL journal, synchronous=FULL).
Watches hear of this process's changes at once and look for those of other processes every `poll_interval_seconds`.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from icestream.metadata.embedded import DEFAULT_HISTORY_BYTES, DEFAULT_HISTORY_EVENTS, EmbeddedStore
from icestream.metadata.sqlite_file import open_database, translated
from icestream.metadata.store import Entry, Event, Events
from icestream.model.clock import Clock, now_us


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
            # IMMEDIATE takes the write lock first, so what is read inside cannot be outdated by another process.
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
            cursor.close()  # an unfinished one would keep its view of the file beyond the COMMIT

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
    """The first key with the prefix, and the first one past all such keys: no pattern, so no character is special."""
    first = prefix.encode()
    # UTF-8 has no byte 0xFF, so the last byte can always be counted up.
    return first, first[:-1] + bytes([first[-1] + 1]) if first else b"\xff"


def _entry(row: tuple[bytes, bytes, int, int, int | None]) -> Entry:
    key, value, mod_revision, create_revision, lease = row
    return Entry(key.decode(), value, mod_revision, create_revision, lease)
