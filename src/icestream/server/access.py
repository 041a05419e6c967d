"""What each call needs of its caller. This table is the only place where that is decided; the doors look it up here.

A call without a rule is for callers with full access only. A test fails until it has a rule.
"""

import contextlib
from enum import Enum
from typing import Any

from pyarrow.flight import FlightMethod

from icestream.model.callers import EVERYTHING, Caller, Callers
from icestream.model.errors import IcestreamError, SubscriptionNotFoundError
from icestream.model.names import TopicName
from icestream.model.offsets import StartPosition
from icestream.storage import IcebergStorage, Topic
from icestream.subscription import BrokerSubscription, SubscriptionOptions, SubscriptionStats


class Access(Enum):
    OPEN = "open"
    """No token is needed. The call shows nothing but that the broker is running."""
    TOKEN = "token"  # noqa: S105 - a word, not a secret
    """Any token. The call shows nothing of any topic."""
    TOPIC = "topic"
    """A token for the topic that the request names. It is checked before anything is looked up."""
    OWN = "own"
    """Any token. The handler gets the caller, and does and shows only what that caller may."""
    EVERYTHING = "everything"
    """A token with full access."""


VERBS = {
    FlightMethod.DO_PUT: Access.OWN,
    FlightMethod.DO_GET: Access.OWN,
    FlightMethod.DO_EXCHANGE: Access.OWN,
    FlightMethod.DO_ACTION: Access.OWN,
    FlightMethod.LIST_FLIGHTS: Access.OWN,
    FlightMethod.GET_FLIGHT_INFO: Access.OWN,
    FlightMethod.LIST_ACTIONS: Access.TOKEN,
}
"""Of the Flight door."""

ACTIONS = {
    "create_topic": Access.TOPIC,
    "list_topics": Access.OWN,
    "describe_topic": Access.TOPIC,
    "update_topic": Access.TOPIC,
    "delete_topic": Access.TOPIC,
    "reset_clock": Access.TOPIC,
    "wait_committed": Access.TOPIC,
    "open_producer": Access.TOPIC,
    "stats": Access.OWN,
    "tenant_stats": Access.OWN,
    "ping": Access.TOKEN,
    "backlog": Access.EVERYTHING,
    "cut_range": Access.TOPIC,
    "committed": Access.EVERYTHING,
    "pipeline_report": Access.EVERYTHING,
    "list_subscriptions": Access.OWN,
    "create_subscription": Access.OWN,
    "describe_subscription": Access.TOPIC,
    "seek_subscription": Access.OWN,
    "delete_subscription": Access.OWN,
    "flush_topic": Access.TOPIC,
    "recover_topic": Access.EVERYTHING,
    "recoverable_topics": Access.EVERYTHING,
    "cloud_objects": Access.EVERYTHING,
}
"""Of the Flight door, by name. The `topic` of a request is checked in any case."""

OPERATIONS = {
    "list_topics": Access.OWN,
    "create_topic": Access.OWN,
    "describe_topic": Access.TOPIC,
    "update_topic": Access.TOPIC,
    "delete_topic": Access.TOPIC,
    "flush_topic": Access.TOPIC,
    "recover_topic": Access.EVERYTHING,
    "cloud_objects": Access.EVERYTHING,
    "recoverable_topics": Access.EVERYTHING,
    "publish": Access.TOPIC,
    "read": Access.TOPIC,
    "follow": Access.TOPIC,
    "sql": Access.OWN,
    "list_subscriptions": Access.TOPIC,
    "describe_subscription": Access.TOPIC,
    "put_subscription": Access.TOPIC,
    "delete_subscription": Access.TOPIC,
    "seek_subscription": Access.TOPIC,
    "receive": Access.TOPIC,
    "ack": Access.TOPIC,
    "nack": Access.TOPIC,
    "disconnect": Access.TOPIC,
    "subscription_events": Access.TOPIC,
    "subscription_socket": Access.TOPIC,
    "stats": Access.OWN,
    "list_tenants": Access.OWN,
    "describe_tenant": Access.OWN,
    "doors": Access.EVERYTHING,
    "metrics": Access.EVERYTHING,
    "health": Access.OPEN,
    "readiness": Access.OPEN,
    "openapi": Access.OPEN,
    "docs": Access.OPEN,
    "root": Access.OPEN,
}
"""Of the HTTP door, by name."""


def callers_of(storage: IcebergStorage) -> Callers:
    """Return the callers to whom the settings give tokens."""
    return Callers(storage.settings.auth.token_pairs)


def topics_of(storage: IcebergStorage, caller: Caller, prefix: str = "") -> list[Topic]:
    """Return the topics that a caller may see, by name."""
    return [topic for topic in storage.topics.find(prefix) if caller.may(topic.name.namespace)]


def subscription_stats(
    storage: IcebergStorage, topic: TopicName | None = None, caller: Caller = EVERYTHING
) -> list[SubscriptionStats]:
    """Return the figures of all subscriptions that the caller may see, or of a topic's."""
    found = []
    for subscription in storage.subscriptions.find(topic):
        if caller.may(subscription.topic.namespace):
            with contextlib.suppress(IcestreamError):  # deleted meanwhile: the others are shown all the same
                found.append(subscription.stats())
    return found


def open_subscription(
    storage: IcebergStorage,
    topic: TopicName,
    name: str,
    changes: dict[str, Any],
    *,
    start: StartPosition,
    caller: Caller,
    operation: str,
    create: bool = True,
) -> tuple[BrokerSubscription, bool]:
    """Open a subscription with some of its options changed; return it, and whether it was there before.

    Raise if it sends dead letters to a topic that the caller may not touch.
    """
    caller.check(topic.namespace, operation=operation)
    try:
        standing = storage.subscriptions.get(topic, name).options
    except SubscriptionNotFoundError:
        standing = None
    options = SubscriptionOptions.from_json((standing.to_json() if standing else {}) | changes) if changes else None
    check_dead_letters(caller, topic, name, options or standing, operation=operation)
    return storage.subscriptions.open(topic, name, options, start=start, create=create), standing is not None


def check_change(storage: IcebergStorage, caller: Caller, topic: TopicName, name: str, *, operation: str) -> None:
    """Raise if a subscription is the operator's: its dead letters go where the caller may not touch anything.

    Raise too if the topic is not the caller's. A subscription that does not exist is left to the operation itself.
    """
    caller.check(topic.namespace, operation=operation)
    with contextlib.suppress(SubscriptionNotFoundError):
        check_dead_letters(caller, topic, name, storage.subscriptions.get(topic, name).options, operation=operation)


def check_dead_letters(
    caller: Caller, topic: TopicName, name: str, options: SubscriptionOptions | None, *, operation: str
) -> None:
    """Raise if a subscription with these options sends dead letters to a topic that the caller may not touch."""
    if caller.may_do_everything or options is None:
        return
    target = options.dead_letters_of(topic, name)
    if target is not None:
        caller.check(target.namespace, operation=operation)
