"""Rows as JSON, made column by column.

Bytes are text if they are UTF-8, else base64 under `name_base64`, in columns and in fields of structs. A list or map of
bytes is text if all of it is UTF-8, else all its bytes are base64. Times are RFC 3339 with all their digits. NaN and
infinities, which JSON does not have, are null.
"""

import base64
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def json_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    columns = [_values(batch.column(index)) for index in range(batch.num_columns)]
    names = batch.schema.names
    return [_row(names, row) for row in zip(*columns, strict=True)] if columns else [{}] * batch.num_rows


def text_or_base64(name: str, value: bytes | None) -> tuple[str, str | None]:
    """Return the value as text under its name if it is UTF-8, else as base64 under `name_base64`."""
    if value is None:
        return name, None
    try:
        return name, value.decode()
    except UnicodeDecodeError:
        return f"{name}_base64", _base64(value)


def _row(names: list[str], values: tuple[Any, ...]) -> dict[str, Any]:
    return dict(_named(name, value) for name, value in zip(names, values, strict=True))


def _named(name: str, value: Any) -> tuple[str, Any]:
    """Return a field's name and JSON value. The name covers all bytes in it, except those in structs."""
    try:
        return name, _plain(value, bytes.decode)
    except UnicodeDecodeError:
        return f"{name}_base64", _plain(value, _base64)


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _values(column: pa.Array) -> list[Any]:
    kind = column.type
    if pa.types.is_timestamp(kind):
        return [_time_text(value, kind) for value in column.cast(pa.int64()).to_pylist()]
    if pa.types.is_duration(kind) or pa.types.is_time64(kind):
        return list(column.cast(pa.int64()).to_pylist())
    return list(column.to_pylist())


def _time_text(value: int | None, kind: pa.DataType) -> str | None:
    """Return a time as RFC 3339 with all digits of its unit, which Python's own times do not have."""
    if value is None:
        return None
    per_second = _PER_SECOND[kind.unit]
    seconds, fraction = divmod(value, per_second)
    try:
        text = (_EPOCH + timedelta(seconds=seconds)).isoformat(timespec="seconds").removesuffix("+00:00")
    except OverflowError:
        return str(value)
    digits = len(str(per_second)) - 1
    return text + (f".{fraction:0{digits}}" if digits else "") + ("Z" if kind.tz else "")


def _plain(value: Any, text_of: Callable[[bytes], str]) -> Any:
    """Return a value as JSON has it."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if value - value == 0 else None
        case bytes():
            return text_of(value)
        case dict():
            return dict(_named(str(name), item) for name, item in value.items())
        case list() | tuple():
            return [_plain(item, text_of) for item in value]
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Decimal():
            return str(value)
    return str(value)
