"""Messages as lines of output, made column by column."""

import base64
import json
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import repeat
from json.encoder import encode_basestring as quote
from typing import Any, TypeAlias

import pyarrow as pa

from icestream.cli.formatting import rfc3339
from icestream.model.errors import InvalidRequestError
from icestream.model.messages import STREAM_SCHEMA

Render: TypeAlias = Callable[[pa.RecordBatch], bytes]

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def is_message_batch(batch: pa.RecordBatch) -> bool:
    return bool(batch.schema.equals(STREAM_SCHEMA))


def raw_renderer(delimiter: bytes) -> Render:
    """Payloads, each with `delimiter` behind it."""

    def render(batch: pa.RecordBatch) -> bytes:
        if not is_message_batch(batch):
            raise InvalidRequestError(
                "the topic has columns of its own and no payload", operation="consume", remedy="use --format json"
            )
        payloads = batch.column("payload").to_pylist()
        return delimiter.join(payloads) + delimiter

    return render


def render_json(batch: pa.RecordBatch) -> bytes:
    """A JSON object a line: a message's fields, or the columns of a topic that has its own."""
    return _message_lines(batch) if is_message_batch(batch) else _row_lines(batch)


def _message_lines(batch: pa.RecordBatch) -> bytes:
    lines = map(
        '{{"offset": {}, "publish_time": "{}", "producer": {}, {}, "attributes": {}, {}}}\n'.format,
        batch.column("offset").to_pylist(),
        map(rfc3339, batch.column("publish_time").cast(pa.int64()).to_pylist()),
        map(quote, batch.column("producer").to_pylist()),
        _binary_fields("key", batch.column("key")),
        _attributes(batch.column("attributes")),
        _binary_fields("payload", batch.column("payload")),
    )
    return "".join(lines).encode()


def _attributes(column: pa.Array) -> Any:
    if column.null_count == len(column):
        return repeat("{}")
    return [json.dumps(dict(pairs or ()), ensure_ascii=False) for pairs in column.to_pylist()]


def _binary_fields(name: str, column: pa.Array) -> Any:
    """`"name": "text"`, or `"name_base64"` for a value that is not text."""
    if column.null_count == len(column):
        return repeat(f'"{name}": null')
    try:
        texts = column.cast(pa.string()).to_pylist()
    except pa.ArrowInvalid:
        return [_binary_field(name, value) for value in column.to_pylist()]
    return [f'"{name}": null' if text is None else f'"{name}": {quote(text)}' for text in texts]


def _binary_field(name: str, value: bytes | None) -> str:
    field, text = text_or_base64(name, value)
    return f'"{field}": null' if text is None else f'"{field}": {quote(text)}'


def text_or_base64(name: str, value: bytes | None) -> tuple[str, str | None]:
    """The value as text under its name if it is UTF-8, else as base64 under `name_base64`."""
    if value is None:
        return name, None
    try:
        return name, value.decode()
    except UnicodeDecodeError:
        return f"{name}_base64", base64.b64encode(value).decode()


# Topics with columns of their own


def _row_lines(batch: pa.RecordBatch) -> bytes:
    columns = [_values(batch.column(index)) for index in range(batch.num_columns)]
    names = batch.schema.names
    lines = [json.dumps(_row(names, row), ensure_ascii=False) + "\n" for row in zip(*columns, strict=True)]
    return "".join(lines).encode()


def _row(names: list[str], values: tuple[Any, ...]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, value in zip(names, values, strict=True):
        if isinstance(value, bytes):
            field, text = text_or_base64(name, value)
            row[field] = text
        else:
            row[name] = _plain(value)
    return row


def _values(column: pa.Array) -> list[Any]:
    kind = column.type
    if pa.types.is_timestamp(kind):
        return [_time_text(value, kind) for value in column.cast(pa.int64()).to_pylist()]
    if pa.types.is_duration(kind) or pa.types.is_time64(kind):
        return list(column.cast(pa.int64()).to_pylist())
    return list(column.to_pylist())


def _time_text(value: int | None, kind: pa.DataType) -> str | None:
    """RFC 3339; the finest unit's digits are kept, which Python's own times cannot do."""
    if value is None:
        return None
    per_second = _PER_SECOND[kind.unit]
    seconds, fraction = divmod(value, per_second)
    try:
        text = rfc3339(seconds * 1_000_000).partition(".")[0]
    except OverflowError:
        return str(value)
    digits = len(str(per_second)) - 1
    return text + (f".{fraction:0{digits}}" if digits else "") + ("Z" if kind.tz else "")


def _plain(value: Any) -> Any:
    """What JSON can say; NaN and infinities, which it cannot, become null."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if value - value == 0 else None
        case bytes():
            return base64.b64encode(value).decode()
        case dict():
            return {str(name): _plain(item) for name, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Decimal():
            return str(value)
    return str(value)
