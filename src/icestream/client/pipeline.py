"""The calls of a pipeline: what is to be written, the messages themselves, and reports."""

from dataclasses import dataclass
from typing import Any, Self

import msgspec

from icestream.client.connection import Connection
from icestream.client.range_reader import FrameReader, RangeReader
from icestream.model.enums import StorageFormat
from icestream.model.names import TopicName
from icestream.protocol.pipeline import BacklogEntry, BacklogResponse

MAX_REPORTED_TOPICS = 500
"""In one call; a request is at most 1 MiB."""


@dataclass(frozen=True)
class TopicBacklog:
    """What a topic holds: the offsets from `start_offset` to before `durable_end`, in `nbytes` of log."""

    topic: TopicName
    stream_id: str
    epoch: int
    schema: str | None
    """Base64 of the serialized Arrow schema, for a topic with its own columns."""
    partition_by: tuple[str, ...]
    sort_by: tuple[str, ...]
    start_offset: int
    durable_end: int
    nbytes: int
    awaited_end: int = 0
    """A client waits until the messages below it are in the table; 0 if none does."""
    error: str | None = None
    """Why the log cannot be read, if it cannot."""
    format: StorageFormat = StorageFormat.ICEBERG
    """Which tables the broker wants the messages in."""

    @classmethod
    def of(cls, entry: BacklogEntry) -> Self:
        fields = {name: getattr(entry, name) for name in entry.__struct_fields__}
        return cls(**fields | {"topic": TopicName.parse(entry.topic), "nbytes": fields.pop("bytes")})


@dataclass(frozen=True)
class PipelineBacklog:
    mark: str
    """Give it with the next request: the response then holds what has changed since."""
    complete: bool
    """False while the broker still opens logs: some topics are not told of yet."""
    topics: list[TopicBacklog]


class PipelineCalls:
    """The pipeline's calls, which `Client` offers as its own."""

    _connection: Connection

    def backlog(
        self, topics: str = "*", *, mark: str | None = None, wait_ms: int = 0, timeout: float | None = None
    ) -> PipelineBacklog:
        """Return what the matching topics hold; with a mark, those that changed since, after `wait_ms` at most."""
        fields = {"topics": topics, "mark": mark, "wait_ms": wait_ms or None}
        response = self._connection.action("backlog", fields, timeout_s=timeout)
        found = msgspec.convert(response, BacklogResponse)
        return PipelineBacklog(found.mark, found.complete, [TopicBacklog.of(entry) for entry in found.topics])

    def cut_range(self, topic: TopicName, start: int, end: int, *, piece_bytes: int, max_pieces: int) -> list[int]:
        """Return where ranges of about `piece_bytes` of log end, from `start` on: at most so many, none past `end`."""
        fields = {
            "topic": str(topic),
            "start": start,
            "end": end,
            "piece_bytes": piece_bytes,
            "max_pieces": max_pieces,
        }
        return list(self._connection.action("cut_range", fields)["ends"])

    def read_range(self, topic: TopicName | str, stream_id: str, start: int, end: int) -> RangeReader:
        """Read every message of a range exactly once, or raise."""
        return RangeReader(self._connection, str(topic), stream_id, start, end)

    def read_frames(
        self, topic: TopicName | str, stream_id: str, start: int, end: int, *, bodies: bool = True
    ) -> FrameReader:
        """Read the frames of a range, undecoded; without bodies, only where they begin and end."""
        return FrameReader(self._connection, str(topic), stream_id, start, end, bodies=bodies)

    def tell_committed(self, topic: TopicName, stream_id: str, offset: int, snapshot_id: int | None) -> None:
        """Tell the broker that all messages below `offset` are in the topic's table. It is a hint."""
        fields = {
            "topic": str(topic),
            "stream_id": stream_id,
            "committed_offset": offset,
            "snapshot_id": snapshot_id,
        }
        self._connection.action("committed", fields)

    def report_pass(self, passed: dict[str, Any], topics: list[dict[str, Any]]) -> None:
        """Report what a pass has done; see `pipeline_report` in the protocol."""
        self._connection.action("pipeline_report", {"pass": passed, "topics": topics[:MAX_REPORTED_TOPICS]})
        for start in range(MAX_REPORTED_TOPICS, len(topics), MAX_REPORTED_TOPICS):
            self._connection.action("pipeline_report", {"topics": topics[start : start + MAX_REPORTED_TOPICS]})
