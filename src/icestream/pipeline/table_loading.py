"""The tables of a topic, loaded before they are written to, and where messages are that they lack."""

import structlog

from icestream.client.pipeline import TopicBacklog
from icestream.model.errors import IcestreamError, OffsetOutOfRangeError
from icestream.pipeline.sources import MessageSources, backfill_before_log
from icestream.pipeline.state import Sink, TopicState
from icestream.table import Ledger, Tables, TopicTable
from icestream.table.parquet_copy import remove_leftovers

_log = structlog.get_logger(__name__)


def open_table(tables: Tables, state: TopicState, sink: Sink) -> TopicTable:
    """A table as it is now; what was left in the folders of a Parquet copy goes before anything is added to it."""
    table = tables.open(state.spec(sink))
    return remove_leftovers(table)


def before_log(sources: MessageSources, tables: Tables, backlog: TopicBacklog, offset: int) -> TopicBacklog:
    """Where messages are that a table lacks and the log does not have: in the cloud, or in the topic's other table."""
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
    """Of a deleted topic: a table that was made for it meanwhile would be in the way of its successor."""
    for name in backlog.format.fed(backlog.topic):
        try:
            table = tables.find(name)
            if table is not None and table.ledger == Ledger(backlog.stream_id, table.ledger.epoch, 0):
                tables.drop(name, backlog.stream_id)
        except IcestreamError as error:
            _log.warning("the empty table of a deleted topic may be left", table=str(name), error=str(error))
