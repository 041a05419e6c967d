"""The log and the cloud as one: what the cloud holds of the pruned part, then the log, with the cloud beside it.

So log, cloud and table are each read once. Where the log is pruned, the table is compared with what the cloud holds.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from icestream.model.messages import conform, slice_from
from icestream.model.names import TopicName
from icestream.model.offsets import NO_OFFSETS, OffsetRanges
from icestream.storage.verify.cloud import CloudAudit
from icestream.storage.verify.findings import Finding, Verification
from icestream.storage.verify.logs import LogView
from icestream.storage.verify.reconcile import Side, differences


@dataclass
class JoinedLog:
    """A `LogView`. Without a log it is the cloud alone."""

    topic: TopicName
    stream_id: str
    log: LogView | None
    cloud: CloudAudit
    report: Verification
    known_committed: int = 0

    @property
    def start_offset(self) -> int:
        return self.cloud.first_offset if self.log is None else min(self.cloud.first_offset, self.log.start_offset)

    @property
    def durable_end(self) -> int:
        return self.cloud.end_offset if self.log is None else self.log.durable_end

    @property
    def problems(self) -> list[str]:
        return [] if self.log is None else self.log.problems

    @property
    def storage(self) -> str:
        return self.cloud.storage if self.log is None else self.log.storage

    def batches(self, aside: OffsetRanges = NO_OFFSETS) -> Iterator[pa.RecordBatch]:
        cloud = Side(self.cloud.batches(aside))
        if self.log is not None:
            for batch in self.log.batches(aside):
                yield from self._before(cloud, batch.column(0)[0].as_py())
                self._compare(cloud, batch)
                yield batch
        yield from self._rest(cloud)

    def _before(self, cloud: Side, first: int) -> Iterator[pa.RecordBatch]:
        """What the cloud has before the log's next message: of the pruned part, or given up by a repair of the log."""
        assert self.log is not None
        while cloud.batch is not None and cloud.first < first:
            kept = slice_from(cloud.take(first - 1), 0, self.log.start_offset)
            if kept.num_rows:
                yield kept

    def _compare(self, cloud: Side, batch: pa.RecordBatch) -> None:
        """The cloud's messages of a stretch of the log must be the log's."""
        first, last = batch.column(0)[0].as_py(), batch.column(0)[-1].as_py()
        reached = first
        while cloud.batch is not None and cloud.first <= last:
            found = cloud.take(last)
            through = found.column(0)[-1].as_py()
            expected = slice_from(batch, reached, through + 1)
            reached = through + 1
            if not found.column(0).equals(expected.column(0)):
                self._missing(expected.filter(pc.invert(pc.is_in(expected.column(0), found.column(0)))))
                found = found.filter(pc.is_in(found.column(0), expected.column(0)))
                expected = expected.filter(pc.is_in(expected.column(0), found.column(0)))
            for row, column in differences(conform(found, expected.schema), expected):
                offset = found.column(0)[row].as_py()
                text = f"column {column!r} in the cloud is not what the log has"
                self.report.add(Finding("content", text, offset, offset))
            self.report.cloud_compared += found.num_rows
        self._missing(slice_from(batch, reached, max(reached, self.cloud.end_offset)))

    def _missing(self, expected: pa.RecordBatch) -> None:
        """Messages of the log that the objects on record ought to have."""
        offsets = slice_from(expected, self.cloud.first_offset, self.cloud.end_offset).column(0)
        for one in self.cloud.unreadable:
            is_in = pc.and_(pc.greater_equal(offsets, one.first_offset), pc.less(offsets, one.end_offset))
            offsets = offsets.filter(pc.invert(is_in))
        if len(offsets):
            text = "messages that the log holds are not in the cloud"
            self.report.add(Finding("gap", text, offsets[0].as_py(), offsets[-1].as_py()))

    def _rest(self, cloud: Side) -> Iterator[pa.RecordBatch]:
        """What only the cloud has. Behind the log's end there is to be nothing."""
        while cloud.batch is not None:
            batch = cloud.take(cloud.last)
            if self.log is None:
                yield batch
                continue
            kept = slice_from(batch, 0, self.log.start_offset)
            if kept.num_rows:
                yield kept
            beyond = slice_from(batch, self.log.durable_end)
            if beyond.num_rows:
                first, last = beyond.column(0)[0].as_py(), beyond.column(0)[-1].as_py()
                text = f"the cloud has messages that the log, which ends at {self.log.durable_end}, does not"
                self.report.add(Finding("cloud", text, first, last))
