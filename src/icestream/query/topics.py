"""Where a topic's rows come from: a broker's storage, with all its tiers, or a catalog alone."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from icestream.config import ReaderSettings
from icestream.model.errors import InvalidRequestError, TopicNotFoundError, UnavailableError
from icestream.model.filters import Filter
from icestream.model.names import TopicName
from icestream.model.offsets import StartPosition
from icestream.reader import Selection, TableTier, TableTierRead, TopicReader
from icestream.storage import IcebergStorage, ReadOnlyStorage, Topic

if TYPE_CHECKING:
    from icestream.table import TopicTable


class QueryTopic(Protocol):
    """A topic as one query sees it: a fixed range of offsets."""

    @property
    def schema(self) -> pa.Schema:
        """The columns; the first is the offset."""

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int:
        """The first offset that the query does not see."""

    def batches(self, columns: Sequence[str], where: Filter | None, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows with `start <= offset < end`, with the offset and these columns, in offset order."""


class QueryTopics(Protocol):
    """The topics that queries can name."""

    def find(self, topic: TopicName, *, fresh: bool) -> QueryTopic:
        """Return a topic; raise `TopicNotFoundError` if there is none."""


@dataclass(frozen=True)
class BrokerTopics:
    """A broker's topics, with the rows of all tiers."""

    storage: IcebergStorage

    def find(self, topic: TopicName, *, fresh: bool) -> QueryTopic:
        found = self.storage.topic(topic)
        if not fresh and not found.record.has_table:
            raise InvalidRequestError(
                "the topic has no table, its messages are in the log only",
                operation="sql",
                place=str(topic),
                remedy="query fresh rows",
            )
        durable_end = found.log.durable_end
        try:
            # Of a lost table no rows would look like an empty topic. Fresh rows may all be in the log or the cloud.
            table = found.find_table() if fresh else found.find_checked_table()
        except UnavailableError:
            if not fresh:
                raise
            table = None  # the log and the cloud need no catalog
        table_end = 0 if table is None else min(table.ledger.committed_offset, durable_end)
        start = found.earliest_offset if fresh or table_end else 0
        return BrokerTopic(
            self.storage, found, found.stream_schema, start, durable_end if fresh else table_end, table_end
        )


@dataclass(frozen=True)
class BrokerTopic:
    storage: IcebergStorage
    topic: Topic
    schema: pa.Schema
    start: int
    end: int
    table_end: int
    """Rows below are read from the table, even if the log still holds them: a table reads single columns."""

    def batches(self, columns: Sequence[str], where: Filter | None, start: int, end: int) -> Iterator[pa.RecordBatch]:
        topic, in_table = self.topic, min(end, self.table_end)
        if start < in_table:
            reader = self.storage.settings.reader
            selection = Selection.of(self.schema, columns, where)
            yield from _table_rows(topic.find_table, reader, topic.name, selection, start, in_table)
        start = max(start, self.table_end)
        if start < end:
            rest = topic.reader(StartPosition.offset(start), columns, where)
            yield from topic.read(rest, end=end)
            _check_reached(rest, end, topic.name)


@dataclass(frozen=True)
class CatalogTopics:
    """The tables of a catalog, without a broker: committed rows only."""

    storage: ReadOnlyStorage

    def find(self, topic: TopicName, *, fresh: bool) -> QueryTopic:
        del fresh
        table = self.storage.find_table(topic)
        if table is None:
            raise TopicNotFoundError("the catalog has no table of this topic", operation="sql", place=str(topic))
        end = table.ledger.committed_offset
        start = table.first_offset()
        first = end if start is None else start
        return CatalogTopic(self.storage, topic, table.stream_schema, first, end, table.ledger.stream_id)


@dataclass(frozen=True)
class CatalogTopic:
    storage: ReadOnlyStorage
    topic: TopicName
    schema: pa.Schema
    start: int
    end: int
    stream_id: str

    def batches(self, columns: Sequence[str], where: Filter | None, start: int, end: int) -> Iterator[pa.RecordBatch]:
        if start < end:
            reader = self.storage.settings.reader
            selection = Selection.of(self.schema, columns, where)
            yield from _table_rows(self._find, reader, self.topic, selection, start, end)

    def _find(self) -> "TopicTable | None":
        found = self.storage.find_table(self.topic)
        return found if found is not None and found.ledger.stream_id == self.stream_id else None


class _BoundedTable(TableTier):
    """The table up to an offset. A scan does not look for matches beyond it."""

    def __init__(self, find: "Callable[[], TopicTable | None]", settings: ReaderSettings, end: int) -> None:
        super().__init__(find, settings)
        self._end = end

    def begin(self, offset: int, nearer: int | None, selection: Selection) -> TableTierRead | None:
        return super().begin(offset, self._end if nearer is None else min(nearer, self._end), selection)


def _table_rows(
    find: "Callable[[], TopicTable | None]",
    settings: ReaderSettings,
    topic: TopicName,
    selection: Selection,
    start: int,
    end: int,
) -> Iterator[pa.RecordBatch]:
    reader = TopicReader((_BoundedTable(find, settings, end),), start, selection, place=str(topic))
    try:
        while batches := reader.read():
            yield from batches
        _check_reached(reader, end, topic)
    finally:
        reader.close()


def _check_reached(reader: TopicReader, end: int, topic: TopicName) -> None:
    """Raise if the reader stopped before `end`: an incomplete result must not look complete."""
    if reader.offset < end:
        raise UnavailableError(
            f"the topic's messages from offset {reader.offset} on were removed while the query read them",
            operation="sql",
            place=str(topic),
            remedy="run the query again, unless the topic was deleted",
        )
