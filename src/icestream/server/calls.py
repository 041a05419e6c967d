"""Calls that several doors offer: each door turns its requests into these, and their results into its responses."""

import contextlib
from typing import Any

from icestream.model.callers import FULL_ACCESS, Caller
from icestream.model.errors import IcestreamError, SubscriptionNotFoundError
from icestream.model.names import TopicName
from icestream.model.offsets import StartPosition
from icestream.protocol.admin import BrokerStats, CreateTopic, TopicAttributes, TopicDescription
from icestream.server.access import check_dead_letters
from icestream.storage import IcebergStorage, Topic, topic_schema
from icestream.subscription import BrokerSubscription, SubscriptionOptions, SubscriptionStats


def create_topic(storage: IcebergStorage, request: CreateTopic, *, if_not_exists: bool) -> TopicDescription:
    """Create the topic that a request describes, and describe it."""
    attributes = {name: getattr(request, name) for name in TopicAttributes.__struct_fields__}
    encoded = attributes.pop("encoded_schema")
    attributes["ack"] = request.ack or storage.settings.topics.default_ack
    topic = storage.topics.create(
        request.topic,
        schema=topic_schema(encoded) if encoded is not None else None,
        if_not_exists=if_not_exists,
        **attributes,
    )
    return topic.describe()


def missing_messages(topic: Topic, first: int, end: int) -> dict[str, int]:
    """Return what readers are told of messages that are missing for good: how many, and how many were deleted."""
    removed = topic.count_removed(first, end)
    return {"lost": end - first, "removed": removed} if removed else {"lost": end - first}


def topics_of(storage: IcebergStorage, caller: Caller, prefix: str = "") -> list[Topic]:
    """Return the topics that a caller may see, by name."""
    return [topic for topic in storage.topics.find(prefix) if caller.may(topic.name.namespace)]


def subscription_stats(
    storage: IcebergStorage, topic: TopicName | None = None, caller: Caller = FULL_ACCESS
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


def broker_stats(storage: IcebergStorage, version: str, topics: int) -> BrokerStats:
    return BrokerStats(
        version=version,
        topics=topics,
        cache_bytes=storage.cache.nbytes,
        open_files=storage.files.open_count,
        in_flight_bytes=storage.budget.used_bytes,
        disk_free_bytes=storage.disk.free_bytes,
        disk_full=storage.disk.is_full,
    )


def check_change(storage: IcebergStorage, caller: Caller, topic: TopicName, name: str, *, operation: str) -> None:
    """Raise if a subscription is the operator's: its dead letters go where the caller may not touch anything.

    Raise too if the topic is not the caller's. A subscription that does not exist is left to the operation itself.
    """
    caller.check(topic.namespace, operation=operation)
    with contextlib.suppress(SubscriptionNotFoundError):
        check_dead_letters(caller, topic, name, storage.subscriptions.get(topic, name).options, operation=operation)
