"""Where in a table a time is, and where it begins: few files and row groups are looked into."""

from contextlib import closing
from typing import TYPE_CHECKING

from icestream.model.filters import Filter
from icestream.model.predicates import Compare, Field, Instant
from icestream.table.limits import ReadLimits
from icestream.table.planning import FilePlan

if TYPE_CHECKING:
    from icestream.table.topic_table import TopicTable

_PUBLISH_TIME = 1  # its place in the envelope
_FEW = ReadLimits(max_concurrent_reads=1, prefetch_batches=1)


def first_offset(table: "TopicTable") -> int | None:
    """The lowest offset, from the manifests' bounds; of files that have none, from the rows."""
    end = table.ledger.committed_offset
    first = next(FilePlan(table, 0, end, window_files=1).files(), None)
    if first is None:
        return None
    return first.first_offset if first.first_offset >= 0 else _first_row(table, None)


def offset_at_time(table: "TopicTable", time_us: int) -> int:
    """The lowest offset of a message published at or after a time; the committed offset if there is none."""
    column = table.stream_schema.names[_PUBLISH_TIME]
    where = Filter("", Compare(Field(column), ">=", Instant(time_us)))
    found = _first_row(table, where)
    return table.ledger.committed_offset if found is None else found


def _first_row(table: "TopicTable", where: Filter | None) -> int | None:
    with closing(table.scan(columns=[table.offset_column], where=where, limits=_FEW)) as batches:
        return next((int(batch.column(0)[0].as_py()) for batch in batches), None)
