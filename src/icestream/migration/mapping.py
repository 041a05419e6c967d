"""Which column of a file becomes which of the topic, and how; decided by the schemas alone, before anything is read.

Columns are matched by name. What the topic has and the file has not is null, or in telemetry what OTLP means by
leaving it out: 0 and the empty text; a row's `time` and its nanoseconds, and `service_name`, are found from each other
where one is missing. What the names of folders say (`region=eu`) is a column too, of a file that has none of that name.
What the file has and the topic has not is refused, but for the columns that icestream itself puts there, and what
folders only repeat. Nothing else is dropped unless the caller said so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from icestream.migration.convert import Converter, UnfitError, converter, truncated
from icestream.migration.partitions import Partitions, folder_value, is_repeated
from icestream.model.errors import InvalidMessageError, InvalidRequestError
from icestream.model.messages import ENVELOPE
from icestream.telemetry import Signal
from icestream.telemetry.arrays import timestamps
from icestream.telemetry.options import SERVICE_NAME

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
class Wishes:
    """What the caller says about columns."""

    renames: Mapping[str, str] = field(default_factory=dict)
    """By the file's name, or the folders', the topic's."""
    ignored: frozenset[str] = frozenset()


@dataclass(frozen=True)
class MappedColumn:
    target: pa.Field
    origin: str
    """For people: where the values come from."""
    source: str | None
    make: Make


@dataclass(frozen=True)
class ColumnMap:
    schema: pa.Schema
    columns: tuple[MappedColumn, ...]
    """In the order in which they are made: what others are found from comes first."""
    dropped: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def sources(self) -> list[str]:
        """The columns that have to be read."""
        return list(dict.fromkeys(column.source for column in self.columns if column.source is not None))

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with the topic's columns; `InvalidMessageError` names the column with a value that does not fit."""
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
    wishes: Wishes,
    *,
    partitions: Partitions | None = None,
    signal: Signal | None = None,
) -> ColumnMap:
    """From a file's schema and the topic's. `partitions`: what the file's folders say, `signal`: of telemetry.

    `InvalidMessageError` is about the value of a folder, any other `InvalidRequestError` about the columns.
    """
    folders = {name: value for name, value in (partitions or {}).items() if name not in found.names}
    names = _named([*found.names, *folders], wishes)
    problems: list[str] = []
    dropped = _dropped(found, wanted, partitions or {}, names, wishes)
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


def _named(found: Sequence[str], wishes: Wishes) -> dict[str, str]:
    """By the names of the file's columns, those of the topic that they are meant for; ignored ones are left out."""
    if twice := sorted({name for name in found if found.count(name) > 1}):
        raise InvalidRequestError(f"column {twice[0]!r} is there twice", operation=_OPERATION)
    names = {name: wishes.renames.get(name, name) for name in found if name not in wishes.ignored}
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
    found: pa.Schema, wanted: pa.Schema, partitions: Partitions, names: Mapping[str, str], wishes: Wishes
) -> list[str]:
    """Columns that only repeat where a row was stored, unless the topic has them or the caller a place for them."""
    own = envelope_of(found) or []
    own = own if not set(own) & set(wanted.names) else []
    free = {*partitions} - {*wanted.names, *own, *wishes.renames}
    return [*own, *(name for name in names if name in free and is_repeated(name, found))]


def envelope_of(schema: pa.Schema) -> list[str] | None:
    """The columns that icestream adds to rows, if all of them are there: offset, time, producer, sequence."""
    for prefix in ("_", ""):
        names = [f"{prefix}{part.name}" for part in ENVELOPE]
        pairs = zip(names, ENVELOPE, strict=True)
        if all(name in schema.names and _is_like(schema.field(name).type, part.type) for name, part in pairs):
            return names
    return None


def _is_like(found: pa.DataType, own: pa.DataType) -> bool:
    return bool(found.equals(own) or (kinds.is_timestamp(found) and kinds.is_timestamp(own)))


def _direct(target: pa.Field, name: str, kind: pa.DataType, signal: Signal | None) -> MappedColumn:
    """In telemetry a null where none may be is what OTLP means by leaving the field out."""
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
    """Columns of telemetry that others of the same row tell, and what is still missing then."""
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
