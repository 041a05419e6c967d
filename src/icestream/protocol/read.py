"""Frames as rows of Arrow batches: how they travel undecoded. One row is one frame, whose body is opaque bytes."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from icestream.model.frames import Frame

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
