"""A topic's record in the metadata store."""

from typing import Any, Self
from uuid import UUID

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from icestream.model.enums import AckLevel, StorageKind
from icestream.model.errors import InvalidRequestError
from icestream.model.messages import (
    MESSAGE_SCHEMA,
    MESSAGES_SCHEMA_ID,
    check_topic_schema,
    decode_schema,
    encode_schema,
)
from icestream.model.names import TopicName
from icestream.protocol.admin import CHANGEABLE, TopicAttributes, UpdateTopic, changed_attributes
from icestream.protocol.parsing import convert
from icestream.wal import StreamInfo

FIRST_OWN_SCHEMA_ID = 1
_KNOWN_TO_LOGS = frozenset({"encoded_schema", "storage"})
_UNKNOWN_TO_LOGS = ("created_us", *(name for name in TopicAttributes.__struct_fields__ if name not in _KNOWN_TO_LOGS))


class TopicRecord(TopicAttributes, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the broker stores of a topic: what its user chose, and what the broker has to remember."""

    topic: str
    stream_id: str
    created_us: int
    epoch: int = 1
    older_schemas: tuple[str, ...] = ()
    """The values of `encoded_schema` before columns were added, oldest first. The first one has the id 1."""
    has_log: bool = False
    """Whether a log was ever created for the topic. If it is missing then, it is lost. False says nothing."""
    log_id: str = ""
    """Identifies the one log that may take messages; see `icestream.storage.logs.log_id`. Empty: none was noted yet."""
    log_location: str = ""
    """Host and data directory of that log when it was first opened. For error messages only."""
    in_table_below: int = 0
    """All messages below it have been in the table. Only for a recovered topic, whose log does not tell it."""
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
        """Raise if messages of the topic can never reach a level."""
        if level is AckLevel.TABLE and not self.has_table:
            raise no_table(self.topic, "no message of it is ever acknowledged from there")

    def to_bytes(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        return msgspec.json.decode(data, type=cls)

    @classmethod
    def from_stream(cls, stream: StreamInfo, created_us: int, noted: "TopicRecord | None" = None) -> Self:
        """Return the record for a log without one. Attributes that a log does not store come from `noted`."""
        versions = [schema for _, schema in sorted(stream.schemas.items())]
        record = cls(
            topic=stream.topic,
            stream_id=str(stream.stream_id),
            created_us=created_us,
            epoch=stream.epoch,
            encoded_schema=versions[-1] if versions else None,
            older_schemas=tuple(versions[:-1]),
            storage=StorageKind(stream.storage),
        )
        if noted is None or noted.stream_id != record.stream_id:
            return record
        return replace(record, **{name: getattr(noted, name) for name in _UNKNOWN_TO_LOGS})

    def to_stream(self) -> StreamInfo:
        return StreamInfo(self.topic, UUID(self.stream_id), self.epoch, schemas=self.schemas(), storage=self.storage)

    def schemas(self) -> dict[int, str]:
        """Return every version of the topic's own schema by its id."""
        versions = (*self.older_schemas, self.encoded_schema) if self.encoded_schema else ()
        return dict(enumerate(versions, FIRST_OWN_SCHEMA_ID))

    def changed(self, changes: dict[str, Any]) -> Self:
        """Return the record with some of its `CHANGEABLE` attributes changed; 0 removes a limit."""
        unknown = changes.keys() - CHANGEABLE
        if unknown:
            raise InvalidRequestError(
                f"{', '.join(sorted(unknown))} of a topic cannot be changed",
                operation="update topic",
                place=self.topic,
                remedy=f"{', '.join(sorted(CHANGEABLE))} can",
            )
        changes = {name: None if value == 0 else value for name, value in changes.items()}
        fields = changed_attributes(convert(changes, UpdateTopic, operation="update topic"))
        if "ack" in fields:
            self.check_ack(AckLevel(str(fields["ack"])))
        if "encoded_schema" in fields:
            fields |= self._with_schema(fields["encoded_schema"])
        return replace(self, **fields)

    def _with_schema(self, text: str | None) -> dict[str, Any]:
        """Return the changes for a schema with nullable columns added at its end; nothing else can change."""
        new, old = topic_schema(text or ""), self.body_schema()
        if (
            self.encoded_schema is None
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
            return {"encoded_schema": self.encoded_schema}
        return {"encoded_schema": encode_schema(new), "older_schemas": (*self.older_schemas, self.encoded_schema)}

    def marked_for_deletion(self, *, keep_table: bool) -> Self:
        return replace(self, deleting=True, keep_table=keep_table)

    @property
    def schema_id(self) -> int:
        return FIRST_OWN_SCHEMA_ID + len(self.older_schemas) if self.encoded_schema else MESSAGES_SCHEMA_ID

    def body_schema(self) -> pa.Schema:
        return topic_schema(self.encoded_schema) if self.encoded_schema else MESSAGE_SCHEMA


def no_table(topic: str, consequence: str) -> InvalidRequestError:
    """Return the error for what only a topic with a table can do."""
    return InvalidRequestError(
        f"the topic has no table, so {consequence}: its storage is `{StorageKind.LOG}`",
        operation="topic",
        place=topic,
        remedy=f"use a topic whose storage is `{StorageKind.TABLE}`",
    )


def check_storage(record: TopicRecord, *, uploads: bool) -> None:
    """Raise if the topic is to have no table, and its attributes or this broker do not allow that."""
    if record.has_table:
        return
    record.check_ack(record.ack)
    if record.partition_by or record.sort_by:
        raise no_table(record.topic, "there is nothing to partition or sort")
    if not uploads:
        raise InvalidRequestError(
            "a topic without a table lives in cloud objects, and this broker uploads none",
            operation="create topic",
            place=record.topic,
            remedy="set uploader.enabled and cloud.backend, or make a topic with a table",
        )


def topic_schema(text: str) -> pa.Schema:
    """Decode a topic's schema; raise if a topic cannot have it."""
    return check_topic_schema(decode_schema(text))
