"""A topic's record in the metadata store."""

import base64
import json
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any, Self
from uuid import UUID

import pyarrow as pa

from icestream.model.errors import InvalidRequestError
from icestream.model.frames import MESSAGES_SCHEMA_ID
from icestream.model.messages import MESSAGE_SCHEMA, check_topic_schema
from icestream.model.names import TopicName
from icestream.wal import StreamInfo

OWN_SCHEMA_ID = 1


class AckLevel(Enum):
    """When a publish is answered."""

    MEMORY = "memory"
    """In the broker's memory: fast, and lost with the broker."""
    DISK = "disk"
    """Synced to the broker's disk."""

    @classmethod
    def parse(cls, text: Any) -> Self:
        try:
            return cls(text)
        except ValueError:
            allowed = " or ".join(level.value for level in cls)
            raise InvalidRequestError(
                f"{text!r} is not an acknowledgement level of this broker", operation="publish", remedy=f"use {allowed}"
            ) from None


@dataclass(frozen=True)
class TopicRecord:
    topic: str
    stream_id: str
    created_us: int
    epoch: int = 1
    ack: str = AckLevel.DISK.value
    retention_minutes: int | None = None
    retention_mb: int | None = None
    schema: str | None = None
    """Base64 of the serialized Arrow schema, for a topic with its own columns."""
    deleting: bool = False

    @property
    def name(self) -> TopicName:
        return TopicName.parse(self.topic)

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        return cls(**json.loads(data))

    @classmethod
    def from_stream(cls, stream: StreamInfo, created_us: int) -> Self:
        """The record of a log that was found without one."""
        return cls(
            topic=stream.topic,
            stream_id=str(stream.stream_id),
            created_us=created_us,
            epoch=stream.epoch,
            schema=stream.schemas.get(OWN_SCHEMA_ID),
        )

    def to_stream(self) -> StreamInfo:
        schemas = {OWN_SCHEMA_ID: self.schema} if self.schema else {}
        return StreamInfo(self.topic, UUID(self.stream_id), self.epoch, schemas=schemas)

    def changed(self, changes: dict[str, Any]) -> Self:
        """The record with some of `ack`, `retention_minutes` and `retention_mb` changed; 0 takes a limit away."""
        unknown = changes.keys() - {"ack", "retention_minutes", "retention_mb"}
        if unknown:
            raise InvalidRequestError(
                f"{', '.join(sorted(unknown))} of a topic cannot be changed",
                operation="update topic",
                place=self.topic,
                remedy="ack, retention_minutes and retention_mb can",
            )
        if "ack" in changes:
            AckLevel.parse(changes["ack"])
        changes = {name: None if value == 0 and name != "ack" else value for name, value in changes.items()}
        for name in ("retention_minutes", "retention_mb"):
            check_positive(name, changes.get(name))
        return replace(self, **changes)

    def marked_for_deletion(self) -> Self:
        return replace(self, deleting=True)

    @property
    def schema_id(self) -> int:
        return OWN_SCHEMA_ID if self.schema else MESSAGES_SCHEMA_ID

    def body_schema(self) -> pa.Schema:
        return decode_schema(self.schema) if self.schema else MESSAGE_SCHEMA


def check_positive(name: str, value: Any) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise InvalidRequestError(f"{name} is a whole number from 1, not {value!r}", operation="topic")


def encode_schema(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def decode_schema(text: str) -> pa.Schema:
    """A topic's schema from base64; raises when it is not one that a topic can have."""
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    except (ValueError, pa.ArrowException, OSError, TypeError) as error:
        raise InvalidRequestError(f"not a serialized Arrow schema: {error}", operation="topic schema") from error
    return check_topic_schema(schema)
