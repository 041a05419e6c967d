"""The outbox against a model of the broker and the network, in many random orders of events.

Plain random walks rather than hypothesis: they find an order of fifteen particular events a hundred times sooner, and a
seed is enough to repeat one.
"""

import os
import random
import threading
from collections import deque

import pytest

from icestream.client.publisher import Outbox, PendingBatch
from icestream.model.clock import Backoff
from icestream.model.errors import InvalidMessageError, LogUnavailableError, SequenceError, UnavailableError

MAX_IN_FLIGHT = 4
WALKS = 40_000 if os.environ.get("ICESTREAM_SOAK") else 500

Copy = tuple[str, int, PendingBatch, int]
"""Producer name, sequence, batch and count, as they were when written."""

Ack = int | InvalidMessageError | LogUnavailableError | SequenceError


class NoDelay(Backoff):
    def next(self) -> float:
        return 0.0


class Walk:
    """Batches of a stream that broke stay in `lingering`, and may be processed at any later time, or never."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names = iter(f"generated-{number}" for number in range(10_000))
        named = self.random.random() < 0.3
        self.outbox = Outbox(
            "default/t",
            threading.Lock(),
            name="given" if named else next(self.names),
            new_name=None if named else lambda: next(self.names),
            max_in_flight=MAX_IN_FLIGHT,
            backoff=NoDelay(),
        )
        self.current: deque[Copy] = deque()
        self.lingering: list[deque[Copy]] = []
        self.acks: deque[tuple[PendingBatch, Ack]] = deque()
        self.known: dict[str, deque[tuple[int, int, int]]] = {}
        self.stored: list[PendingBatch] = []
        self.positions: dict[PendingBatch, int] = {}
        self.bad: set[PendingBatch] = set()
        self.finished: set[PendingBatch] = set()
        self.failed_unknown: set[PendingBatch] = set()

    # ---- what may happen

    def send(self) -> None:
        for _ in range(self.random.randint(1, 4)):
            if self.outbox.failure is not None:
                return
            batch = self.outbox.open_batch(1, 0.0)
            assert batch is not None
            for _ in range(self.random.randint(1, 2)):
                assert self.outbox.add(b"", None, None, 1) is batch
            self.outbox.seal()
            self.positions[batch] = len(self.positions)
            if self.random.random() < 0.2:
                self.bad.add(batch)

    def write(self) -> None:
        for _ in range(self.random.randint(1, MAX_IN_FLIGHT)):
            batch = self.outbox.take(0.0)
            if batch is not None:
                assert batch.sequence is not None
                self.current.append((self.outbox.name, batch.sequence, batch, batch.count))

    def broker_works(self) -> None:
        for _ in range(self.random.randint(1, MAX_IN_FLIGHT)):
            if self.current:
                copy = self.current.popleft()
                self.acks.append((copy[2], self.process(copy, refuse=self.random.random() < 0.3)))

    def broker_finds_an_old_batch(self) -> None:
        if self.lingering:
            self.process(self.random.choice(self.lingering).popleft(), refuse=False)
            self.lingering = [queue for queue in self.lingering if queue]

    def acks_arrive(self) -> None:
        for _ in range(self.random.randint(1, MAX_IN_FLIGHT)):
            if self.acks:
                batch, result = self.acks.popleft()
                if isinstance(result, int):
                    self.finish(self.outbox.acked(batch, result, 1, 0.0))
                else:
                    self.finish(self.outbox.refused(batch, result, 0.0))

    def stream_breaks(self) -> None:
        if self.current:
            self.lingering.append(self.current)
        self.current = deque()
        self.acks.clear()
        self.finish(self.outbox.stream_lost(UnavailableError("lost")))

    def retries_time_out(self) -> None:
        self.stream_breaks()
        self.failed_unknown.update(self.outbox.pending())
        self.finish(self.outbox.give_up(UnavailableError("too long")))

    # ---- the broker, and the bookkeeping

    def process(self, copy: Copy, *, refuse: bool) -> Ack:
        """As the broker does: a known batch is a duplicate; one that leaves a hole is refused; a new name may begin."""
        name, sequence, batch, count = copy
        if batch in self.bad:
            return InvalidMessageError("bad")
        sent = self.known.get(name)
        if sent:
            for earlier, earlier_count, base in sent:
                if (earlier, earlier_count) == (sequence, count):
                    return base
            expected = sent[-1][0] + sent[-1][1]
            if expected != sequence:
                return SequenceError("hole", details={"expected": expected})
        if refuse:
            return LogUnavailableError("later")
        self.known.setdefault(name, deque(maxlen=16)).append((sequence, count, len(self.stored)))
        self.stored.append(batch)
        return len(self.stored) - 1

    def finish(self, done: list[PendingBatch]) -> None:
        for batch in done:
            assert batch.done
            assert batch not in self.finished
            self.finished.add(batch)

    def check(self) -> None:
        assert len(self.outbox.sent) <= MAX_IN_FLIGHT
        assert len(set(self.stored)) == len(self.stored)
        # A batch that was reported as not known may turn up late; nothing that the client knows about may.
        positions = [self.positions[batch] for batch in self.stored if batch not in self.failed_unknown]
        assert positions == sorted(positions)

    def run(self) -> None:
        events = [self.send, self.write, self.broker_works, self.acks_arrive]
        events += [self.broker_finds_an_old_batch, self.stream_breaks, self.retries_time_out]
        for event in self.random.choices(events, weights=[20, 25, 20, 20, 7, 6, 1], k=self.random.randint(5, 60)):
            event()
            self.check()

    def settle(self) -> None:
        """Let everything work, without new faults, until nothing is left to do."""
        for _ in range(10 * len(self.positions) + 10):
            self.write()
            while self.current:
                copy = self.current.popleft()
                self.acks.append((copy[2], self.process(copy, refuse=False)))
            self.acks_arrive()
        self.check()
        assert not self.outbox.is_busy
        assert self.outbox.buffered_bytes == 0
        for batch in self.positions:
            assert batch in self.finished
            if batch.error is None:
                assert self.stored[batch.base_offset] is batch
            elif batch in self.bad:
                assert batch not in self.stored
            else:
                # Only what is reported as not known may fail without being bad.
                assert batch in self.failed_unknown or self.outbox.failure is not None


@pytest.mark.parametrize("thousand", range(5))
def test_every_batch_is_stored_once_and_in_order_or_reported(thousand: int) -> None:
    for seed in range(thousand * WALKS, (thousand + 1) * WALKS):
        walk = Walk(seed)
        try:
            walk.run()
            walk.settle()
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
