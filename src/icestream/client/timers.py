"""When the sender thread has to look at which producer again: one heap for all, no thread a producer."""

import heapq
import itertools

from icestream.client.outbox import Outbox
from icestream.client.pending import PendingBatch


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
