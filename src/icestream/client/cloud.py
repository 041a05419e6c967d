"""Topics in the cloud: ship now, recover, list objects."""

import time
from collections.abc import Iterator
from typing import Any

from icestream.client.connection import Connection
from icestream.model.errors import DeadlineError
from icestream.model.names import TopicName

_WAIT_S = 5.0
_RECOVERY_S = 3_600.0


class CloudCalls:
    """The calls about the cloud, which `Client` offers as its own."""

    _connection: Connection

    def flush_topic(self, topic: str | TopicName, timeout: float | None = 60.0) -> int:
        """Ship everything that is durable now to the cloud; the offset below which all is there then.

        DeadlineError after `timeout` seconds; what was shipped by then stays.
        """
        text = str(TopicName.parse(topic))
        deadline = None if timeout is None else time.monotonic() + timeout
        target: int | None = None
        while True:
            left = _WAIT_S if deadline is None else min(_WAIT_S, deadline - time.monotonic())
            fields = {"topic": text, "target": target, "wait_ms": max(0, round(left * 1000))}
            answer = self._connection.action("flush_topic", fields)
            target = answer["target"]
            if answer["done"]:
                return int(answer["uploaded_offset"])
            if left < _WAIT_S:
                raise DeadlineError(
                    f"the cloud has the messages below {answer['uploaded_offset']}, not yet those below {target}",
                    operation="flush topic",
                    place=text,
                    remedy="see `icestream stats` for the uploader's last error, or wait longer",
                )

    def recover_topic(self, topic: str | TopicName, timeout: float = _RECOVERY_S) -> dict[str, Any]:
        """Make a topic whose log was lost live again, from the cloud and its table.

        The answer says what came from where, and what is lost, if anything.
        """
        return self._connection.action("recover_topic", {"topic": str(TopicName.parse(topic))}, timeout_s=timeout)

    def recoverable_topics(self) -> dict[str, list[str]]:
        """`{"lost": […], "recoverable": […]}`: topics whose log is lost, and those that only the cloud knows."""
        return self._connection.action("recoverable_topics", {})

    def cloud_objects(self, topic: str | TopicName) -> Iterator[dict[str, Any]]:
        """A topic's objects by offset, asked for a page at a time."""
        after: int | None = None
        while True:
            answer = self.cloud_page(topic, after)
            yield from answer["objects"]
            after = answer["next_after"]
            if after is None:
                return

    def cloud_page(self, topic: str | TopicName, after: int | None = None, limit: int | None = None) -> dict[str, Any]:
        """Some of a topic's objects, how far the topic is in the cloud (`head`), and which store that is."""
        fields = {"topic": str(TopicName.parse(topic)), "after": after, "limit": limit}
        return self._connection.action("cloud_objects", fields)
