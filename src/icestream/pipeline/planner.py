"""What to write now: pure functions from what waits to parcels of work.

What it guarantees: of each topic the pieces begin at the ledger's committed offset and follow on each other, so every
offset is in exactly one; a pass takes on no more than its limits; nothing waits past its time while there is room.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

from icestream.client.pipeline import TopicBacklog
from icestream.config import Settings
from icestream.model.names import TopicName
from icestream.model.units import MIB

MIN_PIECE_BYTES = 8 * MIB
"""Less is not worth a file of its own, however many cores are free."""
ITEM_COST_BYTES = MIB
"""What a topic costs whatever its size, as the bytes that could be written meanwhile."""
TASKS_PER_CORE = 4
"""So many tasks that a slow one does not keep the other cores idle, where they are large enough for it to matter."""
MAX_LEAD_SHARE = 0.25
_UNKNOWN_BYTES = 512.0
"""Of a message, where the log holds none to go by."""


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
    """Messages `start` to before `end` of a topic, durable and not in its table."""

    topic: TopicName
    start: int
    end: int
    nbytes: int
    """Of log, estimated."""
    since: float
    """When the oldest was first seen; monotonic seconds."""
    served: float = 0.0
    """When messages of the topic were last written."""
    awaited: bool = False
    """Somebody waits for some of them to be in the table."""
    suspect: bool = False
    """The topic's last try failed: it gets one piece, until one has gone well."""
    tables: tuple[TopicName, ...] = ()
    """Those that they are for."""

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
    """Of a message, as far as is known."""
    held = backlog.durable_end - backlog.start_offset
    return backlog.nbytes / held if held else _UNKNOWN_BYTES


def due_at(waiting: WaitingRange, limits: PassLimits, *, pass_seconds: float = 0.0) -> float:
    """When these messages are to be written: at once if they are many or somebody waits for them, else by their age.

    A pass takes `pass_seconds`; it begins so much earlier that messages are in the table after the flush interval, but
    by no more than a quarter of it.
    """
    if waiting.awaited or waiting.messages >= limits.batch_messages or waiting.nbytes >= limits.memory_bytes:
        return waiting.since
    return waiting.since + limits.flush_seconds - min(pass_seconds, MAX_LEAD_SHARE * limits.flush_seconds)


def allot(due: Iterable[WaitingRange], limits: PassLimits) -> list[tuple[WaitingRange, int]]:
    """The topics of one pass and how many bytes each may take: together no more than a pass may.

    All take part, up to the limit, those first that were served longest ago; a topic with little takes all of it, and
    what that leaves is shared by those with much. So nobody waits for somebody else's backlog.
    """
    chosen = sorted(due, key=lambda one: (one.served, one.since, one.topic))[: limits.pass_topics]
    shares: dict[TopicName, int] = {}
    room = limits.pass_bytes
    for place, topic in enumerate(sorted(chosen, key=lambda one: one.nbytes)):
        share = min(topic.nbytes, max(1, room // (len(chosen) - place)))
        shares[topic.topic] = min(share, limits.task_bytes) if topic.suspect else share
        room -= shares[topic.topic]
    return [(topic, shares[topic.topic]) for topic in chosen]


def range_bytes(total: int, limits: PassLimits, parallelism: int) -> int:
    """How large pieces are to be so that all cores work on `total` bytes, and end at about the same time."""
    rounds = max(1, -(-total // (parallelism * limits.task_bytes)))
    return min(limits.task_bytes, max(MIN_PIECE_BYTES, -(-total // (parallelism * rounds))))


def range_count(topic: WaitingRange, share: int, size: int) -> int:
    """In how many pieces a topic's share goes; one if the topic is suspect, so that little is written in vain."""
    return 1 if topic.suspect else max(1, -(-share // size))


def whole(topic: WaitingRange) -> WriteRange:
    return WriteRange(topic.topic, topic.start, topic.end, topic.nbytes)


def cut(topic: WaitingRange, ends: Sequence[int]) -> list[WriteRange]:
    """The topic's pieces, given where each ends; what lies behind the last is left for later."""
    starts = [topic.start, *ends[:-1]]
    average = topic.nbytes / topic.messages
    return [
        WriteRange(topic.topic, start, end, round(average * (end - start)))
        for start, end in zip(starts, ends, strict=True)
    ]


def pack(pieces: Sequence[WriteRange], parallelism: int) -> list[list[WriteRange]]:
    """Share the pieces out into tasks of about equal cost, the costliest first; each task's in offset order."""
    total = sum(piece.nbytes for piece in pieces)
    spread = TASKS_PER_CORE if total >= TASKS_PER_CORE * parallelism * MIN_PIECE_BYTES else 1
    tasks: list[list[WriteRange]] = [[] for _ in range(min(len(pieces), spread * parallelism))]
    loads = [(0, number) for number in range(len(tasks))]
    heapify(loads)
    for piece in sorted(pieces, key=lambda one: (-one.nbytes, one.topic, one.start)):
        load, number = loads[0]
        tasks[number].append(piece)
        heapreplace(loads, (load + piece.nbytes + ITEM_COST_BYTES, number))
    return [sorted(task, key=lambda one: (one.topic, one.start)) for task in tasks]
