"""Loads the tables of a topic before they are written, and finds messages that they lack and the log does not have."""

import structlog

from icestream.client import TopicBacklog
from icestream.model.errors import IcestreamError, OffsetOutOfRangeError
from icestream.pipeline.sources import MessageSources, backfill_before_log
from icestream.pipeline.state import Sink, TopicState
from icestream.table import Ledger, Tables, TopicTable
from icestream.table.parquet_copy import remove_leftovers

_log = structlog.get_logger(__name__)


def open_table(tables: Tables, state: TopicState, sink: Sink) -> TopicTable:
    """Load a table. Remove leftover files of a Parquet copy before anything is added to it."""
    table = tables.open(state.spec(sink))
    return remove_leftovers(table)


def before_log(sources: MessageSources, tables: Tables, backlog: TopicBacklog, offset: int) -> TopicBacklog:
    """Find messages that a table lacks and the log does not have: in the cloud, or in the topic's other table."""
    try:
        return sources.before_log(backlog, offset)
    except OffsetOutOfRangeError:
        found = (tables.find(name) for name in backlog.format.all_tables(backlog.topic))
        ledgers = [table.ledger for table in found if table is not None]
        end = max((one.committed_offset for one in ledgers if one.stream_id == backlog.stream_id), default=0)
        if end <= offset:
            raise
        return backfill_before_log(backlog, offset, end)


def drop_empty_tables(tables: Tables, backlog: TopicBacklog) -> None:
    """Drop the empty tables of a deleted topic. They would be in the way of a new topic of that name."""
    for name in backlog.format.fed(backlog.topic):
        try:
            table = tables.find(name)
            if table is not None and table.ledger == Ledger(backlog.stream_id, table.ledger.epoch, 0):
                tables.drop(name, backlog.stream_id)
        except IcestreamError as error:
            _log.warning("empty_table_not_dropped", table=str(name), reason=str(error))
