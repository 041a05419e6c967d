"""One pass: plan from the ledgers, run one Spark job that writes, commit.

The steps, and what a kill after each leaves behind:

1. open the tables of topics that are due, and plan from their ledgers. *Nothing, or an empty table.*
2. one Spark job writes the ranges of all topics. *Files that no table names.*
3. commit table by table, in parallel; see `commit`. *Some topics are ahead of others, as always.*
4. tell the broker. *The broker finds the commits in the tables a little later.*

A topic that fails waits, longer each time, with its error in the figures, and the others go on. If one of its frames
is the cause, the frame is found and put into quarantine, see `quarantine`. While the catalog is unreachable, written
files wait for their commit, and are not written again.
"""

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import structlog

from icestream.config import Settings
from icestream.model.errors import (
    CatalogUnavailableError,
    CommitConflictError,
    CommitUnknownError,
    IcestreamError,
    IncompatibleTableError,
    LedgerMismatchError,
    OffsetOutOfRangeError,
    TableLostError,
    TopicNotFoundError,
)
from icestream.model.names import TopicName
from icestream.model.offsets import OffsetRanges
from icestream.pipeline import planner
from icestream.pipeline.planner import WriteRange
from icestream.pipeline.quarantine.quarantine import Quarantine, with_copied_quarantine
from icestream.pipeline.report import PassFigures
from icestream.pipeline.sources import MessageSources, backfill_before_log
from icestream.pipeline.spark.session import JobFailedError
from icestream.pipeline.state import PendingCommit, Sink, TopicState, TopicStates
from icestream.pipeline.tasks import Work, Written, pack_parcel
from icestream.protocol.pipeline import TopicBacklog
from icestream.table import Ledger, Tables, TopicTable, WrittenFile
from icestream.table.parquet_copy import discard_files, holds_files, remove_copy_orphans

_log = structlog.get_logger(__name__)
_SMOOTHING = 0.3
_MAX_OPENED_AT_ONCE = 256
Result = TypeVar("Result")
Run = Callable[[Sequence[bytes]], list[Written]]
Tasks = Sequence[Sequence[WriteRange]]
Ends = Mapping[TopicName, int]
Allotted = Sequence[tuple[planner.WaitingRange, int]]
MAX_COMMIT_TRIES = 10
_COMMIT_PAUSE_SECONDS = 0.02


# Step 1: the tables


def open_table(tables: Tables, state: TopicState, sink: Sink) -> TopicTable:
    """Load a table. Remove orphan files of a Parquet copy before anything is added to it."""
    check_not_lost(tables, state.backlog)
    table = tables.open(state.spec(sink))
    return remove_copy_orphans(table)


def check_not_lost(tables: Tables, backlog: TopicBacklog) -> None:
    """Raise `TableLostError` if the topic's table has had messages that no table of the catalog has now.

    A new table in place of the lost one would be in the way of registering that one again.
    """
    if not backlog.in_table_below:
        return
    committed = 0
    for name in backlog.format.all_tables(backlog.name):
        table = tables.find(name)
        if table is not None and table.ledger.stream_id == backlog.stream_id:
            committed = max(committed, table.ledger.committed_offset)
        if committed >= backlog.in_table_below:
            return
    raise TableLostError.of(backlog.topic, committed, backlog.in_table_below)


def before_log(sources: MessageSources, tables: Tables, backlog: TopicBacklog, offset: int) -> TopicBacklog:
    """Find messages that a table lacks and the log does not have: in the cloud, or in the topic's other table."""
    try:
        return sources.before_log(backlog, offset)
    except OffsetOutOfRangeError:
        found = (tables.find(name) for name in backlog.format.all_tables(backlog.name))
        ledgers = [table.ledger for table in found if table is not None]
        end = max((one.committed_offset for one in ledgers if one.stream_id == backlog.stream_id), default=0)
        if end <= offset or sources.is_on_cloud:  # the other table is read through the broker
            raise
        return backfill_before_log(backlog, offset, end)


def drop_empty_tables(tables: Tables, backlog: TopicBacklog) -> None:
    """Drop the empty tables of a deleted topic. They would be in the way of a new topic of that name."""
    for name in backlog.format.fed(backlog.name):
        try:
            table = tables.find(name)
            if table is not None and table.ledger == Ledger(backlog.stream_id, table.ledger.epoch, 0):
                tables.drop(name, backlog.stream_id)
        except IcestreamError as error:
            _log.warning("empty_table_not_dropped", table=str(name), reason=str(error))


# Step 2: the job


def run_job(tasks: Tasks, works: Mapping[TopicName, Work], run: Run) -> list[Written]:
    """Write the ranges in one Spark job. `works` has each topic's work, without its ranges.

    Errors come back as results. A worker that dies (memory, a crash in native code) fails its task; Spark tries the
    task again, and at last fails the whole job. Then the job is run again in halves, until the topic that kills its
    workers is alone in a job: it fails without the others.
    """
    try:
        return run([_parcel(task, works) for task in tasks])
    except JobFailedError as error:
        topics = sorted({one.topic for task in tasks for one in task})
        if len(topics) == 1:
            first = min((one for task in tasks for one in task), key=lambda one: one.start)
            return [Written(first.topic, first.start, first.end, error=error)]
        half = set(topics[: len(topics) // 2])
        parts = [_only(tasks, lambda topic: topic in half), _only(tasks, lambda topic: topic not in half)]
        # Tasks of the failed job may have written files that no result names.
        return [replace(written, may_have_orphans=True) for part in parts for written in run_job(part, works, run)]


def _only(tasks: Tasks, wanted: Callable[[TopicName], bool]) -> Tasks:
    kept = [[one for one in task if wanted(one.topic)] for task in tasks]
    return [task for task in kept if task]


def _parcel(task: Sequence[WriteRange], works: Mapping[TopicName, Work]) -> bytes:
    ranges: dict[TopicName, list[tuple[int, int]]] = {}
    for one in task:
        ranges.setdefault(one.topic, []).append((one.start, one.end))
    return pack_parcel(works[topic].with_ranges(found) for topic, found in ranges.items())


# Step 3: the commits


@dataclass(frozen=True)
class CommitOutcome:
    table: TopicTable
    has_our_files: bool
    """Whether these files are in the table. Else another pipeline's are, or none are yet."""
    conflicts: int


def commit(table: TopicTable, pending: PendingCommit) -> CommitOutcome:
    """Commit written files to one table. After any doubt the ledger is read before anything else.

    1. commit the files on the table state that the range was planned on. *Killed before: files that no table names.
       Killed after: the ledger has moved, and the next plan begins after these messages.*
    2. refused, or the outcome is unknown: load the table again. *No file is removed: an unknown outcome may be a
       commit.*
    3. the ledger has moved: these messages are in the table, by this commit or another, and the files stay where they
       are. The ledger has not moved (a compaction was committed): commit the same files on the new state. If the commit
       of step 1 arrives late, one of the two requires an old snapshot, and the catalog refuses it.

    A Parquet copy has a stricter step 3, because its readers read every file in its folders: files are committed on the
    snapshot that they were planned on, or never. If the table has another snapshot and does not name the files, they
    are deleted, and the messages are planned again. `icestream.table.parquet_copy.orphans` relies on this, and says
    why.

    After an error the same call may be made again.
    """
    last: IcestreamError | None = None
    for conflicts in range(MAX_COMMIT_TRIES):
        if table.is_parquet_copy and table.snapshot_id != pending.planned_on:
            return _settle(table, pending, conflicts)
        try:
            done = table.commit(
                pending.files,
                start=pending.start,
                end=pending.end,
                epoch=pending.epoch,
                lost=pending.lost,
                quarantined=pending.quarantined,
            )
        except (CommitConflictError, CommitUnknownError, LedgerMismatchError) as error:
            last = error
            table = reload(table)
            if table.ledger.committed_offset != pending.start and not table.is_parquet_copy:
                unknown = isinstance(error, CommitUnknownError) and _holds(table, pending.files)
                return CommitOutcome(table, unknown, conflicts + 1)
            time.sleep(random.uniform(0.0, _COMMIT_PAUSE_SECONDS) * (1 << min(conflicts, 5)))  # noqa: S311 - no secret
        else:
            return CommitOutcome(done, has_our_files=True, conflicts=conflicts)
    assert last is not None
    raise CommitConflictError(
        f"{MAX_COMMIT_TRIES} commits in a row failed, the last one because {last.message}",
        operation="commit",
        place=str(table.name),
        remedy="the pipeline tries again",
    )


def _settle(table: TopicTable, pending: PendingCommit, conflicts: int) -> CommitOutcome:
    """Settle files of a Parquet copy whose snapshot has changed: no commit of them can arrive any more."""
    has_our_files = bool(pending.files) and holds_files(table, pending.files)
    if not has_our_files:
        discard_files(table, pending.files)
    return CommitOutcome(table, has_our_files, conflicts)


def reload(table: TopicTable) -> TopicTable:
    """Return the table as it is now. Raise if it belongs to another stream."""
    stream_id = table.ledger.stream_id
    try:
        found = table.refresh()
        ledger = found.ledger
    except IcestreamError:
        raise
    except Exception as error:
        raise CatalogUnavailableError(
            f"the catalog failed: {error}", operation="load table", place=str(table.name)
        ) from error
    if ledger.stream_id != stream_id:
        raise IncompatibleTableError(
            f"the table was created again for the stream {ledger.stream_id}; it was {stream_id}'s",
            operation="commit",
            place=str(table.name),
        )
    return found


def _holds(table: TopicTable, files: Sequence[WrittenFile]) -> bool:
    """Return whether the newest commit is the one whose outcome was unknown; for the figures only."""
    return bool(files) and table.ledger.committed_offset == files[-1].last_offset + 1


# All steps


class JobRunner(Protocol):
    """The part of a Spark session that a pass needs."""

    @property
    def parallelism(self) -> int: ...

    def run(self, parcels: Sequence[bytes], /) -> list[Written]: ...


class PassRunner:
    """Runs one pass after another. Not thread-safe."""

    def __init__(
        self,
        settings: Settings,
        sources: MessageSources,
        tables: Tables,
        spark: JobRunner,
        topics: TopicStates,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._sources = sources
        self._tables = tables
        self._spark = spark
        self._clock = clock
        self._limits = planner.PassLimits.of(settings)
        self._quarantine = Quarantine(settings.pipeline, sources, spark)
        self._pool = ThreadPoolExecutor(settings.pipeline.commit_threads, thread_name_prefix="commit")
        self.topics = topics
        self.seconds = 0.0
        """Duration of a pass, smoothed."""

    def close(self) -> None:
        self._pool.shutdown()

    def run(self, ends: Ends | None = None) -> PassFigures:
        """Write what is due now. With `ends`, write everything below those offsets, due or not, and nothing else."""
        began = self._clock()
        figures = PassFigures()
        self._note_unreadable(figures)
        ready = [state for state in self.topics if self._is_ready(state, ends, began)]
        for sink in (sink for state in ready for sink in state.sinks):
            if sink.pending is not None and sink.pending.is_stale:
                sink.forget()  # the messages are planned again from the ledger
        self._commit_pending([state for state in ready if state.is_pending], figures)
        self._open([state for state in ready if self._is_shut(state, began)][:_MAX_OPENED_AT_ONCE], figures)
        self._look_before_log([state for state in ready if state.is_open and state.is_cut_off], figures)
        waiting = [found for state in ready if (found := self._waiting_range(state, ends)) is not None]
        for found in waiting:
            self.topics[found.topic].choose(found)
        chosen = planner.allot(waiting, self._limits)
        if chosen:
            self._write_and_commit(chosen, figures)
        figures.seconds = self._clock() - began
        if chosen:
            self.seconds += _SMOOTHING * (figures.seconds - self.seconds)
        if figures.topics:
            self._report_pass(figures)
        if chosen:
            self._look(began)
            self.topics.release_tables(self._settings.pipeline.max_pass_topics)
        return figures

    def _look(self, began: float) -> None:
        """Ask for the backlog after a pass. An unreachable broker does not fail the pass."""
        try:
            self.topics.look(seen=began)
        except IcestreamError as error:
            if not self._sources.is_away:
                raise
            _log.warning("broker_backlog_failed", reason=str(error))

    def _note_unreadable(self, figures: PassFigures) -> None:
        """Report topics whose log the broker cannot open."""
        for state in self.topics:
            if state.unreported:
                state.unreported = False
                counted = figures.of(state.backlog.name)
                counted.error = state.backlog.error
                counted.failures += counted.error is not None

    def _is_ready(self, state: TopicState, ends: Ends | None, now: float) -> bool:
        due = self.topics.due(state, self.seconds)
        if ends is None or due is None:
            return due is not None and due <= now
        return state.backlog.name in ends and state.pause.until <= now

    def _waiting_range(self, state: TopicState, ends: Ends | None) -> planner.WaitingRange | None:
        """Return what this pass may write of a topic."""
        if not state.is_open or state.is_pending or state.pause.until > self._clock():
            return None
        if ends is not None:
            return state.first_waiting_range(ends.get(state.backlog.name, 0))
        now = self._clock()
        for one in state.waiting_ranges():
            if planner.due_at(one, self._limits, pass_seconds=self.seconds) <= now:
                return one
        return None

    # Step 1

    def _is_shut(self, state: TopicState, now: float) -> bool:
        return any(sink.needs_opening(now) for sink in state.sinks)

    def _open(self, states: list[TopicState], figures: PassFigures) -> None:
        """Load the tables. Leftover files of a Parquet copy are removed before anything is added to it."""
        now = self._clock()

        def load(shut: tuple[TopicState, Sink]) -> TopicTable:
            return open_table(self._tables, *shut)

        shut = [(state, sink) for state in states for sink in state.sinks if sink.needs_opening(now)]
        for (state, sink), result in zip(shut, self._in_parallel(load, shut), strict=True):
            try:
                if isinstance(result, IcestreamError):
                    raise result
                state.take(sink, result)
                sink.cleaned_at = now
            except IcestreamError as error:
                self._fail(state, error, figures)

    def _look_before_log(self, states: list[TopicState], figures: PassFigures) -> None:
        for state in states:
            offset = state.cut_off
            assert offset is not None
            try:
                state.older = before_log(self._sources, self._tables, state.backlog, offset)
            except IcestreamError as error:
                self._fail(state, error, figures)

    def _cut_ranges(self, chosen: Allotted, figures: PassFigures) -> list[planner.WriteRange]:
        """Return the ranges to write. The source of the messages cuts a large one: it knows where the bytes are."""
        size = planner.range_bytes(sum(share for _, share in chosen), self._limits, self._spark.parallelism)
        ranges: list[planner.WriteRange] = []
        for topic, share in chosen:
            count = planner.range_count(topic, share, size)
            if count == 1 and share == topic.nbytes:
                ranges.append(planner.whole(topic))
                continue
            try:
                held = self.topics[topic.topic].next_backlog
                ends = self._sources.cut_range(
                    held, topic.start, topic.end, range_bytes=-(-share // count), max_ranges=count
                )
            except IcestreamError as error:
                self._fail(self.topics[topic.topic], error, figures)
            else:
                ranges += planner.cut(topic, ends)
        return ranges

    # Steps 2 and 3

    def _write_and_commit(self, chosen: Allotted, figures: PassFigures) -> None:
        planned = self._cut_ranges(chosen, figures)
        began = self._clock()
        written = self._write(planned)
        figures.job_seconds = self._clock() - began
        by_topic: dict[TopicName, list[Written]] = {}
        for one in written:
            by_topic.setdefault(one.topic, []).append(one)
        done: list[TopicState] = []
        for topic, results in by_topic.items():
            state = self.topics[topic]
            if self._take_written(state, sorted(results, key=lambda one: one.start), figures):
                done.append(state)
        self._commit_pending(done, figures)

    def _write(self, ranges: list[planner.WriteRange]) -> list[Written]:
        """Run one job for all topics, and a job of its own for each topic whose last try killed a worker."""
        works = {topic: self._work(self.topics[topic]) for topic in {one.topic for one in ranges}}
        alone = {topic for topic in works if self.topics[topic].crashed}
        groups = [[one for one in ranges if one.topic not in alone]]
        groups += [[one for one in ranges if one.topic == topic] for topic in sorted(alone)]
        written: list[Written] = []
        for group in filter(None, groups):
            written += run_job(planner.pack(group, self._spark.parallelism), works, self._spark.run)
        return written

    def _work(self, state: TopicState) -> Work:
        assert state.table is not None
        state.used_at, poison_search = self._clock(), state.poison_search
        return Work(
            fetch=self._sources.fetch(
                state.next_backlog, by_frame=poison_search is not None and poison_search.is_narrowing
            ),
            topic=state.backlog.name,
            stream_id=state.backlog.stream_id,
            targets=tuple((sink.table.writer(), sink.committed or 0) for sink in state.fed if sink.table is not None),
            max_memory_bytes=self._settings.writer.max_memory_bytes,
        )

    def _take_written(self, state: TopicState, ranges: list[Written], figures: PassFigures) -> bool:
        """Take a topic's written ranges, as far as they follow each other without a gap, as pending commits."""
        counted = figures.of(state.backlog.name)
        counted.translate_seconds += sum(one.seconds for one in ranges)
        failed = next((one for one in ranges if one.error is not None), None)
        error = failed.error if failed is not None else None
        sound: list[Written] = []
        for one in ranges:
            if one.error is not None or (sound and one.start != sound[-1].end):
                break
            sound.append(one)
        state.crashed = error is not None and error.code == JobFailedError.code
        if error is not None or any(one.may_have_orphans for one in ranges):
            state.mark_unclean()
        held = state.next_backlog
        if failed is not None and error is not None and self._quarantine_one(state, failed, error, figures):
            return True
        if not sound or sound[0].start != min(sink.committed or 0 for sink in state.fed):
            sound = []
        self._remove(state, ranges[len(sound) :])
        if sound:
            counted.bytes += sum(one.nbytes for one in sound)
            counted.lost += sum(one.lost for one in sound)
            lost = OffsetRanges.of(lost for one in sound for lost in one.lost_ranges.ranges)
            files = tuple(file for one in sound for file in one.files)
            for sink in state.fed:
                sink.set_pending(sink.files_of(files), sound[-1].end, state.backlog.epoch, lost)
        if error is not None and held is not state.backlog:
            state.older = None  # a table may have it by now
            state.release()
        return bool(sound)

    def _remove(self, state: TopicState, ranges: Iterable[Written]) -> None:
        """Remove files of a Parquet copy that will not be committed."""
        files = tuple(file for one in ranges for file in one.files)
        for sink in state.fed:
            if sink.is_copy and sink.table is not None:
                discard_files(sink.table, sink.files_of(files))

    def _quarantine_one(self, state: TopicState, failed: Written, error: IcestreamError, figures: PassFigures) -> bool:
        """Return whether the failed range was a single frame, which is pending as quarantined now; see `Quarantine`."""
        try:
            aside = self._quarantine.consider(state, failed, error)
        except IcestreamError as reason:
            self._fail(state, reason, figures)
            return False
        if not aside:
            self._fail(state, error, figures)
            if state.poison_search is not None and state.poison_search.is_narrowing:
                state.pause.until = 0.0  # the next try takes another range
            return False
        figures.of(state.backlog.name).failures += 1
        if not state.is_pending:
            state.pause.end()  # another pipeline quarantined it: the messages after it have not failed
        return True

    def _commit_pending(self, states: list[TopicState], figures: PassFigures) -> None:
        def commit_and_tell(due: tuple[TopicState, Sink]) -> tuple[CommitOutcome, float]:
            state, sink = due
            assert sink.pending is not None
            began = self._clock()
            table = sink.table or self._open_again(state, sink)
            outcome = commit(table, with_copied_quarantine(self._tables, table, sink.pending))
            seconds = self._clock() - began
            self._hint(state)
            return outcome, seconds

        due = [(state, sink) for state in states for sink in state.sinks if sink.pending is not None]
        for (state, sink), result in zip(due, self._in_parallel(commit_and_tell, due), strict=True):
            counted = figures.of(state.backlog.name)
            if isinstance(result, IcestreamError):
                self._take_refusal(sink, result)
                self._fail(state, result, figures)
                continue
            (outcome, seconds), pending = result, sink.pending
            assert pending is not None
            sink.pending = None
            sink.take(outcome.table)
            counted.commit_seconds += seconds
            counted.conflicts += outcome.conflicts
            if outcome.has_our_files:
                counted.commits += 1
                if sink is state.sinks[0]:
                    counted.messages += sum(file.message_count for file in pending.files)
                    counted.quarantined += len(pending.quarantined)
                counted.files += len(pending.files)
                counted.file_bytes += sum(file.bytes for file in pending.files)
            if counted.error is None:
                state.pause.end()
        self._open([state for state in states if state.has_left_files], figures)

    def _open_again(self, state: TopicState, sink: Sink) -> TopicTable:
        """Load a table for a pending commit; its files are no orphans."""
        check_not_lost(self._tables, state.backlog)
        return self._tables.open(state.spec(sink))

    def _take_refusal(self, sink: Sink, error: IcestreamError) -> None:
        if error.retryable:
            return
        if isinstance(error, IncompatibleTableError) and sink.is_copy and sink.table and sink.pending:
            discard_files(sink.table, sink.pending.files)  # the table is gone: nothing else would find them
        sink.forget()

    # Step 4

    def _hint(self, state: TopicState) -> None:
        """Tell the broker of a commit. The broker also looks into the table itself, so a failed hint is no failure."""
        backlog = state.backlog
        try:
            self._sources.tell_committed(backlog)
        except IcestreamError as error:
            _log.debug("commit_hint_failed", topic=backlog.topic, reason=str(error))

    def _report_pass(self, figures: PassFigures) -> None:
        now = self._clock()
        for topic, counted in figures.topics.items():
            try:
                state = self.topics[topic]
            except KeyError:
                continue
            first = state.sinks[0]
            counted.committed_offset = first.committed
            counted.snapshot_id = first.table.snapshot_id if first.table is not None else None
            counted.durable_end = state.backlog.durable_end
            if state.pause.error is not None:
                counted.retry_ms = max(0, round((state.pause.until - now) * 1000))
        passed = {"passes": 1, "pass_seconds": figures.seconds}
        try:
            self._sources.report_pass(passed, [counted.to_json() for counted in figures.topics.values()])
        except IcestreamError as error:
            _log.warning("pass_report_failed", reason=str(error))

    def _fail(self, state: TopicState, error: IcestreamError, figures: PassFigures) -> None:
        """Pause a topic after an error. Forget one that was deleted."""
        topic = state.backlog.name
        counted = figures.of(topic)
        counted.failures += 1
        counted.error = str(error)
        state.pause.fail(error, self._clock(), again=state.is_tried_again)
        _log.warning(
            "topic_pass_failed",
            topic=str(topic),
            reason=str(error),
            failures=state.pause.failures,
            retry_in_ms=max(0, round((state.pause.until - self._clock()) * 1000)),
        )
        if isinstance(error, TopicNotFoundError):
            self._forget(state)

    def _forget(self, state: TopicState) -> None:
        """Forget a deleted topic. Drop its empty tables: they would be in the way of a new topic of that name."""
        backlog = state.backlog
        self.topics.forget(backlog.name)
        drop_empty_tables(self._tables, backlog)

    def _in_parallel(
        self, action: Callable[[tuple[TopicState, Sink]], Result], items: Iterable[tuple[TopicState, Sink]]
    ) -> list[Result | IcestreamError]:
        def attempt(item: tuple[TopicState, Sink]) -> Result | IcestreamError:
            try:
                return action(item)
            except IcestreamError as error:
                return error
            except Exception as error:  # noqa: BLE001 - any error concerns this topic alone
                _log.error("topic_pass_crashed", topic=item[0].backlog.topic, exc_info=error)
                return IcestreamError(f"{type(error).__name__}: {error}", operation="pipeline", retryable=True)

        return list(self._pool.map(attempt, items))
