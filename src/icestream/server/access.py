"""What each call needs of its caller. This table is the only place where that is decided; the doors look it up here.

A call without a rule is for callers with full access only. A test fails until it has a rule.
"""

from enum import Enum

from pyarrow.flight import FlightMethod

from icestream.model.callers import Caller, Callers
from icestream.model.names import TopicName
from icestream.storage import IcebergStorage
from icestream.subscription import SubscriptionOptions


class Access(Enum):
    OPEN = "open"
    """No token is needed. The call shows nothing but that the broker is running."""
    TOKEN = "token"  # noqa: S105 - a word, not a secret
    """Any token. The call shows nothing of any topic."""
    TOPIC = "topic"
    """A token for the topic that the request names. It is checked before anything is looked up."""
    OWN = "own"
    """Any token. The handler gets the caller, and does and shows only what that caller may."""
    FULL = "full"
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
    "backlog": Access.FULL,
    "cut_range": Access.TOPIC,
    "committed": Access.FULL,
    "pipeline_report": Access.FULL,
    "list_subscriptions": Access.OWN,
    "create_subscription": Access.OWN,
    "describe_subscription": Access.TOPIC,
    "seek_subscription": Access.OWN,
    "delete_subscription": Access.OWN,
    "flush_topic": Access.TOPIC,
    "recover_topic": Access.FULL,
    "recoverable_topics": Access.FULL,
    "cloud_objects": Access.FULL,
}
"""Of the Flight door, by name. The `topic` of a request is checked in any case."""

OPERATIONS = {
    "list_topics": Access.OWN,
    "create_topic": Access.OWN,
    "describe_topic": Access.TOPIC,
    "update_topic": Access.TOPIC,
    "delete_topic": Access.TOPIC,
    "flush_topic": Access.TOPIC,
    "recover_topic": Access.FULL,
    "cloud_objects": Access.FULL,
    "recoverable_topics": Access.FULL,
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
    "doors": Access.FULL,
    "metrics": Access.FULL,
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


def check_dead_letters(
    caller: Caller, topic: TopicName, name: str, options: SubscriptionOptions | None, *, operation: str
) -> None:
    """Raise if a subscription with these options sends dead letters to a topic that the caller may not touch."""
    if caller.may_do_everything or options is None:
        return
    target = options.dead_letters_of(topic, name)
    if target is not None:
        caller.check(target.namespace, operation=operation)
