"""Columns of a data file under the names that the table has for them.

Engines write the same column under other names: an older one, or one in which they have replaced characters, at any
depth. Its id says which it is. Renaming moves no data.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from icestream.table.schema import FIELD_ID


@dataclass(frozen=True)
class Labels:
    file: pa.Schema
    table: Schema

    @cached_property
    def _fields(self) -> dict[str, pa.Field]:
        """For each column of the file that the table still has, what it is there."""
        by_id = {field.field_id: field for field in self.table.fields}
        by_name = {field.name: field for field in self.table.fields}
        found = {}
        for field in self.file:
            number = _id(field)
            column = by_id.get(number) if number is not None else by_name.get(field.name)
            if column is not None:
                found[field.name] = _labelled(field, column)
        return found

    @cached_property
    def _in_file(self) -> dict[str, str]:
        return {field.name: name for name, field in self._fields.items()}

    def in_file(self, name: str) -> str | None:
        """What the file calls a column of the table; none if it has no such column."""
        return self._in_file.get(name)

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch of the file, with some of its columns, as the table names them."""
        schema = pa.schema([self._fields[name] for name in batch.schema.names])
        return pa.record_batch(_Renamed(batch, schema))


@dataclass(frozen=True)
class _Renamed:
    """The same memory under another schema, by Arrow's protocol for handing arrays over."""

    batch: pa.RecordBatch
    schema: pa.Schema

    def __arrow_c_array__(self, _requested_schema: Any = None) -> tuple[Any, Any]:
        return self.schema.__arrow_c_schema__(), self.batch.__arrow_c_array__()[1]


def _labelled(field: pa.Field, column: NestedField) -> pa.Field:
    return pa.field(column.name, _labelled_type(field.type, column.field_type), field.nullable)


def _labelled_type(kind: pa.DataType, target: IcebergType) -> pa.DataType:
    if kinds.is_struct(kind) and isinstance(target, StructType):
        by_id = {column.field_id: column for column in target.fields}
        return pa.struct(
            [_labelled(field, by_id[number]) if (number := _id(field)) in by_id else field for field in kind]
        )
    if kinds.is_list(kind) and isinstance(target, ListType):
        return pa.list_(kind.value_field.with_type(_labelled_type(kind.value_type, target.element_type)))
    if kinds.is_map(kind) and isinstance(target, MapType):
        return pa.map_(
            kind.key_field.with_type(_labelled_type(kind.key_type, target.key_type)),
            kind.item_field.with_type(_labelled_type(kind.item_type, target.value_type)),
        )
    return kind


def _id(field: pa.Field) -> int | None:
    found = (field.metadata or {}).get(FIELD_ID)
    return None if found is None else int(found)
