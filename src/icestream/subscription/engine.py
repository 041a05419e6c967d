"""What all subscriptions of a storage share."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from icestream.config import SubscriptionSettings
from icestream.model.clock import Clock
from icestream.model.names import TopicName
from icestream.subscription.hub import Hub

if TYPE_CHECKING:
    from icestream.subscription.dead_letters import DeadLetters
    from icestream.subscription.progress_writer import ProgressWriter

PublishDeadLetters = Callable[[TopicName, TopicName, pa.RecordBatch], None]
"""Store a batch from `dead_letter_batch` in a topic, which is made if it is missing; the second name is the origin's.

Returns when the batch is durable."""


@dataclass(frozen=True)
class Engine:
    settings: SubscriptionSettings
    clock: Clock
    hub: Hub
    writer: "ProgressWriter"
    dead_letters: "DeadLetters"
    turns: threading.Lock = field(default_factory=threading.Lock)
    """Held by the one thread that works for a consumer, and taken before any subscription's lock.

    Hundreds of threads that all want the interpreter pass it around at every call that lets go of it, and spend more
    time on that than on their work. Whoever waits, or reads what is not in memory, lets the next one have its turn."""

    def now_ms(self) -> int:
        return self.clock() // 1000
