"""The native door's actions for subscriptions: make, list, describe, move, delete."""

from collections.abc import Callable
from typing import Any, TypeAlias

from icestream.model.callers import Caller
from icestream.model.offsets import StartPosition
from icestream.server.requests import take
from icestream.server.subscription_requests import NAMING, OPENING, description, named, open_subscription
from icestream.storage import IcebergStorage

Fields: TypeAlias = dict[str, Any]
Handler: TypeAlias = tuple[Callable[..., Fields], frozenset[str], str]


class SubscriptionActions:
    def __init__(self, storage: IcebergStorage) -> None:
        self._storage = storage

    def handlers(self) -> dict[str, Handler]:
        """Each action's handler, the fields it takes and what it is for."""
        return {
            "list_subscriptions": (self._list, frozenset({"topic"}), "The subscriptions of a topic, or all"),
            "create_subscription": (self._create, OPENING, "Make a subscription, or change its options"),
            "describe_subscription": (self._describe, NAMING, "One subscription's progress, lag and consumers"),
            "seek_subscription": (self._seek, NAMING | {"position"}, "Move a subscription, back or forth"),
            "delete_subscription": (self._delete, NAMING, "Delete a subscription and its progress"),
        }

    def _list(self, fields: Fields, caller: Caller) -> Fields:
        topic = take(fields, "topic", str, operation="list_subscriptions")
        if topic is not None:
            self._storage.topic(topic)  # says so if there is none
        found = [one for one in self._storage.subscriptions.find(topic) if caller.may(one.topic.namespace)]
        return {"subscriptions": [description(subscription) for subscription in found]}

    def _create(self, fields: Fields, caller: Caller) -> Fields:
        return description(open_subscription(self._storage, fields, caller, "create_subscription"))

    def _describe(self, fields: Fields) -> Fields:
        return description(self._storage.subscriptions.get(*named(fields, "describe_subscription")))

    def _seek(self, fields: Fields) -> Fields:
        topic, name = named(fields, "seek_subscription")
        position = StartPosition.from_json(fields.get("position"))
        return {"offset": self._storage.subscriptions.seek(topic, name, position)}

    def _delete(self, fields: Fields) -> Fields:
        self._storage.subscriptions.delete(*named(fields, "delete_subscription"))
        return {}
