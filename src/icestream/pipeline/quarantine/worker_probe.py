"""Probes whether the workers can write at all, before a frame is blamed for an unforeseen error.

A probe task gets the writers, the source and the frame of the failed task. It reads the frame without decoding it, and
writes a made-up row in its place, outside of every table's folders. If the probe fails too, or kills its worker, the
workers are the cause, and the topic waits until they are repaired.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa

from icestream.model.errors import IcestreamError
from icestream.model.names import TopicName
from icestream.model.offsets import NO_OFFSETS, Range
from icestream.pipeline.sources import MessageSources
from icestream.pipeline.spark.session import JobFailedError
from icestream.pipeline.state import TopicState
from icestream.pipeline.tasks import BrokerFrames, CloudRange, Fetch, Work, Written, pack_parcel
from icestream.table import sample_row, trial_writer

_MEMORY_BYTES = 16 * 1024 * 1024


class Jobs(Protocol):
    def run(self, parcels: Sequence[bytes], /) -> list[Written]: ...


def probe_workers(state: TopicState, sources: MessageSources, spark: Jobs, error: IcestreamError) -> None:
    """Raise unless a worker can write a made-up row for the tables that are fed; `error` is the frame's error."""
    start = state.start
    writers = [sink.table.writer() for sink in state.fed if sink.table is not None]
    work = Work(
        fetch=ProbeFetch(sources.fetch(state.next_backlog, by_frame=True), writers[0].columns.stream),
        topic=state.backlog.name,
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
            f"the workers cannot write a made-up row either: {failure}; the messages failed with: {error}",
            operation="quarantine",
            place=state.backlog.topic,
            remedy="repair the workers: no frame goes into quarantine before they can write",
            retryable=True,
        )


@dataclass(frozen=True)
class ProbeFetch:
    """A `Fetch` that reads the frames of a range, and yields one made-up row in their place."""

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
