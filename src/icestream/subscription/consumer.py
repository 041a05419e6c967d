"""One consumer's connection to a subscription."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from icestream.model.errors import ClosedError, IcestreamError, InvalidRequestError

if TYPE_CHECKING:  # a session hands on to what knows sessions
    from icestream.subscription.subscription import Subscription


class Credit:
    """How much a consumer may be sent: what it can queue, less what it was sent and has not taken out of its queue.

    Bytes are counted by the engine on both ways, so that a consumer that counts otherwise loses no credit.
    """

    def __init__(self, messages: int, nbytes: int) -> None:
        self.messages = messages
        self.nbytes = nbytes
        self._sent: deque[tuple[int, int]] = deque()
        """Messages and bytes of deliveries that are in the consumer's queue."""

    def left(self, max_messages: int | None, max_bytes: int | None) -> tuple[int, int]:
        """Messages and bytes that may be sent now, for one who wants no more than this."""
        return (
            self.messages if max_messages is None else min(self.messages, max_messages),
            self.nbytes if max_bytes is None else min(self.nbytes, max_bytes),
        )

    def take(self, messages: int, nbytes: int) -> None:
        self.messages -= messages
        self.nbytes -= nbytes
        self._sent.append((messages, nbytes))

    def grant(self, messages: int, nbytes: int) -> None:
        """So many messages left the queue; what is beyond those in it makes the queue larger."""
        self.messages += messages
        left = messages
        while left and self._sent:
            count, size = self._sent.popleft()
            if count > left:
                part = size * left // count
                self._sent.appendleft((count - left, size - part))
                count, size = left, part
            self.nbytes += size
            left -= count
        if left == messages:
            self.nbytes += nbytes
        elif left:
            self.nbytes += nbytes * left // messages


class ConsumerSession:
    """Thread-safe. Made by `Subscription.connect`."""

    def __init__(
        self,
        subscription: "Subscription",
        lock: threading.Lock,
        name: str,
        number: int,
        *,
        schema: pa.Schema,
        credit: Credit,
        connected_us: int,
        timeout_ms: int,
    ) -> None:
        self.subscription = subscription
        self.name = name
        self.number = number
        self.schema = schema
        """Of its deliveries, whatever columns the topic gains meanwhile."""
        self.connected_us = connected_us
        self.listeners: set[Callable[[], None]] = set()
        """Called, by any thread and under a lock, when `receive` may have something: for those who cannot wait."""
        self.credit = credit
        self.timeout_ms = timeout_ms
        self.seen_us = connected_us
        self.scan_from = 0
        """Nothing below this offset is waiting for it."""
        self.delivered_end = 0
        """Behind the last message that it got."""
        self.ready = threading.Condition(lock)
        self.ended: IcestreamError | None = None

    @property
    def deadline_ms(self) -> int:
        """When it has been silent for too long."""
        return self.seen_us // 1000 + self.timeout_ms

    @property
    def closed(self) -> bool:
        return self.ended is not None

    @property
    def turn(self) -> threading.Lock:
        """To be held during several calls in a row, of which none may be `receive`."""
        return self.subscription.turns

    def receive(
        self,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        timeout_seconds: float | None = None,
    ) -> pa.RecordBatch | None:
        """The next messages, within the credit, which one message larger than what is left may overdraw.

        None when there is nothing within the time; without a time it waits. Raises ClosedError once the session is
        closed, and TopicNotFoundError when the topic was deleted. Calling it is no sign of life of the consumer.
        """
        return self.subscription.dispatch.receive(
            self, max_messages=max_messages, max_bytes=max_bytes, timeout_seconds=timeout_seconds
        )

    def grant(self, messages: int, nbytes: int) -> None:
        """The consumer has taken so much out of its queue, or has room for more."""
        if messages < 0 or nbytes < 0:
            raise InvalidRequestError("a credit is 0 or more", operation="grant")
        self.subscription.answers.grant(self, messages, nbytes)

    def ack(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Messages `[first, end)` are done. What this consumer does not have is passed over."""
        self.subscription.answers.ack(self, ranges)

    def ack_cumulative(self, offset: int) -> None:
        """This message and all before are done; where one consumer has them all."""
        self.subscription.answers.ack_cumulative(self, offset)

    def nack(self, ranges: Sequence[tuple[int, int]], delay_ms: int | None = None) -> None:
        """Messages `[first, end)` are to come again, after the subscription's delay or this one."""
        self.subscription.answers.nack(self, ranges, delay_ms)

    def touch(self) -> None:
        """The consumer is alive."""
        self.subscription.answers.touch(self)

    def close(self) -> None:
        """What it holds goes to others at once. May be called again."""
        self.subscription.disconnect(self, ClosedError("the consumer was closed", operation="receive"))

    def wake(self) -> None:
        """Under the subscription's lock: there may be something to receive."""
        self.ready.notify_all()
        self.tell_listeners()

    def tell_listeners(self) -> None:
        for listener in tuple(self.listeners):
            listener()
