"""Before a frame is blamed for what nobody foresaw, the workers have to show that they can write anything else.

A task gets everything that the failed one had, the same writers and the same source, and the frame that failed. It
reads the frame and leaves it undecoded; in its place it writes a row that is made up, into no table's folders. If that
fails too, or takes the worker down, then the workers are to blame, and the topic rests until somebody has seen to them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa

from icestream.model.errors import IcestreamError
from icestream.model.names import TopicName
from icestream.model.offsets import NO_OFFSETS
from icestream.pipeline.fetch import BrokerFrames, CloudRange, Fetch, Range
from icestream.pipeline.sources import MessageSources
from icestream.pipeline.spark.session import JobFailedError
from icestream.pipeline.state import TopicState
from icestream.pipeline.tasks import Work, Written, pack_parcel
from icestream.table.trial_write import sample_row, trial_writer

_MEMORY_BYTES = 16 * 1024 * 1024


class Jobs(Protocol):
    def run(self, parcels: Sequence[bytes], /) -> list[Written]: ...


def probe_workers(state: TopicState, sources: MessageSources, spark: Jobs, error: IcestreamError) -> None:
    """Raise unless a worker can write a row into the tables that are fed; `error` is what the frame failed with."""
    start = state.start
    writers = [sink.table.writer() for sink in state.fed if sink.table is not None]
    work = Work(
        fetch=ProbeFetch(sources.fetch(state.next_backlog, by_frame=True), writers[0].columns.stream),
        topic=state.backlog.topic,
        stream_id=state.backlog.stream_id,
        targets=tuple((trial_writer(writer), start) for writer in writers),
        max_memory_bytes=_MEMORY_BYTES,
    ).with_ranges([(start, start + 1)])
    try:
        (done,) = spark.run([pack_parcel([work])])
        failure = done.error
    except JobFailedError as died:
        failure = died
    if failure is not None:
        raise IcestreamError(
            f"the workers cannot write a row that is made up either: {failure}; the messages failed with: {error}",
            operation="quarantine",
            place=str(state.backlog.topic),
            remedy="see to the workers: no frame is put aside before they can write",
            retryable=True,
        )


@dataclass(frozen=True)
class ProbeFetch:
    """A `Fetch` that reads the frames of a range from where they are, and gives one row that is made up."""

    source: Fetch
    schema: pa.Schema

    def within(self, ranges: Iterable[Range]) -> "ProbeFetch":
        return replace(self, source=self.source.within(ranges))

    def read(self, topic: TopicName, stream_id: str, start: int, end: int) -> "_Row":
        reading = self.source.read(topic, stream_id, start, end)
        assert isinstance(reading, BrokerFrames | CloudRange)
        return _Row(reading, sample_row(self.schema, start))


class _Row:
    def __init__(self, source: BrokerFrames | CloudRange, row: pa.RecordBatch) -> None:
        self._source = source
        self._row = row
        self.next_offset = source.next_offset
        self.lost = 0
        self.lost_ranges = NO_OFFSETS

    def batches(self) -> Iterator[pa.RecordBatch]:
        for _ in self._source.frames():
            pass
        yield self._row
        self.next_offset += 1
