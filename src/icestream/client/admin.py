"""Administration: topics, subscriptions, the cloud, the broker's figures, and SQL."""

import time
from collections.abc import Generator, Iterator
from datetime import datetime
from typing import Any, TypeVar, Unpack

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from icestream.client.producer import CommittedSnapshot, wait_committed
from icestream.client.transport import Connection
from icestream.model.errors import DeadlineError, InvalidRequestError
from icestream.model.messages import encode_schema
from icestream.model.names import TopicName
from icestream.model.offsets import StartPosition
from icestream.protocol.admin import TopicDescription, TopicKeywords, TopicSummary
from icestream.protocol.subscribe import SubscriptionDescription

Description = TypeVar("Description", TopicSummary, TopicDescription, SubscriptionDescription)


def description_of(fields: dict[str, Any], kind: type[Description]) -> Description:
    """Return a broker's response as a description."""
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise InvalidRequestError(
            f"the broker's response cannot be read: {error}",
            operation="describe",
            remedy="use a client of the broker's version",
        ) from error


class Admin:
    """The administrative calls, which `Client` offers as its own."""

    _connection: Connection

    def create_topic(
        self,
        topic: str | TopicName,
        schema: pa.Schema | None = None,
        *,
        if_not_exists: bool = False,
        **attributes: Unpack[TopicKeywords],
    ) -> TopicDescription:
        """Create a topic. Without a schema it takes messages; with one, Arrow data of exactly those columns.

        `attributes` are those of `icestream.protocol.admin.TopicAttributes`: `ack`, `retention_minutes`,
        `retention_mb`, `partition_by` (`day(publish_time)`, `bucket(16, key)`, …), `sort_by` and `storage`, which is
        `table`, or `log` for a topic without a table.
        """
        fields = {
            "topic": str(TopicName.parse(topic)),
            "schema": None if schema is None else encode_schema(schema),
            "if_not_exists": if_not_exists or None,
            **attributes,
        }
        return description_of(self._connection.action("create_topic", fields), TopicDescription)

    def list_topics(self, prefix: str | None = None) -> list[TopicSummary]:
        """Return all topics whose name begins with `prefix`, by name."""
        response = self._connection.action("list_topics", {"prefix": prefix})
        return [description_of(fields, TopicSummary) for fields in response["topics"]]

    def describe_topic(self, topic: str | TopicName) -> TopicDescription:
        fields = {"topic": str(TopicName.parse(topic))}
        return description_of(self._connection.action("describe_topic", fields), TopicDescription)

    def update_topic(
        self, topic: str | TopicName, *, schema: pa.Schema | None = None, **changes: Unpack[TopicKeywords]
    ) -> TopicDescription:
        """Change the attributes that are given: `ack`, `retention_minutes` and `retention_mb`; 0 removes a limit.

        A schema may add columns at the end that may be null; the table gains them with the next commit.
        """
        fields = {
            "topic": str(TopicName.parse(topic)),
            "schema": None if schema is None else encode_schema(schema),
            **changes,
        }
        return description_of(self._connection.action("update_topic", fields), TopicDescription)

    def delete_topic(self, topic: str | TopicName, *, keep_table: bool = False) -> None:
        """Delete a topic, its messages and, unless it is to be kept, its table."""
        fields = {"topic": str(TopicName.parse(topic)), "keep_table": keep_table or None}
        self._connection.action("delete_topic", fields)

    def wait_committed(
        self, topic: str | TopicName, offset: int, timeout: float | None = None, *, hurry: bool = True
    ) -> CommittedSnapshot:
        """Wait until the message at `offset` is in the topic's table; DeadlineError after `timeout` seconds.

        Without hurry the pipeline is not told that somebody waits, and keeps to its flush interval.
        """
        return wait_committed(self._connection, str(TopicName.parse(topic)), offset, timeout, hurry=hurry)

    def stats(self, topic: str | TopicName | None = None) -> dict[str, Any]:
        """`{"topics": […], "broker": {…}}`, of one topic or of all."""
        return self._connection.action("stats", {"topic": None if topic is None else str(TopicName.parse(topic))})

    def tenant_stats(self, tenant: str | None = None) -> list[dict[str, Any]]:
        """Figures of one tenant, or of all that this client may see, by name."""
        found: list[dict[str, Any]] = []
        after: str | None = None
        while True:
            response = self._connection.action("tenant_stats", {"tenant": tenant, "after": after})
            found += response["tenants"]
            after = response["next_after"]
            if after is None:
                return found

    def ping(self) -> dict[str, Any]:
        """Return the broker's version and id."""
        return self._connection.action("ping", {})


# ---- topics in the cloud: upload now, recover, list objects


_WAIT_S = 5.0
RECOVERY_S = 3_600.0


class CloudCalls:
    """The calls about the cloud, which `Client` offers as its own."""

    _connection: Connection

    def flush_topic(self, topic: str | TopicName, timeout: float | None = 60.0) -> int:
        """Upload everything that is durable now; return the offset below which all messages are in the cloud then.

        Raises DeadlineError after `timeout` seconds; what was uploaded by then stays.
        """
        text = str(TopicName.parse(topic))
        deadline = None if timeout is None else time.monotonic() + timeout
        target: int | None = None
        while True:
            left = _WAIT_S if deadline is None else max(0.0, min(_WAIT_S, deadline - time.monotonic()))
            fields = {"topic": text, "target": target, "wait_ms": round(left * 1000)}
            response = self._connection.action("flush_topic", fields, hold_s=left)
            target = response["target"]
            if response["done"]:
                return int(response["uploaded_offset"])
            if left < _WAIT_S:
                raise DeadlineError(
                    f"the cloud has the messages below {response['uploaded_offset']}, not yet those below {target}",
                    operation="flush topic",
                    place=text,
                    remedy="see `icestream stats` for the uploader's last error, or wait longer",
                )

    def reset_clock(self, topic: str | TopicName) -> dict[str, Any]:
        """Let publish times follow the clock again, after a wrong clock has pinned them to a time ahead.

        The response names the offset from which on they do: `topic`, `offset`, `time_us`.
        """
        return self._connection.action("reset_clock", {"topic": str(TopicName.parse(topic))})

    def recover_topic(self, topic: str | TopicName, timeout: float = RECOVERY_S) -> dict[str, Any]:
        """Recover a topic whose log was lost, from the cloud and its table.

        The response says which messages came from where, and which are lost, if any.
        """
        return self._connection.action("recover_topic", {"topic": str(TopicName.parse(topic))}, timeout_s=timeout)

    def recoverable_topics(self) -> dict[str, list[str]]:
        """Return `{"lost": […], "recoverable": […]}`: topics whose log is lost, and those that only the cloud has."""
        return self._connection.action("recoverable_topics", {})

    def cloud_objects(self, topic: str | TopicName) -> Iterator[dict[str, Any]]:
        """Yield a topic's objects by offset, a page at a time."""
        after: int | None = None
        while True:
            response = self.cloud_page(topic, after)
            yield from response["objects"]
            after = response["next_after"]
            if after is None:
                return

    def cloud_page(self, topic: str | TopicName, after: int | None = None, limit: int | None = None) -> dict[str, Any]:
        """Return some of a topic's objects, how much of the topic is in the cloud (`head`), and which store it is."""
        fields = {"topic": str(TopicName.parse(topic)), "after": after, "limit": limit}
        return self._connection.action("cloud_objects", fields)


# ---- SQL over topics, run by the broker


class SqlCalls:
    """The calls for SQL, which `Client` offers as its own."""

    _connection: Connection

    def sql(self, query: str, *, fresh: bool = True) -> pa.Table:
        """Return the result of a SELECT in which topics are tables, such as `SELECT count(*) FROM default.events`.

        With `fresh` it includes messages that are not in the tables yet.
        """
        stream = self._query(query, fresh=fresh)
        try:
            return stream.read_all()
        except (fl.FlightError, pa.ArrowException) as error:
            raise self._connection.typed(error, "sql") from error

    def sql_batches(self, query: str, *, fresh: bool = True) -> Generator[pa.RecordBatch, None, None]:
        """Like `sql`, for results that do not fit into memory: batches, at least one, made while they are taken.

        A caller that stops early ends the query.
        """
        stream = self._query(query, fresh=fresh)
        try:
            yield pa.RecordBatch.from_pylist([], stream.schema)
            for chunk in stream:
                yield chunk.data
        except (fl.FlightError, pa.ArrowException) as error:
            raise self._connection.typed(error, "sql") from error
        finally:
            stream.cancel()

    def _query(self, query: str, *, fresh: bool) -> Any:
        return self._connection.get({"sql": query, "fresh": fresh}, "sql")


# ---- where reading starts, as callers of the client may say it


Start = str | int | datetime | dict[str, Any] | StartPosition
"""`"earliest"`, `"latest"`, an offset, a time (the first message published at or after it), `"snapshot:ID"` or
`"tag:NAME"` (the first message that this state of the table does not hold)."""


def position_of(start: Any) -> StartPosition:
    if isinstance(start, StartPosition):
        return start
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise InvalidRequestError("a start time needs a time zone", operation="start position")
        return StartPosition.timestamp(round(start.timestamp() * 1_000_000))
    return StartPosition.parse(start) if isinstance(start, str) else StartPosition.from_json(start)


# ---- subscriptions: make, list, describe, move, delete; and how a request names what a subscription is to be


class SubscriptionAdmin:
    """The administrative calls, which `Client` offers as its own."""

    _connection: Connection

    def subscriptions(self, topic: str | TopicName | None = None) -> list[SubscriptionDescription]:
        """Those of one topic, or all."""
        fields = {"topic": None if topic is None else str(TopicName.parse(topic))}
        response = self._connection.action("list_subscriptions", fields)
        return [description_of(found, SubscriptionDescription) for found in response["subscriptions"]]

    def create_subscription(
        self, topic: str | TopicName, name: str, *, start: Start = "earliest", **options: Any
    ) -> SubscriptionDescription:
        """Make a subscription before anyone consumes from it; `options` are those of `subscribe`.

        One that is there stays where it is; its options are changed if no consumer is connected.
        """
        fields = subscription_fields(topic, name, start, **options)
        return description_of(self._connection.action("create_subscription", fields), SubscriptionDescription)

    def describe_subscription(self, topic: str | TopicName, name: str) -> SubscriptionDescription:
        response = self._connection.action("describe_subscription", _named(topic, name))
        return description_of(response, SubscriptionDescription)

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
