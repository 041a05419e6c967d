"""What the driver remembers of its topics between passes. All of it can be lost: the truth is in the tables."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import pyarrow as pa

from icestream.config import Settings
from icestream.model.errors import DamagedError, IcestreamError
from icestream.model.messages import STREAM_SCHEMA, decode_schema, stream_schema
from icestream.model.names import TopicName, is_copy
from icestream.model.offsets import NO_OFFSETS, OffsetRanges
from icestream.model.quarantine import Quarantined
from icestream.model.units import MIB
from icestream.pipeline.cloud_backlog import CloudBacklog
from icestream.pipeline.planner import PassLimits, WaitingRange, due_at, mean_bytes
from icestream.pipeline.quarantine.poison_search import PoisonSearch
from icestream.pipeline.sources import MessageSources
from icestream.protocol.pipeline import TopicBacklog
from icestream.table import TableSpec, TopicTable, WrittenFile

CLEAN_SECONDS = 600.0
"""How often the folders of a Parquet copy are searched for files that dead pipelines left."""


MAX_WAIT_SECONDS = 12 * 3600.0
"""Half of the shortest age at which maintenance removes a file that no table names."""


@dataclass(frozen=True)
class PendingCommit:
    """Written files that hold the messages `start` to before `end`, and are in no table yet."""

    files: tuple[WrittenFile, ...]
    start: int
    end: int
    epoch: int
    lost: OffsetRanges = NO_OFFSETS
    """Messages that are in no file because a repair of the log gave them up."""
    quarantined: tuple[Quarantined, ...] = ()
    """Messages that are in no file because they are in quarantine."""
    planned_on: int | None = None
    """The table's snapshot when they were planned; None if it had none."""
    written_at: float = field(default_factory=time.monotonic)

    @property
    def is_stale(self) -> bool:
        """Whether the files have waited so long that maintenance may soon remove them as orphans."""
        return time.monotonic() - self.written_at > MAX_WAIT_SECONDS


@dataclass
class Sink:
    """A table that a topic's messages go to. A topic has one or two, each with its own ledger."""

    name: TopicName
    """The table's name: the topic's, or that of its Parquet copy."""
    table: TopicTable | None = None
    committed: int | None = None
    """The ledger's offset as last seen; None before the table was opened."""
    pending: PendingCommit | None = None
    """Written, and not committed because the catalog was unreachable."""
    poison_search: PoisonSearch | None = None
    """The search for a frame after the committed offset that cannot be written. Another table may be far ahead."""
    cleaned_at: float | None = None
    """When the folders of a Parquet copy were last searched. None: search them before anything is written."""

    @property
    def is_copy(self) -> bool:
        return is_copy(self.name)

    def needs_opening(self, now: float) -> bool:
        """Return whether the table is not loaded, or is a copy whose folders are to be searched."""
        if self.pending is not None:
            return False
        return self.table is None or (self.is_copy and self._is_unclean(now))

    def _is_unclean(self, now: float) -> bool:
        return self.cleaned_at is None or now - self.cleaned_at > CLEAN_SECONDS

    def forget(self) -> None:
        """Forget the loaded table and the pending commit after an error: the next pass loads the table first."""
        self.pending = self.table = self.cleaned_at = None

    def take(self, table: TopicTable) -> None:
        """Use a newly loaded state of the table. Drop the search for a frame that the table has passed."""
        self.table, self.committed = table, table.ledger.committed_offset
        if self.poison_search is not None and not self.poison_search.continues_after(self.committed):
            self.poison_search = None

    def files_of(self, files: tuple[WrittenFile, ...]) -> tuple[WrittenFile, ...]:
        """Return those that were written for this table."""
        assert self.table is not None
        own = self.table.iceberg.metadata.table_uuid
        return tuple(file for file in files if file.table_uuid == own)

    def set_pending(self, files: tuple[WrittenFile, ...], end: int, epoch: int, lost: OffsetRanges) -> None:
        """Note a commit: the messages from the ledger's offset to before `end`, if there are any."""
        assert self.table is not None
        assert self.committed is not None
        start = self.committed
        if end > start:
            within = OffsetRanges.of((max(start, first), last) for first, last in lost.ranges if last > start)
            self.pending = PendingCommit(files, start, end, epoch, within, planned_on=self.table.snapshot_id)


JOINED_BYTES = 64 * MIB
"""Tables whose offsets are no farther apart than this are fed from one reading of the messages."""
LONG_AGO = 0.0


@dataclass
class RetryPause:
    """The pause of a topic that failed. It grows with each failure in a row."""

    first_seconds: float
    limit_seconds: float
    failures: int = 0
    until: float = 0.0
    error: IcestreamError | None = None

    def fail(self, error: IcestreamError, now: float, *, again: bool = False) -> None:
        """Note a failure. After an error that is not retryable the pause is the longest: an operator has to act.

        With `again` it grows as usual: another try narrows down the frame that is the cause.
        """
        self.failures += 1
        growing = self.first_seconds * (1 << min(self.failures - 1, 30))
        self.until = now + (min(growing, self.limit_seconds) if error.retryable or again else self.limit_seconds)
        self.error = error

    def end(self) -> None:
        self.failures, self.until, self.error = 0, 0.0, None


@dataclass
class TopicState:
    backlog: TopicBacklog
    pause: RetryPause
    since: float
    """When waiting messages were first seen. Meaningless while none wait."""
    sinks: list[Sink] = field(default_factory=list)
    """The tables that the broker wants the messages in. Commits are counted by the first."""
    fed: tuple[Sink, ...] = ()
    """The tables that the last pass fed, or this one feeds."""
    older: TopicBacklog | None = None
    """Messages before the log begins that a table lacks and another source has."""
    used_at: float = 0.0
    """When a job last got messages of the topic."""
    crashed: bool = False
    """The last try killed a worker: the topic gets a job of its own."""
    unreported: bool = False
    """The log became unreadable, or readable again, and the figures do not say so yet."""

    def __post_init__(self) -> None:
        self.unreported = self.backlog.error is not None
        self._take_format()

    def _take_format(self) -> None:
        """Update the list of tables from the topic's format."""
        known = {sink.name: sink for sink in self.sinks}
        wanted = self.backlog.format.fed(self.backlog.name)
        self.sinks = [known.get(name) or Sink(name) for name in wanted]
        self.fed = tuple(sink for sink in self.fed if sink in self.sinks)

    def update(self, backlog: TopicBacklog, seen: float) -> None:
        """Take a new backlog. `seen` is the earliest time at which its new messages can have come."""
        if backlog.durable_end > self.backlog.durable_end and not self.waits:
            self.since = seen
        if backlog.schema != self.backlog.schema:
            self.release()
            for sink in self.sinks:
                sink.poison_search = None
            self.pause.end()
        if backlog.error is not None or self.backlog.error is not None:
            self.unreported = True
        is_other = backlog.format != self.backlog.format
        self.backlog = backlog
        if is_other:
            self._take_format()

    @property
    def waits(self) -> bool:
        """Whether messages wait, as far as known without a look at the table."""
        return self.backlog.durable_end > (self.committed or 0)

    # The tables

    @property
    def behind(self) -> Sink:
        """The table with the fewest messages. A pass that feeds all tables begins there."""
        return min(self.sinks, key=lambda sink: -1 if sink.committed is None else sink.committed)

    @property
    def committed(self) -> int | None:
        """All tables have the messages before this offset; None before all were opened."""
        return self.behind.committed

    @property
    def table(self) -> TopicTable | None:
        """The table that is behind; None if it is not loaded."""
        return self.behind.table

    @property
    def is_pending(self) -> bool:
        return any(sink.pending is not None for sink in self.sinks)

    @property
    def is_open(self) -> bool:
        return all(sink.table is not None for sink in self.sinks)

    @property
    def has_left_files(self) -> bool:
        """Whether the folders of a Parquet copy may have files that will not be committed."""
        return any(sink.is_copy and sink.cleaned_at is None and sink.pending is None for sink in self.sinks)

    def mark_unclean(self) -> None:
        """Note that an error may have left files in the folders of a Parquet copy."""
        for sink in self.sinks:
            sink.cleaned_at = None

    def release(self) -> None:
        """Forget the loaded tables."""
        for sink in self.sinks:
            sink.table = None

    def spec(self, sink: Sink) -> TableSpec:
        backlog = self.backlog
        return TableSpec(
            topic=sink.name,
            stream_id=backlog.stream_id,
            epoch=backlog.epoch,
            schema=_schema(backlog.schema),
            partition_by=backlog.partition_by,
            sort_by=backlog.sort_by,
        )

    def take(self, sink: Sink, table: TopicTable) -> None:
        """Use a newly loaded state of a table. Raise if log and table do not fit together."""
        sink.take(table)
        backlog = self.backlog
        assert sink.committed is not None
        if sink.committed > backlog.durable_end and not isinstance(backlog, CloudBacklog):
            raise DamagedError(
                f"the table holds messages up to {sink.committed}, but the log ends at {backlog.durable_end}: "
                "the table was written from another log",
                operation="plan",
                place=backlog.topic,
                remedy="restore the log, or delete the topic",
            )

    @property
    def start(self) -> int:
        """Where the next messages of the fed tables begin."""
        return _start(self.fed or tuple(self.sinks))

    @property
    def poison_search(self) -> PoisonSearch | None:
        """The search for a bad frame among the next messages of the fed tables; None if there is none."""
        return _poison_search_of(self.fed or tuple(self.sinks))

    def begin_poison_search(self) -> PoisonSearch:
        """Return that search; begin one for the table that lacks the messages if there is none."""
        found = self.poison_search
        if found is None:
            sink = next(sink for sink in self.fed or self.sinks if (sink.committed or 0) == self.start)
            found = sink.poison_search = PoisonSearch(self.start)
        return found

    @property
    def is_tried_again(self) -> bool:
        """Whether another try may find the bad frame, also after an error that is not retryable."""
        return self.poison_search is not None and self.poison_search.verdict is None

    # What waits for them

    @property
    def cut_off(self) -> int | None:
        """The offset at which a table ends before the log begins, with no known source for what follows."""
        if self.committed is None:
            return None
        return next((start for sinks in self._groups() if self._held(start := _start(sinks)) is None), None)

    @property
    def is_cut_off(self) -> bool:
        return self.cut_off is not None

    @property
    def next_backlog(self) -> TopicBacklog:
        """What holds the next messages of the fed tables: the log, or, before it begins, an older source."""
        return self._held(self.start) or self.backlog

    def _held(self, start: int) -> TopicBacklog | None:
        if start >= self.backlog.start_offset:
            return self.backlog
        older = self.older
        return older if older is not None and older.start_offset <= start < older.durable_end else None

    def _groups(self) -> list[tuple[Sink, ...]]:
        """Return the groups of tables that are fed together: one group, unless a table is far behind.

        Then passes alternate between the two groups, so that none waits for the other. The group that was not fed the
        last time comes first.
        """
        first, last = _start(self.sinks), max(sink.committed or 0 for sink in self.sinks)
        if (last - first) * mean_bytes(self.backlog) <= JOINED_BYTES:
            return [tuple(self.sinks)]
        ahead = tuple(sink for sink in self.sinks if sink.committed == last)
        late = tuple(sink for sink in self.sinks if sink.committed != last)
        return [late, ahead] if self.fed == ahead else [ahead, late]

    def waiting_ranges(self, end: int | None = None) -> Iterator[WaitingRange]:
        """Yield what waits, up to `end`, for each group of tables. Nothing before all tables are open."""
        if self.committed is None:
            return
        groups = self._groups()
        furthest = max(sink.committed or 0 for sink in self.sinks)
        for sinks in groups:
            is_late = len(groups) > 1 and _start(sinks) < furthest
            found = self._waiting_range(sinks, furthest if is_late else end, is_late=is_late)
            if found is not None:
                yield found

    def first_waiting_range(self, end: int | None = None) -> WaitingRange | None:
        """Return the first waiting range; None if nothing waits."""
        return next(self.waiting_ranges(end), None)

    def _waiting_range(self, sinks: tuple[Sink, ...], end: int | None, *, is_late: bool) -> WaitingRange | None:
        start = _start(sinks)
        backlog = self._held(start)
        if backlog is None:
            return None
        end = backlog.durable_end if end is None else min(end, backlog.durable_end)
        poison_search = _poison_search_of(sinks)
        if poison_search is not None and poison_search.limit is not None:
            end = min(end, poison_search.limit)
        if end <= start:
            return None
        held = backlog.durable_end - backlog.start_offset
        share = (end - start) / held if held else 1.0
        return WaitingRange(
            topic=backlog.name,
            start=start,
            end=end,
            nbytes=max(1, round(backlog.nbytes * min(1.0, share))),
            since=LONG_AGO if is_late else self.since,
            served=self.used_at,
            awaited=start < backlog.awaited_end <= end,
            has_failed=self.pause.failures > 0,
            tables=tuple(sink.name for sink in sinks),
        )

    def choose(self, waiting: WaitingRange) -> None:
        """Feed the tables of a waiting range."""
        self.fed = tuple(sink for sink in self.sinks if sink.name in waiting.tables)


def _start(sinks: "tuple[Sink, ...] | list[Sink]") -> int:
    return min(sink.committed or 0 for sink in sinks)


def _poison_search_of(sinks: tuple[Sink, ...]) -> PoisonSearch | None:
    start = _start(sinks)
    found = (
        sink.poison_search for sink in sinks if sink.poison_search is not None and sink.poison_search.start == start
    )
    return next(found, None)


@lru_cache(maxsize=256)
def _schema(text: str | None) -> pa.Schema:
    return STREAM_SCHEMA if text is None else stream_schema(decode_schema(text))


_WHOLE_LOOK_SECONDS = 60.0
"""How often all topics are listed, not only those that moved, so that deleted ones are forgotten."""


class TopicStates:
    """The topics of a pipeline, as the broker or the cloud lists them, and when each is due."""

    def __init__(self, settings: Settings, sources: MessageSources, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._sources = sources
        self._pattern = settings.pipeline.topics
        self._clock = clock
        self._limits = PassLimits.of(settings)
        self._mark: str | None = None
        self._looked_at_all = -_WHOLE_LOOK_SECONDS
        self._listed: set[TopicName] = set()
        self._known_once = False
        self._states: dict[TopicName, TopicState] = {}

    def __getitem__(self, topic: TopicName) -> TopicState:
        return self._states[topic]

    def __iter__(self) -> Iterator[TopicState]:
        return iter(list(self._states.values()))

    def refresh_all(self) -> None:
        """List all topics."""
        self._mark, self._listed = None, set()
        while not self.look():
            pass

    def look(self, *, wait_seconds: float = 0.0, seen: float | None = None) -> bool:
        """Ask for the topics that moved, and wait for one if need be. Return False if more are to be listed.

        New messages count as seen when the response comes, or at `seen` if the caller was busy since then. Messages in
        the first responses have waited for an unknown time, and are due at once.
        """
        if self._clock() - self._looked_at_all > _WHOLE_LOOK_SECONDS:
            self._mark, self._listed = None, set()
        whole = self._mark is None
        response = self._sources.backlog(self._pattern, mark=self._mark, wait_ms=int(wait_seconds * 1000))
        now = self._clock()
        since = LONG_AGO if not self._known_once else now if seen is None else seen
        for backlog in response.topics:
            state = self._states.get(backlog.name)
            if state is None or state.backlog.stream_id != backlog.stream_id:
                self._states[backlog.name] = TopicState(backlog, self._new_pause(), since)
            else:
                state.update(backlog, since)
        self._listed.update(backlog.name for backlog in response.topics)
        if whole:
            self._looked_at_all = now
        if response.complete:
            self._mark, self._known_once = response.mark, True
        if whole and response.complete:
            for gone in self._states.keys() - self._listed:
                del self._states[gone]
        return response.complete

    def forget(self, topic: TopicName) -> None:
        """Forget a topic that has changed its identity, and list all topics again."""
        self._states.pop(topic, None)
        self._mark, self._listed = None, set()

    def release_tables(self, keep: int) -> None:
        """Forget the loaded tables beyond `keep`, the least recently used first."""
        loaded = sorted((state for state in self if state.is_open), key=lambda state: state.used_at)
        for state in loaded[: max(0, len(loaded) - keep)]:
            state.release()

    def due(self, state: TopicState, pass_seconds: float) -> float | None:
        """Return when a topic is due; None if there is nothing to do."""
        if state.unreported:
            return LONG_AGO
        if state.backlog.error is not None:
            return None
        if state.is_pending or (state.waits and (state.committed is None or state.is_cut_off)):
            return state.pause.until
        times = [due_at(waiting, self._limits, pass_seconds=pass_seconds) for waiting in state.waiting_ranges()]
        return max(state.pause.until, min(times)) if times else None

    def next_due(self, pass_seconds: float) -> float | None:
        times = (self.due(state, pass_seconds) for state in self._states.values())
        return min((time for time in times if time is not None), default=None)

    def _new_pause(self) -> RetryPause:
        pipeline = self._settings.pipeline
        return RetryPause(pipeline.retry_interval_ms / 1000, pipeline.max_retry_interval_ms / 1000)
