"""What each call needs of its caller: the one place where that is decided. Doors look it up here and obey.

What has no rule is for those alone who may do everything; a test fails until it has one.
"""

from enum import Enum

from pyarrow.flight import FlightMethod

from icestream.model.callers import Caller, Callers
from icestream.model.errors import SubscriptionNotFoundError
from icestream.model.names import TopicName
from icestream.storage import IcebergStorage, Topic
from icestream.subscription import SubscriptionOptions


class Access(Enum):
    OPEN = "open"
    """Anybody, without a token too. It shows nothing but that the broker is there."""
    TOKEN = "token"  # noqa: S105 - a word, not a secret
    """Whoever has a token. It shows nothing of any topic."""
    TOPIC = "topic"
    """Who may touch the topic that the request names; checked before anything is looked up."""
    OWN = "own"
    """Whoever has a token; what handles the call is told who calls, and does and shows what that one may."""
    EVERYTHING = "everything"
    """Who may do everything."""


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
    "seek_subscription": Access.TOPIC,
    "delete_subscription": Access.TOPIC,
    "flush_topic": Access.TOPIC,
    "recover_topic": Access.EVERYTHING,
    "recoverable_topics": Access.EVERYTHING,
    "cloud_objects": Access.EVERYTHING,
}
"""Of the Flight door, by name. A `topic` that one names is looked at in any case."""

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
    """Those to whom the settings give tokens."""
    return Callers(storage.settings.auth.token_pairs)


def topics_of(storage: IcebergStorage, caller: Caller, prefix: str = "") -> list[Topic]:
    """The topics that a caller may see, by name."""
    return [topic for topic in storage.topics.find(prefix) if caller.may(topic.name.namespace)]


def check_dead_letters(
    storage: IcebergStorage,
    caller: Caller,
    topic: TopicName,
    name: str,
    options: SubscriptionOptions | None,
    *,
    operation: str,
) -> None:
    """Raise if a subscription sends messages to a topic that its caller may not touch.

    `options` are those that it is about to have; None: those that it has, if there is one.
    """
    if caller.may_do_everything:
        return
    if options is None:
        try:
            options = storage.subscriptions.get(topic, name).options
        except SubscriptionNotFoundError:
            return
    target = options.dead_letters_of(topic, name)
    if target is not None:
        caller.check(target.namespace, operation=operation)
