"""Subscriptions: the actions that create, change and describe them, and the messages of a consumer's stream.

A subscription's option is written down once, in `SubscriptionAttributes`, like a topic's in `TopicAttributes`.
"""

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, defstruct, field

from icestream.model.enums import SubscriptionType
from icestream.protocol.parsing import Request, Response

MAX_DELAY_MS = 86_400_000 * 30
MAX_REDELIVERIES = 10_000
MAX_OFFSET = (1 << 62) - 1

Number: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_OFFSET)]
Ranges: TypeAlias = list[tuple[Number, Number]]
"""Pairs of a first offset and the one after the last."""
Delay: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_DELAY_MS)]
Limit: TypeAlias = Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]


class SubscriptionAttributes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a user chooses for a subscription."""

    type: Annotated[SubscriptionType, Meta(description="How messages are divided among consumers.")] = (
        SubscriptionType.EXCLUSIVE
    )
    filter: Annotated[
        Annotated[str, Meta(max_length=10_000)] | None,
        Meta(description="An SQL condition. Messages that do not match count as acknowledged; null: no filter."),
    ] = None
    ack_timeout_ms: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_DELAY_MS)] | None,
        Meta(
            description="A message that is not acknowledged for so long is delivered again; null: only when its "
            "consumer ends."
        ),
    ] = None
    nack_delay_ms: Annotated[
        Delay, Meta(description="When a nacked message is delivered again, if the nack does not say.")
    ] = 1_000
    max_redeliveries: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_REDELIVERIES)] | None,
        Meta(
            description="A message that is nacked or times out more often goes to the dead-letter topic; null: never."
        ),
    ] = None
    dead_letter_topic: Annotated[
        Annotated[str, Meta(max_length=201)] | None,
        Meta(description="Unset: `{namespace}/{topic}-{subscription}-dead-letters`."),
    ] = None

    def to_json(self) -> dict[str, Any]:
        """Return the options that are set."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return {name: value for name, value in fields.items() if value is not None}


class SubscriptionChanges(Request):
    """Only the options that are given change; null removes one."""


def with_options(name: str, base: type[SubscriptionChanges]) -> Any:
    """Return `base` with a subscription's options as fields that a request may leave out."""
    options = [
        (one.name, one.type | UnsetType, field(name=one.encode_name, default=UNSET))
        for one in msgspec.structs.fields(SubscriptionAttributes)
    ]
    return defstruct(name, options, bases=(base,), module=__name__, kw_only=True)


SubscriptionOptionFields: type[SubscriptionChanges] = with_options("SubscriptionOptionFields", SubscriptionChanges)


class NamedSubscription(Request):
    """The request of actions that only name a subscription."""

    topic: str
    subscription: str


class OpenSubscription(NamedSubscription):
    """Create a subscription, or change one. What is left out stays as it is."""

    type: SubscriptionType | None = None
    start: Any = None
    """Where a new one begins: see `StartPosition.from_json`."""
    options: dict[str, Any] | None = None
    """`SubscriptionOptionFields`; an empty `filter` and an `ack_timeout_ms` of 0 remove them."""


class ListSubscriptions(Request):
    topic: str | None = None


class SeekSubscription(NamedSubscription):
    position: Any = None


class SeekResult(Response):
    offset: Annotated[int, Meta(description="The offset that comes next.")]


class ConsumerDescription(Response):
    name: str
    connected_us: Annotated[int, Meta(description="Microseconds since 1970 UTC.")]
    unacknowledged: Annotated[int, Meta(description="Messages that it has and did not acknowledge.")]
    credit_messages: Annotated[int, Meta(description="How many more it can be sent.")]
    is_active: Annotated[bool, Meta(description="False for the consumers of a failover subscription that wait.")]


class SubscriptionStats(Response, kw_only=True):
    """Figures of a subscription."""

    topic: str
    subscription: str
    type: SubscriptionType
    filter: str | None = None
    floor_offset: Annotated[int, Meta(description="All messages below it are acknowledged.")]
    read_offset: Annotated[int, Meta(description="The next message to be read for it.")]
    durable_end: Annotated[int, Meta(description="The offset after the topic's last durable message.")]
    acknowledged_ranges: Annotated[int, Meta(description="Ranges of acknowledged messages above the floor.")]
    unacknowledged: Annotated[int, Meta(description="Messages that consumers have and did not acknowledge.")]
    redeliveries: Annotated[int, Meta(description="Messages delivered again since the subscription was made.")]
    dead_letters: Annotated[int, Meta(description="Messages that went to the dead-letter topic.")]
    lag_messages: Annotated[
        int, Meta(description="Messages that are not acknowledged; those that a filter has not seen are all counted.")
    ]
    lag_bytes: Annotated[int, Meta(description="About their bytes: by the mean size of messages.")]
    lag_seconds: Annotated[float, Meta(description="About the age of the oldest of them.")]
    consumers: tuple[ConsumerDescription, ...]


class SubscriptionDescription(SubscriptionStats, kw_only=True):
    """What the broker tells about a subscription."""

    options: Annotated[dict[str, Any], Meta(description="The options that are set.")] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for printing and JSON."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return fields


class SubscriptionList(Response):
    subscriptions: list[SubscriptionDescription]


# A consumer's stream


class Subscribe(OpenSubscription):
    """The first message of a consumer."""

    consumer: str | None = None
    """Its name in figures."""
    instance: str | None = None
    """A random id of the client. A new stream with the same id ends the old one."""
    create: bool = True
    max_messages: Limit = 10_000
    max_bytes: Limit = 8 << 20


class ConsumerControl(Struct, forbid_unknown_fields=True):
    """What a consumer sends after its first message. The broker applies the fields of one message in this order."""

    ack: Ranges = []
    ack_cumulative: Number | None = None
    nack: Ranges = []
    delay_ms: Number | None = None
    grant: tuple[Number, Number] | None = None
    """Credit: messages and bytes."""
    ping: int | None = None
    flush: int | None = None


class Subscribed(Response):
    """The broker's first message."""

    topic: str
    subscription: str
    type: SubscriptionType
    consumer: str
    session_timeout_ms: int
