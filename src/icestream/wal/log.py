"""The log of one topic.

The steps of a commit, with what a crash after each leaves behind:

1. Take the queued batches, as many as fit, and give each frame its header. *Nothing is on disk.*
2. Write the frames. *Recovery cuts off a torn tail; no producer was acknowledged.*
3. Make them durable, by the same call. *They are stored. A producer without an acknowledgement sends again, and the log
   recognises the repetition.*
4. Move the durable end, put the frames into the cache, wake readers. *As after 3: this changes memory only.*
5. Acknowledge the producers.

A write or sync that fails poisons the log: all queued batches are refused as retryable. Before the next append the
directory is recovered and cut back to the last synced position.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from time import monotonic, perf_counter

from icestream.model.enums import SyncMode
from icestream.model.errors import (
    ClosedError,
    DamagedError,
    IcestreamError,
    InvalidRequestError,
    StaleEpochError,
    UnavailableError,
)
from icestream.model.frames import Bytes, Payload, encode
from icestream.model.messages import Frame
from icestream.wal.disk_errors import SafeLogger, log_unavailable
from icestream.wal.files import make_directories
from icestream.wal.group_commit import Append, GroupCommit
from icestream.wal.options import LogContext
from icestream.wal.producers import Producers, ProducerSessions, SentBatch
from icestream.wal.read_leases import ReadLeases
from icestream.wal.records import STREAM_FILE, ClockReset, StreamInfo
from icestream.wal.recovery import Recovery
from icestream.wal.segment import IndexCache, LogSnapshot, Segments

NO_LIMIT = (1 << 63) - 1
MAX_CLOCK_RESETS = 100
_log = SafeLogger(__name__)


class LogState(Enum):
    OPEN = "open"
    FAILED = "failed"
    """A write or sync failed. The next append recovers the log."""
    DAMAGED = "damaged"
    CLOSED = "closed"


class Log:
    """One topic's log. Thread-safe. Use `Log.create` or `Log.open`."""

    stream: StreamInfo
    _producers: Producers
    _next_offset: int
    _last_time_us: int

    def __init__(self, context: LogContext, directory: Path) -> None:
        self.context = context
        self.directory = directory
        self.cache = context.cache.log_cache()
        self.indexes = IndexCache(context.files, context.options.index_interval_bytes)
        self.leases = ReadLeases(context.options.lease_timeout_seconds)
        self._sessions = ProducerSessions(context.options.max_producers)
        self.listeners: set[Callable[[], None]] = set()
        """Called by the committing thread after the durable end has moved or a segment was sealed. Must be quick."""
        self.offset_limit = NO_LIMIT
        """No message gets this offset or a higher one. The uploader, which reserves offsets, moves it ahead."""
        self.taken_over: str | None = None
        """Why another broker owns the topic now; None while this one does. The log then gives out no offsets."""
        self._commits = GroupCommit(
            commit=self._commit,
            failed=self._failed,
            max_group_bytes=min(context.options.max_group_bytes, context.options.max_file_bytes),
            pool=context.pool,
        )
        self._mutex = self._commits.mutex
        self._segments = Segments(context, directory, self._producers_before)
        self._advanced = threading.Condition(self._mutex)
        self._waiting_readers = 0
        self._reopening = threading.Lock()
        self._reopen_after = 0.0
        self._closing = False
        self._failure: Exception | None = None
        self.state = LogState.FAILED
        self._recover(None)

    @classmethod
    def create(cls, context: LogContext, directory: Path, stream: StreamInfo) -> "Log":
        """Create the log of a new topic, or complete a creation that was interrupted."""
        make_directories(context.files, directory)
        if not context.files.exists(directory / STREAM_FILE):
            stream.save(context.files, directory)
        return cls(context, directory)

    @classmethod
    def open(cls, context: LogContext, directory: Path) -> "Log":
        return cls(context, directory)

    @property
    def snapshot(self) -> LogSnapshot:
        return self._segments.snapshot

    @property
    def start_offset(self) -> int:
        return self.snapshot.start_offset

    @property
    def durable_end(self) -> int:
        return self.snapshot.end_offset

    @property
    def nbytes(self) -> int:
        return self.snapshot.nbytes

    def next_sequence(self, producer: str) -> int:
        with self._mutex:
            return self._producers.next_sequence(producer)

    def open_producer(self, producer: str, session: int) -> int:
        """Let only this session send under the name from now on. Return the sequence of its next message."""
        with self._mutex:
            self._sessions.open(producer, session)
            return self._producers.next_sequence(producer)

    def _producers_before(self, offset: int) -> Producers:
        with self._mutex:
            return self._producers.before(offset)

    # Appending

    def append(self, payload: Payload) -> Append:
        """Append a batch and wait until it is durable. Raise if it is refused."""
        done = threading.Lock()
        done.acquire()
        append = self.submit(payload, lambda _: done.release(), inline=True)
        done.acquire()
        if append.error is not None:
            raise append.error
        return append

    def submit(
        self, payload: Payload, callback: Callable[[Append], None] | None = None, *, inline: bool, session: int = 0
    ) -> Append:
        """Queue a batch. `callback` is called when it is durable or refused.

        With `inline`, the calling thread commits it if no other thread is committing. It never waits for another
        thread's commit.
        """
        append = Append(payload, callback, session=session)
        if self.state is LogState.FAILED:
            self._reopen()
        self._commits.add(append, self._admit, inline=inline)
        return append

    def submit_all(self, appends: Sequence[Append], *, inline: bool) -> None:
        """Queue batches that arrived together, so that one commit can store them. Each has its own outcome."""
        if self.state is LogState.FAILED:
            self._reopen()
        self._commits.add_all(appends, self._admit, inline=inline)

    def _admit(self, append: Append) -> None:
        """Assign offsets and publish time to a batch, or recognise it as a repetition of a stored one."""
        if self._closing or self.state is not LogState.OPEN:
            raise self._refusal()
        payload = append.payload
        if payload is None:
            return
        name = payload.producer.decode()
        if name and append.session:
            self._sessions.check(name, append.session)
        if name and (earlier := self._producers.find(name, payload.sequence, payload.message_count)):
            append.base_offset, append.publish_time_us = earlier.base_offset, earlier.publish_time_us
            append.duplicate = True
            append.payload = None
            return
        if self._next_offset + payload.message_count > self.offset_limit:
            raise self._not_reserved()
        append.base_offset = self._next_offset
        append.publish_time_us = self._last_time_us = max(self._last_time_us, self.context.clock())
        self._next_offset += payload.message_count
        if name:
            sent = SentBatch(payload.sequence, payload.message_count, append.base_offset, append.publish_time_us)
            self._producers.note(name, sent)

    @property
    def clock_ahead_us(self) -> int:
        """How far the last publish time is ahead of the clock; 0 if it is not. New messages get that time too."""
        return max(0, self._last_time_us - self.context.clock())

    def reset_clock(self) -> ClockReset:
        """Let publish times follow the clock again, after a wrong clock has pinned them to a time ahead.

        1. Under the mutex: give new batches the clock's time. *Nothing is on disk.*
        2. When all batches before are committed: seal the segment, so that times never go back within one. *A crash
           here forgets the reset; no message has the new times yet.*
        3. Note offset and time in `stream.json`. *A restart goes on with the new times.*
        """
        done = threading.Event()
        found: list[ClockReset] = []

        def admit(append: Append) -> None:
            self._admit(append)
            now = self.context.clock()
            if self._last_time_us <= now:
                raise InvalidRequestError(
                    "publish times are not ahead of the clock", operation="reset clock", place=self.stream.topic
                )
            self._last_time_us = now
            found.append(ClockReset(self._next_offset, now))

        def note() -> None:
            if self.snapshot.active.frame_count:
                self._segments.rotate()
            stream = replace(self.stream, clock_resets=(*self.stream.clock_resets, found[0])[-MAX_CLOCK_RESETS:])
            stream.save(self.context.files, self.directory)
            self.stream = stream

        append = Append(None, lambda _: done.set(), note)
        self._commits.add(append, admit, inline=True)
        done.wait()
        if append.error is not None:
            raise append.error
        self._call_listeners()
        return found[0]

    def _not_reserved(self) -> IcestreamError:
        if self.taken_over is not None:
            return StaleEpochError(
                f"another broker owns the topic now; nothing was stored here: {self.taken_over}",
                operation="append",
                place=self.stream.topic,
                remedy="send it to the broker that owns the topic",
            )
        return UnavailableError(
            f"offsets from {self.offset_limit} on are not reserved: the metadata store cannot be reached, "
            "or the broker is stopping",
            operation="append",
            place=self.stream.topic,
            remedy="nothing was stored; send again",
        )

    def close_offsets(self) -> int:
        """Give out no more offsets. Return the offset that the next message would have had."""
        with self._mutex:
            self.offset_limit = self._next_offset
            return self._next_offset

    def leave_to_others(self, reason: str) -> None:
        """Store nothing more: another broker owns the topic, and would not have what is stored here."""
        self.taken_over = reason
        self.close_offsets()

    def _commit(self, group: list[Append]) -> None:
        """Run steps 1 to 4 for one group. One thread at a time calls this."""
        if group[0].action is not None:
            group[0].action()
            return
        batches = [(append, append.payload) for append in group if append.payload is not None]
        if not batches:  # only repetitions of frames that are durable by now
            return
        sizes = [payload.frame_bytes for _, payload in batches]
        nbytes = sum(sizes)
        if self._segments.writer.must_rotate(nbytes, self.context.clock()):
            self._segments.rotate()
        writer, epoch = self._segments.writer, self.stream.epoch
        seed = writer.seed + writer.active.position
        buffers: list[Bytes] = []
        frames = []
        for append, payload in batches:
            buffers += encode(
                payload,
                append.base_offset,
                append.publish_time_us,
                epoch=epoch,
                synced_position=writer.synced_position,
                seed=seed,
            )
            frames.append(payload.frame(append.base_offset, append.publish_time_us, epoch))
            seed += payload.frame_bytes
        started = perf_counter()
        writer.append(buffers, frames, sizes, durable=self.context.options.sync_mode is SyncMode.ALWAYS)
        self.context.on_commit(len(frames), nbytes, perf_counter() - started)
        self._show(frames)

    def _show(self, frames: list[Frame]) -> None:
        """Run step 4."""
        self.cache.add(frames)
        with self._mutex:
            self._segments.show()
            if self._waiting_readers:
                self._advanced.notify_all()
        self._call_listeners()

    def _call_listeners(self) -> None:
        for listener in tuple(self.listeners):
            listener()

    def wait_past(self, offset: int, timeout: float | None = None) -> bool:
        """Sleep until the durable end is past an offset. Return False if the time is up before."""
        with self._advanced:
            self._waiting_readers += 1
            try:
                self._advanced.wait_for(lambda: self.snapshot.end_offset > offset or self._closing, timeout)
            finally:
                self._waiting_readers -= 1
            if self.snapshot.end_offset > offset:
                return True
            if self._closing:
                raise ClosedError("the log is closed", operation="read", place=str(self.directory))
            return False

    # Maintenance: each of these runs as one entry of the append queue

    def sync(self) -> None:
        """Make everything written so far durable, in every sync mode."""
        if not self._segments.is_synced:
            self._exclusively(self._segments.sync)

    def checkpoint(self) -> None:
        """Save how far the log is durable, unless the saved checkpoint is still right."""
        if not self._segments.is_checkpointed:
            self._exclusively(self._segments.save_checkpoint)

    def rotate_if_old(self) -> None:
        if self._segments.writer.must_rotate(0, self.context.clock()):
            self._exclusively(self._segments.rotate)
            self._call_listeners()

    def rotate_past(self, offset: int) -> None:
        """Seal the active segment if it begins below an offset, so that it can be pruned later."""
        if self._begins_below(offset):
            self._exclusively(lambda: self._segments.rotate() if self._begins_below(offset) else None)
            self._call_listeners()

    def _begins_below(self, offset: int) -> bool:
        active = self.snapshot.active
        return active.header.base_offset < offset and active.frame_count > 0

    def set_schemas(self, schemas: dict[int, str]) -> None:
        """Save the schemas that later frames may name."""

        def save() -> None:
            stream = replace(self.stream, schemas=schemas)
            stream.save(self.context.files, self.directory)
            self.stream = stream

        self._exclusively(save)

    def prune(self, below_offset: int) -> int:
        """Remove the sealed segments that end at or before an offset and have no reader. Return how many there were."""
        removed: list[int] = []
        self._exclusively(lambda: removed.append(self._segments.prune(below_offset, self.leases)))
        return removed[0]

    def close(self) -> None:
        """Commit what is queued, save the checkpoint, and refuse every later append."""
        done = threading.Event()
        last = Append(None, lambda _: done.set(), self._segments.finish)

        def admit_last(_: Append) -> None:
            if self._closing or self.state is not LogState.OPEN:
                raise self._refusal()
            self._closing = True

        try:
            self._commits.add(last, admit_last, inline=True)
        except IcestreamError:
            if self.state is LogState.CLOSED:
                return
        else:
            done.wait()
        with self._mutex:
            self._closing = True
            self.state = LogState.CLOSED
            self._advanced.notify_all()
        self._segments.writer.active.file.close()
        self.cache.clear()
        self._call_listeners()
        if last.error is not None:
            raise last.error

    def _exclusively(self, action: Callable[[], None]) -> None:
        done = threading.Event()
        append = Append(None, lambda _: done.set(), action)
        self._commits.add(append, self._admit, inline=True)
        done.wait()
        if append.error is not None:
            raise append.error

    # Failure and recovery

    def _failed(self, error: Exception) -> IcestreamError:
        """Poison the log. Frames past the durable end may be on disk, but were not acknowledged. Under the mutex."""
        self.state = LogState.FAILED
        self._failure = error
        _log.error("log_failed", directory=str(self.directory), error=repr(error))
        return self._refusal()

    def _refusal(self) -> IcestreamError:
        if isinstance(self._failure, DamagedError):
            return self._failure
        if self._closing and self.state is not LogState.FAILED:
            return ClosedError("the log is closed", operation="append", place=str(self.directory))
        # There is no failure any more if another thread has reopened the log since this one looked.
        failure = self._failure or OSError("it is being reopened")
        return log_unavailable("the log cannot be written", failure, operation="append", place=str(self.directory))

    def revive(self) -> bool:
        """Recover after a failure without waiting for the next append. Return whether the log can be used."""
        if self.state is LogState.FAILED:
            self._reopen()
        return self.state is LogState.OPEN

    def _reopen(self) -> None:
        """Recover after a failure. Keep only what readers could see: it is durable."""
        with self._reopening:
            if self.state is not LogState.FAILED or monotonic() < self._reopen_after:
                return
            self._reopen_after = monotonic() + self.context.options.reopen_pause_seconds
            shown = self.snapshot
            self._segments.writer.active.file.close()
            try:
                self._recover((shown.active.header.number, shown.active_position))
            except OSError as error:
                self._failure = error
                return
            _log.info("log_reopened", directory=str(self.directory), next_offset=self._next_offset)

    def _recover(self, cut_at: tuple[int, int] | None) -> None:
        context = self.context
        recovery = Recovery(
            context.files,
            self.directory,
            index_interval_bytes=context.options.index_interval_bytes,
            max_producers=context.options.max_producers,
            cut_at=cut_at,
        )
        try:
            found = recovery.run()
        except DamagedError as error:
            self._failure, self.state = error, LogState.DAMAGED
            raise
        self.stream = found.stream
        self._producers = found.producers
        self._next_offset, self._last_time_us = found.next_offset, found.last_time_us
        try:
            self._segments.resume(found)
        except BaseException:
            if found.active is not None:
                found.active.file.close()
            raise
        self._failure, self.state = None, LogState.OPEN
