"""All producers of a client that share an Arrow schema, on one stream.

Any thread may write, one at a time: the thread that sends a lone message writes it itself, so it pays for no hand-over;
what cannot go at once is left to the sender thread, which is woken by acknowledgements, timers and reconnects, and
writes what several producers of a topic have by then as one. There are two threads, however many producers there are.
One lock guards all state and is never held during input or output.

Producers that were answered together wait a moment for each other: see `gathering`.
"""

import itertools
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from icestream.client.backoff import Backoff
from icestream.client.connection import Connection
from icestream.client.gathering import Gathering
from icestream.client.outbox import Afterwards, Outbox
from icestream.client.pending import PendingBatch
from icestream.client.publish_stream import PublishStream
from icestream.client.timers import Timers
from icestream.client.together import together
from icestream.model.errors import ClosedError, IcestreamError, UnavailableError, error_from_dict
from icestream.model.wire import lone_message

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
