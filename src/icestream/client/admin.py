"""Topics: create, list, describe, change, delete; and the broker's figures."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import pyarrow as pa

from icestream.client.committed import CommittedSnapshot, wait_committed
from icestream.client.connection import Connection
from icestream.model.names import TopicName
from icestream.model.schema_text import decode_schema, encode_schema


@dataclass(frozen=True)
class TopicDescription:
    """What the broker knows about a topic. `raw` is its whole answer, with fields that newer brokers may add."""

    topic: str
    stream_id: str
    epoch: int
    ack: str
    created_us: int
    retention_minutes: int | None
    retention_mb: int | None
    schema: pa.Schema | None
    partition_by: tuple[str, ...]
    sort_by: tuple[str, ...]
    start_offset: int
    durable_end: int
    committed_offset: int | None
    """Messages below it are in the table; None while the broker has not looked."""
    quarantined: int
    """Frames below it that are not in the table, and were put aside."""
    storage: str
    """`table`, or `log` for a topic that lives in the log and the cloud alone."""
    uploaded_offset: int | None
    """Messages below it are in the cloud; None where the broker has no object store."""
    cloud_start_offset: int | None
    """The first message that the cloud has; None where it has none."""
    format: str | None
    """`iceberg`, `parquet` or `both`: what messages are written as; None for a topic without a table."""
    parquet_offset: int | None
    """Messages below it are in plain Parquet files; None where none are written, or the broker has not looked."""
    raw: dict[str, Any]

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        return cls(
            topic=fields["topic"],
            stream_id=fields["stream_id"],
            epoch=fields["epoch"],
            ack=fields["ack"],
            created_us=fields["created_us"],
            retention_minutes=fields.get("retention_minutes"),
            retention_mb=fields.get("retention_mb"),
            schema=None if fields.get("schema") is None else decode_schema(fields["schema"]),
            partition_by=tuple(fields.get("partition_by", ())),
            sort_by=tuple(fields.get("sort_by", ())),
            start_offset=fields["start_offset"],
            durable_end=fields["durable_end"],
            committed_offset=fields.get("committed_offset"),
            quarantined=fields.get("quarantined", 0),
            storage=fields.get("storage", "table"),
            uploaded_offset=fields.get("uploaded_offset"),
            cloud_start_offset=fields.get("cloud_start_offset"),
            format=fields.get("format"),
            parquet_offset=fields.get("parquet_offset"),
            raw=fields,
        )

    @property
    def message_count(self) -> int:
        """Of the log. In lists the offsets of logs that the broker has not opened yet are missing: see `raw`."""
        return self.durable_end - self.start_offset

    def to_dict(self) -> dict[str, Any]:
        """For printing and JSON: the schema as text."""
        fields = asdict(self)
        del fields["raw"]
        fields["schema"] = None if self.schema is None else str(self.schema)
        return fields


class Admin:
    """The administrative calls, which `Client` offers as its own."""

    _connection: Connection

    def create_topic(
        self,
        topic: str | TopicName,
        schema: pa.Schema | None = None,
        *,
        ack: str | None = None,
        retention_minutes: int | None = None,
        retention_mb: int | None = None,
        partition_by: Sequence[str] = (),
        sort_by: Sequence[str] = (),
        storage: str | None = None,
        if_not_exists: bool = False,
    ) -> TopicDescription:
        """Make a topic. Without a schema it takes messages; with one, Arrow data of exactly those columns.

        `partition_by` (`day(publish_time)`, `bucket(16, key)`, …) and `sort_by` say how its table is laid out.
        `storage` is `table`, or `log` for a topic without a table, which lives in the log and in cloud objects until
        its own retention takes them.
        """
        fields = {
            "topic": str(TopicName.parse(topic)),
            "schema": None if schema is None else encode_schema(schema),
            "ack": ack,
            "retention_minutes": retention_minutes,
            "retention_mb": retention_mb,
            "partition_by": list(partition_by) or None,
            "sort_by": list(sort_by) or None,
            "storage": storage,
            "if_not_exists": if_not_exists or None,
        }
        return TopicDescription.from_json(self._connection.action("create_topic", fields))

    def list_topics(self, prefix: str | None = None) -> list[TopicDescription]:
        answer = self._connection.action("list_topics", {"prefix": prefix})
        return [TopicDescription.from_json(fields) for fields in answer["topics"]]

    def describe_topic(self, topic: str | TopicName) -> TopicDescription:
        return TopicDescription.from_json(
            self._connection.action("describe_topic", {"topic": str(TopicName.parse(topic))})
        )

    def update_topic(
        self,
        topic: str | TopicName,
        *,
        ack: str | None = None,
        retention_minutes: int | None = None,
        retention_mb: int | None = None,
        schema: pa.Schema | None = None,
    ) -> TopicDescription:
        """Change what is given and leave the rest; a retention of 0 takes the limit away.

        A schema may add columns at the end that may be null; the table gains them with the next commit.
        """
        fields = {
            "topic": str(TopicName.parse(topic)),
            "ack": ack,
            "retention_minutes": retention_minutes,
            "retention_mb": retention_mb,
            "schema": None if schema is None else encode_schema(schema),
        }
        return TopicDescription.from_json(self._connection.action("update_topic", fields))

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
            answer = self._connection.action("tenant_stats", {"tenant": tenant, "after": after})
            found += answer["tenants"]
            after = answer["next_after"]
            if after is None:
                return found

    def ping(self) -> dict[str, Any]:
        """The broker's version and id."""
        return self._connection.action("ping", {})
