"""Reading: the tickets of DoGet, and frames as rows of Arrow batches.

A ticket with `sql` is a query, one with `frames` reads undecoded frames, any other reads messages. A batch of frames
has a row for each frame; its body is opaque bytes.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
import pyarrow as pa

from icestream.model.errors import InvalidRequestError
from icestream.model.messages import Frame
from icestream.protocol.parsing import MAX_REQUEST_BYTES, Count, Int64, Request, convert


class ReadTicket(Request):
    """A range of a topic, or all that comes."""

    topic: str
    start: Any = None
    """See `StartPosition.from_json`."""
    end: Int64 | None = None
    follow: bool = False
    max_messages: Count | None = None
    columns: list[str] | None = None
    filter: str | None = None
    committed: bool = False
    """Only what is in the table."""


class FramesTicket(Request):
    """The frames that hold a range, as the log has them."""

    topic: str
    frames: Literal["headers", "whole"]
    """With or without bodies."""
    start: Int64
    end: Int64


class QueryTicket(Request):
    """The result of a SELECT in which topics are tables."""

    sql: str
    fresh: bool = True
    """Whether rows that are not in the tables yet are seen."""


Ticket: TypeAlias = ReadTicket | FramesTicket | QueryTicket


def parse_ticket(data: bytes) -> Ticket:
    """Return what a ticket asks for."""
    if len(data) > MAX_REQUEST_BYTES:
        raise InvalidRequestError(f"the ticket has {len(data)} bytes, at most {MAX_REQUEST_BYTES} are allowed")
    try:
        fields = msgspec.json.decode(data or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError(f"the ticket is not JSON: {error}", operation="read") from None
    if isinstance(fields, dict) and "sql" in fields:
        return convert(fields, QueryTicket, operation="sql")
    if isinstance(fields, dict) and "frames" in fields:
        return convert(fields, FramesTicket, operation="read frames")
    return convert(fields, ReadTicket, operation="read")


_COLUMNS = (
    pa.field("base_offset", pa.int64(), nullable=False),
    pa.field("message_count", pa.int64(), nullable=False),
    pa.field("publish_time_us", pa.int64(), nullable=False),
    pa.field("epoch", pa.int64(), nullable=False),
    pa.field("producer", pa.string(), nullable=False),
    pa.field("sequence", pa.int64(), nullable=False),
    pa.field("encoding", pa.uint8(), nullable=False),
    pa.field("schema_id", pa.int32(), nullable=False),
    pa.field("body", pa.large_binary()),
)
_SCHEMAS = b"icestream.schemas"


def frame_schema(schemas: Mapping[int, str]) -> pa.Schema:
    """The columns; `schemas` are those of the bodies by id, serialized, for topics that have their own."""
    return pa.schema(_COLUMNS, {_SCHEMAS: json.dumps(schemas)})


def schemas_of(schema: pa.Schema) -> dict[int, str]:
    """What `frame_schema` was given."""
    found = json.loads((schema.metadata or {}).get(_SCHEMAS, b"{}"))
    return {int(number): str(text) for number, text in found.items()}


def frame_batch(frames: Sequence[Frame], schema: pa.Schema, *, bodies: bool) -> pa.RecordBatch:
    """One row a frame; without bodies these are null."""
    columns: list[Iterable[object]] = [[frame[number] for frame in frames] for number in range(len(_COLUMNS) - 1)]
    columns.append([memoryview(frame.body) if bodies else None for frame in frames])
    arrays = [pa.array(values, field.type) for values, field in zip(columns, _COLUMNS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def frames_in(batch: pa.RecordBatch) -> Iterator[Frame]:
    """The frames of a batch; bodies are slices of its memory, and empty where they were left out."""
    *columns, bodies = (batch.column(number) for number in range(len(_COLUMNS)))
    rows = zip(*(column.to_pylist() for column in columns), bodies, strict=True)
    for *fields, body in rows:
        yield Frame._make([*fields, memoryview(body.as_buffer() or b"")])
