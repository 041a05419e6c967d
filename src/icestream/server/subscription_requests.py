"""What requests say about subscriptions, checked."""

from dataclasses import asdict
from typing import Any, TypeAlias

from icestream.model.callers import EVERYTHING, Caller
from icestream.model.errors import IcestreamError, SubscriptionNotFoundError
from icestream.model.names import TopicName
from icestream.model.offsets import StartPosition
from icestream.server.access import check_dead_letters
from icestream.server.requests import take
from icestream.storage import IcebergStorage
from icestream.subscription import BrokerSubscription, SubscriptionOptions

Fields: TypeAlias = dict[str, Any]

NAMING = frozenset({"topic", "subscription"})
OPENING = NAMING | {"type", "start", "options"}

_NOTHING: Fields = {"filter": "", "ack_timeout_ms": 0}
"""Values that take an option away."""


def named(fields: Fields, operation: str) -> tuple[TopicName, str]:
    topic = TopicName.parse(take(fields, "topic", str, operation=operation, required=True))
    return topic, take(fields, "subscription", str, operation=operation, required=True)


def open_subscription(
    storage: IcebergStorage, fields: Fields, caller: Caller, operation: str, *, create: bool = True
) -> BrokerSubscription:
    """The subscription that a request names, made if it may be; options that are left out stay as they are."""
    topic, name = named(fields, operation)
    caller.check(topic.namespace, operation=operation)
    options = _options(storage, topic, name, fields, operation)
    check_dead_letters(storage, caller, topic, name, options, operation=operation)
    return storage.subscriptions.open(
        topic,
        name,
        options,
        start=StartPosition.from_json(fields.get("start")),
        create=create,
    )


def _options(
    storage: IcebergStorage, topic: TopicName, name: str, fields: Fields, operation: str
) -> SubscriptionOptions | None:
    given = dict(take(fields, "options", dict, operation=operation, default={}))
    if fields.get("type") is not None:
        given["type"] = fields["type"]
    given = {key: None if value == _NOTHING.get(key, object()) else value for key, value in given.items()}
    if not given:
        return None
    try:
        standing = storage.subscriptions.get(topic, name).options.to_json()
    except SubscriptionNotFoundError:
        standing = {}
    return SubscriptionOptions.from_json(standing | given)


def description(subscription: BrokerSubscription) -> Fields:
    """Figures and options, for JSON."""
    return {**asdict(subscription.stats()), "options": subscription.options.to_json()}


# --------------------
# Figures of subscriptions as JSON, for every door.


def all_figures(
    storage: IcebergStorage, topic: TopicName | None = None, caller: Caller = EVERYTHING
) -> list[dict[str, Any]]:
    """Of all subscriptions that the caller may see, or of a topic's.

    One that was deleted a moment ago keeps nobody from the others'.
    """
    found = []
    for subscription in storage.subscriptions.find(topic):
        if not caller.may(subscription.topic.namespace):
            continue
        try:
            found.append(asdict(subscription.stats()))
        except IcestreamError:
            continue
    return found
