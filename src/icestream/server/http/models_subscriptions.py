"""What travels in JSON bodies and queries of subscriptions and their consumers."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from icestream.server.http.models import (
    MAX_READ_BYTES,
    MAX_READ_MESSAGES,
    MAX_WAIT_MS,
    Model,
    QueryInt,
    ReadMessage,
    SubscriptionFigures,
)
from icestream.subscription.options import MAX_DELAY_MS, MAX_REDELIVERIES

MAX_ACKED = 100_000
MAX_CREDIT = 100_000
MAX_FILTER_LENGTH = 10_000
MAX_NAME_LENGTH = 100
_MAX_OFFSET = 1 << 62
_MAX_ID = (1 << 63) - 1

TypeName: TypeAlias = Literal["exclusive", "shared", "failover", "key-shared"]
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

    type: TypeName = Field(default="exclusive", description="How messages are shared among its consumers.")
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
    type: TypeName | None = Field(
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

    type: TypeName
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
