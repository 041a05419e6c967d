"""Copies quarantined frames from one table of a topic to the other, when one is filled from the other.

A table that is filled from another one reads rows, so a frame in quarantine is a gap for it. The frame is copied with
its entry, so that the first table can be removed. The copy is made before the commit that passes its last offset.
*Killed in between: a file that no table names; the next try writes the same file.*
"""

from dataclasses import replace

import structlog

from icestream.model.enums import StorageFormat
from icestream.model.errors import DamagedError
from icestream.model.names import copied
from icestream.model.quarantine import Quarantined
from icestream.pipeline.commit import PendingCommit
from icestream.table import Tables, TopicTable, copy_entry

_log = structlog.get_logger(__name__)


def with_copied_quarantine(tables: Tables, table: TopicTable, pending: PendingCommit) -> PendingCommit:
    """Return the commit with copies of those quarantine entries of the topic's other table that it lacks."""
    if not pending.lost or pending.quarantined:
        return pending
    known = {entry.end_offset for entry in table.quarantined}
    copies = []
    for name in StorageFormat.BOTH.all_tables(copied(table.name)):
        other = tables.find(name) if name != table.name else None
        if other is None or other.ledger.stream_id != table.ledger.stream_id:
            continue
        for entry in other.quarantined:
            if pending.start < entry.end_offset <= pending.end and entry.end_offset not in known:
                copies += _copy(table, other, entry)
    return replace(pending, quarantined=tuple(copies))


def _copy(table: TopicTable, other: TopicTable, entry: Quarantined) -> list[Quarantined]:
    """Copy an entry. A frame that the other table itself has lost is logged and left out."""
    try:
        return [copy_entry(entry, other, table)]
    except DamagedError as error:
        _log.exception(
            "quarantined_frame_unreadable",
            table=str(other.name),
            first_offset=entry.first_offset,
            reason=str(error),
        )
        return []
