"""One producer's batches in order: what is open, queued, in flight, and to be sent again. No threads, no network.

What it guarantees, given a broker that keeps the protocol: batches are stored in the order in which they were sealed,
each at most once, and a batch that is reported as failed with a final error leaves no hole behind it.

The rules:

1. A batch gets its sequence when it is first written, and keeps it as long as a copy of it may still reach the broker.
2. At most `max_in_flight` batches are unanswered; a single one until the broker has stored one under this name, because
   it cannot see a hole in the count of a producer that it does not know.
3. After any failure nothing new is written until all that is in flight is answered. Then what failed for now is written
   again from the oldest on, with the same sequences.
4. After a final failure the sequences from the failed one on are given anew, so that the broker sees no hole. Before
   that, all earlier batches are settled under their own sequences; the later ones cannot have been stored. It is safe
   only when no copy of a later batch can turn up afterwards and fit by accident into the new count. A copy that was
   answered is dead; one that was on a stream when it broke may still sit in the broker. In that case the count cannot
   be continued: a producer with a generated name takes a new name and counts from 0, one with a given name fails. So
   does one whose name another producer was opened with since.
5. When the broker has accepted nothing for `retry_timeout_s`, all that waits fails, and rule 4 applies.
"""

import json
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from icestream.client.backoff import Backoff
from icestream.client.committed import CommittedSnapshot
from icestream.client.pending import PendingBatch
from icestream.model.errors import ClosedError, IcestreamError, ProducerFencedError, SequenceError, UnavailableError

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
