"""One consumer of a subscription, as the subscription keeps it: its credit, its position, its signs of life.

The subscription's state owns these objects, and its lock guards them. Programs hold a `ConsumerSession` instead.
"""

import threading
from collections import deque
from collections.abc import Callable

import pyarrow as pa

from icestream.model.errors import IcestreamError


class Credit:
    """How much a consumer may be sent: what it can queue, less what it was sent and has not taken out of its queue.

    The broker counts bytes both ways, so that a consumer that counts otherwise loses no credit.
    """

    def __init__(self, messages: int, nbytes: int) -> None:
        self.messages = messages
        self.nbytes = nbytes
        self._sent: deque[tuple[int, int]] = deque()
        """Messages and bytes of deliveries that are in the consumer's queue."""

    def left(self, max_messages: int | None, max_bytes: int | None) -> tuple[int, int]:
        """Return how many messages and bytes may be sent now, within these limits."""
        return (
            self.messages if max_messages is None else min(self.messages, max_messages),
            self.nbytes if max_bytes is None else min(self.nbytes, max_bytes),
        )

    def take(self, messages: int, nbytes: int) -> None:
        """Count a delivery."""
        self.messages -= messages
        self.nbytes -= nbytes
        self._sent.append((messages, nbytes))

    def grant(self, messages: int, nbytes: int) -> None:
        """Count messages that left the queue. More than were in it make the queue larger."""
        self.messages += messages
        left = messages
        while left and self._sent:
            count, size = self._sent.popleft()
            if count > left:
                share = size * left // count
                self._sent.appendleft((count - left, size - share))
                count, size = left, share
            self.nbytes += size
            left -= count
        if left == messages:
            self.nbytes += nbytes
        elif left:
            self.nbytes += nbytes * left // messages


class ConnectedConsumer:
    def __init__(
        self,
        name: str,
        number: int,
        *,
        ready: threading.Condition,
        schema: pa.Schema,
        credit: Credit,
        connected_us: int,
        timeout_ms: int,
    ) -> None:
        self.name = name
        self.number = number
        """A small number that no other connected consumer has; the window's arrays name consumers by it."""
        self.ready = ready
        """Of the subscription's lock; notified when there may be messages for this consumer."""
        self.listeners: set[Callable[[], None]] = set()
        """Called, by any thread and under the lock, when there may be messages: for consumers that cannot wait."""
        self.schema = schema
        """Of its deliveries. It stays when the topic gains columns."""
        self.credit = credit
        self.connected_us = connected_us
        self.timeout_ms = timeout_ms
        """The consumer is disconnected when it is silent for so long; 0: never."""
        self.seen_us = connected_us
        self.scan_from = 0
        """No message below this offset is ready for it."""
        self.delivered_end = 0
        """The offset after the last message that it got."""
        self.ended: IcestreamError | None = None
        """Why it was disconnected."""

    @property
    def deadline_ms(self) -> int:
        """When the consumer counts as gone unless it is heard of."""
        return self.seen_us // 1000 + self.timeout_ms

    def wake(self) -> None:
        """Tell the consumer that there may be something to receive."""
        self.ready.notify_all()
        self.notify_listeners()

    def notify_listeners(self) -> None:
        for listener in tuple(self.listeners):
            listener()
