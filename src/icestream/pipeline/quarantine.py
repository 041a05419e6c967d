"""Putting a frame aside that cannot be written, so that everything behind it can go on.

The order for a frame that has failed alone, with what a kill after each step leaves behind:

1. see that it is the frame: the workers can work, and its bytes are as they were acknowledged. *Nothing.*
2. write the frame into a file of its own beside the table, and read it back. *A file that nothing names; the next
   pipeline finds the same frame, and writes the same file.*
3. commit the ledger past it, with an entry that says which offsets are in which file, and why. *It is in quarantine.*

At most `pipeline.max_quarantined` frames of a topic are put aside: if more fail it is not a frame that is wrong, but
the topic, and it rests with an error that says so.
"""

from collections.abc import Sequence
from typing import Protocol

import structlog

from icestream.config import PipelineSettings
from icestream.model.errors import IcestreamError, LimitReachedError
from icestream.pipeline.commit import Pending
from icestream.pipeline.crash import crash_point
from icestream.pipeline.read_back import ReadBack
from icestream.pipeline.sources import Sources
from icestream.pipeline.state import TopicState
from icestream.pipeline.suspicion import CRASHED, Suspicion, may_be_the_messages
from icestream.pipeline.write import Written, pack_parcel
from icestream.table import TopicTable
from icestream.table.quarantine import put_aside

_log = structlog.get_logger(__name__)


class Jobs(Protocol):
    def run(self, parcels: Sequence[bytes], /) -> list[Written]: ...


class Quarantine:
    """Looks at each failed range, and at last has a frame put aside."""

    def __init__(self, settings: PipelineSettings, sources: Sources, spark: Jobs) -> None:
        self._after = settings.quarantine_after
        self._max_frames = settings.max_quarantined
        self._sources = sources
        self._spark = spark

    def consider(self, state: TopicState, failed: Written, error: IcestreamError) -> bool:
        """Take note of a range that failed; whether that was a single frame, which is aside now and to be committed.

        Raises what keeps a frame from being found or put aside.
        """
        if not self._after or not may_be_the_messages(error) or failed.start != state.start:
            return False
        if isinstance(state.at_hand, ReadBack):
            return False  # there are no frames where these come from
        suspicion = state.suspicion
        if suspicion is None or suspicion.start != failed.start:
            suspicion = state.suspicion = Suspicion(failed.start)
        suspicion.failures += 1
        if suspicion.verdict is not None:
            raise suspicion.verdict
        if suspicion.failures < self._after:
            return False
        try:
            ends = suspicion.ends or self._sources.frame_ends(state.at_hand, failed.start, failed.end)
            was_alone = suspicion.is_narrowing
            if not suspicion.narrow(ends, failed.end) or not was_alone:
                return False  # a single frame is tried once more, by itself
            self._convict(state, error)
        except IcestreamError as reason:
            suspicion.verdict = None if reason.retryable else reason
            raise
        return True

    def _convict(self, state: TopicState, error: IcestreamError) -> None:
        """Steps 1 and 2, for each table that lacks the frame."""
        if error.code == CRASHED:
            self._spark.run([pack_parcel([])])  # a worker that has nothing to do must come back
        frame, schema = self._sources.frame_at(state.at_hand, state.start)
        for sink in state.fed:
            if sink.table is None or (sink.committed or 0) >= frame.end_offset:
                continue
            table = sink.table.refresh()
            self._check_room(table, frame.base_offset, error)
            first = table.ledger.committed_offset
            if not frame.base_offset <= first < frame.end_offset:
                continue  # somebody else was faster
            entry = put_aside(table, frame, first_offset=first, reason=str(error), schema=schema)
            sink.take(table)
            sink.pending = Pending(
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
        crash_point("after-quarantine-file")

    def _check_room(self, table: TopicTable, offset: int, error: IcestreamError) -> None:
        count = len(table.quarantined)
        if count >= self._max_frames:
            raise LimitReachedError(
                f"the frame at offset {offset} cannot be written, and {count} frames of the topic are in quarantine "
                f"already: {error}",
                operation="quarantine",
                place=str(table.name),
                remedy="see what they have in common with `icestream quarantine list`, or raise "
                "pipeline.max_quarantined",
            )
