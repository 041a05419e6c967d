"""Bloom filters of a data file: icestream's own, and those of Parquet where the table asks for them.

**Own filters** are for the columns of the property `icestream.bloom-filter-columns`. They have Parquet's format and lie
where it allows for them, behind row groups; but the file's key-value metadata says where, and not its columns:

    icestream.bloom-filters = {"trace_id": [[position, bytes, crc32], … one for each row group]}

For two reasons. Parquet has a checksum for pages and none for filters, and a bit that is lost in a filter hides rows;
with one, a damaged filter is passed over. And DuckDB, up to 1.5.5, asks a binary column's filter for the printed value
instead of the bytes, so that `WHERE trace_id = …` finds nothing; what it does not see does not mislead it.

**Parquet's filters** are for columns with `write.parquet.bloom-filter-enabled.column.NAME`, which is Iceberg's word for
them and that other engines obey too. `write.parquet.bloom-filter-fpp.column.NAME` and
`write.parquet.bloom-filter-max-bytes` hold for both kinds. Only plain columns have filters.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import log
from typing import Any, NamedTuple
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.types import BooleanType, PrimitiveType

OWN_COLUMNS = "icestream.bloom-filter-columns"
"""The columns, one a line."""
NOTES = "icestream.bloom-filters"

_ENABLED = "write.parquet.bloom-filter-enabled.column."
_FPP = "write.parquet.bloom-filter-fpp.column."
_MAX_BYTES = "write.parquet.bloom-filter-max-bytes"
_DEFAULT_FPP = 0.01
_DEFAULT_MAX_BYTES = 1024 * 1024
_HASHES = 8
_GATHERED_BYTES = 1024 * 1024

Options = dict[str, dict[str, Any]]
"""What Parquet's writer is told: for each column how many values to expect, and how often a filter may be wrong."""


def own_options(table: Schema, properties: Mapping[str, str]) -> Options:
    wanted = set(properties.get(OWN_COLUMNS, "").split("\n"))
    return {name: _options(name, properties) for name in _plain_columns(table) if name in wanted}


def parquet_options(table: Schema, properties: Mapping[str, str]) -> Options:
    return {
        name: _options(name, properties)
        for name in _plain_columns(table)
        if properties.get(_ENABLED + name, "").lower() == "true"
    }


def _plain_columns(table: Schema) -> list[str]:
    return [
        column.name
        for column in table.fields
        if isinstance(column.field_type, PrimitiveType)
        and not isinstance(column.field_type, BooleanType)
        and "." not in column.name
    ]


def _options(name: str, properties: Mapping[str, str]) -> dict[str, Any]:
    """For as many values as fit; Parquet writes a filter as small as what came in allows."""
    fpp = _number(properties.get(_FPP + name), 1.0, _DEFAULT_FPP)
    most = _number(properties.get(_MAX_BYTES), float("inf"), _DEFAULT_MAX_BYTES)
    return {"ndv": max(1, int(most * 8 * -log(1 - fpp ** (1 / _HASHES)) / _HASHES)), "fpp": fpp}


def _number(text: str | None, below: float, default: float) -> float:
    """A number between 0 and a limit; the default if somebody has set something else."""
    try:
        number = float(text or default)
    except ValueError:
        return default
    return number if 0 < number < below else default


class FilterNote(NamedTuple):
    """Where a row group's filter is, and what it is."""

    position: int
    nbytes: int
    checksum: int


@dataclass
class OwnFilters:
    """Those of one file, made as its row groups are written.

    They are gathered, so that they lie side by side and are read together, but not without end.
    """

    options: Options
    notes: dict[str, list[FilterNote]] = field(default_factory=lambda: defaultdict(list))
    gathered: list[tuple[str, bytes]] = field(default_factory=list)

    def add(self, rows: pa.Table, stream: pa.NativeFile) -> None:
        """Make the filters of the row group that was written last."""
        if self.options:
            self.gathered += _made(rows.select(list(self.options)), self.options)
        if sum(len(content) for _, content in self.gathered) >= _GATHERED_BYTES:
            self._flush(stream)

    def finish(self, stream: pa.NativeFile) -> dict[str, str]:
        """Write what is left, and return what the file is to note; for the moment before its footer is written."""
        self._flush(stream)
        return {NOTES: json.dumps(self.notes, separators=(",", ":"))} if self.notes else {}

    def _flush(self, stream: pa.NativeFile) -> None:
        for column, content in self.gathered:
            self.notes[column].append(FilterNote(stream.tell(), len(content), crc32(content)))
            stream.write(content)
        self.gathered = []


def _made(columns: pa.Table, options: Options) -> Iterator[tuple[str, bytes]]:
    """The filters of some columns. Parquet's writer makes them: it writes the columns once more, into memory."""
    rows = max(1, columns.num_rows)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        columns.schema,
        bloom_filter_options={name: {**how, "ndv": min(how["ndv"], rows)} for name, how in options.items()},
        compression="none",
        use_dictionary=False,
        write_statistics=False,
        store_schema=False,
    ) as writer:
        writer.write_table(columns, row_group_size=rows)
    content = sink.getvalue()
    group = writer.writer.metadata.row_group(0)
    for chunk in (group.column(number) for number in range(group.num_columns)):
        begin = chunk.bloom_filter_offset
        yield chunk.path_in_schema, bytes(content[begin : begin + chunk.bloom_filter_length])


def filter_notes(metadata: pq.FileMetaData) -> dict[str, list[FilterNote]]:
    """For each column its filters by row group; nothing that is not clearly that."""
    try:
        found = json.loads((metadata.metadata or {})[NOTES.encode()])
        return {
            name: [FilterNote(int(position), int(nbytes), int(checksum)) for position, nbytes, checksum in notes]
            for name, notes in found.items()
            if len(notes) == metadata.num_row_groups
        }
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError):
        return {}
