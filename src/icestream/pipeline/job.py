"""One Spark job for many topics, in which a topic that takes its worker down takes nobody else with it.

Errors come back as results. A worker that dies (memory, a crash in native code) fails its task; Spark tries that again,
and at last gives up the whole job. Then the job is run again in halves, until the topic that does it is alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from icestream.model.names import TopicName
from icestream.pipeline.plan import Piece
from icestream.pipeline.session import JobFailedError
from icestream.pipeline.write import Work, Written, pack_parcel

Run = Callable[[Sequence[bytes]], list[Written]]
Tasks = Sequence[Sequence[Piece]]


def translate(tasks: Tasks, works: Mapping[TopicName, Work], run: Run) -> list[Written]:
    """Write the pieces; `works` says for each topic how, its ranges are filled in here."""
    try:
        return run([_parcel(task, works) for task in tasks])
    except JobFailedError as error:
        topics = sorted({piece.topic for task in tasks for piece in task})
        if len(topics) == 1:
            first = min((piece for task in tasks for piece in task), key=lambda piece: piece.start)
            return [Written(first.topic, first.start, first.end, error=error)]
        half = set(topics[: len(topics) // 2])
        parts = [_only(tasks, lambda topic: topic in half), _only(tasks, lambda topic: topic not in half)]
        # Tasks of the job that failed may have written files that nobody knows of.
        return [replace(written, again=True) for part in parts for written in translate(part, works, run)]


def _only(tasks: Tasks, wanted: Callable[[TopicName], bool]) -> Tasks:
    kept = [[piece for piece in task if wanted(piece.topic)] for task in tasks]
    return [task for task in kept if task]


def _parcel(task: Sequence[Piece], works: Mapping[TopicName, Work]) -> bytes:
    ranges: dict[TopicName, list[tuple[int, int]]] = {}
    for piece in task:
        ranges.setdefault(piece.topic, []).append((piece.start, piece.end))
    return pack_parcel(works[topic].with_ranges(found) for topic, found in ranges.items())
