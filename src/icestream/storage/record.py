"""A topic's record in the metadata store."""

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Self
from uuid import UUID

import pyarrow as pa

from icestream.model.enums import AckLevel, StorageKind
from icestream.model.errors import InvalidRequestError
from icestream.model.frames import MESSAGES_SCHEMA_ID
from icestream.model.messages import MESSAGE_SCHEMA, check_topic_schema, decode_schema, encode_schema
from icestream.model.names import TopicName
from icestream.wal import StreamInfo

FIRST_OWN_SCHEMA_ID = 1
CHANGEABLE = frozenset({"ack", "retention_minutes", "retention_mb", "schema"})
_UNKNOWN_TO_LOGS = ("created_us", "ack", "retention_minutes", "retention_mb", "partition_by", "sort_by")


@dataclass(frozen=True)
class TopicRecord:
    topic: str
    stream_id: str
    created_us: int
    epoch: int = 1
    ack: str = AckLevel.DISK
    retention_minutes: int | None = None
    retention_mb: int | None = None
    schema: str | None = None
    """Base64 of the serialized Arrow schema, for a topic with its own columns."""
    older_schemas: tuple[str, ...] = ()
    """What `schema` was before columns were added to it, oldest first. The first one has the id 1."""
    storage: str = StorageKind.TABLE
    partition_by: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()
    has_log: bool = False
    """Whether the topic's log was ever begun: one that is not there then is lost. False says nothing."""
    log_id: str = ""
    """Identifies the one log that may take messages; see `icestream.storage.logs.log_id`. Empty: none was noted yet."""
    log_location: str = ""
    """Host and data directory of that log when it was first opened. For error messages only."""
    deleting: bool = False
    keep_table: bool = False
    """Whether the table stays when the topic is deleted."""

    @property
    def name(self) -> TopicName:
        return TopicName.parse(self.topic)

    @property
    def has_table(self) -> bool:
        """Whether the topic's messages go into a table, now or later."""
        return self.storage == StorageKind.TABLE

    def check_ack(self, level: AckLevel) -> None:
        """Raise where messages of the topic can never reach a level."""
        if level is AckLevel.TABLE and not self.has_table:
            raise no_table(self.topic, "no message of it is ever acknowledged from there")

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        fields: dict[str, Any] = json.loads(data)
        lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
        return cls(**(fields | lists))

    @classmethod
    def from_stream(cls, stream: StreamInfo, created_us: int, noted: "TopicRecord | None" = None) -> Self:
        """The record of a log that was found without one; what a log does not know is as was noted elsewhere."""
        versions = [schema for _, schema in sorted(stream.schemas.items())]
        record = cls(
            topic=stream.topic,
            stream_id=str(stream.stream_id),
            created_us=created_us,
            epoch=stream.epoch,
            schema=versions[-1] if versions else None,
            older_schemas=tuple(versions[:-1]),
            storage=stream.storage,
        )
        if noted is None or noted.stream_id != record.stream_id:
            return record
        return replace(record, **{name: getattr(noted, name) for name in _UNKNOWN_TO_LOGS})

    def to_stream(self) -> StreamInfo:
        return StreamInfo(self.topic, UUID(self.stream_id), self.epoch, schemas=self.schemas(), storage=self.storage)

    def schemas(self) -> dict[int, str]:
        """Every version of the topic's own schema by its id."""
        versions = (*self.older_schemas, self.schema) if self.schema else ()
        return dict(enumerate(versions, FIRST_OWN_SCHEMA_ID))

    def changed(self, changes: dict[str, Any]) -> Self:
        """The record with some of its `CHANGEABLE` fields changed; 0 takes a limit away."""
        unknown = changes.keys() - CHANGEABLE
        if unknown:
            raise InvalidRequestError(
                f"{', '.join(sorted(unknown))} of a topic cannot be changed",
                operation="update topic",
                place=self.topic,
                remedy=f"{', '.join(sorted(CHANGEABLE))} can",
            )
        if "ack" in changes:
            self.check_ack(AckLevel.parse(changes["ack"], operation="update topic"))
        changes = {name: None if value == 0 else value for name, value in changes.items()}
        if "schema" in changes:
            changes = {**changes, **self._with_schema(changes["schema"])}
        for name in ("retention_minutes", "retention_mb"):
            check_positive(name, changes.get(name))
        return replace(self, **changes)

    def _with_schema(self, text: str) -> dict[str, Any]:
        """The schema with columns added at its end, each of which may be null; nothing else of it can change."""
        new, old = topic_schema(text), self.body_schema()
        if (
            self.schema is None
            or list(new)[: len(old)] != list(old)
            or not all(field.nullable for field in list(new)[len(old) :])
        ):
            raise InvalidRequestError(
                "a topic's columns can only be added to, at the end, by columns that may be null",
                operation="update topic",
                place=self.topic,
                remedy="make a new topic for other columns",
            )
        if len(new) == len(old):
            return {"schema": self.schema}
        return {"schema": encode_schema(new), "older_schemas": (*self.older_schemas, self.schema)}

    def marked_for_deletion(self, *, keep_table: bool) -> Self:
        return replace(self, deleting=True, keep_table=keep_table)

    @property
    def schema_id(self) -> int:
        return FIRST_OWN_SCHEMA_ID + len(self.older_schemas) if self.schema else MESSAGES_SCHEMA_ID

    def body_schema(self) -> pa.Schema:
        return topic_schema(self.schema) if self.schema else MESSAGE_SCHEMA


def no_table(topic: str, consequence: str) -> InvalidRequestError:
    """The error for what only a topic with a table can do."""
    return InvalidRequestError(
        f"the topic has no table, so {consequence}: its storage is `{StorageKind.LOG}`",
        operation="topic",
        place=topic,
        remedy=f"use a topic whose storage is `{StorageKind.TABLE}`",
    )


def check_storage(record: TopicRecord, *, uploads: bool) -> None:
    """Raise where the topic is to have no table, and cannot be made so or not here."""
    if record.has_table:
        return
    record.check_ack(AckLevel(record.ack))
    if record.partition_by or record.sort_by:
        raise no_table(record.topic, "there is nothing to partition or sort")
    if not uploads:
        raise InvalidRequestError(
            "a topic without a table lives in cloud objects, and this broker uploads none",
            operation="create topic",
            place=record.topic,
            remedy="set uploader.enabled and cloud.backend, or make a topic with a table",
        )


def check_positive(name: str, value: Any) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise InvalidRequestError(f"{name} is a whole number from 1, not {value!r}", operation="topic")


def topic_schema(text: str) -> pa.Schema:
    """A topic's schema from its text; raises when it is not one that a topic can have."""
    return check_topic_schema(decode_schema(text))
