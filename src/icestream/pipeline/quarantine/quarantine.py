"""Puts a frame that cannot be written into quarantine, so that the messages after it are written.

The steps for a frame that has failed alone, and what a kill after each leaves behind:

1. make sure that the frame is the cause: the workers can write something else (`worker_probe`), and the frame's bytes
   are as they were acknowledged. *Nothing.*
2. write the frame into a file of its own next to the table, and read it back. *A file that no table names; the next
   pipeline finds the same frame, and writes the same file.*
3. commit the ledger past it, with an entry that says which offsets are in which file, and why. *It is in quarantine.*

At most `pipeline.max_quarantined` frames of a topic are in quarantine, not counting those whose messages were published
again. If more fail, the topic is the cause and not a frame: the topic waits with an error that says so.

A table that is filled from the topic's other table reads rows, so a frame in quarantine is a gap for it. The frame is
copied with its entry, so that the first table can be removed. The copy is made before the commit that passes its last
offset. *Killed in between: a file that no table names; the next try writes the same file.*
"""

from dataclasses import replace

import structlog

from icestream.config import PipelineSettings
from icestream.model.enums import StorageFormat
from icestream.model.errors import DamagedError, IcestreamError, LimitReachedError
from icestream.model.names import topic_of_table
from icestream.model.quarantine import MAX_QUARANTINED, Quarantined
from icestream.pipeline.quarantine.poison_search import may_be_the_messages, needs_worker_probe
from icestream.pipeline.quarantine.worker_probe import Jobs, probe_workers
from icestream.pipeline.sources import MessageSources
from icestream.pipeline.state import PendingCommit, TopicState
from icestream.pipeline.tasks import Written
from icestream.table import Tables, TopicTable, copy_entry, quarantine_frame, read_retried

_log = structlog.get_logger(__name__)


class Quarantine:
    """Considers each failed range, and at last puts a frame into quarantine."""

    def __init__(self, settings: PipelineSettings, sources: MessageSources, spark: Jobs) -> None:
        self._after = settings.quarantine_after
        self._max_frames = settings.max_quarantined
        self._sources = sources
        self._spark = spark

    def consider(self, state: TopicState, failed: Written, error: IcestreamError) -> bool:
        """Note a failed range. Return whether it was a single frame, whose quarantine entry is pending now.

        If another pipeline has committed it meanwhile, nothing is pending. Raise if the frame cannot be found or
        written to its file.
        """
        if not self._after or not may_be_the_messages(error) or failed.start != state.start:
            return False
        if not self._sources.has_frames(state.next_backlog):
            return False
        poison_search = state.begin_poison_search()
        poison_search.failures += 1
        poison_search.verdict = None  # an operator may have acted since
        if poison_search.failures < self._after:
            return False
        try:
            ends = poison_search.ends or self._sources.frame_ends(state.next_backlog, failed.start, failed.end)
            was_alone = poison_search.is_narrowing
            if not poison_search.narrow(ends, failed.end) or not was_alone:
                return False  # a single frame is tried once more, alone
            self._keep_frame(state, error)
        except IcestreamError as reason:
            poison_search.verdict = None if reason.retryable else reason
            raise
        return True

    def _keep_frame(self, state: TopicState, error: IcestreamError) -> None:
        """Do steps 1 and 2, for each table that lacks the frame."""
        if needs_worker_probe(error):
            probe_workers(state, self._sources, self._spark, error)
        frame, schema = self._sources.frame_at(state.next_backlog, state.start)
        for sink in state.fed:
            if sink.table is None or (sink.committed or 0) >= frame.end_offset:
                continue
            table = sink.table.refresh()
            sink.take(table)
            first = table.ledger.committed_offset
            if not frame.base_offset <= first < frame.end_offset:
                continue  # another pipeline was faster
            self._check_room(table, frame.base_offset, error)
            entry = quarantine_frame(table, frame, first_offset=first, reason=str(error), schema=schema)
            sink.pending = PendingCommit(
                (), first, entry.end_offset, state.backlog.epoch, quarantined=(entry,), planned_on=table.snapshot_id
            )
            _log.error(
                "frame_quarantined",
                table=str(table.name),
                first_offset=entry.first_offset,
                last_offset=entry.end_offset - 1,
                file=entry.file,
                reason=str(error),
            )

    def _check_room(self, table: TopicTable, offset: int, error: IcestreamError) -> None:
        count = len(table.quarantined)
        if count >= MAX_QUARANTINED:
            raise LimitReachedError(
                f"the frame at offset {offset} cannot be written, and the table's list of quarantined frames is full "
                f"({count}): {error}",
                operation="quarantine",
                place=str(table.name),
            )
        if count >= self._max_frames:
            count = sum(read_retried(table, entry) is None for entry in table.quarantined)
        if count >= self._max_frames:
            raise LimitReachedError(
                f"the frame at offset {offset} cannot be written, and {count} frames of the topic are already in "
                f"quarantine: {error}",
                operation="quarantine",
                place=str(table.name),
                remedy="see what they have in common with `icestream quarantine list`, publish them again with "
                "`icestream quarantine retry`, or raise pipeline.max_quarantined",
            )


def with_copied_quarantine(tables: Tables, table: TopicTable, pending: PendingCommit) -> PendingCommit:
    """Return the commit with copies of those quarantine entries of the topic's other table that it lacks."""
    if not pending.lost or pending.quarantined:
        return pending
    known = {entry.end_offset for entry in table.quarantined}
    copies = []
    for name in StorageFormat.BOTH.all_tables(topic_of_table(table.name)):
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
