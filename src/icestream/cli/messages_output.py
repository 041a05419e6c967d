"""Messages as lines of output, made column by column."""

import json
from collections.abc import Callable
from itertools import repeat
from json.encoder import encode_basestring as quote
from typing import Any, TypeAlias

import pyarrow as pa

from icestream.cli.output import rfc3339
from icestream.model.errors import InvalidRequestError
from icestream.model.json_rows import json_rows, text_or_base64
from icestream.model.messages import STREAM_SCHEMA

Render: TypeAlias = Callable[[pa.RecordBatch], bytes]


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


# Topics with columns of their own


def _row_lines(batch: pa.RecordBatch) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in json_rows(batch)).encode()
