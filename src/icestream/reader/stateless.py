"""Reading a topic's table without a broker: it needs the catalog and the table's files, no log and no lock.

A reader sees what is committed, and polls the catalog for new snapshots every `reader.poll_interval_ms`. Its position
is an offset, so compaction and expiry do not disturb it. Any number of readers can read one table. A topic that moves
between formats, or once did, has two tables; the one that reaches farthest is read. See `StorageFormat`.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from icestream.config import ReaderSettings
from icestream.model.errors import InvalidRequestError, TopicNotFoundError
from icestream.model.names import TopicName
from icestream.model.offsets import StartPosition
from icestream.reader.position import resolve
from icestream.reader.table_tier import TableTier
from icestream.reader.tiers import DEFAULT_READ_BYTES, Selection, TopicReader

if TYPE_CHECKING:
    from icestream.model.filters import Filter
    from icestream.table import TopicTable


class StatelessReader:
    """Has the methods of `TopicReader`, and waits for a table that does not exist yet. Not thread-safe."""

    def __init__(
        self,
        find_tables: "Callable[[TopicName], Sequence[TopicTable]]",
        topic: TopicName,
        start: StartPosition,
        settings: ReaderSettings | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: "Filter | str | None" = None,
    ) -> None:
        self._find_tables = find_tables
        self._topic = topic
        self._start = start
        self._columns = columns
        self._where = where
        self._stream_id: str | None = None
        self._tier = TableTier(self._find, settings or ReaderSettings(), follow=True)
        self._reader: TopicReader | None = None

    @property
    def is_open(self) -> bool:
        """Whether the table was found: only then schema and offset are known."""
        return self._opened() is not None

    @property
    def schema(self) -> pa.Schema:
        return self._expected().schema

    @property
    def offset(self) -> int:
        """The offset of the next message."""
        return self._expected().offset

    @property
    def is_filtered(self) -> bool:
        return self._where is not None

    def read(self, max_bytes: int = DEFAULT_READ_BYTES) -> list[pa.RecordBatch]:
        """Return what follows; nothing at the committed offset, and while there is no table."""
        reader = self._opened()
        return reader.read(max_bytes) if reader is not None else []

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until there is something to read; return False at the time-out, and when the reader is closed."""
        return self._tier.wait(self._reader.offset if self._reader is not None else -1, timeout)

    def close(self) -> None:
        self._tier.close()
        if self._reader is not None:
            self._reader.close()

    def _opened(self) -> TopicReader | None:
        if self._reader is None:
            table = self._tier.look()
            if table is not None:
                self._stream_id = table.ledger.stream_id
                selection = Selection.of(table.stream_schema, self._columns, self._where)
                offset = self._resolve()
                self._reader = TopicReader((self._tier,), offset, selection, place=str(self._topic))
        return self._reader

    def _resolve(self) -> int:
        """Resolve a snapshot or a tag in the table that has it, any other position in the table that is read."""
        if self._start.kind in ("snapshot", "tag"):
            for table in self._find_tables(self._topic):
                with suppress(InvalidRequestError):
                    return self._resolve_in(table)
        return self._resolve_in(self._find())

    def _resolve_in(self, table: "TopicTable | None") -> int:
        return resolve(self._start, None, lambda: table, str(self._topic))

    def _expected(self) -> TopicReader:
        reader = self._opened()
        if reader is None:
            raise TopicNotFoundError(
                "the catalog has no table of this topic",
                operation="read table",
                place=str(self._topic),
                remedy="check the catalog's settings; a topic has a table once its first messages are committed",
            )
        return reader

    def _find(self) -> "TopicTable | None":
        found = farthest(self._find_tables(self._topic))
        if self._stream_id is not None and (found is None or found.ledger.stream_id != self._stream_id):
            raise TopicNotFoundError(
                "the topic was deleted" + (" and created again" if found is not None else ""),
                operation="read table",
                place=str(self._topic),
            )
        return found


def farthest(tables: "Sequence[TopicTable]") -> "TopicTable | None":
    """Return the table that reaches farthest, the first of equals; None if there is none."""
    return max(tables, key=lambda table: table.ledger.committed_offset, default=None)
