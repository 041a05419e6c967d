"""The task: a range of a topic, fetched from the broker or from cloud objects, becomes data files.

Runs in Spark's Python workers. What goes in is small (a topic, ranges, where to fetch, how to write), and so is what
comes out (descriptions of files). The messages stream into Parquet as Arrow batches, a row group at a time, and never
pass through the JVM.

An error concerns one range and is part of the result, so that it cannot fail the job of all others; only a worker that
dies does that, and Spark tries its task again. Files of a range that failed, or of a task that died, are named by no
one: they are left for the clean-up of orphans.

Messages that a repair of the log gave up (`lost`) have no row in the table. The range is written without them, and the
committed offset passes over them: the table then has the same gap, for good, that every reader of the log is told of,
and its properties say where.
"""

import pickle
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from time import perf_counter

import pyarrow as pa

from icestream.model.errors import DamagedError, IcestreamError
from icestream.model.lost_ranges import NOTHING_LOST, LostRanges
from icestream.model.names import TopicName
from icestream.pipeline.crash import crash_point
from icestream.pipeline.fetch import Fetch
from icestream.table import TableWriter, WrittenFile

_MAX_TRACE = 2000


@dataclass(frozen=True)
class Work:
    """The ranges of one topic that a task writes, in offset order."""

    fetch: Fetch
    topic: TopicName
    stream_id: str
    writer: TableWriter
    max_memory_bytes: int
    ranges: tuple[tuple[int, int], ...] = ()

    def with_ranges(self, ranges: Iterable[tuple[int, int]]) -> "Work":
        wanted = tuple(ranges)
        return replace(self, ranges=wanted, fetch=self.fetch.within(wanted))


@dataclass(frozen=True)
class Written:
    """What became of one range."""

    topic: TopicName
    start: int
    end: int
    files: tuple[WrittenFile, ...] = ()
    nbytes: int = 0
    """Arrow bytes of the messages."""
    lost: int = 0
    lost_ranges: LostRanges = NOTHING_LOST
    seconds: float = 0.0
    error: IcestreamError | None = None

    @property
    def messages(self) -> int:
        return sum(file.message_count for file in self.files)


def pack_parcel(works: Iterable[Work]) -> bytes:
    return pickle.dumps(list(works), pickle.HIGHEST_PROTOCOL)


def write_parcels(parcels: Iterable[bytes]) -> Iterator[Written]:
    """The function that Spark runs on a partition."""
    for parcel in parcels:
        for work in pickle.loads(parcel):  # noqa: S301 - the driver's own, over Spark's authenticated connection
            yield from write_topic(work)


def write_topic(work: Work) -> Iterator[Written]:
    """Write one range after the other; behind one that fails the others cannot be committed, so they are left."""
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
    except Exception as error:  # noqa: BLE001 - whatever it is, it concerns this range alone
        failure = IcestreamError(
            f"{type(error).__name__}: {error}",
            operation="write table",
            place=f"{work.topic} {start} to {end}",
            retryable=True,
            details={"trace": traceback.format_exc()[-_MAX_TRACE:]},
        )
    return Written(work.topic, start, end, seconds=perf_counter() - began, error=failure)


def _write_range(work: Work, start: int, end: int, began: float) -> Written:
    crash_point("before-write")
    reader = work.fetch.read(work.topic, work.stream_id, start, end)
    size = _Size()
    files = work.writer.write(size.of(reader.batches()), max_memory_bytes=work.max_memory_bytes)
    count = sum(file.message_count for file in files)
    if reader.next_offset != end or count + reader.lost != end - start:
        raise DamagedError(
            f"{count} messages were written and {reader.lost} are lost, of {end - start}",
            operation="write table",
            place=f"{work.topic} {start} to {end}",
        )
    crash_point("after-write")
    return Written(
        work.topic,
        start,
        end,
        files=tuple(files),
        nbytes=size.nbytes,
        lost=reader.lost,
        lost_ranges=reader.lost_ranges,
        seconds=perf_counter() - began,
    )


class _Size:
    """Counts the bytes of batches on their way."""

    def __init__(self) -> None:
        self.nbytes = 0

    def of(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.nbytes += batch.nbytes
            yield batch
            crash_point("mid-write")
