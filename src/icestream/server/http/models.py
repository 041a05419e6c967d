"""What travels in JSON bodies and queries. The API's description is made from these classes."""

import re
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from icestream.model.enums import AckLevel, StorageKind, SubscriptionType
from icestream.server.cloud_requests import MAX_OBJECTS, MAX_WAIT_SECONDS
from icestream.server.tenant_figures import MAX_TENANTS
from icestream.subscription.options import MAX_DELAY_MS, MAX_REDELIVERIES

MAX_PAGE = 1_000
MAX_JSON_MESSAGES = 100_000
MAX_READ_MESSAGES = 10_000
MAX_READ_BYTES = 16 << 20
MAX_WAIT_MS = 60_000
MAX_SEQUENCE = (1 << 62) - 1

Base64 = Annotated[str, Field(json_schema_extra={"contentEncoding": "base64"})]
Retention = Annotated[int, Field(ge=1, le=1 << 53)]


_NUMBER = re.compile(r"-?[0-9]{1,19}")


class Model(BaseModel):
    """Exact: unknown fields are refused, and text is not taken for a number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def _digits(value: object) -> object:
    """Queries are text: a plain whole number is one, anything else is left for the field to refuse."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return int(value)
    return value


QueryInt = Annotated[int, BeforeValidator(_digits)]

# Queries


class TopicsQuery(Model):
    prefix: str = Field(default="", max_length=201, description="Only topics whose name begins with this.")
    limit: QueryInt = Field(default=100, ge=1, le=MAX_PAGE, description="Most topics in the answer.")
    after: str = Field(default="", max_length=201, description="Go on after this topic: `next_after` of the last page.")


class DeleteQuery(Model):
    keep_table: Literal["true", "false"] = Field(default="false", description="Whether the topic's table stays.")


class StatsQuery(TopicsQuery):
    topic: str = Field(default="", max_length=201, description="Only this topic; its log is opened if need be.")


class ReadQuery(Model):
    start: str = Field(
        default="earliest",
        max_length=300,
        description="`earliest`, `latest`, an offset, an RFC 3339 time (the first message published at or after it), "
        "`snapshot:ID` or `tag:NAME` (the first message that this state of the table does not hold).",
    )
    max_messages: QueryInt = Field(default=500, ge=1, le=MAX_READ_MESSAGES, description="Most messages in the answer.")
    max_bytes: QueryInt = Field(
        default=1 << 20,
        ge=1,
        le=MAX_READ_BYTES,
        description="About this many bytes at most; one message is given however large it is.",
    )
    wait_ms: QueryInt = Field(
        default=0, ge=0, le=MAX_WAIT_MS, description="How long to wait when there is nothing yet."
    )


class PublishQuery(Model):
    """For Arrow bodies, which have no place for these; JSON bodies carry them inside."""

    producer: str | None = Field(default=None, description="The producer's name, for de-duplication.")
    sequence: QueryInt | None = Field(
        default=None, ge=0, le=MAX_SEQUENCE, description="The first message's number in the producer's own count."
    )
    ack: AckLevel | None = Field(default=None, description="When to answer; unset, the topic's default.")


# Requests


class CreateTopic(Model):
    topic: str = Field(description="`namespace/name`, or a bare `name` in the namespace `default`.")
    ack: AckLevel | None = Field(default=None, description="Default acknowledgement level; unset, the broker's.")
    arrow_schema: Base64 | None = Field(
        default=None, alias="schema", description="A serialized Arrow schema, for a topic with its own columns."
    )
    retention_minutes: Retention | None = Field(default=None, description="Keep messages this long.")
    retention_mb: Retention | None = Field(default=None, description="Keep about this many MiB.")
    partition_by: list[str] = Field(
        default=[], max_length=16, description="Partitions of the table, such as `day(publish_time)`."
    )
    sort_by: list[str] = Field(default=[], max_length=16, description="Columns that the table's files are sorted by.")
    storage: StorageKind | None = Field(
        default=None,
        description="`table` (the default), or `log` for a topic without a table, which lives in the log and in cloud "
        "objects until its own retention takes them.",
    )
    if_not_exists: bool = Field(default=False, description="Answer 200 where the topic exists already.")


def _unset() -> Any:
    """The value of a field that is not given and may not be null; `model_fields_set` does not name it."""


class UpdateTopic(Model):
    """Only the fields that are given change; `null` lifts a retention."""

    ack: AckLevel = Field(default_factory=_unset, description="Default acknowledgement level.")
    retention_minutes: Retention | None = Field(default=None, description="Keep messages this long.")
    retention_mb: Retention | None = Field(default=None, description="Keep about this many MiB.")
    arrow_schema: Base64 = Field(
        default_factory=_unset,
        alias="schema",
        description="The topic's columns with more of them, which may be null, at the end.",
    )


class NewMessage(Model):
    """A message has either `payload` or `payload_base64`, and at most one of `key` and `key_base64`."""

    payload: str | None = Field(default=None, description="The payload as text.")
    payload_base64: Base64 | None = Field(default=None, description="The payload as bytes.")
    key: str | None = Field(default=None, description="The key as text.")
    key_base64: Base64 | None = Field(default=None, description="The key as bytes.")
    attributes: dict[str, str] | None = Field(default=None, description="Text by name.")


class Publish(Model):
    messages: list[NewMessage] = Field(min_length=1, max_length=MAX_JSON_MESSAGES)
    producer: str | None = Field(default=None, description="The producer's name, for de-duplication.")
    sequence: int | None = Field(
        default=None,
        ge=0,
        le=MAX_SEQUENCE,
        description="The first message's number in the producer's own count, from 0 without holes.",
    )
    ack: AckLevel | None = Field(default=None, description="When to answer; unset, the topic's default.")


# Answers


class Receipt(Model):
    base_offset: int = Field(description="The first message's offset; the others follow.")
    count: int
    publish_time_us: int = Field(description="Microseconds since 1970 UTC.")
    duplicate: bool = Field(description="The batch had been stored before; the offsets are the original ones.")
    snapshot_id: int | None = Field(
        description="A snapshot of the topic's table that holds the messages; only with `ack` `table`."
    )


class ReadMessage(Model):
    """Payload and key are given as text where they are UTF-8, else as base64; a message without key has neither."""

    offset: int
    publish_time: str = Field(description="RFC 3339, UTC.", json_schema_extra={"format": "date-time"})
    producer: str
    sequence: int
    attributes: dict[str, str]
    key: str | None = None
    key_base64: Base64 | None = None
    payload: str | None = None
    payload_base64: Base64 | None = None


class ReadMessages(Model):
    messages: list[ReadMessage]
    next_offset: int = Field(description="Where to read on.")
    durable_end: int = Field(description="The offset after the topic's last durable message.")


class Topic(Model):
    topic: str
    stream_id: str = Field(description="Made with the topic: a topic deleted and made again has another.")
    epoch: int
    ack: str
    created_us: int = Field(description="Microseconds since 1970 UTC.")
    retention_minutes: int | None
    retention_mb: int | None
    arrow_schema: Base64 | None = Field(alias="schema", description="The topic's own columns, if it has any.")
    start_offset: int | None = Field(description="First offset that is kept; null in lists while the log is not open.")
    durable_end: int | None = Field(description="The next offset; null in lists while the log is not open.")
    partition_by: list[str] = Field(description="Partitions of the table.")
    sort_by: list[str] = Field(description="Columns that the table's files are sorted by; none: the offset.")
    committed_offset: int | None = Field(description="Messages below it are in the table; null if not known yet.")
    quarantined: int = Field(description="Frames below it that are not in the table, and were put aside.")
    storage: str = Field(description="`table`, or `log` for a topic without a table.")
    uploaded_offset: int | None = Field(description="Messages below it are in the cloud; null without an object store.")
    cloud_start_offset: int | None = Field(description="First offset that the cloud has; null where it has none.")
    format: str | None = Field(description="`iceberg`, `parquet` or `both`: what messages are written as.")
    parquet_offset: int | None = Field(description="Messages below it are in plain Parquet files; null without any.")


class Topics(Model):
    topics: list[Topic]
    next_after: str | None = Field(description="`after` of the next page; null on the last one.")


class TopicFigures(Model):
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
    committed_offset: int | None = Field(description="Messages below it are in the table; null if not known yet.")
    snapshot_id: int | None = Field(description="The table's snapshot when that was read.")
    quarantined: int = Field(description="Frames that are not in the table, and were put aside.")
    table_lag_messages: int | None = Field(description="Messages that are not in the table yet.")
    table_lag_bytes: int | None = Field(description="About their bytes.")
    table_lag_seconds: float | None = Field(description="Age of the oldest of them.")
    format: str | None = Field(description="`iceberg`, `parquet` or `both`: what messages are written as.")
    parquet_offset: int | None = Field(description="Messages below it are in plain Parquet files; null without any.")
    parquet_lag_messages: int | None = Field(description="Messages that are not in plain files yet.")
    storage: str = Field(description="`table`, or `log` for a topic without a table.")
    uploaded_offset: int | None = Field(description="Messages below it are in the cloud; null without an object store.")
    upload_lag_messages: int | None = Field(description="Messages that are not in the cloud yet.")
    upload_lag_bytes: int | None = Field(description="About their bytes.")
    upload_lag_seconds: float | None = Field(description="Age of the oldest of them.")
    cloud_objects: int | None = Field(description="Objects in the cloud.")
    cloud_bytes: int | None = Field(description="Their size.")
    uploads: int | None = Field(description="Objects that were uploaded since the broker started.")
    uploaded_bytes: int | None = Field(description="Their size.")
    upload_failures: int | None = Field(description="Uploads that failed since then, and were tried again.")
    last_upload_us: int | None = Field(description="Microseconds since 1970 UTC; null if none since the start.")
    upload_error: str | None = Field(description="Why the last upload failed, if it did.")
    error: str | None = Field(description="Why the log cannot be used, if it cannot.")


class ConsumerFigures(Model):
    name: str
    connected_us: int = Field(description="Microseconds since 1970 UTC.")
    unacknowledged: int
    credit_messages: int = Field(description="How many more it can be sent.")
    is_active: bool = Field(description="False of a failover subscription's consumers that stand by.")


class SubscriptionFigures(Model):
    topic: str
    subscription: str
    type: str
    filter: str | None
    floor_offset: int = Field(description="All messages below it are acknowledged.")
    read_offset: int = Field(description="The next message to be read for it.")
    durable_end: int = Field(description="The offset after the topic's last durable message.")
    acknowledged_ranges: int = Field(description="Stretches of acknowledged messages above the floor.")
    unacknowledged: int = Field(description="Messages that consumers have and did not acknowledge yet.")
    redeliveries: int = Field(description="Messages that were sent again, since the subscription was made.")
    dead_letters: int = Field(description="Messages that went to the dead-letter topic.")
    lag_messages: int = Field(description="Messages that are not acknowledged.")
    lag_bytes: int = Field(description="About their bytes.")
    lag_seconds: float = Field(description="About the age of the oldest of them.")
    consumers: list[ConsumerFigures]


class BrokerFigures(Model):
    version: str
    topics: int
    open_topics: int
    cache_bytes: int
    open_files: int
    in_flight_bytes: int
    disk_free_bytes: int = Field(description="Room on the disk of the logs.")
    disk_full: bool = Field(description="Whether publishing is refused for want of room.")


class Stats(Model):
    broker: BrokerFigures
    topics: list[TopicFigures] = Field(description="Of topics whose log is open.")
    subscriptions: list[SubscriptionFigures] = Field(description="Of these topics.")
    next_after: str | None = Field(description="`after` of the next page; null on the last one.")


class Doors(Model):
    doors: dict[str, str] = Field(description="Address by door.")


class Health(Model):
    status: str


class Problem(Model):
    code: str = Field(description="What is wrong, for programs.")
    message: str
    operation: str
    place: str
    remedy: str
    retryable: bool = Field(description="Whether the same request may succeed later.")
    details: dict[str, Any]


class Error(Model):
    error: Problem


# --------------------
# What travels in bodies and queries about topics in the cloud.


MAX_FLUSH_WAIT_MS = int(MAX_WAIT_SECONDS * 1000)


class Flush(Model):
    wait_ms: int = Field(
        default=MAX_FLUSH_WAIT_MS, ge=0, le=MAX_FLUSH_WAIT_MS, description="How long to wait for the upload."
    )
    target: int | None = Field(
        default=None, ge=0, description="`target` of an earlier answer, to go on waiting for the same messages."
    )


class Recover(Model):
    """Nothing is to be said yet: an empty object."""


class ObjectsQuery(Model):
    after: QueryInt = Field(default=-1, ge=-1, description="`next_after` of the last page.")
    limit: QueryInt = Field(default=100, ge=1, le=MAX_OBJECTS, description="Most objects in the answer.")


class Flushed(Model):
    topic: str
    target: int = Field(description="Messages below it were durable when the first request came.")
    uploaded_offset: int = Field(description="Messages below it are in the cloud.")
    done: bool = Field(description="Whether all below the target are. If not, ask again with this `target`.")


class CloudHead(Model):
    stream_id: str
    epoch: int = Field(description="Of the owner that wrote last.")
    first_offset: int = Field(description="First offset that the objects have.")
    uploaded_end: int = Field(description="Messages below it are in the cloud.")
    file_seq: int
    byte_pos: int = Field(description="With `file_seq`: where in the log the next object begins.")
    reserved_end: int = Field(description="No message has an offset from here on yet.")
    object_count: int
    object_bytes: int
    updated_us: int = Field(description="Microseconds since 1970 UTC.")


class CloudObject(Model):
    key: str
    stream_id: str
    epoch: int
    first_offset: int
    end_offset: int = Field(description="The offset after the last one.")
    first_time_us: int
    last_time_us: int
    frame_count: int
    data_bytes: int = Field(description="Of the frames; the trailer follows.")
    size: int
    checksum: str = Field(description="XXH3-64 of the frames, in hexadecimal.")
    parts: int = Field(description="Runs of frames that came from one segment each.")
    file_seq: int
    byte_pos: int
    created_us: int


class CloudObjects(Model):
    topic: str
    store: str = Field(description="Where the objects lie.")
    head: CloudHead | None
    objects: list[CloudObject]
    next_after: int | None = Field(description="`after` of the next page; null on the last one.")


class Recovery(Model):
    """What a recovery brought back, and what it could not."""

    topic: str
    stream_id: str
    epoch: int = Field(description="The new one.")
    start_offset: int
    next_offset: int = Field(description="The offset that the next message gets.")
    cloud_first_offset: int | None = Field(description="First offset that the cloud has.")
    cloud_end: int = Field(description="Messages below it are in the cloud.")
    committed_offset: int | None = Field(description="Messages below it are in the table.")
    lost_first: int | None = Field(description="First offset that may have been used and is nowhere any more.")
    lost_end: int | None
    objects: int
    bytes: int
    unreadable: list[tuple[int, int]] = Field(
        description="Offsets, each time with the one behind them, whose objects are gone or damaged; no table has them."
    )
    sources: list[str] = Field(description="What was found where, and what was not as it should be.")
    message: str = Field(description="What is lost, in a sentence.")


class Recoverable(Model):
    lost: list[str] = Field(description="Topics whose log is gone from this broker's disk.")
    recoverable: list[str] = Field(description="Topics that the object store has, and this broker does not know.")


# --------------------
# Bodies of SQL over HTTP.


class Sql(Model):
    sql: str = Field(
        description="One SELECT; topics are tables `namespace.name`.", examples=["SELECT count(*) FROM a.b"]
    )
    fresh: bool = Field(default=True, description="Whether rows that are not in the tables yet are seen.")


class SqlColumn(Model):
    name: str
    type: str = Field(description="Arrow's name of it.")


class SqlRows(Model):
    columns: list[SqlColumn]
    rows: list[dict[str, Any]] = Field(
        description="By column. Bytes are text if they are UTF-8, else base64 under `name_base64`; times are RFC 3339."
    )
    truncated: bool = Field(description="Whether there were more rows than an answer may have.")


# --------------------
# What travels in JSON about tenants.


class TenantsQuery(Model):
    limit: QueryInt = Field(default=100, ge=1, le=MAX_TENANTS, description="Most tenants in the answer.")
    after: str = Field(
        default="", max_length=100, description="Go on after this tenant: `next_after` of the last page."
    )


class TenantReceived(Model):
    requests: int = Field(description="Requests that were accepted.")
    rows: int = Field(description="Spans, log records or data points of these that are durable.")
    bytes: int = Field(description="Of these requests, decompressed.")
    rejected_rows: int = Field(description="Rows of these requests that were not stored.")
    refused: dict[str, int] = Field(description="Requests that were refused, by error code.")


class TenantWritten(Model):
    """What the pipeline has done for the tenant's topics."""

    messages: int
    bytes: int = Field(description="As Arrow.")
    files: int
    file_bytes: int
    commits: int
    conflicts: int
    failures: int = Field(description="Ranges that could not be written or committed.")
    lost: int = Field(description="Messages that a repair of the log had given up.")
    quarantined: int = Field(description="Frames that were put aside.")
    translate_seconds: float
    commit_seconds: float


class Tenant(Model):
    tenant: str = Field(description="A namespace; `(other)` is what is no tenant's own.")
    topics: int
    received: dict[str, TenantReceived] = Field(description="What came in at the doors for OpenTelemetry, by signal.")
    pipeline: TenantWritten
    failing_topics: int = Field(description="Topics that the pipeline cannot write just now.")
    quarantined: int = Field(description="Frames in quarantine.")
    table_lag_messages: int = Field(description="Messages that are not in tables yet.")
    table_lag_bytes: int = Field(description="About their bytes.")
    table_lag_seconds: float = Field(description="Age of the oldest of them.")


class Tenants(Model):
    tenants: list[Tenant]
    next_after: str | None = Field(description="`after` of the next page; null on the last one.")


# --------------------
# What travels in JSON bodies and queries of subscriptions and their consumers.


MAX_ACKED = 100_000
MAX_CREDIT = 100_000
MAX_FILTER_LENGTH = 10_000
MAX_NAME_LENGTH = 100
_MAX_OFFSET = 1 << 62
_MAX_ID = (1 << 63) - 1

Offset = Annotated[int, Field(ge=0, le=_MAX_OFFSET)]
OffsetRange = Annotated[list[Offset], Field(min_length=2, max_length=2)]


class TimePosition(Model):
    time_us: int = Field(
        ge=0, le=_MAX_OFFSET, description="The first message published at or after it; microseconds since 1970 UTC."
    )


class SnapshotPosition(Model):
    snapshot_id: int = Field(ge=0, le=_MAX_ID, description="Right behind what this snapshot of the table holds.")


class TagPosition(Model):
    tag: str = Field(min_length=1, max_length=200, description="Right behind what the snapshot of this tag holds.")


Position: TypeAlias = Annotated[str, Field(max_length=256)] | Offset | TimePosition | SnapshotPosition | TagPosition
"""An offset, an object, or the text that queries use."""

_POSITION = (
    "An offset, `earliest`, `latest`, an RFC 3339 time, `snapshot:ID` or `tag:NAME`; or an object with `time_us`, "
    "`snapshot_id` or `tag`."
)

# Requests


class PutSubscription(Model):
    """Only what is given changes where the subscription exists already; `null` lifts a limit."""

    type: SubscriptionType = Field(
        default=SubscriptionType.EXCLUSIVE, description="How messages are shared among its consumers."
    )
    start: Position = Field(default="earliest", description=f"Where a new subscription begins. {_POSITION}")
    filter: str | None = Field(
        default=None, max_length=MAX_FILTER_LENGTH, description="Only messages that this expression is true for."
    )
    ack_timeout_ms: int | None = Field(
        default=None, ge=1, le=MAX_DELAY_MS, description="Send again what is not acknowledged in this time."
    )
    nack_delay_ms: int = Field(
        default=1000, ge=0, le=MAX_DELAY_MS, description="How long after a negative acknowledgement to send again."
    )
    max_redeliveries: int | None = Field(
        default=None, ge=0, le=MAX_REDELIVERIES, description="After so many, a message goes to the dead-letter topic."
    )
    dead_letter_topic: str | None = Field(default=None, max_length=201, description="Unset, one is named for it.")


class Seek(Model):
    position: Position = Field(description=_POSITION)


class Receive(Model):
    consumer: str | None = Field(
        default=None, max_length=MAX_NAME_LENGTH, description="From the last answer; unset, one is connected."
    )
    name: str | None = Field(
        default=None, max_length=MAX_NAME_LENGTH, description="What to call a new consumer in the figures."
    )
    max_messages: int = Field(default=500, ge=1, le=MAX_READ_MESSAGES, description="Most messages in the answer.")
    max_bytes: int = Field(
        default=1 << 20,
        ge=1,
        le=MAX_READ_BYTES,
        description="About this many bytes at most; one message is given however large it is.",
    )
    timeout_ms: int = Field(default=0, ge=0, le=MAX_WAIT_MS, description="How long to wait when there is nothing yet.")


class FromConsumer(Model):
    consumer: str = Field(max_length=MAX_NAME_LENGTH, description="The consumer that the messages went to.")


class Acknowledge(FromConsumer):
    """At least one of `offsets`, `ranges` and `cumulative`."""

    offsets: list[Offset] = Field(default=[], max_length=MAX_ACKED, description="Messages by offset.")
    ranges: list[OffsetRange] = Field(
        default=[], max_length=MAX_ACKED, description="Pairs of a first offset and the one after the last."
    )
    cumulative: Offset | None = Field(
        default=None, description="This message and all before it; of types `exclusive` and `failover`."
    )


class Refuse(FromConsumer):
    """At least one of `offsets` and `ranges`."""

    offsets: list[Offset] = Field(default=[], max_length=MAX_ACKED, description="Messages by offset.")
    ranges: list[OffsetRange] = Field(
        default=[], max_length=MAX_ACKED, description="Pairs of a first offset and the one after the last."
    )
    delay_ms: int | None = Field(
        default=None, ge=0, le=MAX_DELAY_MS, description="Send again after this; unset, the subscription's delay."
    )


class Control(Model):
    """What a WebSocket client sends: one or several of these in a frame."""

    ack: list[Offset] = Field(default=[], max_length=MAX_ACKED)
    ack_ranges: list[OffsetRange] = Field(default=[], max_length=MAX_ACKED)
    ack_cumulative: Offset | None = None
    nack: list[Offset] = Field(default=[], max_length=MAX_ACKED)
    nack_ranges: list[OffsetRange] = Field(default=[], max_length=MAX_ACKED)
    delay_ms: int | None = Field(default=None, ge=0, le=MAX_DELAY_MS)
    grant: int = Field(default=0, ge=0, le=MAX_CREDIT)


# Queries


class FollowQuery(Model):
    start: str = Field(default="latest", max_length=256, description=f"Where to begin. {_POSITION}")


class SubscribeQuery(Model):
    """Of the streams that connect a consumer; the subscription is made where it is missing."""

    consumer: str = Field(
        default="", max_length=MAX_NAME_LENGTH, description="What to call the consumer in the figures."
    )
    type: SubscriptionType | None = Field(
        default=None, description="Unset, as the subscription is; `exclusive` where it is new."
    )
    start: str = Field(default="earliest", max_length=256, description=f"Where a new subscription begins. {_POSITION}")
    filter: str | None = Field(
        default=None, max_length=MAX_FILTER_LENGTH, description="Only messages that this expression is true for."
    )


class EventsQuery(SubscribeQuery):
    ack: Literal["auto", "manual"] = Field(
        default="auto",
        description="`auto`: an event is acknowledged once it is written to the connection. `manual`: by "
        "`POST …/ack` with the token that the first event tells.",
    )


class SocketQuery(SubscribeQuery):
    credit: QueryInt = Field(
        default=1000, ge=0, le=MAX_CREDIT, description="Messages that may come before the first `grant`."
    )


# Answers


class Options(Model):
    """What is unset is absent."""

    type: SubscriptionType
    nack_delay_ms: int
    filter: str | None = None
    ack_timeout_ms: int | None = None
    max_redeliveries: int | None = None
    dead_letter_topic: str | None = None


class Subscription(SubscriptionFigures):
    options: Options


class Subscriptions(Model):
    subscriptions: list[Subscription]


class Sought(Model):
    offset: int = Field(description="Where the subscription goes on.")


class DeliveredMessage(ReadMessage):
    redelivery_count: int = Field(description="How often the message was sent before.")


class Received(Model):
    consumer: str = Field(description="To be named in the next request, and in acknowledgements.")
    messages: list[DeliveredMessage]
