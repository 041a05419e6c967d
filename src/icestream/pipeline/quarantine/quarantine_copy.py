"""What is in quarantine in one table of a topic, for the other one, where it is filled from the first.

A table that is filled from another reads rows, and sees a frame in quarantine as offsets without one. The frame is
copied with what is known of it, so that the first table can be removed. Before the commit that passes its last offset:
*killed in between, a file is there that nothing names, and the next try writes the same one.*
"""

from dataclasses import replace

import structlog

from icestream.model.enums import StorageFormat
from icestream.model.errors import DamagedError
from icestream.model.names import copied
from icestream.model.quarantine import Quarantined
from icestream.pipeline.commit import PendingCommit
from icestream.table import Tables, TopicTable
from icestream.table.quarantine import copy_entry

_log = structlog.get_logger(__name__)


def with_copied_quarantine(tables: Tables, table: TopicTable, pending: PendingCommit) -> PendingCommit:
    """The same to be committed, with the entries of what it lacks that the topic's other table has in quarantine."""
    if not pending.lost or pending.quarantined:
        return pending
    known = {entry.end_offset for entry in table.quarantined}
    carried = []
    for name in StorageFormat.BOTH.all_tables(copied(table.name)):
        other = tables.find(name) if name != table.name else None
        if other is None or other.ledger.stream_id != table.ledger.stream_id:
            continue
        for entry in other.quarantined:
            if pending.start < entry.end_offset <= pending.end and entry.end_offset not in known:
                carried += _copy(table, other, entry)
    return replace(pending, quarantined=tuple(carried))


def _copy(table: TopicTable, other: TopicTable, entry: Quarantined) -> list[Quarantined]:
    """A frame that the other table has lost itself keeps nobody from going on."""
    try:
        return [copy_entry(entry, other, table)]
    except DamagedError as error:
        _log.exception(
            "a frame in quarantine is not readable, and is in one table only",
            table=str(other.name),
            first_offset=entry.first_offset,
            error=str(error),
        )
        return []
