"""Messages as Arrow, and frames: batches of messages as encoded bodies, with the fields that the log adds.

Published batches have the columns of `MESSAGE_SCHEMA`, or those of the topic's own Arrow schema. Readers get the same
columns after the envelope that the log adds: offset, publish time, producer, sequence. In topics with their own schema
the envelope's names begin with `_`; `check_topic_schema` refuses columns with those names.

Only this module decodes bodies. All code between a producer and a reader moves them as opaque bytes.
`icestream.model.frames` has the bytes around them.
"""

import base64
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from itertools import accumulate
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from icestream.model.errors import DamagedError, InvalidMessageError, InvalidRequestError, TooLargeError
from icestream.model.offsets import Range

# The frame

MESSAGES_SCHEMA_ID = 0
"""The schema id of frames whose messages have the columns of `MESSAGE_SCHEMA`."""


class Frame(NamedTuple):
    """One published batch, with the fields that the log adds. The body is undecoded, a slice of a larger buffer."""

    base_offset: int
    message_count: int
    publish_time_us: int
    epoch: int
    producer: str
    sequence: int
    encoding: int
    schema_id: int
    body: Any

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.message_count

    @property
    def nbytes(self) -> int:
        return len(self.body)


# A lone message: a batch of one message, as plain bytes. A producer that does not batch makes a frame of every message.
# Arrow's framing of such a message costs more than the message itself, to write, to keep and above all to read. So its
# body is
#
#     key length: u32 | attributes length: u32 | key | attributes | payload
#
# Numbers are little-endian; the length 0xFFFFFFFF means null; the payload is the rest. Attributes are pairs of name and
# value, one after the other, each as a length (u32) and UTF-8.

MAX_LONE_BYTES = 64 * 1024
"""Larger messages are kept as Arrow, which needs no copy."""

_LONE_HEAD = struct.Struct("<II")
_LENGTH = struct.Struct("<I")
_SPAN = struct.Struct("<ii")
_NULL_LENGTH = 0xFFFFFFFF
_PAYLOAD_ONLY = _LONE_HEAD.pack(_NULL_LENGTH, _NULL_LENGTH)
_KEY, _ATTRIBUTES, _PAYLOAD = range(3)  # the columns of `MESSAGE_SCHEMA`


class LoneMessage:
    """A message that arrived as its body. It takes the place of a batch."""

    __slots__ = ("body",)
    num_rows = 1

    def __init__(self, body: bytes) -> None:
        self.body = body

    @property
    def nbytes(self) -> int:
        """The size without the body's own header."""
        return len(self.body) - _LONE_HEAD.size


def encode_message(payload: bytes, key: bytes | None, pairs: Sequence[tuple[str, str]] | None) -> bytes:
    """Return the body for one message."""
    if key is None and pairs is None:
        return b"".join((_PAYLOAD_ONLY, payload))
    tail = None if pairs is None else b"".join(_encoded_text(text) for pair in pairs for text in pair)
    head = _LONE_HEAD.pack(_NULL_LENGTH if key is None else len(key), _NULL_LENGTH if tail is None else len(tail))
    return b"".join((head, key or b"", tail or b"", payload))


def check_lone(body: bytes) -> None:
    """Raise ValueError unless this is the body of a small message, as `encode_message` makes it."""
    if len(body) > MAX_LONE_BYTES:
        raise ValueError(f"it has {len(body)} bytes; a message of more than {MAX_LONE_BYTES} must be a batch")
    if body[: _LONE_HEAD.size] != _PAYLOAD_ONLY:
        _lone_fields(body)


def encode_lone(batch: pa.RecordBatch) -> bytes | None:
    """Return the body for a batch of one message of `MESSAGE_SCHEMA`; None if it must be checked and kept as Arrow.

    The batch was not checked before, so nothing in it is trusted.
    """
    payload = _only_value(batch.column(_PAYLOAD))
    if payload is None or not _is_null(batch.column(_ATTRIBUTES)):
        return None
    keys = batch.column(_KEY)
    if _is_null(keys):
        return b"".join((_PAYLOAD_ONLY, payload))
    key = _only_value(keys)
    return None if key is None else b"".join((_LONE_HEAD.pack(len(key), _NULL_LENGTH), key, payload))


def encode_checked_lone(batch: pa.RecordBatch) -> bytes | None:
    """Return the body for a batch that was checked in full; None if an attribute is null, which only Arrow can hold."""
    keys, attributes, payloads = batch.columns
    pairs = attributes[0].as_py()
    if pairs is not None and any(value is None for _, value in pairs):
        return None
    return encode_message(payloads[0].as_buffer(), keys[0].as_py(), pairs)


def decode_lone(bodies: list[Any], schema: pa.Schema) -> pa.RecordBatch:
    """Return one batch of many bodies. Raise ValueError for a body that `encode_lone` cannot have made."""
    keys: list[Any] = []
    attributes: list[Any] = []
    payloads: list[Any] = []
    any_key = any_attributes = False
    for body in bodies:
        key, pairs, payload = _lone_fields(body)
        any_key |= key is not None
        any_attributes |= pairs is not None
        keys.append(key)
        attributes.append(pairs)
        payloads.append(payload)
    count = len(bodies)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(keys, schema[_KEY].type) if any_key else pa.nulls(count, schema[_KEY].type),
            pa.array(attributes, schema[_ATTRIBUTES].type)
            if any_attributes
            else pa.nulls(count, schema[_ATTRIBUTES].type),
            pa.array(payloads, schema[_PAYLOAD].type),
        ],
        schema=schema,
    )


def _lone_fields(body: Any) -> tuple[Any, list[tuple[str, str]] | None, Any]:
    """Return key, attributes and payload."""
    key_length, attributes_length = _LONE_HEAD.unpack_from(body)
    position = _LONE_HEAD.size
    key = pairs = None
    if key_length != _NULL_LENGTH:
        key = body[position : position + key_length]
        position += key_length
    if attributes_length != _NULL_LENGTH:
        pairs = list(_attribute_pairs(body, position, position + attributes_length))
        position += attributes_length
    if position > len(body):
        raise ValueError(f"the lengths in a body of {len(body)} bytes exceed it")
    return key, pairs, body[position:]


def _is_null(column: pa.Array) -> bool:
    """Return whether the only value is null, by the bitmap and not by the null count that the sender gives."""
    validity, row = column.buffers()[0], column.offset
    return validity is not None and row // 8 < validity.size and not validity[row // 8] >> row % 8 & 1


def _only_value(column: pa.Array) -> memoryview | None:
    """Return the only value of a binary column; None if it is null or not valid Arrow."""
    validity, offsets, data = column.buffers()
    row = column.offset
    if offsets is None or offsets.size < row * _LENGTH.size + _SPAN.size:
        return None
    if validity is not None and (row // 8 >= validity.size or not validity[row // 8] >> row % 8 & 1):
        return None
    start, end = _SPAN.unpack_from(offsets, row * _LENGTH.size)
    size = data.size if data is not None else 0
    if not 0 <= start <= end <= size or end - start > MAX_LONE_BYTES:
        return None
    return memoryview(data)[start:end] if data is not None else memoryview(b"")


def _encoded_text(text: str) -> bytes:
    data = text.encode()
    return _LENGTH.pack(len(data)) + data


def _attribute_pairs(body: Any, position: int, end: int) -> Any:
    if end > len(body):
        raise ValueError(f"attributes that end at {end} in a body of {len(body)} bytes")
    while position < end:
        pair = []
        for _ in range(2):
            (length,) = _LENGTH.unpack_from(body, position)
            position += _LENGTH.size
            pair.append(bytes(body[position : position + length]).decode())
            position += length
        if position > end:
            raise ValueError("an attribute is longer than the attributes")
        yield tuple(pair)


# Times that a table cannot hold. A table's timestamps count microseconds, and its dates are days of 32 bits, so a time
# in seconds or milliseconds can be out of their range. Such a value is refused when it is published: in the log it
# would block every message after it.

_MAX_INT64 = 2**63 - 1
_MILLIS_PER_DAY = 86_400_000
_LIMITS = {
    pa.timestamp("s"): _MAX_INT64 // 1_000_000,
    pa.timestamp("ms"): _MAX_INT64 // 1_000,
    pa.date64(): (2**31 - 1) * _MILLIS_PER_DAY,
}
"""The largest value of each unit, and its negative the smallest."""


def check_times(batch: pa.RecordBatch) -> None:
    """Raise if a time in the batch, at any depth, is out of a table's range. Other columns cost nothing."""
    for index, field in enumerate(batch.schema):
        if not _has_limit(field.type):
            continue
        for values in _leaves(batch.column(index)):
            _check_limits(values, field.name)


def _limit(kind: pa.DataType) -> int | None:
    if kinds.is_timestamp(kind) and kind.unit in ("s", "ms"):
        return _LIMITS[pa.timestamp(kind.unit)]
    return _LIMITS[kind] if kinds.is_date64(kind) else None


def _has_limit(kind: pa.DataType) -> bool:
    if kinds.is_dictionary(kind):
        return _has_limit(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _has_limit(kind.storage_type)
    if kind.num_fields:
        return any(_has_limit(kind.field(number).type) for number in range(kind.num_fields))
    return _limit(kind) is not None


def _leaves(array: pa.Array) -> Iterator[pa.Array]:
    """Yield the arrays of limited times in an array."""
    kind = array.type
    if not _has_limit(kind):
        return
    if kinds.is_dictionary(kind):
        yield from _leaves(array.dictionary)
    elif isinstance(kind, pa.BaseExtensionType):
        yield from _leaves(array.storage)
    elif kinds.is_map(kind):
        first, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        for part in (array.keys, array.items):
            yield from _leaves(part.slice(first, end - first))
    elif kinds.is_struct(kind):
        for part in array.flatten():
            yield from _leaves(part)
    elif kind.num_fields:
        yield from _leaves(array.flatten())
    else:
        yield array


def _check_limits(values: pa.Array, column: str) -> None:
    limit = _limit(values.type)
    assert limit is not None
    bounds = pc.min_max(values.cast(pa.int64()))
    for bound in (bounds["min"].as_py(), bounds["max"].as_py()):
        if bound is not None and abs(bound) > limit:
            raise InvalidMessageError(
                f"column {column!r} has a {values.type} of {bound}; a table holds at most {limit}",
                operation="publish",
                remedy="send null where there is no time",
            )


# The columns

KEY, ATTRIBUTES, PAYLOAD = "key", "attributes", "payload"
"""The names of a message's columns in topics without a schema of their own."""

MESSAGE_SCHEMA = pa.schema(
    [
        pa.field(KEY, pa.binary()),
        pa.field(ATTRIBUTES, pa.map_(pa.string(), pa.string())),
        pa.field(PAYLOAD, pa.binary(), nullable=False),
    ]
)

OFFSET, PUBLISH_TIME, PRODUCER, SEQUENCE = range(4)
"""The indexes of the envelope's columns, in `ENVELOPE` and in every batch that a reader gets: `batch.column(OFFSET)`.

They are indexes because the names differ between topics, see `stream_schema`.
"""

ENVELOPE = (
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("publish_time", pa.timestamp("us", tz="UTC"), nullable=False),
    pa.field("producer", pa.string(), nullable=False),
    pa.field("sequence", pa.int64(), nullable=False),
)

ENVELOPE_COLUMNS = len(ENVELOPE)
"""How many columns stand before those that were published."""


class EnvelopeNames(NamedTuple):
    """The names of the envelope's columns in one stream: with a leading `_` if the topic has its own schema."""

    offset: str
    publish_time: str
    producer: str
    sequence: str

    @classmethod
    def of(cls, stream: pa.Schema) -> "EnvelopeNames":
        """Return the names in a stream schema."""
        return cls(*stream.names[:ENVELOPE_COLUMNS])


STREAM_SCHEMA = pa.schema([*ENVELOPE, *MESSAGE_SCHEMA])
"""What a reader of an ordinary topic gets."""

MAX_BATCH_MESSAGES = 1_000_000
"""A bound for the rows of a small batch: a column of nulls needs no bytes."""

JOIN_BYTES = 256 * 1024
"""Small frames are joined for readers up to about this size."""

_OFFSET_BYTES = 4


class Encoding(IntEnum):
    """The tag of a frame's body."""

    LOST = 0
    """No body: the messages of this frame are lost."""
    ARROW_IPC = 1
    """One encapsulated Arrow IPC record batch message, without its schema."""
    LONE = 2
    """One message of `MESSAGE_SCHEMA`, see `LoneMessage`."""


def stream_schema(body_schema: pa.Schema) -> pa.Schema:
    """Return the schema that readers get of a topic whose published batches have `body_schema`."""
    if body_schema is MESSAGE_SCHEMA or body_schema.equals(MESSAGE_SCHEMA):
        return STREAM_SCHEMA
    return pa.schema([*(field.with_name(f"_{field.name}") for field in ENVELOPE), *body_schema])


def check_topic_schema(schema: pa.Schema) -> pa.Schema:
    """Return `schema` without its metadata. Raise if a topic cannot have it."""
    try:
        names = schema.names
    except UnicodeDecodeError as error:
        raise InvalidRequestError("a column's name is not UTF-8", operation="topic schema") from error
    if not names:
        raise InvalidRequestError("a topic's schema needs at least one column", operation="topic schema")
    reserved = {f"_{field.name}" for field in ENVELOPE}
    if taken := sorted(reserved.intersection(names)):
        raise InvalidRequestError(
            f"columns {', '.join(taken)} are reserved", operation="topic schema", remedy="rename them"
        )
    if len(set(names)) != len(names):
        raise InvalidRequestError("two columns have the same name", operation="topic schema", remedy="rename one")
    for field in schema:
        if _has_dictionary(field.type):
            # A frame holds one record batch; Arrow sends dictionaries separately.
            raise InvalidRequestError(
                f"column {field.name!r} is dictionary-encoded",
                operation="topic schema",
                remedy="use the type of its values; the table encodes repeated values by itself",
            )
    return schema.remove_metadata()


def _has_dictionary(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _has_dictionary(kind.storage_type)
    inner = (kind.field(number).type for number in range(kind.num_fields))
    return bool(pa.types.is_dictionary(kind)) or any(map(_has_dictionary, inner))


def message_batch(
    payloads: Sequence[bytes],
    keys: Sequence[bytes | None] | None = None,
    attributes: Sequence[Any] | None = None,
) -> pa.RecordBatch:
    """Return a batch of `MESSAGE_SCHEMA` from columns of Python values. `None` is a column of nulls."""
    count = len(payloads)
    key, pairs, payload = MESSAGE_SCHEMA
    return pa.RecordBatch.from_arrays(
        [
            pa.nulls(count, key.type) if keys is None else pa.array(keys, key.type),
            pa.nulls(count, pairs.type) if attributes is None else pa.array(attributes, pairs.type),
            pa.array(payloads, payload.type),
        ],
        schema=MESSAGE_SCHEMA,
    )


def check_batch(batch: pa.RecordBatch, schema: pa.Schema) -> None:
    """Raise unless `batch` is valid Arrow of `schema`, without forbidden nulls and times that no table holds.

    Arrow's readers trust offsets and lengths in a batch. So a batch from a client, which may be hostile or broken, is
    checked completely before anything reads it.
    """
    if not batch.schema.equals(schema):
        raise InvalidMessageError(
            f"the batch has the columns ({_describe(batch.schema)}), the topic has ({_describe(schema)})",
            operation="publish",
        )
    try:
        batch.validate(full=True)
    except (pa.ArrowInvalid, pa.ArrowIndexError) as error:
        raise InvalidMessageError(f"the batch is not valid Arrow: {error}", operation="publish") from error
    for index, field in enumerate(schema):
        if not field.nullable and batch.column(index).null_count:
            raise InvalidMessageError(f"column {field.name!r} must not be null", operation="publish")
    if schema is not MESSAGE_SCHEMA:
        check_times(batch)


def check_message_sizes(batch: pa.RecordBatch | LoneMessage, max_message_bytes: int) -> None:
    """Raise if one message is too large. Rows are checked one by one only if the columns' maxima do not decide it."""
    if isinstance(batch, LoneMessage):
        sizes = iter([batch.nbytes])
    elif sum(_largest_value(column) for column in batch.columns) <= max_message_bytes:
        return
    else:
        sizes = (batch.slice(index, 1).nbytes for index in range(batch.num_rows))
    for index, size in enumerate(sizes):
        if size > max_message_bytes:
            raise TooLargeError(
                f"message {index} of the batch has {size} bytes, the limit is {max_message_bytes}",
                operation="publish",
                remedy="send smaller messages or raise server.max_message_bytes",
            )


def _largest_value(column: pa.Array) -> int:
    """Return an upper bound of the bytes of the column's largest value."""
    if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
        return (pc.max(pc.binary_length(column)).as_py() or 0) + _OFFSET_BYTES
    if pa.types.is_primitive(column.type):
        return int(column.type.bit_width) // 8 + 1
    return int(column.nbytes)


def check_and_encode(batch: pa.RecordBatch | LoneMessage, schema: pa.Schema) -> tuple[int, Any]:
    """Check a batch as `check_batch` does. Return the encoding and the body of its frame.

    A single small message takes a shorter path with the same result; one that arrived as its body, the shortest.
    """
    if isinstance(batch, LoneMessage):
        _check_lone(batch, schema)
        if schema is MESSAGE_SCHEMA:
            return Encoding.LONE, batch.body
        batch = decode_lone([batch.body], schema)
    single = batch.num_rows == 1 and schema is MESSAGE_SCHEMA and batch.schema.equals(schema)
    if single and (plain := encode_lone(batch)) is not None:
        return Encoding.LONE, plain
    check_batch(batch, schema)
    if single and batch.nbytes <= MAX_LONE_BYTES and (plain := encode_checked_lone(batch)) is not None:
        return Encoding.LONE, plain
    return Encoding.ARROW_IPC, batch.serialize()


def _check_lone(message: LoneMessage, schema: pa.Schema) -> None:
    if schema is not MESSAGE_SCHEMA and not schema.equals(MESSAGE_SCHEMA):  # comparing takes 40 µs
        raise InvalidMessageError(
            f"the message is not a batch, and the topic has columns ({_describe(schema)})", operation="publish"
        )
    try:
        check_lone(message.body)
    except (ValueError, struct.error) as error:
        raise InvalidMessageError(f"the message's body is not valid: {error}", operation="publish") from error


def decode_body(frame: Frame, schema: pa.Schema) -> pa.RecordBatch:
    """Return the published batch of one frame."""
    if frame.encoding == Encoding.LONE:
        return _decode_lone([frame], schema)
    if frame.encoding != Encoding.ARROW_IPC:
        raise DamagedError(
            f"the frame at offset {frame.base_offset} has the unknown body encoding {frame.encoding}",
            operation="decode",
            remedy="read it with the version of icestream that wrote it",
        )
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(frame.body), schema)
    except (pa.ArrowInvalid, OSError) as error:
        raise DamagedError(
            f"the body of the frame at offset {frame.base_offset} cannot be decoded: {error}", operation="decode"
        ) from error
    if batch.num_rows != frame.message_count:
        raise DamagedError(
            f"the frame at offset {frame.base_offset} announces {frame.message_count} messages, "
            f"its body holds {batch.num_rows}",
            operation="decode",
        )
    return batch


def _decode_lone(frames: list[Frame], schema: pa.Schema) -> pa.RecordBatch:
    try:
        return decode_lone([frame.body for frame in frames], schema)
    except (ValueError, struct.error) as error:
        raise DamagedError(
            f"a body in the frames at offsets {frames[0].base_offset} to {frames[-1].base_offset} cannot be decoded: "
            f"{error}",
            operation="decode",
        ) from error


_RECORD_BATCH = 3  # of the union of headers in Arrow's Message.fbs
_HEADER_TYPE, _HEADER = 1, 2  # fields of the table Message
_COMPRESSION = 3  # a field of the table RecordBatch
_CONTINUATION = 0xFFFFFFFF


def is_compressed(data: memoryview) -> bool:
    """Tell whether a serialized record batch says that its buffers are compressed, before Arrow decompresses them.

    A few bytes of compressed buffers can become gigabytes. Raises struct.error if the bytes are no record batch.
    """
    start = 8 if _LENGTH.unpack_from(data)[0] == _CONTINUATION else 4
    message = start + _LENGTH.unpack_from(data, start)[0]
    kind = _table_field(data, message, _HEADER_TYPE)
    header = _table_field(data, message, _HEADER)
    if not kind or not header or data[kind] != _RECORD_BATCH:
        raise struct.error("this is no record batch")
    return bool(_table_field(data, header + _LENGTH.unpack_from(data, header)[0], _COMPRESSION))


def _table_field(data: memoryview, table: int, number: int) -> int:
    """Return the position of a field in a FlatBuffers table; 0 if it has the default value."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    slot = 4 + 2 * number
    if vtable < 0 or slot + 2 > struct.unpack_from("<H", data, vtable)[0]:
        return 0
    distance: int = struct.unpack_from("<H", data, vtable + slot)[0]
    return table + distance if distance else 0


def stream_batches(frames: Iterable[Frame], schemas: Mapping[int, pa.Schema]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of frames in offset order, as readers get them: envelope and published columns.

    A large frame becomes one batch without a copy. Consecutive small frames are joined into one batch. Lost messages
    are skipped.
    """
    run: list[Frame] = []
    run_bytes = 0
    for frame in frames:
        if frame.encoding == Encoding.LOST:
            if run:
                yield _join(run, schemas)
            run, run_bytes = [], 0
            continue
        joins = (
            run
            and frame.encoding == run[-1].encoding
            and frame.schema_id == run[-1].schema_id
            and run_bytes + frame.nbytes <= JOIN_BYTES
        )
        if run and not joins:
            yield _join(run, schemas)
            run, run_bytes = [], 0
        run.append(frame)
        run_bytes += frame.nbytes
    if run:
        yield _join(run, schemas)


def _join(frames: list[Frame], schemas: Mapping[int, pa.Schema]) -> pa.RecordBatch:
    body_schema = schemas[frames[0].schema_id]
    if frames[0].encoding == Encoding.LONE:
        body = _decode_lone(frames, body_schema)
    else:
        bodies = [decode_body(frame, body_schema) for frame in frames]
        body = bodies[0] if len(bodies) == 1 else pa.concat_batches(bodies)
    offsets = pa.arange(frames[0].base_offset, frames[-1].end_offset)
    counts = [frame.message_count for frame in frames]
    lead = pa.array([frame.sequence - frame.base_offset for frame in frames], pa.int64())
    return pa.RecordBatch.from_arrays(
        [
            offsets,
            _spread(pa.array([frame.publish_time_us for frame in frames], ENVELOPE[PUBLISH_TIME].type), counts),
            _spread(pa.array([frame.producer for frame in frames], ENVELOPE[PRODUCER].type), counts),
            pc.add(offsets, _spread(lead, counts)),
            *body.columns,
        ],
        schema=stream_schema(body_schema),
    )


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with the columns of another version of its schema. Missing columns are null."""
    if batch.schema.equals(schema):
        return batch
    names = set(batch.schema.names)
    columns = [
        batch.column(field.name) if field.name in names else pa.nulls(batch.num_rows, field.type) for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _spread(values: pa.Array, counts: list[int]) -> pa.Array:
    """Repeat each value as often as its count says."""
    if len(counts) == 1:
        return pa.repeat(values[0], counts[0])
    if max(counts) == 1:
        return values
    ends = pa.array(accumulate(counts), pa.int32())
    return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, values))


# Offsets of a reader's batch, which is in offset order


def first_offset(batch: pa.RecordBatch) -> int:
    """Return the offset of the first message. The batch must have one."""
    offset: int = batch.column(OFFSET)[0].as_py()
    return offset


def end_offset(batch: pa.RecordBatch) -> int:
    """Return the offset after that of the last message. The batch must have one."""
    offset: int = batch.column(OFFSET)[-1].as_py()
    return offset + 1


def offset_ranges(offsets: pa.Array) -> list[Range]:
    """Return the ranges that the offsets make up, in order. The offsets may come in any order, and twice."""
    if not len(offsets):
        return []
    steps = pc.pairwise_diff(offsets)
    if len(offsets) > 1 and pc.min(steps).as_py() < 0:
        offsets = offsets.sort()
        steps = pc.pairwise_diff(offsets)
    # The first step is null, and so no start of another range.
    starts = pc.indices_nonzero(pc.fill_null(pc.greater(steps, 1), fill_value=False))
    firsts = [offsets[0].as_py(), *offsets.take(starts).to_pylist()]
    lasts = [*offsets.take(pc.subtract(starts, pa.scalar(1, starts.type))).to_pylist(), offsets[-1].as_py()]
    return [(first, last + 1) for first, last in zip(firsts, lasts, strict=True)]


def slice_from(batch: pa.RecordBatch, start: int, end: int | None = None) -> pa.RecordBatch:
    """Return the rows with `start <= offset < end`."""
    offsets, count = batch.column(OFFSET), batch.num_rows
    if not count:
        return batch
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    if last - first == count - 1:
        low, high = max(0, start - first), count if end is None else min(count, end - first)
    else:  # a filter or a repair of the log has left gaps
        low = int(pc.sum(pc.less(offsets, start)).as_py())
        high = count if end is None else int(pc.sum(pc.less(offsets, end)).as_py())
    return batch if low == 0 and high == batch.num_rows else batch.slice(low, max(0, high - low))


def _describe(schema: pa.Schema) -> str:
    try:
        return ", ".join(f"{field.name}: {field.type}" + ("" if field.nullable else " not null") for field in schema)
    except UnicodeDecodeError:
        return "names that are not UTF-8"


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Message:
    """One message as a Python object, for users who do not want Arrow."""

    __slots__ = (
        "_attributes",
        "key",
        "offset",
        "payload",
        "producer",
        "publish_time_us",
        "redelivery_count",
        "sequence",
    )

    def __init__(
        self,
        offset: int,
        publish_time_us: int,
        producer: str,
        sequence: int,
        key: bytes | None,
        attributes: list[tuple[str, str]] | None,
        payload: bytes,
        redelivery_count: int = 0,
    ) -> None:
        self.offset = offset
        self.publish_time_us = publish_time_us
        self.producer = producer
        self.sequence = sequence
        self.key = key
        self.payload = payload
        self.redelivery_count = redelivery_count
        """How often a subscription has delivered it before; 0 without a subscription."""
        self._attributes = attributes

    @property
    def attributes(self) -> dict[str, str]:
        return dict(self._attributes) if self._attributes else {}

    @property
    def publish_time(self) -> datetime:
        return _EPOCH + timedelta(microseconds=self.publish_time_us)

    def __repr__(self) -> str:
        return f"Message(offset={self.offset}, key={self.key!r}, payload={len(self.payload)} bytes)"


def messages_of(batch: pa.RecordBatch) -> Iterator[Message]:
    """Return the messages of a reader's or a subscription's batch, made column by column."""
    offsets, times, producers, sequences, keys, attributes, payloads, *redelivery_counts = batch.columns
    nothing = [None] * batch.num_rows
    return map(
        Message,
        offsets.to_pylist(),
        times.cast(pa.int64()).to_pylist(),
        producers.to_pylist(),
        sequences.to_pylist(),
        nothing if keys.null_count == len(keys) else keys.to_pylist(),
        nothing if attributes.null_count == len(attributes) else attributes.to_pylist(),
        payloads.to_pylist(),
        *(counts.to_pylist() for counts in redelivery_counts),
    )


def messages_of_frames(frames: Iterable[Frame]) -> Iterator[Message]:
    """Yield the messages of plain frames, without Arrow where the frame has none."""
    for frame in frames:
        if frame.encoding == Encoding.LONE:
            key, pairs, payload = _lone_fields(frame.body)
            yield Message(
                frame.base_offset,
                frame.publish_time_us,
                frame.producer,
                frame.sequence,
                None if key is None else bytes(key),
                pairs,
                bytes(payload),
            )
        elif frame.encoding != Encoding.LOST:
            yield from messages_of(_join([frame], {MESSAGES_SCHEMA_ID: MESSAGE_SCHEMA}))


# An Arrow schema as text: base64 of its serialized form, as in records, on the wire and in tables


def encode_schema(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode("ascii")


def decode_schema(text: str) -> pa.Schema:
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    except (ValueError, pa.ArrowException, OSError, TypeError) as error:
        raise InvalidRequestError(f"not a serialized Arrow schema: {error}", operation="schema") from error
