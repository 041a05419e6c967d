"""Topics and the broker: what `docs/protocol.md` calls actions, except those of subscriptions and the pipeline.

A topic's attribute is written down once, in `TopicAttributes`. Every place where it appears is made from this class:

- the stored record (`icestream.storage.TopicRecord`) and the description that clients get have it as a field,
- requests that create or change a topic take it, over Flight and over HTTP,
- the OpenAPI document shows its description and its bounds,
- `Client.create_topic` and `Client.update_topic` take it as a keyword (`TopicKeywords`, tested to be complete),
- a command line can make its options from `topic_attributes()`.
"""

from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, TypedDict

import msgspec
import pyarrow as pa
from msgspec import UNSET, Meta, Struct, UnsetType, defstruct, field

from icestream.model.enums import AckLevel, StorageFormat, StorageKind
from icestream.model.messages import decode_schema
from icestream.protocol.parsing import Count, Int64, Request, Response
from icestream.protocol.pipeline import WriteFigures
from icestream.protocol.socket import SocketAddress

MAX_OBJECTS = 1_000
"""Most cloud objects in one response."""
MAX_TENANTS = 1_000
"""Most tenants in one response."""
MAX_FLUSH_WAIT_MS = 10_000

Retention: TypeAlias = Annotated[int, Meta(ge=1, le=1 << 53)]
RetentionOrZero: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 53)]
Expressions: TypeAlias = Annotated[tuple[str, ...], Meta(max_length=16)]
_CHANGEABLE = {"changeable": True}
_CHANGEABLE_LIMIT = {"changeable": True, "with_zero": RetentionOrZero | None}
Base64: TypeAlias = Annotated[str, Meta(extra_json_schema={"contentEncoding": "base64"})]
TopicText: TypeAlias = Annotated[str, Meta(description="`namespace/name`, or a bare `name` in namespace `default`.")]

# Topics


class TopicAttributes(Struct, frozen=True, kw_only=True):
    """What a user chooses for a topic."""

    ack: Annotated[
        AckLevel, Meta(description="When a publish is acknowledged, unless it names a level.", extra=_CHANGEABLE)
    ] = AckLevel.DISK
    retention_minutes: Annotated[
        Retention | None,
        Meta(
            description="Minutes that the local log keeps messages; of a topic without a table, the cloud. "
            "Unset: the broker's setting; without a table, no limit.",
            extra=_CHANGEABLE_LIMIT,
        ),
    ] = None
    retention_mb: Annotated[
        Retention | None,
        Meta(
            description="MiB that the local log keeps; of a topic without a table, the cloud. "
            "Unset: the broker's setting; without a table, no limit.",
            extra=_CHANGEABLE_LIMIT,
        ),
    ] = None
    encoded_schema: Annotated[
        Base64 | None,
        Meta(description="The serialized Arrow schema of a topic with its own columns.", extra=_CHANGEABLE),
    ] = field(name="schema", default=None)
    partition_by: Annotated[
        Expressions,
        Meta(description="Partitions of the table: `day(publish_time)`, `bucket(16, key)`, a column, …"),
    ] = ()
    sort_by: Annotated[
        Expressions, Meta(description="Columns that the table's files are sorted by; none: the offset.")
    ] = ()
    storage: Annotated[
        StorageKind,
        Meta(
            description="`table`, or `log`: no table; log and cloud objects keep messages until retention deletes them."
        ),
    ] = StorageKind.TABLE


class TopicKeywords(TypedDict, total=False):
    """`TopicAttributes` as keywords of Python functions; the schema is an argument of its own there."""

    ack: str | None
    retention_minutes: int | None
    retention_mb: int | None
    partition_by: "list[str] | tuple[str, ...]"
    sort_by: "list[str] | tuple[str, ...]"
    storage: str | None


@dataclass(frozen=True)
class TopicAttribute:
    """One of the `TopicAttributes`, for programs that make options or forms of them."""

    name: str
    """On the wire."""
    description: str
    changeable: bool
    type: Any
    """As annotated in `TopicAttributes`."""


def topic_attributes() -> list[TopicAttribute]:
    """Return the attributes in order."""
    found = []
    for attribute in msgspec.structs.fields(TopicAttributes):
        meta = attribute.type.__metadata__[-1]
        changeable = bool((meta.extra or {}).get("changeable"))
        found.append(TopicAttribute(attribute.encode_name, meta.description or "", changeable, attribute.type))
    return found


CHANGEABLE = frozenset(attribute.name for attribute in topic_attributes() if attribute.changeable)
"""Names on the wire of the attributes that can change after a topic was created."""


class CreateTopic(TopicAttributes, frozen=True, kw_only=True, forbid_unknown_fields=True):
    topic: TopicText
    ack: Annotated[
        AckLevel | None,
        Meta(description="Default acknowledgement level; unset, the broker's `topics.default_ack`."),
    ] = None  # type: ignore[assignment]
    if_not_exists: Annotated[bool, Meta(description="An existing topic is not an error.")] = False


class TopicChanges(Request):
    """Only the attributes that are given change."""


class ChangeTopic(TopicChanges):
    topic: TopicText


def _with_changes(name: str, base: type[TopicChanges], *, zero_removes: bool) -> Any:
    """Return `base` with the changeable attributes as fields that a request may leave out."""
    fields = []
    for one in msgspec.structs.fields(TopicAttributes):
        if one.encode_name in CHANGEABLE:
            meta = one.type.__metadata__[-1]
            kind = meta.extra.get("with_zero", one.type) if zero_removes else one.type
            described: Any = Annotated[kind, Meta(description=meta.description)]
            fields.append((one.name, described | UnsetType, field(name=one.encode_name, default=UNSET)))
    return defstruct(name, fields, bases=(base,), module=__name__, kw_only=True)


UpdateTopic: type[TopicChanges] = _with_changes("UpdateTopic", TopicChanges, zero_removes=False)
"""The body of HTTP's PATCH. The path names the topic. Null removes a limit."""
UpdateTopicAction: type[ChangeTopic] = _with_changes("UpdateTopicAction", ChangeTopic, zero_removes=True)
"""The request over Flight, whose clients do not send null: 0 removes a limit."""


def changed_attributes(request: TopicChanges) -> dict[str, Any]:
    """Return the attributes that a request gives, by their names in `TopicAttributes`."""
    names = (one.name for one in msgspec.structs.fields(TopicAttributes) if one.encode_name in CHANGEABLE)
    return {name: value for name in names if (value := getattr(request, name)) is not UNSET}


class TopicSummary(TopicAttributes, frozen=True, kw_only=True):
    """What the broker tells about a topic in a list. Offsets of the log are None while the log is not open."""

    topic: str
    stream_id: Annotated[str, Meta(description="Made with the topic: a topic deleted and made again has another.")]
    epoch: int
    created_us: Annotated[int, Meta(description="Microseconds since 1970 UTC.")]
    start_offset: Annotated[
        int | None, Meta(description="First offset that the log has; null in lists while the log is not open.")
    ] = None
    durable_end: Annotated[
        int | None, Meta(description="The next offset; null in lists while the log is not open.")
    ] = None
    committed_offset: Annotated[
        int | None, Meta(description="Messages below it are in the table; null until the broker has read the catalog.")
    ] = None
    quarantined: Annotated[int, Meta(description="Frames below it that are in quarantine and not in the table.")] = 0
    uploaded_offset: Annotated[
        int | None, Meta(description="Messages below it are in the cloud; null without an object store.")
    ] = None
    cloud_start_offset: Annotated[
        int | None, Meta(description="First offset that the cloud has; null if it has none.")
    ] = None
    format: Annotated[
        StorageFormat | None, Meta(description="What messages are written as; null for a topic without a table.")
    ] = None
    parquet_offset: Annotated[
        int | None,
        Meta(description="Messages below it are in the Parquet copy; null if there is none or it is not known."),
    ] = None

    @property
    def schema(self) -> pa.Schema | None:
        """The columns of a topic that has its own."""
        return None if self.encoded_schema is None else decode_schema(self.encoded_schema)

    @property
    def message_count(self) -> int | None:
        """Messages in the log; None in lists while the log is not open."""
        if self.durable_end is None or self.start_offset is None:
            return None
        return self.durable_end - self.start_offset

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for printing; the schema is readable text."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return fields | {"schema": None if self.encoded_schema is None else str(self.schema)}


class TopicDescription(TopicSummary, frozen=True, kw_only=True):
    """What the broker tells about a topic."""

    start_offset: Annotated[int, Meta(description="First offset that the log has.")]
    durable_end: Annotated[int, Meta(description="The next offset.")]

    @property
    def message_count(self) -> int:
        """Messages in the log."""
        return self.durable_end - self.start_offset


class NamedTopic(Request):
    """The request of actions that only name a topic."""

    topic: TopicText


class ListTopics(Request):
    prefix: str = ""


class TopicList(Response):
    topics: list[TopicSummary]


class DeleteTopic(Request):
    topic: TopicText
    keep_table: bool = False


class ClockResetResult(Response):
    """From where on publish times follow the clock again."""

    topic: str
    offset: Annotated[int, Meta(description="The first message that gets a time of the clock again has this offset.")]
    time_us: Annotated[int, Meta(description="Its time, or before it; microseconds since 1970 UTC.")]


class WaitCommitted(Request):
    topic: TopicText
    offset: Int64
    wait_ms: Int64 = 0
    hurry: bool = True
    """Whether the pipeline is to write the topic at once; else it keeps to its flush interval."""


class CommitProgress(Response):
    """Whether the messages are in the table, and how far the table is."""

    committed: bool
    committed_offset: int | None
    snapshot_id: int | UnsetType | None = UNSET


class OpenProducer(Request):
    topic: TopicText
    producer: str
    schema: str | None = None
    session: Count = 0


class OpenedProducer(Response):
    """Where a producer continues, and what it may send."""

    next_sequence: int
    schema: str
    max_message_bytes: int
    max_batch_bytes: int


class NoFields(Request):
    """An action without fields; the response of one that has nothing to tell."""


class BrokerVersion(Response):
    version: str
    broker_id: str
    socket: SocketAddress | None = None
    """The socket door, where small messages are faster; None if it is closed."""


# Figures


class StatsRequest(Request):
    topic: str | None = None


class TopicStats(Response):
    """Figures of a topic."""

    topic: str
    state: str
    message_count: int
    bytes_stored: int
    start_offset: int
    durable_end: int
    segments: int
    cached_messages: int
    cache_hits: int
    cache_misses: int
    last_publish_time_us: int | None
    publish_time_ahead_seconds: Annotated[
        float | None,
        Meta(description="How far publish times are ahead of the clock; null if that is less than a minute."),
    ] = None
    committed_offset: Annotated[
        int | None, Meta(description="Messages below it are in the table; null until the broker has read the catalog.")
    ] = None
    snapshot_id: Annotated[int | None, Meta(description="The table's snapshot when that was read.")] = None
    quarantined: Annotated[int, Meta(description="Frames that are in quarantine and not in the table.")] = 0
    table_lag_messages: Annotated[
        int | None,
        Meta(
            description="Messages that are not in the table yet: the whole log until the broker has read the catalog. "
            "Null without a table, like the next two."
        ),
    ] = None
    table_lag_bytes: Annotated[int | None, Meta(description="About their bytes: by the mean size of messages.")] = None
    table_lag_seconds: Annotated[float | None, Meta(description="Age of the oldest of them.")] = None
    storage: Annotated[StorageKind, Meta(description="`table`, or `log` for a topic without a table.")] = (
        StorageKind.TABLE
    )
    format: Annotated[
        StorageFormat | None, Meta(description="What messages are written as; null for a topic without a table.")
    ] = None
    parquet_offset: Annotated[
        int | None,
        Meta(description="Messages below it are in the Parquet copy; null if there is none or it is not known."),
    ] = None
    parquet_lag_messages: Annotated[int | None, Meta(description="Messages that are not in plain files yet.")] = None
    uploaded_offset: Annotated[
        int | None, Meta(description="Messages below it are in the cloud; null without an object store.")
    ] = None
    upload_lag_messages: Annotated[int | None, Meta(description="Messages that are not in the cloud yet.")] = None
    upload_lag_bytes: Annotated[int | None, Meta(description="About their bytes.")] = None
    upload_lag_seconds: Annotated[float | None, Meta(description="Age of the oldest of them.")] = None
    cloud_objects: Annotated[int | None, Meta(description="Objects in the cloud.")] = None
    cloud_bytes: Annotated[int | None, Meta(description="Their size.")] = None
    uploads: Annotated[int | None, Meta(description="Objects that were uploaded since the broker started.")] = None
    uploaded_bytes: Annotated[int | None, Meta(description="Their size.")] = None
    upload_failures: Annotated[
        int | None, Meta(description="Uploads that failed since the broker started; they are tried again.")
    ] = None
    last_upload_us: Annotated[
        int | None, Meta(description="Microseconds since 1970 UTC; null if none since the broker started.")
    ] = None
    upload_state: Annotated[
        str | None,
        Meta(
            description="ok; failing, and tried again; stopped for good: another broker owns the topic, or its log is "
            "damaged. Null where the broker does not upload the topic."
        ),
    ] = None
    upload_error: Annotated[str | None, Meta(description="Why the last upload failed, if it did.")] = None
    table_error: Annotated[
        str | None,
        Meta(description="Why the table cannot be used: it is lost, or was set back; null until the catalog was read."),
    ] = None
    error: Annotated[
        str | None, Meta(description="Why the log cannot be used (all figures are 0 then) or takes no more messages.")
    ] = None


class BrokerStats(Response):
    version: str
    topics: int
    cache_bytes: int
    open_files: int
    in_flight_bytes: int
    disk_free_bytes: Annotated[int, Meta(description="Free bytes on the disk of the logs.")]
    disk_full: Annotated[bool, Meta(description="Whether publishing is refused because the disk is full.")]


class TenantRequest(Request):
    tenant: str | None = None
    after: str = ""
    limit: Annotated[int, Meta(ge=1, le=MAX_TENANTS)] = MAX_TENANTS


class ReceivedTelemetry(Response):
    """What arrived for one signal through the OpenTelemetry doors."""

    requests: Annotated[int, Meta(description="Requests that were accepted.")]
    rows: Annotated[int, Meta(description="Spans, log records or data points of these that are durable.")]
    bytes: Annotated[int, Meta(description="Of these requests, decompressed.")]
    rejected_rows: Annotated[int, Meta(description="Rows of these requests that were not stored.")]
    refused: Annotated[dict[str, int], Meta(description="Requests that were refused, by error code.")]


class TenantStats(Response):
    """Figures of a tenant since the broker started."""

    tenant: Annotated[str, Meta(description="A namespace; `(other)` is what belongs to no tenant.")]
    topics: int
    received: Annotated[
        dict[str, ReceivedTelemetry], Meta(description="What arrived through the OpenTelemetry doors, by signal.")
    ]
    pipeline: Annotated[WriteFigures, Meta(description="What the pipeline has written for the tenant's topics.")]
    failing_topics: Annotated[int, Meta(description="Topics that the pipeline cannot write now.")]
    quarantined: Annotated[int, Meta(description="Frames in quarantine.")]
    table_lag_messages: Annotated[int, Meta(description="Messages that are not in tables yet.")]
    table_lag_bytes: Annotated[int, Meta(description="About their bytes.")]
    table_lag_seconds: Annotated[float, Meta(description="Age of the oldest of them.")]


class TenantPage(Response):
    tenants: list[TenantStats]
    next_after: Annotated[str | None, Meta(description="`after` of the next page; null on the last one.")]


# Cloud


class FlushTopic(Request):
    topic: TopicText
    wait_ms: Int64 = 0
    target: Int64 | None = None


class FlushProgress(Response):
    """How far an upload that was asked for is."""

    topic: str
    target: Annotated[int, Meta(description="Messages below it were durable when the first request came.")]
    uploaded_offset: Annotated[int, Meta(description="Messages below it are in the cloud.")]
    done: Annotated[bool, Meta(description="Whether all below `target` are. If not, ask again with this `target`.")]


class ListCloudObjects(Request):
    topic: TopicText
    after: Int64 = -1
    limit: Annotated[int, Meta(ge=1, le=MAX_OBJECTS)] = MAX_OBJECTS


class CloudHead(Response):
    """How far a topic is in the cloud."""

    stream_id: str
    epoch: Annotated[int, Meta(description="Of the owner that wrote last.")]
    first_offset: Annotated[int, Meta(description="First offset that the objects have.")]
    uploaded_end: Annotated[int, Meta(description="Messages below it are in the cloud.")]
    file_seq: int
    byte_pos: Annotated[int, Meta(description="With `file_seq`: the log position of the next object.")]
    reserved_end: Annotated[int, Meta(description="No message has an offset from here on yet.")]
    object_count: int
    object_bytes: int
    updated_us: Annotated[int, Meta(description="Microseconds since 1970 UTC.")]


class CloudObject(Response):
    key: str
    stream_id: str
    epoch: int
    first_offset: int
    end_offset: Annotated[int, Meta(description="The offset after the last one.")]
    first_time_us: int
    last_time_us: int
    frame_count: int
    data_bytes: Annotated[int, Meta(description="Of the frames; the trailer follows.")]
    size: int
    checksum: Annotated[str, Meta(description="XXH3-64 of the frames, in hexadecimal.")]
    parts: Annotated[int, Meta(description="Runs of frames that came from one segment each.")]
    file_seq: int
    byte_pos: int
    created_us: int


class CloudObjectPage(Response):
    topic: str
    store: Annotated[str, Meta(description="The object store.")]
    head: CloudHead | None
    objects: list[CloudObject]
    next_after: Annotated[int | None, Meta(description="`after` of the next page; null on the last one.")]


class RecoverableTopics(Response):
    lost: Annotated[list[str], Meta(description="Topics whose log is gone from this broker's disk.")]
    recoverable: Annotated[
        list[str], Meta(description="Topics that the object store has and this broker does not know.")
    ]


class RecoveredTopic(Response):
    """What a recovery restored, and what it could not."""

    topic: str
    stream_id: str
    epoch: Annotated[int, Meta(description="The new one.")]
    start_offset: int
    next_offset: Annotated[int, Meta(description="The offset that the next message gets.")]
    cloud_first_offset: Annotated[int | None, Meta(description="First offset that the cloud has.")]
    cloud_end: Annotated[int, Meta(description="Messages below it are in the cloud.")]
    committed_offset: Annotated[int | None, Meta(description="Messages below it are in the table.")]
    lost_first: Annotated[int | None, Meta(description="First offset that may have been used and is lost.")]
    lost_end: int | None
    objects: int
    bytes: int
    unreadable: Annotated[
        list[tuple[int, int]],
        Meta(description="Ranges of offsets (first, end) whose objects are gone or damaged and that no table has."),
    ]
    sources: Annotated[list[str], Meta(description="What was found where, and what was wrong with it.")]
    message: Annotated[str, Meta(description="What is lost, in a sentence.")]
