"""The task: reads ranges of a topic from the broker or from cloud objects, and writes them into data files.

Runs in Spark's Python workers. Its input is small (a topic, ranges, where to fetch, how to write), and so is its output
(descriptions of files). The messages stream into Parquet as Arrow batches, a row group at a time, and never pass
through the JVM.

The driver makes a `Fetch`, and the task reads with it, so it can be pickled. It may hold a token or the object store's
credentials, and is never shown. Each worker keeps its clients and stores from task to task.

An error concerns one range and is part of the result, so it does not fail the job of all topics. Only a worker that
dies fails its task; Spark tries the task again. No table names the files of a failed range or of a dead task:
maintenance removes them as orphans, or, in a Parquet copy, the driver does.

Messages that go to two tables are fetched and decoded once; each table gets those that it lacks.

Messages that a repair of the log gave up (`lost`) have no row in the table. The range is written without them, and the
committed offset passes them. The table then has the same gap as the log, and its properties say where.
"""

import pickle
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from time import perf_counter
from typing import Generic, Protocol, TypeVar

import pyarrow as pa
from pyspark import TaskContext

from icestream.client import BrokerEndpoint, Client, FrameReader
from icestream.cloud import CloudReader, ObjectDescriptor, ObjectMap, ObjectStore, ReadPool, StaticDescriptions
from icestream.config import CloudSettings, ReaderSettings
from icestream.model.errors import DamagedError, IcestreamError
from icestream.model.messages import (
    MESSAGE_SCHEMA,
    MESSAGES_SCHEMA_ID,
    Frame,
    conform,
    decode_schema,
    first_offset,
    slice_from,
    stream_batches,
    stream_schema,
)
from icestream.model.names import TopicName
from icestream.model.offsets import NO_OFFSETS, OffsetRanges, Range
from icestream.table import TableWriter, WrittenFile, write_to_tables

# Reading the messages of a range


class FrameRange:
    """Decodes the messages `start` to before `end` from frames, each once and in order. For one reading.

    Frames after the range are not decoded: damage there does not fail the range.
    """

    def __init__(self, start: int, end: int) -> None:
        self._end = end
        self.next_offset = start
        self.lost = 0
        """Messages of the range that are lost for good. They are in no batch."""
        self.lost_ranges = NO_OFFSETS

    def use_schemas(self, schemas: Mapping[int, str]) -> None:
        """Set the topic's own schemas by id. All batches get the newest."""
        own = {number: decode_schema(text) for number, text in schemas.items()}
        self._schemas = {MESSAGES_SCHEMA_ID: MESSAGE_SCHEMA, **own}
        self._stream_schema = stream_schema(self._schemas[max(self._schemas)])

    def take(self, frames: Iterable[Frame]) -> Iterator[pa.RecordBatch]:
        wanted = [frame for frame in frames if frame.base_offset < self._end]
        for batch in stream_batches(wanted, self._schemas):
            rows = slice_from(batch, self.next_offset, self._end)
            if rows.num_rows:
                self._pass_over(first_offset(rows))
                self.next_offset += rows.num_rows
                yield conform(rows, self._stream_schema)
        if wanted:
            self._pass_over(min(self._end, wanted[-1].end_offset))

    def _pass_over(self, offset: int) -> None:
        """Count messages before an offset that did not come as lost: their frames are there without messages."""
        if offset > self.next_offset:
            self.lost += offset - self.next_offset
            self.lost_ranges |= OffsetRanges.of([(self.next_offset, offset)])
            self.next_offset = offset


class BrokerFrames(FrameRange):
    """A range in the broker's frames. Iterate over `batches` once, to its end."""

    def __init__(self, reader: FrameReader, start: int, end: int, *, place: str) -> None:
        super().__init__(start, end)
        self._reader = reader
        self._place = place

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the range as batches. Raise unless every offset came or is known to be lost."""
        for frames in self.frames():
            self.use_schemas(self._reader.schemas)
            yield from self.take(frames)
        if self.next_offset != self._end:
            raise DamagedError(
                f"the broker ended the range at {self.next_offset}, before {self._end}",
                operation="read frames",
                place=self._place,
                retryable=True,
            )

    def frames(self) -> Iterator[list[Frame]]:
        """Yield the undecoded frames that hold the range."""
        yield from self._reader


class CloudRange(FrameRange):
    """A range in cloud objects. Iterate over `batches` once, to its end."""

    def __init__(
        self,
        store: ObjectStore,
        objects: Iterable[ObjectDescriptor],
        schemas: Mapping[int, str],
        start: int,
        end: int,
        *,
        pool: ReadPool,
        place: str,
    ) -> None:
        super().__init__(start, end)
        self.use_schemas(schemas)
        self._reader = CloudReader(ObjectMap(StaticDescriptions(objects)), store, start, end=end, pool=pool)
        self._place = place

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the range as batches. Raise unless every offset came or is known to be lost."""
        for frames in self.frames():
            yield from self.take(frames)

    def frames(self) -> Iterator[list[Frame]]:
        """Yield the undecoded frames that hold the range. The last ones may lie after it."""
        offset = self.next_offset
        try:
            while offset < self._end:
                frames = self._reader.read()
                if not frames:
                    raise DamagedError(
                        f"no object has offset {offset}",
                        operation="read cloud objects",
                        place=self._place,
                        retryable=True,
                    )
                offset = frames[-1].end_offset
                yield frames
        finally:
            self._reader.close()


_MAX_KEPT = 4


class Reading(Protocol):
    """A range of a topic, which is read once from its first message to its last."""

    next_offset: int
    lost: int
    """Messages of the range that are lost for good. They are in no batch."""
    lost_ranges: OffsetRanges

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the messages. Raise unless every offset came or is known to be lost."""


class Fetch(Protocol):
    def within(self, ranges: Iterable[Range]) -> "Fetch":
        """Return the part that these ranges need."""

    def read(self, topic: TopicName, stream_id: str, start: int, end: int) -> Reading: ...


@dataclass(frozen=True)
class FromBroker:
    endpoint: BrokerEndpoint
    by_frame: bool = False
    """Whether the task decodes the frames of the range, and no other, in place of the broker."""

    def within(self, ranges: Iterable[Range]) -> "FromBroker":
        del ranges
        return self

    def read(self, topic: TopicName, stream_id: str, start: int, end: int) -> Reading:
        client = _clients.get(self.endpoint, lambda: Client(self.endpoint))
        if self.by_frame:
            return BrokerFrames(client.read_frames(topic, stream_id, start, end), start, end, place=str(topic))
        return client.read_range(topic, stream_id, start, end)


@dataclass(frozen=True, repr=False)
class FromCloud:
    """The objects of one stream, in offset order, and what is needed to read them."""

    cloud: CloudSettings
    root_prefix: str
    reader: ReaderSettings
    objects: tuple[ObjectDescriptor, ...]
    schemas: dict[int, str]
    """The topic's own schemas by id; none if its messages have the plain one."""

    def within(self, ranges: Iterable[Range]) -> "FromCloud":
        wanted = list(ranges)
        kept = (
            one
            for one in self.objects
            if any(one.first_offset < end and start < one.end_offset for start, end in wanted)
        )
        return replace(self, objects=tuple(kept))

    def read(self, topic: TopicName, stream_id: str, start: int, end: int) -> CloudRange:
        store = _stores.get((self.cloud, self.root_prefix), self._open)
        objects = [one for one in self.objects if one.stream_id == stream_id]
        return CloudRange(store, objects, self.schemas, start, end, pool=_pool(self.reader), place=str(topic))

    def _open(self) -> ObjectStore:
        from icestream.cloud.opendal_store import open_object_store  # noqa: PLC0415 - a slow import, for users of the cloud only

        return open_object_store(self.cloud, self.root_prefix)


class _Closable(Protocol):
    def close(self) -> None: ...


Key = TypeVar("Key")
Kept = TypeVar("Kept", bound=_Closable)


class _Keeper(Generic[Key, Kept]):
    """Keeps a few connections from task to task. They reconnect to a restarted server by themselves."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[Key, Kept] = {}

    def get(self, key: Key, make: Callable[[], Kept]) -> Kept:
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                if len(self._kept) >= _MAX_KEPT:
                    self._kept.pop(next(iter(self._kept))).close()
                found = self._kept[key] = make()
            return found


_clients: _Keeper[BrokerEndpoint, Client] = _Keeper()
_stores: _Keeper[tuple[CloudSettings, str], ObjectStore] = _Keeper()


@lru_cache(maxsize=1)
def _pool(settings: ReaderSettings) -> ReadPool:
    return ReadPool(settings)


# Writing them

WRITE_OPERATION = "write table"
WORKER_OPERATION = "run task"
_WORKER_FAULTS = (MemoryError, ImportError, OSError)
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
    may_have_orphans: bool = False
    """The worker of an earlier try died, and may have left files."""


def pack_parcel(works: Iterable[Work]) -> bytes:
    return pickle.dumps(list(works), pickle.HIGHEST_PROTOCOL)


def write_parcels(parcels: Iterable[bytes]) -> Iterator[Written]:
    """Write the parcels of a partition. Spark calls this."""
    task = TaskContext.get()
    may_have_orphans = task is not None and task.attemptNumber() > 0
    for parcel in parcels:
        for work in pickle.loads(parcel):  # noqa: S301 - the driver's own, over Spark's authenticated connection
            yield from (replace(written, may_have_orphans=may_have_orphans) for written in write_topic(work))


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
            operation=WORKER_OPERATION if isinstance(error, _WORKER_FAULTS) else WRITE_OPERATION,
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
        writer, begins = work.targets[0]
        rows = (slice_from(batch, begins) for batch in batches)
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
