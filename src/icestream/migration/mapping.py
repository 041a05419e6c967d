"""Maps a file's columns to the topic's, by the schemas alone, before any row is read.

Columns are matched by name. A column that only the topic has is null, or in telemetry what OTLP means by an absent
field: 0 and the empty string. A row's `time` and its nanoseconds, and `service_name`, are derived from other columns if
they are missing. Names of folders (`region=eu`) are columns too, unless the file has a column of that name. A column
that only the file has is refused, except columns that icestream itself adds, and those that folders only repeat. No
other column is dropped unless the caller says so.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath
from urllib.parse import unquote_to_bytes

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from icestream.migration.nested import dense_parts, rebuilt, text_bytes
from icestream.model.errors import InvalidMessageError, InvalidRequestError
from icestream.model.messages import ENVELOPE
from icestream.telemetry import SERVICE_NAME, Signal, timestamps

# Conversion of values from one Arrow type to another without loss. The types decide once whether they fit. What depends
# on values (a number that is too large, a string that is not UTF-8) is checked during conversion, and raises
# `pa.ArrowInvalid`. Nested types are converted field by field, by name.

Converter = Callable[[pa.Array], pa.Array]

IDS = frozenset({"trace_id", "span_id", "parent_span_id"})
"""Columns, and fields of links and exemplars, whose strings are hexadecimal."""

_NANOS = pa.timestamp("ns", tz="UTC")
_HEX = np.full(256, 255, np.uint8)
for _digits in (b"0123456789abcdef", b"0123456789ABCDEF"):
    _HEX[np.frombuffer(_digits, np.uint8)] = np.arange(16, dtype=np.uint8)
_NO_DIGIT = 255


class UnfitError(Exception):
    """A type cannot be converted to another. The message begins with the path inside the column, if any."""


def converter(source: pa.DataType, target: pa.DataType, name: str) -> Converter | None:
    """Return how values of a column of this name are converted; None if they are taken as they are."""
    if kinds.is_dictionary(source):
        inner = converter(source.value_type, target, name) or _same
        return lambda array: inner(array.dictionary_decode())
    if (special := _by_name(source, target, name)) is not None:
        return special
    if source.equals(target):
        return None
    if kinds.is_null(source):
        return lambda array: pa.nulls(len(array), target)
    if kinds.is_nested(target):
        return _nested(source, target)
    if kinds.is_timestamp(source) and kinds.is_timestamp(target) and target.tz is not None:
        return partial(_moment, target=target)
    if _casts(source, target):
        return lambda array: array.cast(target)
    raise UnfitError(f"{source} does not become {target}")


def _by_name(source: pa.DataType, target: pa.DataType, name: str) -> Converter | None:
    """Return the conversion of columns with a known meaning: ids may be strings, and times timestamps."""
    if name in IDS and kinds.is_binary(target) and (_is_text(source) or _is_bytes(source)):
        return _hex_ids if _is_text(source) else _ids
    if name.endswith("_unix_nano") and kinds.is_int64(target) and kinds.is_timestamp(source):
        return _nanos
    return None


def truncated(target: pa.DataType) -> Converter:
    """Truncate timestamps to a coarser unit, for columns whose exact time another column keeps."""
    return lambda array: _in_utc(array).cast(target, safe=False)


def _same(array: pa.Array) -> pa.Array:
    return array


def _is_text(kind: pa.DataType) -> bool:
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    plain = kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_binary_view(kind)
    return bool(plain or kinds.is_fixed_size_binary(kind))


def _casts(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether Arrow's checked cast keeps every value or fails."""
    both = (source, target)
    if _is_text(source) or _is_bytes(source):
        return _is_text(target) or _is_bytes(target)
    if kinds.is_integer(source):
        return bool(kinds.is_integer(target) or kinds.is_floating(target) or kinds.is_decimal(target))
    if kinds.is_floating(source):
        return bool(kinds.is_floating(target)) and bool(target.bit_width >= source.bit_width)
    same = (kinds.is_timestamp, kinds.is_decimal, kinds.is_date, kinds.is_time, kinds.is_duration)
    return any(all(map(is_kind, both)) for is_kind in same)


def _in_utc(array: pa.Array) -> pa.Array:
    """Read times without a zone as UTC."""
    return pc.assume_timezone(array, "UTC") if array.type.tz is None else array


def _moment(array: pa.Array, target: pa.DataType) -> pa.Array:
    return _in_utc(array).cast(target)


def _nanos(array: pa.Array) -> pa.Array:
    return _in_utc(array).cast(_NANOS).cast(pa.int64())


def _ids(array: pa.Array) -> pa.Array:
    """Make empty ids null: in OTLP an id without bytes is absent."""
    found = array.cast(pa.binary())
    empty = pc.equal(pc.binary_length(found), 0)
    return pc.if_else(empty, pa.scalar(None, pa.binary()), found) if pc.any(empty).as_py() else found


def _hex_ids(array: pa.Array) -> pa.Array:
    """Decode hexadecimal digits."""
    texts = array.cast(pa.string())
    dense = texts.drop_null()
    lengths = pc.binary_length(dense).to_numpy().astype(np.int64)
    digits = _HEX[np.frombuffer(text_bytes(dense), np.uint8)]
    if (lengths % 2).any() or (digits == _NO_DIGIT).any():
        raise pa.ArrowInvalid("a text is no hexadecimal id")
    values = (digits[0::2] << 4 | digits[1::2]).tobytes()
    spread = np.zeros(len(texts), np.int64)
    spread[texts.is_valid().to_numpy(zero_copy_only=False)] = lengths // 2
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(spread)]).astype(np.int32)
    found = pa.Array.from_buffers(pa.binary(), len(texts), [None, pa.py_buffer(ends), pa.py_buffer(values)])
    return _ids(pc.if_else(texts.is_valid(), found, pa.scalar(None, pa.binary())))


def _nested(source: pa.DataType, target: pa.DataType) -> Converter:
    if kinds.is_struct(source) and kinds.is_struct(target):
        return _struct(source, target)
    if kinds.is_map(source) and kinds.is_map(target):
        pairs = ((source.key_type, target.key_type), (source.item_type, target.item_type))
        inner = [_inside(found, wanted, "entry", "") for found, wanted in pairs]
    elif _is_list(source) and _is_list(target) and not kinds.is_fixed_size_list(target):
        inner = [_inside(source.value_type, target.value_type, "element", "")]
    else:
        raise UnfitError(f"{source} does not become {target}")

    def convert(array: pa.Array) -> pa.Array:
        lengths, parts = dense_parts(array.drop_null())
        return rebuilt(array, target, lengths, [one(part) for one, part in zip(inner, parts, strict=True)])

    return convert


def _struct(source: pa.StructType, target: pa.StructType) -> Converter:
    names = [field.name for field in source]
    if unknown := [name for name in names if target.get_field_index(name) < 0]:
        raise UnfitError(f"there is no field {', '.join(map(repr, unknown))}")
    made: list[tuple[int, Converter, pa.DataType]] = []
    for wanted in target:
        place = names.index(wanted.name) if wanted.name in names else -1
        one = _inside(source.field(place).type, wanted.type, wanted.name, wanted.name) if place >= 0 else _same
        made.append((place, one, wanted.type))

    def convert(array: pa.Array) -> pa.Array:
        parts = array.flatten()
        found = [one(parts[place]) if place >= 0 else pa.nulls(len(array), kind) for place, one, kind in made]
        return rebuilt(array, target, np.zeros(0, np.int64), found)

    return convert


def _inside(source: pa.DataType, target: pa.DataType, place: str, name: str) -> Converter:
    try:
        return converter(source, target, name) or _same
    except UnfitError as error:
        raise UnfitError(f"{place}: {error}") from None


def _is_list(kind: pa.DataType) -> bool:
    return bool(kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind))


# Columns in the names of folders: `region=eu/…`. Programs that write such trees leave the column out of the file, so
# only the folder has the value. It fills the topic's column of that name. A folder's column is dropped without being
# asked only if the file itself has the value.

Partitions = Mapping[str, str | None]
"""The value of each column as text; None if the folder stands for null."""

_FOLDER_OPERATION = "read folder names"
_NULL = "__HIVE_DEFAULT_PARTITION__"
_TIMES = frozenset({"date", "dt", "year", "month", "day", "hour"})
_TRANSFORM = re.compile(r"(.+)_(?:year|month|day|hour|bucket|trunc)(?:_\d+)?")
_WHOLE_NUMBER = re.compile(r"[+-]?\d+", re.ASCII)


def partitions_of(path: str) -> dict[str, str | None]:
    """Return the columns in a file's folder names, as Hive and Spark write them: `%XX` encodes a character."""
    found: dict[str, str | None] = {}
    for part in PurePosixPath(path).parts[:-1]:
        before, sign, after = part.partition("=")
        if not (before and sign):
            continue
        name, value = _text(before, part), None if after == _NULL else _text(after, part)
        if found.setdefault(name, value) != value:
            raise InvalidMessageError(
                f"its folders name {name!r} twice, with different values", operation=_FOLDER_OPERATION
            )
    return found


def _text(encoded: str, part: str) -> str:
    try:
        return unquote_to_bytes(encoded.encode(errors="surrogateescape")).decode()
    except UnicodeDecodeError as error:
        raise InvalidMessageError(f"the folder {part!a} is no UTF-8 text", operation=_FOLDER_OPERATION) from error


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
    """Return a folder's text as a value of the topic's column. Raise `InvalidMessageError` if it does not fit.

    Raise `UnfitError` if no text can become such a column.
    """
    convert = _from_text(target)
    if value is None:
        return pa.scalar(None, target.type)
    try:
        return convert(pa.array([value], pa.string()))[0]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidMessageError(
            f"the folder {name}={value} has no {target.type} for column {target.name!r}: {error}",
            operation=_FOLDER_OPERATION,
            remedy=f"rename the folder, or give --ignore {name}",
        ) from error


def _from_text(target: pa.Field) -> Converter:
    kind = target.type
    if kinds.is_timestamp(kind):
        return lambda texts: _folder_moment(texts, kind)
    if kinds.is_integer(kind):
        return lambda texts: _whole_number(texts, kind)
    if kinds.is_floating(kind) or kinds.is_decimal(kind) or kinds.is_date(kind) or kinds.is_boolean(kind):
        return lambda texts: texts.cast(kind)
    if kinds.is_nested(kind):
        raise UnfitError(f"a folder's text does not become {kind}")
    return converter(pa.string(), kind, target.name) or (lambda texts: texts)


def _whole_number(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Read decimal digits only. Arrow would read other forms too."""
    if not _WHOLE_NUMBER.fullmatch(texts[0].as_py()):
        raise pa.ArrowInvalid("it is no whole number")
    return texts.cast(kind)


def _folder_moment(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Read times without a zone as UTC."""
    if kind.tz is None:
        return texts.cast(kind)
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        return pc.assume_timezone(texts.cast(pa.timestamp(kind.unit)), "UTC").cast(kind)


_OPERATION = "map columns"
_TIME = "time"
_RESOURCE = "resource"
NANOS = {
    Signal.TRACES: "start_time_unix_nano",
    Signal.LOGS: "time_unix_nano",
    Signal.METRICS: "time_unix_nano",
}
_OBSERVED = "observed_time_unix_nano"

Columns = dict[str, pa.Array]
Make = Callable[[Columns, int], pa.Array]


@dataclass(frozen=True)
class ColumnOptions:
    """What the caller chooses for columns."""

    renames: Mapping[str, str] = field(default_factory=dict)
    """The topic's name of a column, by the file's or folder's name."""
    ignored: frozenset[str] = frozenset()


@dataclass(frozen=True)
class MappedColumn:
    target: pa.Field
    origin: str
    """Shown to people: where the values come from."""
    source: str | None
    make: Make


@dataclass(frozen=True)
class ColumnMap:
    schema: pa.Schema
    columns: tuple[MappedColumn, ...]
    """In the order in which they are made: a column comes before those derived from it."""
    dropped: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def sources(self) -> list[str]:
        """The columns to read."""
        return list(dict.fromkeys(column.source for column in self.columns if column.source is not None))

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with the topic's columns. `InvalidMessageError` names a column with an unfit value."""
        read: Columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        made: Columns = {}
        for column in self.columns:
            try:
                given = read if column.source is not None else made
                made[column.target.name] = column.make(given, batch.num_rows)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise InvalidMessageError(
                    f"column {column.source or column.target.name!r}: {error}", operation=_OPERATION
                ) from error
        return pa.RecordBatch.from_arrays([made[name] for name in self.schema.names], schema=self.schema)


def map_columns(
    found: pa.Schema,
    wanted: pa.Schema,
    column_options: ColumnOptions,
    *,
    partitions: Partitions | None = None,
    signal: Signal | None = None,
) -> ColumnMap:
    """From a file's schema and the topic's. `partitions`: what the file's folders say, `signal`: of telemetry.

    `InvalidMessageError` is about the value of a folder, any other `InvalidRequestError` about the columns.
    """
    folders = {name: value for name, value in (partitions or {}).items() if name not in found.names}
    names = _named([*found.names, *folders], column_options)
    problems: list[str] = []
    dropped = _dropped(found, wanted, partitions or {}, names, column_options)
    unknown = [name for name, target in names.items() if target not in wanted.names and name not in dropped]
    if unknown:
        said = (repr(name) + (" of its folders" if name in folders else "") for name in unknown)
        problems.append(f"the topic has no column {', '.join(said)}")
    by_target = {target: name for name, target in names.items() if name not in dropped}
    direct: list[MappedColumn] = []
    filled: list[MappedColumn] = []
    missing: list[pa.Field] = []
    notes: list[str] = []
    for target in wanted:
        name = by_target.get(target.name)
        if name is None:
            missing.append(target)
            continue
        try:
            if name in folders:
                filled.append(_from_folder(target, name, folders[name], signal))
            else:
                direct.append(_direct(target, name, found.field(name).type, signal))
        except UnfitError as error:
            problems.append(f"column {name!r}: {error}")
    if not direct and not problems:
        problems.append("the file has none of the topic's columns")
    in_file = {target: name for target, name in by_target.items() if name not in folders}
    derived, rest = _derived(missing, in_file, found, signal)
    absent = [_absent(target, signal, problems, notes) for target in rest]
    if problems:
        raise InvalidRequestError(
            "; ".join(problems),
            operation=_OPERATION,
            remedy="give --rename COLUMN=NAME or --ignore COLUMN" if unknown else "",
        )
    notes += [f"{column.target.name}: {column.origin}" for column in (*filled, *derived)]
    return ColumnMap(wanted, (*direct, *filled, *derived, *absent), tuple(dropped), tuple(notes))


def _named(found: Sequence[str], column_options: ColumnOptions) -> dict[str, str]:
    """Return the topic's column for each column of the file, without ignored ones."""
    if twice := sorted({name for name in found if found.count(name) > 1}):
        raise InvalidRequestError(f"column {twice[0]!r} is there twice", operation=_OPERATION)
    names = {name: column_options.renames.get(name, name) for name in found if name not in column_options.ignored}
    taken: dict[str, str] = {}
    for name, target in names.items():
        if target in taken:
            raise InvalidRequestError(
                f"columns {taken[target]!r} and {name!r} would both become {target!r}",
                operation=_OPERATION,
                remedy="ignore one of them",
            )
        taken[target] = name
    return names


def _dropped(
    found: pa.Schema, wanted: pa.Schema, partitions: Partitions, names: Mapping[str, str], column_options: ColumnOptions
) -> list[str]:
    """Return columns that only repeat where a row was stored, and that neither topic nor caller wants."""
    own = envelope_of(found) or []
    own = own if not set(own) & set(wanted.names) else []
    free = {*partitions} - {*wanted.names, *own, *column_options.renames}
    return [*own, *(name for name in names if name in free and is_repeated(name, found))]


def envelope_of(schema: pa.Schema) -> list[str] | None:
    """Return the names of the envelope's columns (offset, time, producer, sequence) if the file has all."""
    for prefix in ("_", ""):
        names = [f"{prefix}{part.name}" for part in ENVELOPE]
        pairs = zip(names, ENVELOPE, strict=True)
        if all(name in schema.names and _is_like(schema.field(name).type, part.type) for name, part in pairs):
            return names
    return None


def _is_like(found: pa.DataType, own: pa.DataType) -> bool:
    return bool(found.equals(own) or (kinds.is_timestamp(found) and kinds.is_timestamp(own)))


def _direct(target: pa.Field, name: str, kind: pa.DataType, signal: Signal | None) -> MappedColumn:
    """Map a column directly. In telemetry a forbidden null becomes what OTLP means by an absent field."""
    if signal is not None and target.name == _TIME and kinds.is_timestamp(kind) and not kind.equals(target.type):
        convert: Converter | None = truncated(target.type)
    else:
        convert = converter(kind, target.type, target.name)
    origin = name if convert is None or kind.equals(target.type) else f"{name} ({kind})"
    default = _default(target) if signal is not None and not target.nullable else None

    def make(given: Columns, _: int) -> pa.Array:
        array = given[name] if convert is None else convert(given[name])
        return pc.fill_null(array, default) if default is not None and array.null_count else array

    return MappedColumn(target, origin, name, make)


def _from_folder(target: pa.Field, name: str, value: str | None, signal: Signal | None) -> MappedColumn:
    made = folder_value(name, value, target)
    if not made.is_valid and not target.nullable:
        made = _default(target) if signal is not None else None
        if made is None:
            raise InvalidMessageError(
                f"its folder says null for column {target.name!r}, which must not be null", operation=_OPERATION
            )
    return MappedColumn(target, f"the folder {name}=…", None, lambda _, rows: pa.repeat(made, rows))


def _derived(
    missing: list[pa.Field], by_target: Mapping[str, str], found: pa.Schema, signal: Signal | None
) -> tuple[list[MappedColumn], list[pa.Field]]:
    """Return telemetry columns that are derived from others of the row, and the columns still missing."""
    if signal is None:
        return [], missing
    nanos = NANOS[signal]
    made: list[MappedColumn] = []
    rest: list[pa.Field] = []
    for target in missing:
        has_time = _TIME in by_target and kinds.is_timestamp(found.field(by_target[_TIME]).type)
        if target.name == _TIME and nanos in by_target:
            observed = _OBSERVED if signal is Signal.LOGS and _OBSERVED in by_target else None
            made.append(MappedColumn(target, f"from {nanos}", None, _time_from(nanos, observed)))
        elif target.name == nanos and has_time:
            source = by_target[_TIME]
            exact = converter(found.field(source).type, target.type, nanos)
            assert exact is not None
            made.append(MappedColumn(target, f"from {source}", source, _filled(source, exact)))
        elif target.name == SERVICE_NAME.column and _RESOURCE in by_target:
            made.append(MappedColumn(target, "from resource.attributes['service.name']", None, _service_name))
        else:
            rest.append(target)
    return made, rest


def _time_from(nanos: str, observed: str | None) -> Make:
    return lambda made, _: timestamps(made[nanos], None if observed is None else made[observed])


def _filled(source: str, convert: Converter) -> Make:
    return lambda read, _: pc.fill_null(convert(read[source]), 0)


def _service_name(made: Columns, _: int) -> pa.Array:
    attributes = pc.struct_field(made[_RESOURCE], "attributes")
    return pc.map_lookup(attributes, pa.scalar(SERVICE_NAME.key), "first")


def _absent(target: pa.Field, signal: Signal | None, problems: list[str], notes: list[str]) -> MappedColumn:
    if target.nullable:
        return MappedColumn(target, "null", None, lambda _, rows: pa.nulls(rows, target.type))
    default = _default(target) if signal is not None else None
    if default is None:
        problems.append(f"the file has no column {target.name!r}, which must not be null")
        default = pa.scalar(None, target.type)
    else:
        notes.append(f"{target.name}: {default.as_py()!r} everywhere, as OTLP means by leaving it out")
    return MappedColumn(target, f"{default.as_py()!r}", None, lambda _, rows: pa.repeat(default, rows))


def _default(target: pa.Field) -> pa.Scalar | None:
    if kinds.is_integer(target.type):
        return pa.scalar(0, target.type)
    return pa.scalar("", target.type) if kinds.is_string(target.type) else None
