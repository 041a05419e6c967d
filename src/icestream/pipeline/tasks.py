"""The task: reads ranges of a topic from the broker or from cloud objects, and writes them into data files.

Runs in Spark's Python workers. Its input is small (a topic, ranges, where to fetch, how to write), and so is its output
(descriptions of files). The messages stream into Parquet as Arrow batches, a row group at a time, and never pass
through the JVM.

An error concerns one range and is part of the result, so it does not fail the job of all topics. Only a worker that
dies fails its task; Spark tries the task again. No table names the files of a failed range or of a dead task:
maintenance removes them as orphans, or, in a Parquet copy, the driver does.

Messages that go to two tables are fetched and decoded once; each table gets those that it lacks.

Messages that a repair of the log gave up (`lost`) have no row in the table. The range is written without them, and the
committed offset passes them. The table then has the same gap as the log, and its properties say where.
"""

import pickle
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from time import perf_counter

import pyarrow as pa
from pyspark import TaskContext

from icestream.model.errors import DamagedError, IcestreamError
from icestream.model.messages import slice_from
from icestream.model.names import TopicName
from icestream.model.offsets import NO_OFFSETS, OffsetRanges
from icestream.pipeline.fetch import Fetch
from icestream.table import TableWriter, WrittenFile, write_to_tables

WRITE_OPERATION = "write table"
WORKER_OPERATION = "run task"
_LACKS = (MemoryError, ImportError, OSError)
"""Errors of a worker that lacks something (memory, modules, files), whatever the messages are."""
_MAX_TRACE = 2000


@dataclass(frozen=True)
class Work:
    """The ranges of one topic that a task writes, in offset order."""

    fetch: Fetch
    topic: TopicName
    stream_id: str
    targets: tuple[tuple[TableWriter, int], ...]
    """The writer of each table, and the offset of the first message that the table lacks."""
    max_memory_bytes: int
    ranges: tuple[tuple[int, int], ...] = ()

    def with_ranges(self, ranges: Iterable[tuple[int, int]]) -> "Work":
        wanted = tuple(ranges)
        return replace(self, ranges=wanted, fetch=self.fetch.within(wanted))


@dataclass(frozen=True)
class Written:
    """The result of one range."""

    topic: TopicName
    start: int
    end: int
    files: tuple[WrittenFile, ...] = ()
    """The files of all tables."""
    nbytes: int = 0
    """Arrow bytes of the messages."""
    lost: int = 0
    lost_ranges: OffsetRanges = NO_OFFSETS
    seconds: float = 0.0
    error: IcestreamError | None = None
    again: bool = False
    """The worker of an earlier try died, and may have left files."""


def pack_parcel(works: Iterable[Work]) -> bytes:
    return pickle.dumps(list(works), pickle.HIGHEST_PROTOCOL)


def write_parcels(parcels: Iterable[bytes]) -> Iterator[Written]:
    """Write the parcels of a partition. Spark calls this."""
    task = TaskContext.get()
    again = task is not None and task.attemptNumber() > 0
    for parcel in parcels:
        for work in pickle.loads(parcel):  # noqa: S301 - the driver's own, over Spark's authenticated connection
            yield from (replace(written, again=again) for written in write_topic(work))


def write_topic(work: Work) -> Iterator[Written]:
    """Write one range after another. Stop at one that fails: ranges after it could not be committed."""
    for start, end in work.ranges:
        written = _attempt(work, start, end)
        yield written
        if written.error is not None:
            return


def _attempt(work: Work, start: int, end: int) -> Written:
    began = perf_counter()
    try:
        return _write_range(work, start, end, began)
    except IcestreamError as error:
        failure = error
    except Exception as error:  # noqa: BLE001 - any error concerns this range alone
        failure = IcestreamError(
            f"{type(error).__name__}: {error}",
            operation=WORKER_OPERATION if isinstance(error, _LACKS) else WRITE_OPERATION,
            place=f"{work.topic} {start} to {end}",
            retryable=True,
            details={"trace": traceback.format_exc()[-_MAX_TRACE:]},
        )
    return Written(work.topic, start, end, seconds=perf_counter() - began, error=failure)


def _write_range(work: Work, start: int, end: int, began: float) -> Written:
    reader = work.fetch.read(work.topic, work.stream_id, start, end)
    counter = _ByteCounter()
    files = _write_files(work, counter.count(reader.batches()))
    if reader.next_offset != end:
        raise _incomplete(work, start, end, f"messages came up to {reader.next_offset}")
    for (_, begins), own in zip(work.targets, files, strict=True):
        count = sum(file.message_count for file in own)
        wanted = end - start - reader.lost
        if begins > start:
            wanted = sum(last - first for first, last in reader.lost_ranges.gaps(begins, end))
        if count != wanted:
            raise _incomplete(work, start, end, f"{count} messages were written, of {wanted} that are not lost")
    return Written(
        work.topic,
        start,
        end,
        files=tuple(file for own in files for file in own),
        nbytes=counter.nbytes,
        lost=reader.lost,
        lost_ranges=reader.lost_ranges,
        seconds=perf_counter() - began,
    )


def _write_files(work: Work, batches: Iterator[pa.RecordBatch]) -> list[list[WrittenFile]]:
    """Write and return the files of each target."""
    if len(work.targets) == 1:
        writer, first_offset = work.targets[0]
        rows = (slice_from(batch, first_offset) for batch in batches)
        return [writer.write(rows, max_memory_bytes=work.max_memory_bytes)]
    return write_to_tables(work.targets, batches, max_memory_bytes=work.max_memory_bytes)


def _incomplete(work: Work, start: int, end: int, problem: str) -> DamagedError:
    return DamagedError(
        problem,
        operation=WRITE_OPERATION,
        place=f"{work.topic} {start} to {end}",
    )


class _ByteCounter:
    """Counts the bytes of batches that pass through."""

    def __init__(self) -> None:
        self.nbytes = 0

    def count(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.nbytes += batch.nbytes
            yield batch
