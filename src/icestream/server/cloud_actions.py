"""The native door's actions for topics in the cloud: ship now, recover, list objects."""

from collections.abc import Callable
from typing import Any, TypeAlias

from icestream.model.errors import InvalidRequestError
from icestream.model.names import TopicName
from icestream.server.cloud_requests import (
    MAX_OBJECTS,
    MAX_WAIT_SECONDS,
    cloud_objects,
    flush_topic,
    recover_topic,
    recoverable_topics,
)
from icestream.server.requests import take
from icestream.storage import IcebergStorage

Fields: TypeAlias = dict[str, Any]
Handler: TypeAlias = tuple[Callable[[Fields], Fields], frozenset[str], str]


class CloudActions:
    def __init__(self, storage: IcebergStorage) -> None:
        self._storage = storage

    def handlers(self) -> dict[str, Handler]:
        """Each action's handler, the fields it takes and what it is for."""
        return {
            "flush_topic": (
                self._flush,
                frozenset({"topic", "target", "wait_ms"}),
                "Ship what is durable to the cloud now",
            ),
            "recover_topic": (
                self._recover,
                frozenset({"topic"}),
                "Make a topic live again from the cloud and its table",
            ),
            "recoverable_topics": (
                self._recoverable,
                frozenset(),
                "Topics whose log is lost, or that only the cloud knows",
            ),
            "cloud_objects": (
                self._objects,
                frozenset({"topic", "after", "limit"}),
                "A topic's objects in the cloud",
            ),
        }

    def _flush(self, fields: Fields) -> Fields:
        operation = "flush_topic"
        wait_ms = take(fields, "wait_ms", int, operation=operation, default=0)
        seconds = min(max(0, wait_ms) / 1000, MAX_WAIT_SECONDS)
        target = take(fields, "target", int, operation=operation)
        return flush_topic(self._storage, _topic(fields, operation), seconds, target)._asdict()

    def _recover(self, fields: Fields) -> Fields:
        return recover_topic(self._storage, _topic(fields, "recover_topic"))

    def _recoverable(self, _: Fields) -> Fields:
        return dict(recoverable_topics(self._storage))

    def _objects(self, fields: Fields) -> Fields:
        operation = "cloud_objects"
        after = take(fields, "after", int, operation=operation, default=-1)
        limit = take(fields, "limit", int, operation=operation, default=MAX_OBJECTS)
        if not 1 <= limit <= MAX_OBJECTS:
            raise InvalidRequestError(f"limit is 1 to {MAX_OBJECTS}, not {limit}", operation=operation)
        return cloud_objects(self._storage, _topic(fields, operation), after, limit)


def _topic(fields: Fields, operation: str) -> TopicName:
    return TopicName.parse(take(fields, "topic", str, operation=operation, required=True))
