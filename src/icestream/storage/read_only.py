"""Reading topics from their tables alone: with the catalog and the tables' files, without a broker.

Nothing is locked or written. Any number of processes can do it, with or without a running broker. Readers see committed
messages; messages that are only in a broker's log are not seen.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import structlog

from icestream.config import Settings
from icestream.model.errors import IcestreamError
from icestream.model.messages import Message, messages_of
from icestream.model.names import TopicName
from icestream.model.offsets import StartPosition
from icestream.reader import StatelessReader, farthest

if TYPE_CHECKING:
    from icestream.model.filters import Filter
    from icestream.table import Tables, TopicTable

_SQLITE = "sqlite:///"
_log = structlog.get_logger(__name__)


class ReadOnlyStorage:
    """Opens the catalog at the first read. Thread-safe; each reader belongs to one thread."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self._opening = threading.Lock()
        self._tables: Tables | None = None

    def reader(
        self,
        name: TopicName | str,
        start: StartPosition | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: "Filter | str | None" = None,
    ) -> StatelessReader:
        return StatelessReader(
            self.find_tables,
            TopicName.parse(name),
            start or StartPosition.earliest(),
            self.settings.reader,
            columns=columns,
            where=where,
        )

    def list_tables(self) -> list[str]:
        """Return the names of the catalog's tables that a topic can have."""
        if self._is_nowhere():
            return []
        from icestream.table import topics_with_tables  # noqa: PLC0415 - as in `tables`

        return [str(name) for name in topics_with_tables(self.tables)]

    @property
    def tables(self) -> "Tables":
        with self._opening:
            if self._tables is None:
                # Imported here: the Iceberg library takes a second to import.
                from icestream.table import Tables  # noqa: PLC0415

                self._tables = Tables(self.settings)
            return self._tables

    def close(self) -> None:
        with self._opening:
            tables, self._tables = self._tables, None
        if tables is not None:
            tables.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # The same for asyncio, as `IcebergStorage` has it

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shutdown()

    async def create_reader(
        self, name: str, start: StartPosition | None = None, *, follow: bool = True
    ) -> AsyncIterator[Message]:
        """Return an iterator over the committed messages from a position on; with `follow` it waits for new ones."""
        reader = self.reader(name, start)
        if not follow:
            await asyncio.to_thread(lambda: reader.schema)  # raises when there is no such table
        return self._messages(reader, follow=follow)

    async def _messages(self, reader: StatelessReader, *, follow: bool) -> AsyncIterator[Message]:
        pause = self.settings.reader.poll_interval_ms / 1000
        try:
            while True:
                try:
                    batches = await asyncio.to_thread(reader.read)
                except IcestreamError as error:
                    if not (follow and error.retryable):
                        raise
                    _log.warning("table_read_failed", error=str(error))
                    batches = []
                for batch in batches:
                    for message in messages_of(batch):
                        yield message
                if not batches:
                    if not follow:
                        return
                    await asyncio.sleep(pause)
        finally:
            await asyncio.to_thread(reader.close)

    async def list_topics(self, prefix: str = "") -> list[str]:
        return [name for name in await asyncio.to_thread(self.list_tables) if name.startswith(prefix)]

    async def shutdown(self) -> None:
        await asyncio.to_thread(self.close)

    def find_table(self, name: TopicName) -> "TopicTable | None":
        """Return a topic's table as the catalog has it now: of two, the one that reaches farthest; None: none."""
        return farthest(self.find_tables(name))

    def find_tables(self, name: TopicName) -> "list[TopicTable]":
        """The tables of a topic, what the format names first before the other; one of another stream is not its."""
        if self._is_nowhere():
            return []
        named = self.settings.storage.format.all_tables(name)
        found = [table for table in map(self.tables.find, named) if table is not None]
        return [table for table in found if table.ledger.stream_id == found[0].ledger.stream_id]

    def _is_nowhere(self) -> bool:
        """Return whether the catalog is a SQLite file that does not exist: opening it would create it."""
        uri = self.settings.catalog.uri or ""
        if self._tables is not None or self.settings.catalog.type != "sql" or not uri.startswith(_SQLITE):
            return False
        path = uri.removeprefix(_SQLITE).partition("?")[0]
        with contextlib.suppress(OSError):
            return bool(path) and path != ":memory:" and not Path(path).exists()
        return False
