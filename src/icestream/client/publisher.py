"""The publishing state machine: every batch of every producer on one stream. No threads, no network, no clock.

    Publisher       whose turn it is: ready producers, timers, batches in flight, producers that write together
    └─ Outbox       one producer: its open batch, its queue, what is in flight, its numbering
       └─ PendingBatch   messages that are sent, acknowledged and failed together

State changes here and nowhere else. Producers and the transport call methods, with `PublishTransport.lock` held. The
transport says what time it is and what the network did; the machine says what to write, and returns the callbacks to
run once the lock is released.

What the machine guarantees, given a broker that keeps the protocol: batches of a producer are stored in the order in
which they were sealed, each at most once, and a batch that fails with a final error leaves no hole behind it.

The rules of an outbox:

1. A batch gets its sequence when it is first written, and keeps it as long as a copy of it may still reach the broker.
2. At most `max_in_flight` batches are unacknowledged. It is one batch until the broker has stored one under this name,
   because the broker cannot see a hole in the sequences of a producer that it does not know.
3. After any failure nothing new is written until everything in flight is acknowledged or refused. Then the batches that
   failed for now are written again, oldest first, with the same sequences.
4. After a final failure the sequences from the failed one on are given anew, so that the broker sees no hole. Before
   that, all earlier batches are settled under their own sequences; the later ones cannot have been stored. This is safe
   only if no copy of a later batch can arrive afterwards and fit into the new sequences by accident. A copy that was
   acknowledged or refused is dead. A copy that was on a stream when it broke may still sit in the broker; then the
   sequences cannot be continued: a producer with a generated name takes a new name and counts from 0, one with a given
   name fails. A producer whose name another producer has taken over fails too.
5. When the broker has accepted nothing for `retry_timeout_s`, everything that waits fails, and rule 4 applies.

Producers whose batches were acknowledged together are likely to send again together. So the first of them to send waits
up to `COALESCE_SECONDS` for the others, and the last one writes the batches of all as one request.
"""

import contextlib
import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from icestream.model.clock import Backoff
from icestream.model.errors import (
    ClosedError,
    IcestreamError,
    ProducerFencedError,
    SequenceError,
    UnavailableError,
    error_from_dict,
    is_temporary,
)
from icestream.model.messages import MAX_LONE_BYTES, encode_message, message_batch
from icestream.protocol.publish import PublishOutcome, PublishPart, PublishRequest, lone_message

COALESCE_SECONDS = 0.001
"""How long producers that were acknowledged together wait for each other: less than the acknowledgement took."""

_CHECK_INTERVAL_S = 1.0
_COMBINED_BATCHES = 128
_COMBINED_BYTES = 256 * 1024
"""Limits of a request that carries batches of several producers."""
_SEVERAL = 2
_KEPT_FAILURES = 1000
"""`flush` reports the first unseen failure; the list must not grow when nobody ever calls it."""
_NOT_NUMBERED = 1 << 63

Callbacks = list[Callable[[], None]]
"""To be called once the lock is released: they may run the application's code."""


class PendingBatch:
    """Messages that are sent, acknowledged and failed together; the receipts of its messages share it.

    Columns of Python values while it is open, one Arrow batch once it is written. Nothing changes after `done`.
    """

    __slots__ = (
        "attributes",
        "base_offset",
        "callbacks",
        "count",
        "done",
        "error",
        "gate",
        "keys",
        "loop_waiter",
        "nbytes",
        "outbox",
        "payloads",
        "publish_time_us",
        "record",
        "seen",
        "sequence",
        "snapshot_id",
        "writes",
    )

    def __init__(self, outbox: "Outbox", record: pa.RecordBatch | None = None, nbytes: int = 0) -> None:
        self.outbox = outbox
        self.record = record
        self.payloads: list[bytes] = []
        self.keys: list[bytes | None] | None = None
        self.attributes: list[Any] | None = None
        self.count: int = 0 if record is None else record.num_rows
        self.nbytes = nbytes
        self.sequence: int | None = None
        self.writes = 0
        self.base_offset = -1
        self.publish_time_us = 0
        self.snapshot_id: int | None = None
        self.error: IcestreamError | None = None
        self.done = False
        self.seen = False
        """Whether the application has asked a receipt for the outcome."""
        self.gate: threading.Lock | None = None
        self.callbacks: Callbacks | None = None
        self.loop_waiter: Any = None

    @property
    def is_lone_message(self) -> bool:
        """Whether it is one small message in Python values, which travels without Arrow."""
        return self.count == 1 and self.record is None and self.nbytes <= MAX_LONE_BYTES

    def lone_body(self) -> bytes:
        key = self.keys[0] if self.keys is not None else None
        return encode_message(self.payloads[0], key, self.attributes[0] if self.attributes is not None else None)

    def arrow(self) -> pa.RecordBatch:
        """Return the batch as Arrow, made once. Needs no lock: only the thread that writes the batch calls it."""
        if self.record is None:
            self.record = message_batch(self.payloads, self.keys, self.attributes)
            self.payloads = []
            self.keys = self.attributes = None
        return self.record

    def succeed(self, base_offset: int, publish_time_us: int, snapshot_id: int | None) -> None:
        self.base_offset = base_offset
        self.publish_time_us = publish_time_us
        self.snapshot_id = snapshot_id
        self._finish()

    def fail(self, error: IcestreamError) -> None:
        self.error = error
        self._finish()

    def _finish(self) -> None:
        self.record = None
        # The payloads go last: a thread in `arrow` must not meet an empty list of them with the keys of all.
        self.keys = self.attributes = None
        self.payloads = []
        self.done = True

    # ---- without the lock

    def announce(self) -> None:
        """Release the waiting threads and run the callbacks, after `succeed` or `fail`."""
        if self.gate is not None:
            self.gate.release()
        for callback in self.callbacks or ():
            callback()
        self.callbacks = None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the batch is done; False after `timeout` seconds.

        The gate is a lock that each waiting thread opens for the next: cheaper than an Event, and made only when a
        thread has to wait.
        """
        if self.outbox.read_for is not None:
            started = time.monotonic()
            self.outbox.read_for(self, timeout)
            timeout = None if timeout is None else timeout - (time.monotonic() - started)
        with self.outbox.lock:
            if self.done:
                return True
            gate = self.gate
            if gate is None:
                gate = self.gate = threading.Lock()
                gate.acquire()
        if not gate.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            return False
        gate.release()
        return True

    def when_done(self, callback: Callable[[], None]) -> None:
        """Run `callback` once, now or in the thread that completes the batch."""
        with self.outbox.lock:
            if not self.done:
                if self.callbacks is None:
                    self.callbacks = []
                self.callbacks.append(callback)
                return
        callback()


class Outbox:
    """One producer's batches, in order. See the rules at the top of this module."""

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
        max_batch_bytes: int = 1 << 20,
        max_batch_messages: int = 10_000,
        max_message_bytes: int = 1 << 20,
        max_buffer_bytes: int = 64 << 20,
        backoff: Backoff | None = None,
    ) -> None:
        self.topic = topic
        self.lock = lock
        self.read_for: Callable[[PendingBatch, float | None], None] | None = None
        """Reads acknowledgements in the thread that waits for one, where the transport can."""
        self.name = name
        self.session = session
        self.ack = ack
        self.linger_s = linger_s
        self.retry_timeout_s = retry_timeout_s
        self.max_message_bytes = max_message_bytes
        self.open: PendingBatch | None = None
        self.queue: deque[PendingBatch] = deque()
        self.sent: deque[PendingBatch] = deque()
        self.buffered_bytes = 0
        """Bytes of messages that are not acknowledged."""
        self.next_sequence = next_sequence
        self.not_before = 0.0
        self.held = False
        """Whether it writes nothing more until what is in flight is settled, because its time is over."""
        self.progress_at = 0.0
        self.last_error: IcestreamError | None = None
        self.failure: IcestreamError | None = None
        """Why it takes no more messages, for good."""
        self.is_closed = False
        self.is_scheduled = False
        """Whether the publisher has it in its queue of ready producers."""
        self.timer_at = 0.0
        """When the publisher looks at it again, if it has a timer."""
        self._new_name = new_name
        self._max_in_flight = max_in_flight
        self._max_batch_bytes = max_batch_bytes
        self._max_batch_messages = max_batch_messages
        self._max_buffer_bytes = max_buffer_bytes
        self._is_known = next_sequence > 0
        self._to_resend: list[PendingBatch] = []
        self._hole: int | None = None
        self._exposed_end = 0
        """The end of the sequences of which a broken stream may still hold copies."""
        self._must_restart = False
        self._backoff = backoff or Backoff()
        self._metadata_head = self._head()
        self._room_callbacks: Callbacks = []
        self._unseen_failures: list[PendingBatch] = []

    # ---- filling

    def add(
        self, payload: bytes, key: bytes | None, attributes: Any, size: int, *, unchecked: bool = False
    ) -> PendingBatch | None:
        """Append a message to the open batch, and return that; None if there is none that takes it.

        Columns for keys and attributes exist once a message of the batch has one.
        """
        batch = self.open
        if batch is None:
            return None
        count = batch.count
        batch_bytes = batch.nbytes + size
        buffered_bytes = self.buffered_bytes + size
        if (
            batch_bytes > self._max_batch_bytes
            or count >= self._max_batch_messages
            or buffered_bytes > self._max_buffer_bytes
            or size > self.max_message_bytes
        ) and not unchecked:
            return None
        batch.payloads.append(payload)
        if key is not None or batch.keys is not None:
            if batch.keys is None:
                batch.keys = [None] * count
            batch.keys.append(key)
        if attributes is not None or batch.attributes is not None:
            if batch.attributes is None:
                batch.attributes = [None] * count
            batch.attributes.append(attributes)
        batch.count = count + 1
        batch.nbytes = batch_bytes
        self.buffered_bytes = buffered_bytes
        return batch

    def open_batch(self, size: int, now: float) -> PendingBatch | None:
        """See to it that the open batch takes a message of `size` bytes; return it if it is a new one."""
        batch = self.open
        if batch is not None and (
            batch.nbytes + size > self._max_batch_bytes or batch.count >= self._max_batch_messages
        ):
            self.seal()
        if self.open is not None:
            return None
        self.open = self._new_batch(now)
        return self.open

    def add_record(self, record: pa.RecordBatch, nbytes: int, now: float) -> PendingBatch:
        """Queue an Arrow batch behind the messages that were added before it."""
        self.seal()
        batch = self._new_batch(now, record, nbytes)
        self.queue.append(batch)
        self.buffered_bytes += nbytes
        return batch

    def _new_batch(self, now: float, record: pa.RecordBatch | None = None, nbytes: int = 0) -> PendingBatch:
        if not self.is_busy:
            self.progress_at = now
        return PendingBatch(self, record, nbytes)

    def seal(self) -> None:
        """Queue the open batch; it takes no more messages."""
        if self.open is not None and self.open.count:
            self.queue.append(self.open)
        self.open = None

    def has_room(self, size: int) -> bool:
        """Tell whether the buffer takes `size` more bytes; an empty one takes anything."""
        return not self.buffered_bytes or self.buffered_bytes + size <= self._max_buffer_bytes

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call back, once, when something was acknowledged or failed."""
        self._room_callbacks.append(callback)

    def forget_room(self, callback: Callable[[], None]) -> None:
        """Do not call back any more: the one who waited has given up."""
        with contextlib.suppress(ValueError):  # it was called already
            self._room_callbacks.remove(callback)

    def check_open(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self.is_closed:
            raise ClosedError("the producer is closed", operation="send", place=self.topic)

    def close(self) -> bool:
        """Take no more messages; False if that was so before."""
        was_open, self.is_closed = not self.is_closed, True
        self.seal()  # `add` looks at nothing but the open batch
        return was_open

    def pending(self) -> list[PendingBatch]:
        """Return all batches that are not acknowledged yet, oldest first."""
        waiting = [*self._to_resend, *self.sent, *self.queue]
        waiting.sort(key=lambda batch: _NOT_NUMBERED if batch.sequence is None else batch.sequence)
        if self.open is not None and self.open.count:
            waiting.append(self.open)
        return waiting

    def take_failure(self) -> IcestreamError | None:
        """Return the first failure since the last call that no receipt was asked about."""
        failed, self._unseen_failures = self._unseen_failures, []
        return next((batch.error for batch in failed if not batch.seen), None)

    @property
    def unnumbered(self) -> int:
        """Messages that wait and get their numbers when they are sent."""
        waiting = (*self.queue, *(() if self.open is None else (self.open,)))
        return sum(batch.count for batch in waiting if batch.sequence is None)

    @property
    def is_busy(self) -> bool:
        return bool(self.sent or self.queue or self._to_resend or self.open)

    # ---- writing

    def is_sendable(self, now: float) -> bool:
        if now < self.not_before or self.held:
            return False
        if (self._hole is not None or self._to_resend) and not self._is_before_hole():
            return False
        if len(self.sent) >= (self._max_in_flight if self._is_known else 1):
            return False
        return bool(self.queue) or (not self.linger_s and not self.sent and self.open is not None)

    def can_join(self, first: "Outbox", room: int, now: float) -> bool:
        """Tell whether what `take` would return may travel in one request with a batch of another producer."""
        batch = self.queue[0] if self.queue else self.open
        if batch is None or batch.record is not None or batch.nbytes > room:
            return False
        return (self.topic, self.ack) == (first.topic, first.ack) and self.is_sendable(now)

    def take(self, now: float) -> PendingBatch | None:
        """Return the next batch to write, which is in flight from now on.

        Without linger an open batch goes as soon as nothing is in flight; while something is, messages collect.
        """
        if not self.is_sendable(now):
            return None
        if self.queue:
            batch = self.queue.popleft()
        else:
            assert self.open is not None
            batch, self.open = self.open, None
        if batch.sequence is None:
            batch.sequence = self.next_sequence
            self.next_sequence += batch.count
        batch.writes += 1
        self.sent.append(batch)
        return batch

    def metadata(self, batch: PendingBatch, batch_id: int, *, seen: int, more: bool) -> bytes:
        tail = ',"more":true}' if more else "}"
        return f'{self._metadata_head},"sequence":{batch.sequence},"id":{batch_id},"seen":{seen}{tail}'.encode()

    def _head(self) -> str:
        """Return the fields of the request that do not change, as JSON without the closing brace."""
        request = PublishRequest(topic=self.topic, producer=self.name, session=self.session, ack=self.ack)
        return msgspec.json.encode(request).decode()[:-1]

    # ---- what the broker and the network did; each returns the batches that are done now

    def acked(
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
            # A batch that is written for the first time repeats nothing of ours: another producer of this name has
            # used this sequence, and a broker that was started since could not tell the two apart.
            return self.refused(batch, self._name_taken(), now)
        self.sent.remove(batch)
        self._is_known = True
        self.held = False
        self.progress_at = now
        self.not_before = 0.0
        self._backoff.reset()
        self.buffered_bytes -= batch.nbytes
        batch.succeed(base_offset, publish_time_us, snapshot_id)
        return [batch, *self._continue()]

    def refused(self, batch: PendingBatch, error: IcestreamError, now: float) -> list[PendingBatch]:
        """The broker did not store the batch."""
        sequence = _sequence(batch)
        is_oldest = (
            self.sent[0] is batch
            and (self._hole is None or sequence < self._hole)
            and all(sequence < _sequence(other) for other in self._to_resend)
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
                self._to_resend.append(batch)
                if is_oldest:
                    self._restart_from(sequence)
        elif isinstance(error, ProducerFencedError):
            done = self._fail([batch], error)
            self._restart_from(sequence)
        elif is_temporary(error):
            self._to_resend.append(batch)
            self.not_before = now + self._backoff.next()
        else:
            done = self._fail([batch], error)
            self._hole = sequence if self._hole is None else min(self._hole, sequence)
        return [*done, *self._continue()]

    def stream_lost(self, error: IcestreamError) -> list[PendingBatch]:
        """Whether the batches in flight were stored is not known: send them again, in order, unchanged."""
        self.last_error = error
        if self.sent:
            last = self.sent[-1]
            self._exposed_end = max(self._exposed_end, _sequence(last) + last.count)
            self._to_resend.extend(self.sent)
            self.sent.clear()
        return self._continue()

    def is_stalled(self, now: float) -> bool:
        """Tell whether the broker has accepted nothing for too long although something waits."""
        return self.retry_timeout_s is not None and self.is_busy and now - self.progress_at >= self.retry_timeout_s

    def hold(self) -> None:
        """Write nothing more until what is in flight is settled."""
        self.held = True

    @property
    def is_without_response(self) -> bool:
        """Whether it waits for the outcome of what is in flight since it was held."""
        return self.held and bool(self.sent)

    def timed_out(self, connection_error: IcestreamError | None) -> list[PendingBatch]:
        """Give up because the outbox `is_stalled`."""
        reason = self.last_error or connection_error
        error = UnavailableError(
            f"the broker accepted nothing for {self.retry_timeout_s} s, last: {reason or 'no response'}",
            operation="publish",
            place=self.topic,
            remedy="whether the messages were stored is not known",
        )
        error.__cause__ = reason
        return self.give_up(error)

    def give_up(self, error: IcestreamError, *, final: bool = False) -> list[PendingBatch]:
        """Fail everything that waits; nothing may be in flight. `final`: and take no more."""
        waiting = self.pending()
        self.queue.clear()
        self._to_resend.clear()
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

    def callbacks_of(self, done: list[PendingBatch]) -> Callbacks:
        """Return what wakes those who wait for these batches, or for the room that they took."""
        callbacks: Callbacks = [batch.announce for batch in done]
        if done:
            callbacks += self._room_callbacks
            self._room_callbacks = []
        return callbacks

    # ---- rules 3 and 4

    def _restart_from(self, sequence: int) -> None:
        """The broker counts differently: this producer's sequences mean nothing any more."""
        self._hole = sequence if self._hole is None else min(self._hole, sequence)
        self._must_restart = True

    def _continue(self) -> list[PendingBatch]:
        """Once nothing is in flight: queue what must be sent again before what was never sent, and close the hole."""
        if self.sent or not (self._to_resend or self._hole is not None):
            return []
        self._to_resend.sort(key=_sequence)
        hole = self._hole
        if hole is not None:
            before = [batch for batch in self._to_resend if _sequence(batch) < hole]
            self._to_resend = self._to_resend[len(before) :]
            self.queue.extendleft(reversed(before))
            if self._is_before_hole():
                return []
        self.queue.extendleft(reversed(self._to_resend))
        self._to_resend.clear()
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
        self.next_sequence = hole
        return []

    def _is_before_hole(self) -> bool:
        """Tell whether the next batch to write comes before the hole: those are settled first, unchanged."""
        if self._hole is None or not self.queue:
            return False
        sequence = self.queue[0].sequence
        return sequence is not None and sequence < self._hole

    def _restart(self) -> list[PendingBatch]:
        if self._new_name is None:
            error = self.failure = self._final_error()
            waiting = self.pending()
            self.queue.clear()
            self.open = None
            return self._fail(waiting, error)
        self.name = self._new_name()
        self._metadata_head = self._head()
        self.next_sequence = self._exposed_end = 0
        self._is_known = False
        for batch in self.queue:
            batch.sequence = None
        return []

    def _name_taken(self) -> ProducerFencedError:
        return ProducerFencedError(
            f"another producer {self.name!r} has used this producer's sequences",
            operation="publish",
            place=self.topic,
            remedy="nothing of this batch was stored; give each producer a name of its own, or none",
        )

    def _final_error(self) -> IcestreamError:
        """Return why a producer with a given name takes no more."""
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
            self._unseen_failures.append(batch)
        del self._unseen_failures[:-_KEPT_FAILURES]
        return batches


class Publisher:
    """All producers of a client that share an Arrow schema, and so a stream. `wake` wakes the sender thread."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._outboxes: set[Outbox] = set()
        self._ready: deque[Outbox] = deque()
        self._timers: list[tuple[float, int, Outbox, PendingBatch | None]] = []
        self._timer_ids = itertools.count()
        self._batch_ids = itertools.count()
        self._in_flight: dict[int, PendingBatch] = {}
        self._is_writing = False
        """One thread writes at a time; batches that it has taken are its own until `written`."""
        # Producers that write together.
        self._expected: set[Outbox] = set()
        """They were acknowledged together and may be about to send again."""
        self._arrived: list[Outbox] = []
        """Those of them that do, and wait for the others."""
        self._coalesce_until = 0.0
        # The stream.
        self._has_stream = False
        self._wants_stream = False
        self._connect_at = 0.0
        self._check_at = 0.0
        self._backoff = Backoff()
        self._connection_error: IcestreamError | None = None

    # ---- producers

    def attach(self, outbox: Outbox) -> None:
        self._outboxes.add(outbox)
        self._wants_stream = True
        self._wake()

    def detach(self, outbox: Outbox, error: IcestreamError) -> Callbacks:
        """Forget the producer; its unacknowledged messages fail with `error`."""
        self._outboxes.discard(outbox)
        self._expected.discard(outbox)
        for batch_id in [batch_id for batch_id, batch in self._in_flight.items() if batch.outbox is outbox]:
            del self._in_flight[batch_id]
        return outbox.callbacks_of([*outbox.stream_lost(error), *outbox.give_up(error, final=True)])

    def open_batch(self, outbox: Outbox, size: int, now: float) -> None:
        """Open a batch that takes a message of `size` bytes; with linger it is sealed when its time is over."""
        opened = outbox.open_batch(size, now)
        if opened is not None and outbox.linger_s:
            self._set_timer(now + outbox.linger_s, outbox, opened)

    def start(self, outbox: Outbox, now: float, *, direct: bool) -> list[PendingBatch]:
        """Start to send what can be sent now.

        With `direct`, return what the calling thread writes itself, with no hand-over. Everything else is left to the
        sender thread. What cannot be sent now waits for an acknowledgement or a timer.
        """
        if not outbox.is_sendable(now):
            return []
        if not direct:
            self.schedule(outbox)
            return []
        if outbox in self._expected and now < self._coalesce_until:
            return self._join_expected(outbox, now)
        if not self._has_stream or self._is_writing or self._ready:
            self.schedule(outbox)
            return []
        batch = outbox.take(now)
        if batch is None:
            return []
        self._is_writing = True
        return [batch]

    def send_all(self, outbox: Outbox) -> None:
        """Start to send everything that was collected, without lingering."""
        outbox.seal()
        self.schedule(outbox)

    def schedule(self, outbox: Outbox) -> None:
        """Queue the producer for the sender thread."""
        if not outbox.is_scheduled:
            outbox.is_scheduled = True
            self._ready.append(outbox)
            self._wants_stream = True
            self._wake()

    def trouble_of(self, outbox: Outbox, patience_s: float, now: float) -> IcestreamError | None:
        """Return the last error if the broker has accepted nothing of the producer for `patience_s` seconds."""
        if outbox.sent or not outbox.is_busy or now - outbox.progress_at < patience_s:
            return None
        return self._connection_error or outbox.last_error

    # ---- producers that write together

    def _expect_again(self, outboxes: Iterable[Outbox], now: float) -> None:
        self._end_coalescing()
        self._expected = set(outboxes)
        self._coalesce_until = now + COALESCE_SECONDS

    def _join_expected(self, outbox: Outbox, now: float) -> list[PendingBatch]:
        """The last one to arrive writes for all."""
        self._expected.discard(outbox)
        if not outbox.is_scheduled:
            outbox.is_scheduled = True
            self._arrived.append(outbox)
        if not self._expected:
            self._end_coalescing()
            if self._has_stream and not self._is_writing:
                return self.next_batches(now)
        if len(self._arrived) < _SEVERAL:
            self._wake()  # for the others the sender thread knows already how long to wait
        return []

    def _end_coalescing(self) -> None:
        self._expected = set()
        self._ready += self._arrived
        self._arrived = []

    # ---- writing

    def next_batches(self, now: float) -> list[PendingBatch]:
        """Return the next producer's batch, and small ones of the producers behind it that have the same topic.

        The producers take turns: each writes one batch, then it is the next one's turn.
        """
        first = self._next_batch(now)
        if first is None:
            return []
        batches, room = [first], _COMBINED_BYTES - first.nbytes
        while self._ready and first.record is None and len(batches) < _COMBINED_BATCHES:
            outbox = self._ready[0]
            if not outbox.can_join(first.outbox, room, now):
                break
            self._ready.popleft()
            outbox.is_scheduled = False
            taken = outbox.take(now)
            assert taken is not None
            batches.append(taken)
            room -= taken.nbytes
        return batches

    def _next_batch(self, now: float) -> PendingBatch | None:
        while self._ready and self._has_stream and not self._is_writing:
            outbox = self._ready.popleft()
            outbox.is_scheduled = False
            batch = outbox.take(now)
            if batch is not None:
                self._is_writing = True
                return batch
            if outbox.not_before > now and outbox.timer_at != outbox.not_before:
                outbox.timer_at = outbox.not_before
                self._set_timer(outbox.not_before, outbox)
        return None

    def request(self, batches: list[PendingBatch], *, seen: int) -> tuple[pa.RecordBatch | None, bytes] | None:
        """Return the Arrow batch and metadata that carry these batches; None if none of them is to be written any more.

        A lone message needs no Arrow batch: it is all in the metadata. `seen` is the number of acknowledgements that
        were read from the stream.
        """
        if len(batches) == 1:
            (batch,) = batches
            outbox = batch.outbox
            if batch not in outbox.sent:  # the stream broke meanwhile, and the batch went back to the queue
                return None
            more = bool(self._in_flight or self._ready or outbox.queue or outbox.open)
            metadata = outbox.metadata(batch, self._number(batch), seen=seen, more=more)
            if batch.is_lone_message:
                return None, lone_message(metadata, batch.lone_body())
            return batch.arrow(), metadata
        batches = [batch for batch in batches if batch in batch.outbox.sent]
        if not batches:
            return None
        more = bool(self._in_flight or self._ready)
        return combined_request(batches, [self._number(batch) for batch in batches], seen=seen, more=more)

    def _number(self, batch: PendingBatch) -> int:
        batch_id = next(self._batch_ids)
        self._in_flight[batch_id] = batch
        return batch_id

    def written(self, batches: list[PendingBatch], now: float) -> None:
        """The batches were written, or could not be: the stream's end is handled where it is noticed."""
        self._is_writing = False
        for batch in batches:
            if batch.outbox.is_sendable(now):
                self.schedule(batch.outbox)
        if self._ready:
            self._wake()

    # ---- acknowledgements

    def settled(self, outcome: PublishOutcome, now: float) -> Callbacks:
        """The broker acknowledged or refused a batch, or several that were written together."""
        outcomes = outcome.answers or (outcome,)
        if len(outcomes) >= _SEVERAL:
            batches = (self._in_flight.get(one.id) for one in outcomes if one.id is not None)
            self._expect_again((batch.outbox for batch in batches if batch is not None), now)
        return [callback for one in outcomes for callback in self._settle(one, now)]

    def _settle(self, outcome: PublishOutcome, now: float) -> Callbacks:
        batch = None if outcome.id is None else self._in_flight.pop(outcome.id, None)
        if batch is None:
            return []
        outbox = batch.outbox
        if outcome.error is not None:
            done = outbox.refused(batch, error_from_dict(outcome.error), now)
        else:
            self._backoff.reset()
            done = outbox.acked(
                batch,
                outcome.base_offset,
                outcome.publish_time_us,
                now,
                snapshot_id=outcome.snapshot_id,
                duplicate=outcome.duplicate,
            )
        if outbox.held:  # it was refused once more, and its time is over
            self._check_at = now
            self._wake()
        elif outbox.is_sendable(now) or outbox.not_before > now:
            self._expected.discard(outbox)
            self.schedule(outbox)
        return outbox.callbacks_of(done)

    # ---- time

    def advance(self, now: float) -> None:
        """Do what is due: seal batches whose linger is over, queue producers whose delay is over."""
        while self._timers and self._timers[0][0] <= now:
            _, _, outbox, batch = heapq.heappop(self._timers)
            if batch is not None and outbox.open is batch:
                outbox.seal()
            self.schedule(outbox)
        if self._arrived and now >= self._coalesce_until:
            self._end_coalescing()

    def next_due(self) -> float | None:
        """Return when the sender thread has to look again, if nothing else happens."""
        due = [self._timers[0][0]] if self._timers else []
        if self._arrived:
            due.append(self._coalesce_until)
        if not self._has_stream and self._wants_stream:
            due.append(self._connect_at)
        if self._in_flight or not self._has_stream:
            due.append(self._check_at)
        return min(due) if due else None

    def _set_timer(self, when: float, outbox: Outbox, batch: PendingBatch | None = None) -> None:
        """At `when`, seal the batch if it is still open, and queue the producer."""
        heapq.heappush(self._timers, (when, next(self._timer_ids), outbox, batch))
        if self._timers[0][0] == when:
            self._wake()

    def stalled(self, now: float) -> list[Outbox]:
        """Return the producers whose retry timeout is over. Checked now and then; see `give_up`."""
        if now < self._check_at:
            return []
        limits = [outbox.retry_timeout_s for outbox in self._outboxes if outbox.retry_timeout_s is not None]
        self._check_at = now + min([_CHECK_INTERVAL_S, *(limit / 4 for limit in limits)])
        return [outbox for outbox in self._outboxes if outbox.is_stalled(now)]

    def give_up(self, stalled: Iterable[Outbox]) -> Callbacks:
        """Fail the messages of stalled producers."""
        callbacks: Callbacks = []
        for outbox in stalled:
            if outbox.sent:
                # It was refused again and again and is in flight once more: wait for the outcome, so that it is known.
                outbox.hold()
            else:
                callbacks += outbox.callbacks_of(outbox.timed_out(self._connection_error))
        return callbacks

    # ---- the stream

    def wants_connection(self, now: float) -> bool:
        return not self._has_stream and self._wants_stream and now >= self._connect_at

    def connected(self) -> None:
        self._has_stream = True
        self._connection_error = None

    def connect_failed(self, error: IcestreamError, now: float) -> None:
        self._connection_error = error
        self._connect_at = now + self._backoff.next()

    def disconnected(self, error: IcestreamError, now: float) -> Callbacks:
        """The stream is lost: its batches are sent again on the next one, or fail if the error is final."""
        self._has_stream = False
        self._in_flight.clear()
        self._end_coalescing()
        self.connect_failed(error, now)
        callbacks: Callbacks = []
        for outbox in self._outboxes:
            is_concerned = bool(outbox.sent)
            callbacks += outbox.callbacks_of(outbox.stream_lost(error))
            if is_concerned and not is_temporary(error):
                callbacks += outbox.callbacks_of(outbox.give_up(error))
            if outbox.is_busy:
                self.schedule(outbox)
        # With nothing to send, the next stream can wait for the next message.
        self._wants_stream = bool(self._ready)
        return callbacks

    @property
    def is_reachable(self) -> bool:
        """Whether there is a stream, or the first one is about to be opened."""
        return self._has_stream or self._connection_error is None

    def close(self, error: IcestreamError) -> Callbacks:
        """Fail what is not acknowledged with `error`."""
        self._has_stream = False
        callbacks = [callback for outbox in tuple(self._outboxes) for callback in self.detach(outbox, error)]
        self._wake()
        return callbacks


def combined_request(
    batches: Sequence[PendingBatch], ids: Sequence[int], *, seen: int, more: bool
) -> tuple[pa.RecordBatch | None, bytes]:
    """Return one request for batches of several producers: the broker commits and acknowledges it as one.

    There is no Arrow batch where all are lone messages: they are all in the metadata.
    """
    first = batches[0].outbox
    parts = [_part(batch, number) for batch, number in zip(batches, ids, strict=True)]
    request = PublishRequest(topic=first.topic, ack=first.ack, more=more, seen=seen, parts=parts)
    if not all(batch.is_lone_message for batch in batches):
        return _concatenated(batches), msgspec.json.encode(request)
    bodies = [batch.lone_body() for batch in batches]
    for part, body in zip(parts, bodies, strict=True):
        part.nbytes = len(body)
    return None, lone_message(msgspec.json.encode(request), *bodies)


def _part(batch: PendingBatch, number: int) -> PublishPart:
    outbox = batch.outbox
    return PublishPart(
        count=batch.count, id=number, producer=outbox.name, sequence=batch.sequence, session=outbox.session
    )


def _concatenated(batches: Sequence[PendingBatch]) -> pa.RecordBatch:
    """Return the messages of batches that are still columns of Python values, in order."""
    payloads = [payload for batch in batches for payload in batch.payloads]
    keys = attributes = None
    if any(batch.keys for batch in batches):
        keys = [key for batch in batches for key in batch.keys or [None] * batch.count]
    if any(batch.attributes for batch in batches):
        attributes = [pairs for batch in batches for pairs in batch.attributes or [None] * batch.count]
    return message_batch(payloads, keys, attributes)


def _sequence(batch: PendingBatch) -> int:
    assert batch.sequence is not None
    return batch.sequence
