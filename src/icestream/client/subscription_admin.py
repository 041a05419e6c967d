"""Subscriptions: make, list, describe, move, delete; and how a request names what a subscription is to be."""

from dataclasses import asdict, dataclass
from typing import Any, Self

from icestream.client.connection import Connection
from icestream.client.positions import Start, position_of
from icestream.model.errors import InvalidRequestError
from icestream.model.names import TopicName


@dataclass(frozen=True)
class ConsumerDescription:
    name: str
    connected_us: int
    unacknowledged: int
    """Messages that it has and did not acknowledge."""
    credit_messages: int
    is_active: bool
    """Whether it is the one that gets messages; of a shared subscription all are."""


@dataclass(frozen=True)
class SubscriptionDescription:
    """What the broker knows about a subscription. `raw` is its whole answer."""

    topic: str
    subscription: str
    type: str
    filter: str | None
    floor_offset: int
    """Everything below it is acknowledged."""
    read_offset: int
    durable_end: int
    acknowledged_ranges: int
    """Ranges above the floor."""
    unacknowledged: int
    redeliveries: int
    dead_letters: int
    lag_messages: int
    lag_bytes: int
    lag_seconds: float
    consumers: tuple[ConsumerDescription, ...]
    raw: dict[str, Any]

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        return cls(
            topic=fields["topic"],
            subscription=fields["subscription"],
            type=fields["type"],
            filter=fields.get("filter"),
            floor_offset=fields["floor_offset"],
            read_offset=fields["read_offset"],
            durable_end=fields["durable_end"],
            acknowledged_ranges=fields["acknowledged_ranges"],
            unacknowledged=fields["unacknowledged"],
            redeliveries=fields["redeliveries"],
            dead_letters=fields["dead_letters"],
            lag_messages=fields["lag_messages"],
            lag_bytes=fields["lag_bytes"],
            lag_seconds=fields["lag_seconds"],
            consumers=tuple(
                ConsumerDescription(**{name: consumer[name] for name in ConsumerDescription.__dataclass_fields__})
                for consumer in fields["consumers"]
            ),
            raw=fields,
        )

    @property
    def options(self) -> dict[str, Any]:
        """`ack_timeout_ms`, `nack_delay_ms`, `max_redeliveries`, `dead_letter_topic`."""
        return dict(self.raw.get("options", {}))

    def to_dict(self) -> dict[str, Any]:
        """For printing and JSON."""
        fields = asdict(self)
        del fields["raw"]
        return fields | {"options": self.options}


class SubscriptionAdmin:
    """The administrative calls, which `Client` offers as its own."""

    _connection: Connection

    def subscriptions(self, topic: str | TopicName | None = None) -> list[SubscriptionDescription]:
        """Those of one topic, or all."""
        fields = {"topic": None if topic is None else str(TopicName.parse(topic))}
        answer = self._connection.action("list_subscriptions", fields)
        return [SubscriptionDescription.from_json(found) for found in answer["subscriptions"]]

    def create_subscription(
        self, topic: str | TopicName, name: str, *, start: Start = "earliest", **options: Any
    ) -> SubscriptionDescription:
        """Make a subscription before anyone consumes from it; `options` are those of `subscribe`.

        One that is there stays where it is; its options are changed if no consumer is connected.
        """
        return SubscriptionDescription.from_json(
            self._connection.action("create_subscription", subscription_fields(topic, name, start, **options))
        )

    def describe_subscription(self, topic: str | TopicName, name: str) -> SubscriptionDescription:
        return SubscriptionDescription.from_json(self._connection.action("describe_subscription", _named(topic, name)))

    def seek_subscription(self, topic: str | TopicName, name: str, position: Start) -> int:
        """Move a subscription, back or forth; the offset that comes next. Consumers stay connected."""
        fields = _named(topic, name) | {"position": position_of(position).to_json()}
        return int(self._connection.action("seek_subscription", fields)["offset"])

    def delete_subscription(self, topic: str | TopicName, name: str) -> None:
        """Delete a subscription and its progress; its consumers get an error."""
        self._connection.action("delete_subscription", _named(topic, name))


def _named(topic: str | TopicName, name: str) -> dict[str, Any]:
    return {"topic": str(TopicName.parse(topic)), "subscription": name}


def subscription_fields(
    topic: str | TopicName,
    name: str,
    start: Start,
    *,
    type: str | None = None,  # noqa: A002 - the word for it
    filter: str | None = None,  # noqa: A002 - the word for it
    ack_timeout: float | None = None,
    nack_delay: float | None = None,
    max_redeliveries: int | None = None,
    dead_letter_topic: str | TopicName | None = None,
) -> dict[str, Any]:
    """What names a subscription in a request, and what it is to be; what is None is left as it stands."""
    for seconds in (ack_timeout, nack_delay):
        if seconds is not None and seconds < 0:
            raise InvalidRequestError(f"a time is 0 or more, not {seconds}", operation="subscribe")
    options = {
        "filter": filter,
        "ack_timeout_ms": None if ack_timeout is None else round(ack_timeout * 1000),
        "nack_delay_ms": None if nack_delay is None else round(nack_delay * 1000),
        "max_redeliveries": max_redeliveries,
        "dead_letter_topic": None if dead_letter_topic is None else str(TopicName.parse(dead_letter_topic)),
    }
    fields = {
        **_named(topic, name),
        "type": type,
        "start": position_of(start).to_json(),
        "options": {option: value for option, value in options.items() if value is not None} or None,
    }
    return {field: value for field, value in fields.items() if value is not None}
