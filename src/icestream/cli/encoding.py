"""Lines made into Arrow batches. Each function raises InvalidMessageError when one of its lines is not right."""

import json
from collections.abc import Callable
from io import BytesIO
from typing import Any, NoReturn, TypeAlias

import pyarrow as pa
import pyarrow.json as pa_json

from icestream.model.errors import InvalidMessageError
from icestream.model.messages import message_batch

Encode: TypeAlias = Callable[[list[bytes]], pa.RecordBatch]

_SHOWN = 60


def encode_lines(lines: list[bytes]) -> pa.RecordBatch:
    """Each line is a payload."""
    return message_batch(lines)


def json_encoder(key_field: str | None) -> Encode:
    """Each line is a payload and must be JSON; `key_field` names the field that is its key."""
    decode = json.JSONDecoder(parse_constant=_refuse_constant).decode

    def encode(lines: list[bytes]) -> pa.RecordBatch:
        keys: list[bytes | None] = []
        for line in lines:
            try:
                value = decode(line.decode())
            except (ValueError, RecursionError) as error:
                raise InvalidMessageError(f"not JSON ({error}): {_shorten(line)}") from None
            if key_field is not None:
                keys.append(key_of(value, key_field))
        return message_batch(lines, keys if key_field is not None else None)

    return encode


def row_encoder(schema: pa.Schema) -> Encode:
    """Each line is a JSON object with the topic's columns; a column that it leaves out is null."""
    options = pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error")

    def encode(lines: list[bytes]) -> pa.RecordBatch:
        data = b"\n".join(lines)
        block = pa_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
        try:
            rows = pa_json.read_json(BytesIO(data), read_options=block, parse_options=options)
        except pa.ArrowInvalid as error:
            raise InvalidMessageError(f"not a row of the topic ({error}): {_shorten(lines[0])}") from None
        if rows.num_rows != len(lines):
            raise InvalidMessageError(f"not one JSON object: {_shorten(lines[0])}")
        return rows.combine_chunks().to_batches()[0]

    return encode


def key_of(value: Any, field: str) -> bytes | None:
    """The key in `field`, which may be a dotted path: text as it is, other values as JSON, none for null."""
    for name in (field,) if isinstance(value, dict) and field in value else field.split("."):
        if not isinstance(value, dict) or name not in value:
            raise InvalidMessageError(
                f"it has no field {field}, which is to be the key", remedy="write null for no key"
            )
        value = value[name]
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidMessageError(f"the key in {field} is not valid Unicode: {text!r:.80}") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _shorten(line: bytes) -> str:
    text = repr(line[: _SHOWN + 1].decode(errors="replace"))
    return text if len(line) <= _SHOWN else f"{text[:_SHOWN]}…"
