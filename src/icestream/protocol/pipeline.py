"""The pipeline: what waits in topics, how to share it out, and what the pipeline has done."""

from typing import Annotated

from msgspec import Meta, Struct, field

from icestream.model.enums import StorageFormat
from icestream.model.names import TopicName
from icestream.protocol.parsing import MAX_INT, Int64, Request, Response

MAX_RANGES = 10_000


class BacklogRequest(Request):
    """Ask which topics hold messages. With the `mark` of an earlier response: which have changed since."""

    topics: str = "*"
    mark: str | None = None
    wait_ms: Int64 = 0


class TopicBacklog(Response):
    """What a topic's log holds: the offsets from `start_offset` to before `durable_end`, in `nbytes` of log."""

    topic: str
    stream_id: str
    epoch: int
    schema: str | None
    """Base64 of the serialized Arrow schema, for a topic with its own columns."""
    partition_by: tuple[str, ...]
    sort_by: tuple[str, ...]
    start_offset: int
    durable_end: int
    nbytes: int = field(name="bytes")
    awaited_end: int = 0
    """A client waits until the messages below it are in the table; 0 if none does."""
    error: str | None = None
    """Why the log cannot be read, if it cannot."""
    format: StorageFormat = StorageFormat.ICEBERG
    """Which tables the broker wants the messages in."""
    in_table_below: int = 0
    """All messages below it were in a table once: a table that ends before it is not the topic's whole table."""

    @property
    def name(self) -> TopicName:
        return TopicName.parse(self.topic)


class PipelineBacklog(Response):
    mark: str
    """Give it with the next request: the response then holds what has changed since."""
    complete: bool
    """False while the broker still opens logs: some topics are not listed yet."""
    topics: list[TopicBacklog]


class CutRange(Request):
    """Ask where slices of about equal bytes of log end."""

    topic: str
    start: Int64
    end: Int64
    range_bytes: Annotated[int, Meta(ge=1, le=MAX_INT)]
    max_ranges: Annotated[int, Meta(ge=1, le=MAX_RANGES)] = MAX_RANGES


class RangeEnds(Response):
    ends: list[int]


class CommittedHint(Request):
    """Tell the broker to look at a topic's table: it has a new snapshot."""

    topic: str
    stream_id: str


class PassReport(Request):
    """Figures of a pass over all topics."""

    passes: int | float = 0
    pass_seconds: float = 0.0


class WriteFigures(Struct, frozen=True, kw_only=True):
    """What the pipeline has written."""

    messages: int = 0
    bytes: Annotated[int, Meta(description="As Arrow.")] = 0
    files: int = 0
    file_bytes: int = 0
    commits: int = 0
    conflicts: int = 0
    failures: Annotated[int, Meta(description="Ranges that could not be written or committed.")] = 0
    lost: Annotated[int, Meta(description="Messages that a repair of the log has given up.")] = 0
    quarantined: Annotated[int, Meta(description="Frames that were put into quarantine.")] = 0
    translate_seconds: float = 0.0
    commit_seconds: float = 0.0


class TopicReport(WriteFigures, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a pass has done for one topic, and how far its table is."""

    topic: str
    committed_offset: int | None = None
    snapshot_id: int | None = None
    durable_end: int | None = None
    error: str | None = None
    retry_ms: int | float | None = None


class PipelineReport(Request):
    passed: PassReport = field(name="pass", default_factory=PassReport)
    topics: list[TopicReport] = field(default_factory=list)
