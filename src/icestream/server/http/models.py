"""Bodies and queries that only HTTP has. Whatever Flight has too is defined in `icestream.protocol`."""

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType, field

from icestream.model.enums import AckLevel, SubscriptionType
from icestream.protocol.admin import (
    MAX_FLUSH_WAIT_MS,
    MAX_OBJECTS,
    MAX_TENANTS,
    Base64,
    BrokerStats,
    TopicStats,
    TopicSummary,
)
from icestream.protocol.parsing import Request, Response, given
from icestream.protocol.subscribe import MAX_OFFSET, Delay, SubscriptionChanges, SubscriptionStats, with_options

MAX_PAGE = 1_000
MAX_JSON_MESSAGES = 100_000
MAX_READ_MESSAGES = 10_000
MAX_READ_BYTES = 16 << 20
MAX_WAIT_MS = 60_000
MAX_ACKED = 100_000
MAX_CREDIT = 100_000

_MAX_ID = (1 << 63) - 1
TopicPrefix: TypeAlias = Annotated[str, Meta(max_length=201)]
ConsumerToken: TypeAlias = Annotated[str, Meta(max_length=100)]
Sequence: TypeAlias = Annotated[
    int, Meta(ge=0, le=MAX_OFFSET, description="The first message's number in the producer's own count, from 0.")
]
Wait: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_WAIT_MS, description="How long to wait when there is nothing yet.")]
MaxMessages: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_READ_MESSAGES, description="Most messages in the response.")]
MaxBytes: TypeAlias = Annotated[
    int, Meta(ge=1, le=MAX_READ_BYTES, description="About so many bytes at most, but at least one message.")
]
NextAfter: TypeAlias = Annotated[str | None, Meta(description="`after` of the next page; null on the last one.")]

# Queries


class TopicsQuery(Request):
    prefix: Annotated[TopicPrefix, Meta(description="Only topics whose name begins with this.")] = ""
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE, description="Most topics in the response.")] = 100
    after: Annotated[TopicPrefix, Meta(description="Continue after this topic: `next_after` of the last page.")] = ""


class DeleteQuery(Request):
    keep_table: Annotated[Literal["true", "false"], Meta(description="Whether the topic's table stays.")] = "false"


class StatsQuery(TopicsQuery):
    topic: Annotated[TopicPrefix, Meta(description="Only this topic; its log is opened if it is not open.")] = ""


class ReadQuery(Request):
    start: Annotated[
        Annotated[str, Meta(max_length=300)],
        Meta(
            description="`earliest`, `latest`, an offset, an RFC 3339 time (the first message published at or after "
            "it), `snapshot:ID` or `tag:NAME` (the first message that this state of the table does not hold)."
        ),
    ] = "earliest"
    max_messages: MaxMessages = 500
    max_bytes: MaxBytes = 1 << 20
    wait_ms: Wait = 0


class PublishQuery(Request):
    """For Arrow bodies. JSON bodies have these fields inside."""

    producer: Annotated[str | None, Meta(description="The producer's name, for de-duplication.")] = None
    sequence: Sequence | None = None
    ack: Annotated[AckLevel | None, Meta(description="When to respond; unset, the topic's default.")] = None


class ObjectsQuery(Request):
    after: Annotated[int, Meta(ge=-1, le=_MAX_ID, description="`next_after` of the last page.")] = -1
    limit: Annotated[int, Meta(ge=1, le=MAX_OBJECTS, description="Most objects in the response.")] = 100


class TenantsQuery(Request):
    limit: Annotated[int, Meta(ge=1, le=MAX_TENANTS, description="Most tenants in the response.")] = 100
    after: Annotated[
        Annotated[str, Meta(max_length=100)],
        Meta(description="Continue after this tenant: `next_after` of the last page."),
    ] = ""


# Topics


class TopicPage(Response):
    topics: list[TopicSummary]
    next_after: NextAfter


class FlushBody(Request):
    wait_ms: Annotated[int, Meta(ge=0, le=MAX_FLUSH_WAIT_MS, description="How long to wait for the upload.")] = (
        MAX_FLUSH_WAIT_MS
    )
    target: Annotated[
        Annotated[int, Meta(ge=0, le=_MAX_ID)] | None,
        Meta(description="`target` of an earlier response, to continue to wait for the same messages."),
    ] = None


class RecoverBody(Request):
    """An empty object: there are no options yet."""


# Messages


class NewMessage(Request):
    """A message has either `payload` or `payload_base64`, and at most one of `key` and `key_base64`."""

    payload: Annotated[str | None, Meta(description="The payload as text.")] = None
    payload_base64: Annotated[Base64 | None, Meta(description="The payload as bytes.")] = None
    key: Annotated[str | None, Meta(description="The key as text.")] = None
    key_base64: Annotated[Base64 | None, Meta(description="The key as bytes.")] = None
    attributes: Annotated[dict[str, str] | None, Meta(description="Text by name.")] = None


class PublishBody(Request):
    messages: Annotated[list[NewMessage], Meta(min_length=1, max_length=MAX_JSON_MESSAGES)]
    producer: Annotated[str | None, Meta(description="The producer's name, for de-duplication.")] = None
    sequence: Sequence | None = None
    ack: Annotated[AckLevel | None, Meta(description="When to respond; unset, the topic's default.")] = None


class PublishReceipt(Response):
    base_offset: Annotated[int, Meta(description="The first message's offset; the others follow.")]
    count: int
    publish_time_us: Annotated[int, Meta(description="Microseconds since 1970 UTC.")]
    duplicate: Annotated[
        bool, Meta(description="The messages had been stored before; the offsets are the original ones.")
    ]
    snapshot_id: Annotated[
        int | None, Meta(description="A snapshot of the table that holds the messages; only with `ack` `table`.")
    ]


class JsonMessage(Response, kw_only=True):
    """Payload and key are text if they are UTF-8, else base64; a message without key has neither."""

    offset: int
    publish_time: Annotated[str, Meta(description="RFC 3339, UTC.", extra_json_schema={"format": "date-time"})]
    producer: str
    sequence: int
    attributes: dict[str, str]
    key: str | UnsetType = UNSET
    key_base64: Base64 | UnsetType = UNSET
    payload: str | UnsetType = UNSET
    payload_base64: Base64 | UnsetType = UNSET


class ReadMessages(Response):
    messages: list[JsonMessage]
    next_offset: Annotated[int, Meta(description="Where to read on.")]
    durable_end: Annotated[int, Meta(description="The offset after the topic's last durable message.")]


# Subscriptions


class PositionObject(Request):
    """Exactly one of these."""

    time_us: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_OFFSET)] | UnsetType,
        Meta(description="The first message published at or after it; microseconds since 1970 UTC."),
    ] = UNSET
    snapshot_id: Annotated[
        Annotated[int, Meta(ge=0, le=_MAX_ID)] | UnsetType,
        Meta(description="The first message that this snapshot of the table does not hold."),
    ] = UNSET
    tag: Annotated[
        Annotated[str, Meta(min_length=1, max_length=200)] | UnsetType,
        Meta(description="The first message that the snapshot of this tag does not hold."),
    ] = UNSET

    def to_json(self) -> dict[str, Any]:
        return given(self)


_POSITION = (
    "An offset, `earliest`, `latest`, an RFC 3339 time, `snapshot:ID` or `tag:NAME`; or an object with `time_us`, "
    "`snapshot_id` or `tag`."
)
PositionText: TypeAlias = Annotated[str, Meta(max_length=256)]
Offset: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_OFFSET)]
Position: TypeAlias = PositionText | Offset | PositionObject
Offsets: TypeAlias = Annotated[list[Offset], Meta(max_length=MAX_ACKED, description="Messages by offset.")]
OffsetRanges: TypeAlias = Annotated[
    list[tuple[Offset, Offset]],
    Meta(max_length=MAX_ACKED, description="Pairs of a first offset and the one after the last."),
]


class SubscriptionPut(SubscriptionChanges):
    """Only what is given changes if the subscription exists; null removes a limit."""

    start: Annotated[Position, Meta(description=f"Where a new subscription begins. {_POSITION}")] = "earliest"


PutSubscription: type[SubscriptionPut] = with_options("PutSubscription", SubscriptionPut)


class Seek(Request):
    position: Annotated[Position, Meta(description=_POSITION)]


class ReceiveBody(Request):
    consumer: Annotated[
        ConsumerToken | None, Meta(description="From the last response; unset, a new consumer connects.")
    ] = None
    name: Annotated[ConsumerToken | None, Meta(description="Name of a new consumer in the figures.")] = None
    max_messages: MaxMessages = 500
    max_bytes: MaxBytes = 1 << 20
    timeout_ms: Wait = 0


class OfConsumer(Request):
    consumer: Annotated[ConsumerToken, Meta(description="The consumer that received the messages.")]


class AckBody(OfConsumer):
    """At least one of `offsets`, `ranges` and `cumulative`."""

    offsets: Offsets = field(default_factory=list)
    ranges: OffsetRanges = field(default_factory=list)
    cumulative: Annotated[
        Offset | None, Meta(description="This message and all before it; of types `exclusive` and `failover`.")
    ] = None


class NackBody(OfConsumer):
    """At least one of `offsets` and `ranges`."""

    offsets: Offsets = field(default_factory=list)
    ranges: OffsetRanges = field(default_factory=list)
    delay_ms: Annotated[
        Delay | None, Meta(description="Deliver again after this; unset, the subscription's delay.")
    ] = None


class SocketControl(Request):
    """What a WebSocket client sends: one or several of these in a frame."""

    ack: Offsets = field(default_factory=list)
    ack_ranges: OffsetRanges = field(default_factory=list)
    ack_cumulative: Offset | None = None
    nack: Offsets = field(default_factory=list)
    nack_ranges: OffsetRanges = field(default_factory=list)
    delay_ms: Delay | None = None
    grant: Annotated[int, Meta(ge=0, le=MAX_CREDIT)] = 0


class DeliveredMessage(JsonMessage, kw_only=True):
    redelivery_count: Annotated[int, Meta(description="How often the message was delivered before.")]


class ReceivedMessages(Response):
    consumer: Annotated[str, Meta(description="To be named in the next request, and in acknowledgements.")]
    messages: list[DeliveredMessage]


class FollowQuery(Request):
    start: Annotated[PositionText, Meta(description=f"Where to begin. {_POSITION}")] = "latest"


class SubscribeQuery(Request):
    """Of the streams that connect a consumer. A subscription that does not exist is created."""

    consumer: Annotated[ConsumerToken, Meta(description="Name of the consumer in the figures.")] = ""
    type: Annotated[
        SubscriptionType | None, Meta(description="Unset, the subscription's own; `exclusive` for a new one.")
    ] = None
    start: Annotated[PositionText, Meta(description=f"Where a new subscription begins. {_POSITION}")] = "earliest"
    filter: Annotated[
        Annotated[str, Meta(max_length=10_000)] | None,
        Meta(description="Only messages for which this expression is true."),
    ] = None


class EventsQuery(SubscribeQuery):
    ack: Annotated[
        Literal["auto", "manual"],
        Meta(
            description="`auto`: an event is acknowledged once it is written to the connection. `manual`: by "
            "`POST …/ack` with the token in the first event."
        ),
    ] = "auto"


class SocketQuery(SubscribeQuery):
    credit: Annotated[
        int, Meta(ge=0, le=MAX_CREDIT, description="Messages that may be sent before the first `grant`.")
    ] = 1000


# SQL


class SqlBody(Request):
    sql: Annotated[
        str,
        Meta(
            description="One SELECT; topics are tables `namespace.name`.",
            extra_json_schema={"examples": ["SELECT count(*) FROM a.b"]},
        ),
    ]
    fresh: Annotated[bool, Meta(description="Whether rows that are not in the tables yet are seen.")] = True


class SqlColumn(Response):
    name: str
    type: Annotated[str, Meta(description="Arrow's name of it.")]


class SqlRows(Response):
    columns: list[SqlColumn]
    rows: Annotated[
        list[dict[str, Any]],
        Meta(
            description="By column. Bytes are text if they are UTF-8, else base64 under `name_base64`; times are RFC "
            "3339."
        ),
    ]
    truncated: Annotated[bool, Meta(description="Whether there were more rows than a response may have.")]


# The broker


class HttpBrokerStats(BrokerStats):
    open_topics: int


class HttpStats(Response):
    broker: HttpBrokerStats
    topics: Annotated[list[TopicStats], Meta(description="Of topics whose log is open.")]
    subscriptions: Annotated[list[SubscriptionStats], Meta(description="Of these topics.")]
    next_after: NextAfter


class Doors(Response):
    doors: Annotated[dict[str, str], Meta(description="Address by door.")]


class Health(Response):
    status: str


class ErrorFields(Struct):
    code: Annotated[str, Meta(description="What is wrong, for programs.")]
    message: str
    operation: str
    place: str
    remedy: str
    retryable: Annotated[bool, Meta(description="Whether the same request may succeed later.")]
    details: dict[str, Any]


class ErrorResponse(Struct):
    error: ErrorFields
