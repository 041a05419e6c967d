"""All producers of a client that share an Arrow schema, on one stream.

Any thread may write, one at a time: the thread that sends a lone message writes it itself, so it pays for no hand-over;
what cannot go at once is left to the sender thread, which is woken by acknowledgements, timers and reconnects, and
writes what several producers of a topic have by then as one. There are two threads, however many producers there are.
One lock guards all state and is never held during input or output.

Producers that were answered together wait a moment for each other: see `gathering`.
"""

import heapq
import itertools
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from icestream.client.connection import Backoff, Connection
from icestream.client.receipt import CommittedSnapshot, PendingBatch
from icestream.model.errors import (
    ClosedError,
    IcestreamError,
    ProducerFencedError,
    SequenceError,
    UnavailableError,
    error_from_dict,
)
from icestream.model.messages import message_batch
from icestream.protocol.publish import lone_message

# --------------------
# One producer's batches in order: what is open, queued, in flight, and to be sent again. No threads, no network.
#
# What it guarantees, given a broker that keeps the protocol: batches are stored in the order in which they were sealed,
# each at most once, and a batch that is reported as failed with a final error leaves no hole behind it.
#
# The rules:
#
# 1. A batch gets its sequence when it is first written, and keeps it as long as a copy of it may still reach the
# broker.
# 2. At most `max_in_flight` batches are unanswered; a single one until the broker has stored one under this name,
# because
#    it cannot see a hole in the count of a producer that it does not know.
# 3. After any failure nothing new is written until all that is in flight is answered. Then what failed for now is
# written
#    again from the oldest on, with the same sequences.
# 4. After a final failure the sequences from the failed one on are given anew, so that the broker sees no hole. Before
#    that, all earlier batches are settled under their own sequences; the later ones cannot have been stored. It is safe
#    only when no copy of a later batch can turn up afterwards and fit by accident into the new count. A copy that was
#    answered is dead; one that was on a stream when it broke may still sit in the broker. In that case the count cannot
#    be continued: a producer with a generated name takes a new name and counts from 0, one with a given name fails. So
#    does one whose name another producer was opened with since.
# 5. When the broker has accepted nothing for `retry_timeout_s`, all that waits fails, and rule 4 applies.


Afterwards = list[Callable[[], None]]
"""What is to be called once the lock is let go: it may run other people's code."""


class Outbox:
    """All methods but `__init__` need the lock."""

    def __init__(
        self,
        topic: str,
        lock: threading.Lock,
        *,
        name: str,
        new_name: Callable[[], str] | None,
        next_sequence: int = 0,
        session: int = 0,
        ack: str | None = None,
        max_in_flight: int = 8,
        linger_s: float = 0.0,
        retry_timeout_s: float | None = 60.0,
        backoff: Backoff | None = None,
    ) -> None:
        self.topic = topic
        self.lock = lock
        self.name = name
        self.new_name = new_name
        self.session = session
        self.ack = ack
        self.linger_s = linger_s
        self.retry_timeout_s = retry_timeout_s
        self.open: PendingBatch | None = None
        self.queue: deque[PendingBatch] = deque()
        self.sent: deque[PendingBatch] = deque()
        self.buffered_bytes = 0
        self.not_before = 0.0
        self.timer_at = 0.0
        self.held = False
        self.progress_at = 0.0
        self.last_error: IcestreamError | None = None
        self.failure: IcestreamError | None = None
        self.scheduled = False
        self.space: threading.Condition | None = None
        self.space_callbacks: list[Callable[[], None]] = []
        self.unseen_failures: list[PendingBatch] = []
        self.wait_committed: Callable[[int, float | None], CommittedSnapshot] | None = None
        """Waits until an offset of the topic is in the table; needs no lock."""
        self._next_sequence = next_sequence
        self._known = next_sequence > 0
        self._max_in_flight = max_in_flight
        self._redo: list[PendingBatch] = []
        self._hole: int | None = None
        self._exposed_end = 0
        self._must_restart = False
        self._backoff = backoff or Backoff()
        self._metadata_head = self._head()

    @property
    def next_sequence(self) -> int:
        return self._next_sequence

    # ---- filling

    def new_batch(self, now: float, record: Any = None, nbytes: int = 0) -> PendingBatch:
        if not self.busy:
            self.progress_at = now
        return PendingBatch(self.lock, self, record, nbytes)

    def seal(self) -> None:
        """Queue what was collected."""
        if self.open is not None and self.open.count:
            self.queue.append(self.open)
        self.open = None

    def pending(self) -> list[PendingBatch]:
        """All that is not acknowledged yet, oldest first."""
        waiting = [*self._redo, *self.sent, *self.queue]
        waiting.sort(key=lambda batch: _NOT_NUMBERED if batch.sequence is None else batch.sequence)
        if self.open is not None and self.open.count:
            waiting.append(self.open)
        return waiting

    @property
    def busy(self) -> bool:
        return bool(self.sent or self.queue or self._redo or self.open)

    # ---- writing

    def sendable(self, now: float) -> bool:
        if now < self.not_before or self.held:
            return False
        if (self._hole is not None or self._redo) and not self._before_hole():
            return False
        if len(self.sent) >= (self._max_in_flight if self._known else 1):
            return False
        return bool(self.queue) or (not self.linger_s and not self.sent and self.open is not None)

    def can_join(self, first: "Outbox", room: int, now: float) -> bool:
        """Whether what `take` would give may be written together with a batch of another producer."""
        batch = self.queue[0] if self.queue else self.open
        if batch is None or batch.record is not None or batch.nbytes > room:
            return False
        return (self.topic, self.ack) == (first.topic, first.ack) and self.sendable(now)

    def take(self, now: float) -> PendingBatch | None:
        """The next batch to write, which is in flight from now on.

        Without linger an open batch goes as soon as nothing is in flight; while something is, messages collect.
        """
        if not self.sendable(now):
            return None
        if self.queue:
            batch = self.queue.popleft()
        else:
            assert self.open is not None
            batch, self.open = self.open, None
        if batch.sequence is None:
            batch.sequence = self._next_sequence
            self._next_sequence += batch.count
        batch.writes += 1
        self.sent.append(batch)
        return batch

    def metadata(self, batch: PendingBatch, batch_id: int, *, seen: int, more: bool) -> bytes:
        tail = ',"more":true}' if more else "}"
        return f'{self._metadata_head},"sequence":{batch.sequence},"id":{batch_id},"seen":{seen}{tail}'.encode()

    def _head(self) -> str:
        fields: dict[str, str | int] = {"topic": self.topic, "producer": self.name}
        if self.session:
            fields["session"] = self.session
        if self.ack is not None:
            fields["ack"] = self.ack
        return json.dumps(fields, separators=(",", ":"))[:-1]

    # ---- answers; each gives the batches that are done now

    def stored(
        self,
        batch: PendingBatch,
        base_offset: int,
        publish_time_us: int,
        now: float,
        *,
        snapshot_id: int | None = None,
        duplicate: bool = False,
    ) -> list[PendingBatch]:
        if duplicate and self.session and batch.writes == 1:
            # What goes out for the first time repeats nothing of ours: another producer of this name has sent something
            # under this number, and a broker that was started since could not tell the two apart.
            return self.refused(batch, self._taken(), now)
        self.sent.remove(batch)
        self._known = True
        self.held = False
        self.progress_at = now
        self.not_before = 0.0
        self._backoff.reset()
        self.buffered_bytes -= batch.nbytes
        batch.succeed(base_offset, publish_time_us, snapshot_id)
        return [batch, *self._continue()]

    def refused(self, batch: PendingBatch, error: IcestreamError, now: float) -> list[PendingBatch]:
        """The broker answered that it did not store the batch."""
        sequence = _sequence(batch)
        oldest = (
            self.sent[0] is batch
            and (self._hole is None or sequence < self._hole)
            and all(sequence < _sequence(other) for other in self._redo)
        )
        self.sent.remove(batch)
        self.last_error = error
        done: list[PendingBatch] = []
        if isinstance(error, SequenceError):
            expected = error.details.get("expected")
            if isinstance(expected, int) and expected > sequence:
                done = self._fail([batch], error)
                self._restart_from(sequence)
            else:
                self._redo.append(batch)
                if oldest:
                    self._restart_from(sequence)
        elif isinstance(error, ProducerFencedError):
            done = self._fail([batch], error)
            self._restart_from(sequence)
        elif error.retryable or isinstance(error, ClosedError):  # closed: the broker is stopping; another one starts
            self._redo.append(batch)
            self._delay(now)
        else:
            done = self._fail([batch], error)
            self._hole = sequence if self._hole is None else min(self._hole, sequence)
        return [*done, *self._continue()]

    def finish(self, done: list[PendingBatch]) -> Afterwards:
        """Let those go on who wait for batches that are done, or for the room that they took."""
        afterwards: Afterwards = [batch.announce for batch in done]
        if done:
            if self.space is not None:
                self.space.notify_all()
            afterwards += self.space_callbacks
            self.space_callbacks = []
        return afterwards

    def stream_lost(self, error: IcestreamError) -> list[PendingBatch]:
        """Whether the batches in flight were stored is not known: send them again, in order, as they were."""
        self.last_error = error
        if self.sent:
            last = self.sent[-1]
            self._exposed_end = max(self._exposed_end, _sequence(last) + last.count)
            self._redo.extend(self.sent)
            self.sent.clear()
        return self._continue()

    def stalled(self, now: float) -> bool:
        """Whether the broker has accepted nothing for too long although something waits."""
        return self.retry_timeout_s is not None and self.busy and now - self.progress_at >= self.retry_timeout_s

    def out_of_patience(self, connection_error: IcestreamError | None) -> IcestreamError:
        """What all that waits fails with when it is `stalled`."""
        reason = self.last_error or connection_error
        error = UnavailableError(
            f"the broker accepted nothing for {self.retry_timeout_s} s, last: {reason or 'no answer'}",
            operation="publish",
            place=self.topic,
            remedy="whether the messages were stored is not known",
        )
        error.__cause__ = reason
        return error

    def give_up(self, error: IcestreamError, *, final: bool = False) -> list[PendingBatch]:
        """Fail all that waits; nothing may be in flight. `final`: and take no more."""
        waiting = self.pending()
        self.queue.clear()
        self._redo.clear()
        self.open = None
        numbered = [_sequence(batch) for batch in waiting if batch.sequence is not None]
        if numbered:
            self._hole = min([*numbered, self._hole] if self._hole is not None else numbered)
        if final:
            self.failure = error
        done = self._fail(waiting, error)
        self.not_before = 0.0
        self.held = False
        return [*done, *self._continue()]

    # ---- the rules 3 and 4

    def _restart_from(self, sequence: int) -> None:
        """The broker counts differently, so this producer's count has no meaning any more."""
        self._hole = sequence if self._hole is None else min(self._hole, sequence)
        self._must_restart = True

    def _continue(self) -> list[PendingBatch]:
        """Once all is answered: put what has to be sent again before what was never sent, and close the hole."""
        if self.sent or not (self._redo or self._hole is not None):
            return []
        self._redo.sort(key=_sequence)
        hole = self._hole
        if hole is not None:
            before = [batch for batch in self._redo if _sequence(batch) < hole]
            self._redo = self._redo[len(before) :]
            self.queue.extendleft(reversed(before))
            if self._before_hole():
                return []
        self.queue.extendleft(reversed(self._redo))
        self._redo.clear()
        self._hole = None
        if hole is None:
            return []
        restart = self._must_restart or self._exposed_end > hole
        self._must_restart = False
        if restart:
            return self._restart()
        for batch in self.queue:
            if batch.sequence is not None and batch.sequence > hole:
                batch.sequence = None
        self._next_sequence = hole
        return []

    def _before_hole(self) -> bool:
        """Whether the next batch to write has its place before the hole: those are settled first, as they are."""
        if self._hole is None or not self.queue:
            return False
        sequence = self.queue[0].sequence
        return sequence is not None and sequence < self._hole

    def _restart(self) -> list[PendingBatch]:
        if self.new_name is None:
            error = self.failure = self._end()
            waiting = self.pending()
            self.queue.clear()
            self.open = None
            return self._fail(waiting, error)
        self.name = self.new_name()
        self._metadata_head = self._head()
        self._next_sequence = self._exposed_end = 0
        self._known = False
        for batch in self.queue:
            batch.sequence = None
        return []

    def _taken(self) -> ProducerFencedError:
        return ProducerFencedError(
            f"another producer {self.name!r} has sent under this one's numbers",
            operation="publish",
            place=self.topic,
            remedy="nothing of this was stored; let each have a name of its own, or none",
        )

    def _end(self) -> IcestreamError:
        """Why a producer with a name of its own takes no more."""
        if isinstance(self.last_error, ProducerFencedError):
            return self.last_error
        error = SequenceError(
            f"the numbering of producer {self.name!r} cannot be continued: {self.last_error}",
            operation="publish",
            place=self.topic,
            remedy="open the producer again",
        )
        error.__cause__ = self.last_error
        return error

    def _fail(self, batches: list[PendingBatch], error: IcestreamError) -> list[PendingBatch]:
        for batch in batches:
            self.buffered_bytes -= batch.nbytes
            batch.fail(error)
            self.unseen_failures.append(batch)
        del self.unseen_failures[:-_KEPT_FAILURES]
        return batches

    def _delay(self, now: float) -> None:
        self.not_before = now + self._backoff.next()


_KEPT_FAILURES = 1000
"""`flush` reports the first unseen failure; the list must not grow when nobody ever calls it."""


_NOT_NUMBERED = 1 << 63


def _sequence(batch: PendingBatch) -> int:
    assert batch.sequence is not None
    return batch.sequence


# --------------------
# When the sender thread has to look at which producer again: one heap for all, no thread a producer.


class Timers:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Outbox, PendingBatch | None]] = []
        self._ids = itertools.count()

    def add(self, when: float, outbox: Outbox, batch: PendingBatch | None = None) -> bool:
        """At `when`, seal the batch if it is still open, and look at the outbox. True if nothing is due before."""
        heapq.heappush(self._heap, (when, next(self._ids), outbox, batch))
        return self._heap[0][0] == when

    def next(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> list[Outbox]:
        outboxes = []
        while self._heap and self._heap[0][0] <= now:
            _, _, outbox, batch = heapq.heappop(self._heap)
            if batch is not None and outbox.open is batch:
                outbox.seal()
            outboxes.append(outbox)
        return outboxes


# --------------------
# Producers that were answered together are likely to send again together.
#
# So the first of them to come back waits a moment for the others, and the last one writes what all have. No threads, no
# clock: the publisher's lock guards it, and the publisher says what time it is.


GATHER_SECONDS = 0.001
"""How long they wait for each other: less than the answers took."""


class Gathering:
    def __init__(self) -> None:
        self._awaited: set[Outbox] = set()
        """Were answered together, and may be about to send again."""
        self._here: list[Outbox] = []
        """Those of them that did, and wait for the others."""
        self.until = 0.0

    def begin(self, answered: Iterable[Outbox], now: float) -> None:
        self._awaited = set(answered)
        self.until = now + GATHER_SECONDS

    def is_for(self, outbox: Outbox, now: float) -> bool:
        return outbox in self._awaited and now < self.until

    def join(self, outbox: Outbox) -> bool:
        """One of the awaited is there; whether all are."""
        self._awaited.discard(outbox)
        if not outbox.scheduled:
            outbox.scheduled = True
            self._here.append(outbox)
        return not self._awaited

    def leave(self, outbox: Outbox) -> None:
        """It will not come, or has been written otherwise."""
        self._awaited.discard(outbox)

    def end(self) -> list[Outbox]:
        """Those that wait, to be written now; nobody is awaited any more."""
        self._awaited = set()
        here, self._here = self._here, []
        return here

    def __len__(self) -> int:
        return len(self._here)


# --------------------
# Several producers' batches for one topic as one request: it is committed and answered as one.


def together(
    batches: Sequence[PendingBatch], ids: Sequence[int], *, seen: int, more: bool
) -> tuple[pa.RecordBatch | None, bytes]:
    """The batch and its metadata; no batch where all are lone messages, all in the metadata. With the lock held."""
    first = batches[0].owner
    parts = [_part(batch, number) for batch, number in zip(batches, ids, strict=True)]
    request: dict[str, Any] = {"topic": first.topic, "parts": parts, "seen": seen}
    if first.ack is not None:
        request["ack"] = first.ack
    if more:
        request["more"] = True
    if not all(batch.is_lone_message for batch in batches):
        return _joined(batches), msgspec.json.encode(request)
    bodies = [batch.lone_body() for batch in batches]
    for part, body in zip(parts, bodies, strict=True):
        part["nbytes"] = len(body)
    return None, lone_message(msgspec.json.encode(request), *bodies)


def _part(batch: PendingBatch, number: int) -> dict[str, Any]:
    owner = batch.owner
    part = {"producer": owner.name, "sequence": batch.sequence, "count": batch.count, "id": number}
    if owner.session:
        part["session"] = owner.session
    return part


def _joined(batches: Sequence[PendingBatch]) -> pa.RecordBatch:
    """The messages of batches that are columns of Python values still, in order."""
    payloads = [payload for batch in batches for payload in batch.payloads]
    keys = attributes = None
    if any(batch.keys for batch in batches):
        keys = [key for batch in batches for key in batch.keys or [None] * batch.count]
    if any(batch.attributes for batch in batches):
        attributes = [pairs for batch in batches for pairs in batch.attributes or [None] * batch.count]
    return message_batch(payloads, keys, attributes)


# --------------------
# One DoPut stream: batches out, acknowledgements in.


class PublishStream:
    """Writers take turns by the caller's rules; a thread of its own reads the acknowledgements.

    Reading them in the thread that waits for its receipt was measured too: it saves one hand-over, 25 to 30 µs or 7 %
    of a lone message's round trip, but a thread inside Flight's read can neither time out nor be interrupted.
    """

    def __init__(
        self,
        connection: Connection,
        schema: pa.Schema,
        *,
        on_answer: Callable[[dict[str, Any]], None],
        on_end: Callable[["PublishStream", IcestreamError], None],
    ) -> None:
        self._connection = connection
        self._on_answer = on_answer
        self._on_end = on_end
        self.answers = 0
        """How many were read."""
        self._write_lock = threading.Lock()
        self._writer, self._reader = connection.put(schema)
        self._thread = threading.Thread(target=self._read, name="icestream-acks", daemon=True)

    def start(self) -> None:
        """Begin to read: not before the owner knows the stream, whose end may be told at once."""
        self._thread.start()

    def write(self, batch: pa.RecordBatch | None, metadata: bytes) -> None:
        """Write a batch, or a lone message, which is all in the metadata."""
        with self._write_lock:
            if batch is None:
                self._writer.write_metadata(metadata)
            else:
                self._writer.write_with_metadata(batch, metadata)

    def finish(self) -> None:
        """Say that no more comes; the broker then ends the stream, and so does the reading thread."""
        if self._write_lock.acquire(timeout=1.0):
            try:
                self._writer.done_writing()
            except (fl.FlightError, pa.ArrowException):
                pass  # broken already: the reading thread sees it too
            finally:
                self._write_lock.release()

    def join(self, timeout: float) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _read(self) -> None:
        failure: Exception | None = None
        try:
            while (message := self._reader.read()) is not None:
                self.answers += 1
                self._on_answer(msgspec.json.decode(message))
        except (fl.FlightError, pa.ArrowException, ValueError) as error:
            failure = error
        # A broken stream ends like a finished one; what happened is told when it is closed.
        with self._write_lock:
            try:
                self._writer.close()
            except (fl.FlightError, pa.ArrowException) as error:
                failure = error
        self._on_end(self, self._reason(failure))

    def _reason(self, failure: Exception | None) -> IcestreamError:
        if failure is None:
            return UnavailableError(f"the broker at {self._connection.url} ended the stream", operation="publish")
        error = self._connection.typed(failure, "publish")
        if type(error) is IcestreamError and not error.retryable:
            # The broker did not say what it means, so it may pass.
            error.retryable = True
        return error


_CHECK_INTERVAL_S = 1.0
_JOIN_TIMEOUT_S = 2.0
_TOGETHER_BATCHES = 128
_TOGETHER_BYTES = 256 * 1024
"""Most that several producers' batches may have to be written as one."""
_SEVERAL = 2


class Publisher:
    def __init__(self, connection: Connection, schema: pa.Schema) -> None:
        self.lock = threading.Lock()
        self._connection = connection
        self._schema = schema
        self._wake = threading.Condition(self.lock)
        self._sleeping = False
        self._outboxes: set[Outbox] = set()
        self._ready: deque[Outbox] = deque()
        self._timers = Timers()
        self._in_flight: dict[int, PendingBatch] = {}
        self._ids = itertools.count()
        self._stream: PublishStream | None = None
        self._want_stream = False
        self._writing = False
        self._gathering = Gathering()
        self._connect_at = 0.0
        self._check_at = 0.0
        self._backoff = Backoff()
        self._last_error: IcestreamError | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    # ---- producers

    def attach(self, outbox: Outbox) -> None:
        with self.lock:
            if self._closed:
                raise ClosedError("the client is closed", operation="publish")
            self._outboxes.add(outbox)
            self._want_stream = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="icestream-sender", daemon=True)
                self._thread.start()
            self._notify()

    def detach(self, outbox: Outbox, error: IcestreamError) -> None:
        """Forget the producer; what it has not got acknowledged fails with `error`."""
        with self.lock:
            self._outboxes.discard(outbox)
            self._gathering.leave(outbox)
            afterwards = self._abandon(outbox, error)
        _call(afterwards)

    def _abandon(self, outbox: Outbox, error: IcestreamError) -> Afterwards:
        for batch_id in [batch_id for batch_id, batch in self._in_flight.items() if batch.owner is outbox]:
            del self._in_flight[batch_id]
        return outbox.finish([*outbox.stream_lost(error), *outbox.give_up(error, final=True)])

    # ---- for callers that hold the lock

    def begin(self, outbox: Outbox, now: float) -> list[PendingBatch]:
        """What the calling thread has to `write` once it has let the lock go; where it is nothing, it will be done."""
        if self._gathering.is_for(outbox, now):
            return self._gather(outbox, now)
        if self._stream is None or self._writing or self._ready:
            self.schedule(outbox)
            return []
        batch = outbox.take(now)
        if batch is None:
            return []
        self._writing = True
        return [batch]

    def _gather(self, outbox: Outbox, now: float) -> list[PendingBatch]:
        """The last one to come writes for all."""
        if self._gathering.join(outbox):
            self._end_gathering()
            if self._stream is not None and not self._writing:
                return self._next_batches(now)
        if len(self._gathering) < _SEVERAL:
            self._notify()  # later it knows until when to wait
        return []

    def _end_gathering(self) -> None:
        self._ready += self._gathering.end()

    def schedule(self, outbox: Outbox) -> None:
        """Let the sender thread look at it."""
        if not outbox.scheduled:
            outbox.scheduled = True
            self._ready.append(outbox)
            self._want_stream = True
            self._notify()

    def seal_at(self, when: float, outbox: Outbox, batch: PendingBatch) -> None:
        if self._timers.add(when, outbox, batch):
            self._notify()

    def _notify(self) -> None:
        if self._sleeping:
            self._sleeping = False
            self._wake.notify()

    # ---- writing

    def write(self, batches: list[PendingBatch]) -> None:
        """Write what `begin` gave. A failure is not raised: the stream's end is handled where it is read."""
        if len(batches) == 1:
            self._write_alone(batches[0])
        elif batches:
            self._write_together(batches)

    def _write_alone(self, batch: PendingBatch) -> None:
        outbox: Outbox = batch.owner
        record = None if batch.is_lone_message else batch.arrow()
        with self.lock:
            stream = self._stream
            # If the stream broke since the lock was let go, the batch went back to the queue.
            if stream is not None and batch in outbox.sent:
                more = bool(self._in_flight or self._ready or outbox.queue or outbox.open)
                metadata = outbox.metadata(batch, self._number(batch), seen=stream.answers, more=more)
                if record is None:
                    metadata = lone_message(metadata, batch.lone_body())
            else:
                stream = None
        self._write(stream, record, metadata if stream is not None else b"")
        self._written((outbox,))

    def _write_together(self, batches: list[PendingBatch]) -> None:
        with self.lock:
            stream = self._stream
            batches = [batch for batch in batches if batch in batch.owner.sent]
            record, metadata = None, b""
            if stream is not None and batches:
                ids = [self._number(batch) for batch in batches]
                more = bool(len(self._in_flight) > len(batches) or self._ready)
                record, metadata = together(batches, ids, seen=stream.answers, more=more)
            else:
                stream = None
        self._write(stream, record, metadata)
        self._written([batch.owner for batch in batches])

    def _number(self, batch: PendingBatch) -> int:
        batch_id = next(self._ids)
        self._in_flight[batch_id] = batch
        return batch_id

    def _write(self, stream: PublishStream | None, record: pa.RecordBatch | None, metadata: bytes) -> None:
        if stream is not None:
            try:
                stream.write(record, metadata)
            except (fl.FlightError, pa.ArrowException):
                stream.finish()

    def _written(self, outboxes: Iterable[Outbox]) -> None:
        with self.lock:
            self._writing = False
            now = time.monotonic()
            for outbox in outboxes:
                if outbox.sendable(now):
                    self.schedule(outbox)
            if self._ready:
                self._notify()

    # ---- the sender thread

    def _run(self) -> None:
        while True:
            with self.lock:
                while True:
                    if self._closed:
                        return
                    now = time.monotonic()
                    for outbox in self._timers.due(now):
                        self.schedule(outbox)
                    afterwards = self._give_up_stalled(now)
                    connect = self._stream is None and self._want_stream and now >= self._connect_at
                    if self._gathering and now >= self._gathering.until:
                        self._end_gathering()
                    batches = self._next_batches(now)
                    if connect or batches or afterwards:
                        break
                    self._sleep(now)
            _call(afterwards)
            if connect:
                self._connect()
            self.write(batches)

    def _next_batches(self, now: float) -> list[PendingBatch]:
        """The next producer's batch, and small ones of those in turn behind it that publish to the same topic."""
        first = self._next_batch(now)
        if first is None:
            return []
        batches, room = [first], _TOGETHER_BYTES - first.nbytes
        while self._ready and first.record is None and len(batches) < _TOGETHER_BATCHES:
            outbox = self._ready[0]
            if not outbox.can_join(first.owner, room, now):
                break
            self._ready.popleft()
            outbox.scheduled = False
            taken = outbox.take(now)
            assert taken is not None
            batches.append(taken)
            room -= taken.nbytes
        return batches

    def _next_batch(self, now: float) -> PendingBatch | None:
        """Of the next producer in turn that can send: each writes one batch, then it is another one's turn."""
        while self._ready and self._stream is not None and not self._writing:
            outbox = self._ready.popleft()
            outbox.scheduled = False
            batch = outbox.take(now)
            if batch is not None:
                self._writing = True
                return batch
            if outbox.not_before > now and outbox.timer_at != outbox.not_before:
                outbox.timer_at = outbox.not_before
                self._timers.add(outbox.not_before, outbox)
        return None

    def _sleep(self, now: float) -> None:
        due = self._timers.next()
        until = [] if due is None else [due]
        if self._gathering:
            until.append(self._gathering.until)
        if self._stream is None and self._want_stream:
            until.append(self._connect_at)
        if self._in_flight or self._stream is None:
            until.append(self._check_at)
        self._sleeping = True
        self._wake.wait(max(0.0, min(until) - now) if until else None)
        self._sleeping = False

    def _give_up_stalled(self, now: float) -> Afterwards:
        if now < self._check_at:
            return []
        limits = [outbox.retry_timeout_s for outbox in self._outboxes if outbox.retry_timeout_s is not None]
        self._check_at = now + min([_CHECK_INTERVAL_S, *(limit / 4 for limit in limits)])
        stalled = [outbox for outbox in self._outboxes if outbox.stalled(now)]
        afterwards: Afterwards = []
        if any(outbox.sent and outbox.held for outbox in stalled):
            # The broker is connected and silent: what it got on this stream has an unknown outcome.
            if self._stream is not None:
                afterwards.append(self._stream.finish)
            afterwards += self._lose_stream(UnavailableError("the broker does not answer", operation="publish"))
        for outbox in stalled:
            if outbox.sent:
                # Refused again and again, and just on its way once more: an answer keeps the outcome known.
                outbox.held = True
                continue
            afterwards += outbox.finish(outbox.give_up(outbox.out_of_patience(self._last_error)))
        return afterwards

    # ---- the stream's life

    def _connect(self) -> None:
        try:
            stream = PublishStream(
                self._connection, self._schema, on_answer=self._on_answer, on_end=self._on_stream_end
            )
        except IcestreamError as error:
            with self.lock:
                self._last_error = error
                self._connect_at = time.monotonic() + self._backoff.next()
            return
        with self.lock:
            stream.start()
            if not self._closed:
                self._stream = stream
                self._last_error = None
                return
        stream.finish()
        stream.join(_JOIN_TIMEOUT_S)

    def _on_stream_end(self, stream: PublishStream, error: IcestreamError) -> None:
        with self.lock:
            afterwards = self._lose_stream(error) if stream is self._stream else []
            self._notify()
        _call(afterwards)

    def _lose_stream(self, error: IcestreamError) -> Afterwards:
        self._stream = None
        self._in_flight.clear()
        self._end_gathering()
        self._last_error = error
        self._connect_at = time.monotonic() + self._backoff.next()
        afterwards: Afterwards = []
        hopeless = not (error.retryable or isinstance(error, ClosedError))
        for outbox in self._outboxes:
            concerned = bool(outbox.sent)
            afterwards += outbox.finish(outbox.stream_lost(error))
            if hopeless and concerned:
                afterwards += outbox.finish(outbox.give_up(error))
            if outbox.busy:
                self.schedule(outbox)
        # Without anything to send the next stream can wait for the next message.
        self._want_stream = bool(self._ready)
        return afterwards

    def _on_answer(self, answer: dict[str, Any]) -> None:
        now = time.monotonic()
        with self.lock:
            answers = answer.get("answers", (answer,))
            if len(answers) >= _SEVERAL:
                self._await_those_of(answers, now)
            afterwards = [call for each in answers for call in self._take_answer(each, now)]
        _call(afterwards)

    def _await_those_of(self, answers: list[dict[str, Any]], now: float) -> None:
        batches = (self._in_flight.get(answer["id"]) for answer in answers)
        self._end_gathering()
        self._gathering.begin((batch.owner for batch in batches if batch is not None), now)

    def _take_answer(self, answer: dict[str, Any], now: float) -> Afterwards:
        batch = self._in_flight.pop(answer["id"], None)
        if batch is None:
            return []
        outbox: Outbox = batch.owner
        if "error" in answer:
            done = outbox.refused(batch, error_from_dict(answer["error"]), now)
        else:
            self._backoff.reset()
            done = outbox.stored(
                batch,
                answer["base_offset"],
                answer["publish_time_us"],
                now,
                snapshot_id=answer.get("snapshot_id"),
                duplicate=answer.get("duplicate", False),
            )
        if outbox.held:  # it was refused once more, and its time is over
            self._check_at = now
            self._notify()
        elif outbox.sendable(now) or outbox.not_before > now:
            self._gathering.leave(outbox)
            self.schedule(outbox)
        return outbox.finish(done)

    # ---- the end

    def close(self, error: IcestreamError) -> None:
        """Fail what is not acknowledged with `error`, and end both threads."""
        afterwards: Afterwards = []
        with self.lock:
            self._closed = True
            stream, self._stream = self._stream, None
            for outbox in self._outboxes:
                afterwards += self._abandon(outbox, error)
            self._notify()
        _call(afterwards)
        if stream is not None:
            stream.finish()
            stream.join(_JOIN_TIMEOUT_S)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_TIMEOUT_S)

    @property
    def connected(self) -> bool:
        """Or about to be, for the first time."""
        return self._stream is not None or self._last_error is None

    @property
    def last_error(self) -> IcestreamError | None:
        """Why there is no stream to the broker; None while there is one."""
        return self._last_error


def _call(afterwards: Afterwards) -> None:
    for function in afterwards:
        function()
