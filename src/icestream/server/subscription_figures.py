"""Figures of subscriptions as JSON, for every door."""

from dataclasses import asdict
from typing import Any

from icestream.model.callers import EVERYTHING, Caller
from icestream.model.errors import IcestreamError
from icestream.model.names import TopicName
from icestream.storage import IcebergStorage


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
