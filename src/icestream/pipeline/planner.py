"""Decides what a pass writes: pure functions from waiting messages to tasks.

Guarantees: a topic's ranges begin at the ledger's committed offset and follow each other, so every offset is in
exactly one; a pass takes no more than its limits; no message waits past its flush interval while there is room.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

from icestream.config import Settings
from icestream.model.names import TopicName
from icestream.model.units import MIB
from icestream.protocol.pipeline import TopicBacklog

MIN_RANGE_BYTES = 8 * MIB
"""Less is not worth a file, however many cores are free."""
ITEM_COST_BYTES = MIB
"""The fixed cost of a topic, as the bytes that could be written in that time."""
TASKS_PER_CORE = 4
"""With several tasks a core, a slow task leaves no core idle. Only for passes that are large enough."""
MAX_LEAD_SHARE = 0.25
_UNKNOWN_BYTES = 512.0
"""Assumed size of a message if the log holds none."""


@dataclass(frozen=True)
class PassLimits:
    batch_messages: int
    flush_seconds: float
    memory_bytes: int
    task_bytes: int
    pass_bytes: int
    pass_topics: int

    @classmethod
    def of(cls, settings: Settings) -> "PassLimits":
        writer, pipeline = settings.writer, settings.pipeline
        return cls(
            batch_messages=writer.batch_size,
            flush_seconds=writer.flush_interval_ms / 1000,
            memory_bytes=writer.max_memory_bytes,
            task_bytes=pipeline.max_task_bytes,
            pass_bytes=pipeline.max_pass_bytes,
            pass_topics=pipeline.max_pass_topics,
        )


@dataclass(frozen=True)
class WaitingRange:
    """The messages `start` to before `end` of a topic: durable, and not in its table."""

    topic: TopicName
    start: int
    end: int
    nbytes: int
    """Bytes of log, estimated."""
    since: float
    """When the oldest was first seen, in monotonic seconds."""
    served: float = 0.0
    """When messages of the topic were last written."""
    awaited: bool = False
    """A client waits until some of them are in the table."""
    has_failed: bool = False
    """The topic's last try failed: it gets one range until a try succeeds."""
    tables: tuple[TopicName, ...] = ()
    """The tables that get them."""

    @property
    def messages(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class WriteRange:
    topic: TopicName
    start: int
    end: int
    nbytes: int


def mean_bytes(backlog: TopicBacklog) -> float:
    """Return the mean size of a message, as far as known."""
    held = backlog.durable_end - backlog.start_offset
    return backlog.nbytes / held if held else _UNKNOWN_BYTES


def due_at(waiting: WaitingRange, limits: PassLimits, *, pass_seconds: float = 0.0) -> float:
    """Return when these messages are due: at once if they are many or a client waits for them, else by their age.

    A pass takes `pass_seconds`. It begins that much earlier, but at most a quarter of the flush interval, so that
    messages are in the table when the interval ends.
    """
    if waiting.awaited or waiting.messages >= limits.batch_messages or waiting.nbytes >= limits.memory_bytes:
        return waiting.since
    return waiting.since + limits.flush_seconds - min(pass_seconds, MAX_LEAD_SHARE * limits.flush_seconds)


def allot(due: Iterable[WaitingRange], limits: PassLimits) -> list[tuple[WaitingRange, int]]:
    """Return the topics of one pass, and how many bytes each may take.

    Topics that were served longest ago come first. A small topic takes all its bytes; large topics share the rest. So
    no topic waits for another topic's backlog.
    """
    chosen = sorted(due, key=lambda one: (one.served, one.since, one.topic))[: limits.pass_topics]
    shares: dict[TopicName, int] = {}
    room = limits.pass_bytes
    for index, topic in enumerate(sorted(chosen, key=lambda one: one.nbytes)):
        share = min(topic.nbytes, max(1, room // (len(chosen) - index)))
        shares[topic.topic] = min(share, limits.task_bytes) if topic.has_failed else share
        room -= shares[topic.topic]
    return [(topic, shares[topic.topic]) for topic in chosen]


def range_bytes(total: int, limits: PassLimits, parallelism: int) -> int:
    """Return the size of ranges with which all cores work on `total` bytes and end at about the same time."""
    rounds = max(1, -(-total // (parallelism * limits.task_bytes)))
    return min(limits.task_bytes, max(MIN_RANGE_BYTES, -(-total // (parallelism * rounds))))


def range_count(topic: WaitingRange, share: int, size: int) -> int:
    """Return how many ranges a topic's share makes; one if its last try failed, so that little is written in vain."""
    return 1 if topic.has_failed else max(1, -(-share // size))


def whole(topic: WaitingRange) -> WriteRange:
    return WriteRange(topic.topic, topic.start, topic.end, topic.nbytes)


def cut(topic: WaitingRange, ends: Sequence[int]) -> list[WriteRange]:
    """Return the topic's ranges, given where each ends. Messages after the last are left for a later pass."""
    starts = [topic.start, *ends[:-1]]
    average = topic.nbytes / topic.messages
    return [
        WriteRange(topic.topic, start, end, round(average * (end - start)))
        for start, end in zip(starts, ends, strict=True)
    ]


def pack(ranges: Sequence[WriteRange], parallelism: int) -> list[list[WriteRange]]:
    """Distribute the ranges over tasks of about equal cost. Each task has its ranges in offset order."""
    total = sum(one.nbytes for one in ranges)
    spread = TASKS_PER_CORE if total >= TASKS_PER_CORE * parallelism * MIN_RANGE_BYTES else 1
    tasks: list[list[WriteRange]] = [[] for _ in range(min(len(ranges), spread * parallelism))]
    loads = [(0, number) for number in range(len(tasks))]
    heapify(loads)
    for one in sorted(ranges, key=lambda one: (-one.nbytes, one.topic, one.start)):
        load, number = loads[0]
        tasks[number].append(one)
        heapreplace(loads, (load + one.nbytes + ITEM_COST_BYTES, number))
    return [sorted(task, key=lambda one: (one.topic, one.start)) for task in tasks]
