"""Writing without a trace: whether a process can write files for a table at all.

A made-up row takes the way of a stream's rows into a file in memory. It must never lie in a table's folders: in a
Parquet copy every file is read.
"""

from dataclasses import replace
from decimal import Decimal
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds
from pyiceberg.io import FileIO, InputFile, OutputFile, OutputStream

from icestream.model.messages import EnvelopeNames
from icestream.table.writer import TableWriter


def trial_writer(writer: TableWriter) -> TableWriter:
    """Return the same writer, with files in memory that are gone when they are closed."""
    return replace(writer, io=_Nowhere())


def sample_row(schema: pa.Schema, offset: int) -> pa.RecordBatch:
    """Return a row of a stream, with a value in every column."""
    offset_column = EnvelopeNames.of(schema).offset
    values = {field.name: offset if field.name == offset_column else _value(field.type) for field in schema}
    return pa.RecordBatch.from_arrays([pa.array([values[field.name]], field.type) for field in schema], schema=schema)


def _value(kind: pa.DataType) -> Any:
    kind = getattr(kind, "storage_type", kind)  # of an extension type, such as UUID
    if kinds.is_struct(kind):
        return {field.name: _value(field.type) for field in kind}
    if kinds.is_map(kind):
        return [(_value(kind.key_type), _value(kind.item_type))]
    if kinds.is_fixed_size_list(kind):
        return [_value(kind.value_type)] * kind.list_size
    if kinds.is_list(kind) or kinds.is_large_list(kind):
        return [_value(kind.value_type)]
    if kinds.is_fixed_size_binary(kind):
        return bytes(kind.byte_width)
    if kinds.is_decimal(kind):
        return Decimal(0)
    if kinds.is_boolean(kind):
        return False
    if kinds.is_floating(kind):
        return 0.0
    if kinds.is_integer(kind) or kinds.is_temporal(kind):
        return 0
    return b"" if kinds.is_binary(kind) or kinds.is_large_binary(kind) else None if kinds.is_null(kind) else ""


class _File(OutputFile):
    def __len__(self) -> int:
        return 0

    def exists(self) -> bool:
        return False

    def to_input_file(self) -> InputFile:
        raise FileNotFoundError(self.location)

    def create(self, overwrite: bool = False) -> OutputStream:
        del overwrite
        return BytesIO()


class _Nowhere(FileIO):
    def new_input(self, location: str) -> InputFile:
        raise FileNotFoundError(location)

    def new_output(self, location: str) -> OutputFile:
        return _File(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """There is nothing to delete."""
