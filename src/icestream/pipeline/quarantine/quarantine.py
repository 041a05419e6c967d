"""Putting a frame aside that cannot be written, so that everything behind it can go on.

The order for a frame that has failed alone, with what a kill after each step leaves behind:

1. see that it is the frame: the workers can write something else (`control`), and its bytes are as they were
   acknowledged. *Nothing.*
2. write the frame into a file of its own beside the table, and read it back. *A file that nothing names; the next
   pipeline finds the same frame, and writes the same file.*
3. commit the ledger past it, with an entry that says which offsets are in which file, and why. *It is in quarantine.*

At most `pipeline.max_quarantined` frames of a topic are put aside, not counting those whose messages were published
again: if more fail it is not a frame that is wrong, but the topic, and it rests with an error that says so.
"""

import structlog

from icestream.config import PipelineSettings
from icestream.model.errors import IcestreamError, LimitReachedError
from icestream.model.quarantine import MAX_QUARANTINED
from icestream.pipeline.commit import PendingCommit
from icestream.pipeline.quarantine.poison_search import may_be_the_messages, needs_worker_probe
from icestream.pipeline.quarantine.worker_probe import Jobs, probe_workers
from icestream.pipeline.sources import MessageSources
from icestream.pipeline.state import TopicState
from icestream.pipeline.tasks import Written
from icestream.table import TopicTable
from icestream.table.quarantine import quarantine_frame, read_retried

_log = structlog.get_logger(__name__)


class Quarantine:
    """Looks at each failed range, and at last has a frame put aside."""

    def __init__(self, settings: PipelineSettings, sources: MessageSources, spark: Jobs) -> None:
        self._after = settings.quarantine_after
        self._max_frames = settings.max_quarantined
        self._sources = sources
        self._spark = spark

    def consider(self, state: TopicState, failed: Written, error: IcestreamError) -> bool:
        """Take note of a range that failed; whether that was a single frame, which is aside now and to be committed.

        Or was committed by somebody else meanwhile: then nothing is pending, and what follows is to be planned.

        Raises what keeps a frame from being found or put aside.
        """
        if not self._after or not may_be_the_messages(error) or failed.start != state.start:
            return False
        if not self._sources.has_frames(state.next_backlog):
            return False
        poison_search = state.suspect()
        poison_search.failures += 1
        poison_search.verdict = None  # somebody may have acted since
        if poison_search.failures < self._after:
            return False
        try:
            ends = poison_search.ends or self._sources.frame_ends(state.next_backlog, failed.start, failed.end)
            was_alone = poison_search.is_narrowing
            if not poison_search.narrow(ends, failed.end) or not was_alone:
                return False  # a single frame is tried once more, by itself
            self._put_frame_aside(state, error)
        except IcestreamError as reason:
            poison_search.verdict = None if reason.retryable else reason
            raise
        return True

    def _put_frame_aside(self, state: TopicState, error: IcestreamError) -> None:
        """Steps 1 and 2, for each table that lacks the frame."""
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
                continue  # somebody else was faster
            self._check_room(table, frame.base_offset, error)
            entry = quarantine_frame(table, frame, first_offset=first, reason=str(error), schema=schema)
            sink.pending = PendingCommit(
                (), first, entry.end_offset, state.backlog.epoch, quarantined=(entry,), planned_on=table.snapshot_id
            )
            _log.error(
                "a frame cannot be written and is in quarantine",
                table=str(table.name),
                first_offset=entry.first_offset,
                last_offset=entry.end_offset - 1,
                file=entry.file,
                error=str(error),
            )

    def _check_room(self, table: TopicTable, offset: int, error: IcestreamError) -> None:
        count = len(table.quarantined)
        if count >= MAX_QUARANTINED:
            raise LimitReachedError(
                f"the frame at offset {offset} cannot be written, and the table's list of frames in quarantine is as "
                f"long as it may be, {count}: {error}",
                operation="quarantine",
                place=str(table.name),
            )
        if count >= self._max_frames:
            count = sum(read_retried(table, entry) is None for entry in table.quarantined)
        if count >= self._max_frames:
            raise LimitReachedError(
                f"the frame at offset {offset} cannot be written, and {count} frames of the topic are in quarantine "
                f"already: {error}",
                operation="quarantine",
                place=str(table.name),
                remedy="see what they have in common with `icestream quarantine list`, publish them again with "
                "`icestream quarantine retry`, or raise pipeline.max_quarantined",
            )
