"""Columns that stand in the names of folders: `region=eu/…`.

Those who write such trees leave the column out of the file, so the folder is all that has the value. It fills the
topic's column of that name. A folder's column may be left out unasked only where the file itself says the same.
"""

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from urllib.parse import unquote_to_bytes

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from icestream.migration.convert import Converter, UnfitError, converter
from icestream.model.errors import InvalidMessageError

Partitions = Mapping[str, str | None]
"""By column, the value as text; None where the folder says that there is none."""

_OPERATION = "read folder names"
_NULL = "__HIVE_DEFAULT_PARTITION__"
_TIMES = frozenset({"date", "dt", "year", "month", "day", "hour"})
_TRANSFORM = re.compile(r"(.+)_(?:year|month|day|hour|bucket|trunc)(?:_\d+)?")
_WHOLE_NUMBER = re.compile(r"[+-]?\d+", re.ASCII)


def partitions_of(path: str) -> dict[str, str | None]:
    """What the folders of a file name, as Hive and Spark write it: `%XX` stands for a character."""
    found: dict[str, str | None] = {}
    for part in PurePosixPath(path).parts[:-1]:
        before, sign, after = part.partition("=")
        if not (before and sign):
            continue
        name, value = _text(before, part), None if after == _NULL else _text(after, part)
        if found.setdefault(name, value) != value:
            raise InvalidMessageError(f"its folders name {name!r} twice, with different values", operation=_OPERATION)
    return found


def _text(encoded: str, part: str) -> str:
    try:
        return unquote_to_bytes(encoded.encode(errors="surrogateescape")).decode()
    except UnicodeDecodeError as error:
        raise InvalidMessageError(f"the folder {part!a} is no UTF-8 text", operation=_OPERATION) from error


def is_repeated(name: str, schema: pa.Schema) -> bool:
    """Whether a folder's column only repeats what the file has.

    Dates and hours do where the rows have a time of their own; what Iceberg makes of a column (`time_day`, `id_bucket`)
    does where the file has the column.
    """
    if name in _TIMES:
        return any(_is_time(field) for field in schema)
    made = _TRANSFORM.fullmatch(name)
    return made is not None and made[1] in schema.names


def _is_time(field: pa.Field) -> bool:
    return bool(kinds.is_timestamp(field.type)) or field.name.endswith("_unix_nano")


def folder_value(name: str, value: str | None, target: pa.Field) -> pa.Scalar:
    """A folder's text as a value of the topic's column; `InvalidMessageError` where it does not fit.

    Raises `UnfitError` where no text becomes such a column.
    """
    convert = _from_text(target)
    if value is None:
        return pa.scalar(None, target.type)
    try:
        return convert(pa.array([value], pa.string()))[0]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidMessageError(
            f"the folder {name}={value} has no {target.type} for column {target.name!r}: {error}",
            operation=_OPERATION,
            remedy=f"rename the folder, or give --ignore {name}",
        ) from error


def _from_text(target: pa.Field) -> Converter:
    kind = target.type
    if kinds.is_timestamp(kind):
        return lambda texts: _moment(texts, kind)
    if kinds.is_integer(kind):
        return lambda texts: _whole_number(texts, kind)
    if kinds.is_floating(kind) or kinds.is_decimal(kind) or kinds.is_date(kind) or kinds.is_boolean(kind):
        return lambda texts: texts.cast(kind)
    if kinds.is_nested(kind):
        raise UnfitError(f"a folder's text does not become {kind}")
    return converter(pa.string(), kind, target.name) or (lambda texts: texts)


def _whole_number(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """In decimal digits, as all who write such folders do; Arrow would read others as well."""
    if not _WHOLE_NUMBER.fullmatch(texts[0].as_py()):
        raise pa.ArrowInvalid("it is no whole number")
    return texts.cast(kind)


def _moment(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Times without a zone are UTC."""
    if kind.tz is None:
        return texts.cast(kind)
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        return pc.assume_timezone(texts.cast(pa.timestamp(kind.unit)), "UTC").cast(kind)
