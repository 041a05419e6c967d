"""Bringing a table up to the topic's schema.

Columns that the topic has gained are added, as nullable ones; old files then read as null there. Anything else that
differs (a type, a column that must not be null) cannot be, and the table is refused before anything is written.
"""

from contextlib import suppress

from pyiceberg.exceptions import CommitFailedException, ResolveError
from pyiceberg.schema import Schema, promote
from pyiceberg.table import Table
from pyiceberg.types import IcebergType, ListType, MapType, StructType

from icestream.model.errors import CommitConflictError, IncompatibleTableError
from icestream.model.schema_text import encode_schema
from icestream.table.manifests import FORMAT_VERSION
from icestream.table.properties import STREAM_SCHEMA
from icestream.table.schema import Columns, iceberg_schema
from icestream.table.spec import TableSpec

_TRIES = 4


def adapt(table: Table, spec: TableSpec) -> Table:
    """`table` with all columns of `spec`."""
    columns = Columns.of(spec.schema)
    wanted = iceberg_schema(columns)
    for _ in range(_TRIES):
        _check(table, wanted, spec)
        if set(wanted.column_names) <= set(table.schema().column_names):
            return table
        with suppress(CommitFailedException), table.transaction() as change:
            with change.update_schema() as update:
                update.union_by_name(wanted)
            change.set_properties({STREAM_SCHEMA: encode_schema(spec.schema)})
        table = table.refresh()
    raise CommitConflictError(
        "the table changes too often to add a column", operation="open table", place=str(spec.topic)
    )


def _check(table: Table, wanted: Schema, spec: TableSpec) -> None:
    problems = []
    if table.metadata.format_version != FORMAT_VERSION:
        problems.append(f"has format version {table.metadata.format_version}, not {FORMAT_VERSION}")
    problems += _differences(wanted.as_struct(), table.schema().as_struct(), "")
    given = {field.name for field in wanted.fields}
    problems += [
        f"needs a value for column {field.name!r}, which the topic does not have"
        for field in table.schema().fields
        if field.required and field.name not in given
    ]
    if problems:
        raise IncompatibleTableError(
            f"the table {'; it '.join(problems)}",
            operation="open table",
            place=str(spec.topic),
            remedy="rename the table, or give the topic another name or schema",
        )


def _differences(wanted: StructType, found: StructType, path: str) -> list[str]:
    by_name = {field.name: field for field in found.fields}
    problems = []
    for field in wanted.fields:
        other = by_name.get(field.name)
        if other is None:
            if field.required:
                problems.append(f"lacks the column {path}{field.name}, which is never null")
        elif other.required and not field.required:
            problems.append(f"takes no null in column {path}{field.name}")
        else:
            problems += _compare(field.field_type, other.field_type, f"{path}{field.name}")
    return problems


def _compare(wanted: IcebergType, found: IcebergType, name: str) -> list[str]:
    match wanted, found:
        case StructType(), StructType():
            return _differences(wanted, found, f"{name}.")
        case ListType(), ListType():
            return _compare(wanted.element_type, found.element_type, f"{name}.element")
        case MapType(), MapType():
            keys = _compare(wanted.key_type, found.key_type, f"{name}.key")
            return keys + _compare(wanted.value_type, found.value_type, f"{name}.value")
    if wanted == found:
        return []
    try:
        promote(wanted, found)  # what the topic writes may be read as a wider type, if somebody has widened the column
    except ResolveError:
        return [f"has {found} in column {name}, the topic {wanted}"]
    return []
