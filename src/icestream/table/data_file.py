"""One Parquet file on its way into a table: rows in, a description with statistics out."""

import contextlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    StatisticsCollector,
    compute_statistics_plan,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record

from icestream.table.bloom_writing import OwnFilters, own_options, parquet_options
from icestream.table.files import SyncedFile
from icestream.table.statistics import data_file_statistics

_CODECS = {"uncompressed": "none"}
_LEVELLED = ("zstd", "gzip")
_COUNTERS = (0, 3)  # offset and sequence


@dataclass(frozen=True)
class Layout:
    """What all files of a writer have in common."""

    table: Schema
    schema: pa.Schema
    properties: dict[str, str]

    @cached_property
    def plan(self) -> dict[int, StatisticsCollector]:
        return compute_statistics_plan(self.table, self.properties)

    @cached_property
    def ids(self) -> dict[str, int]:
        return parquet_path_to_id_mapping(self.table)

    @cached_property
    def options(self) -> dict[str, Any]:
        """How Parquet writes: no dictionary where values do not repeat, no statistics where nobody looks for them."""
        codec = self.properties.get("write.parquet.compression-codec", "zstd")
        level = self.properties.get("write.parquet.compression-level")
        plain = [path for path, id_ in self.ids.items() if self.plan[id_].mode.type is MetricModeTypes.NONE]
        counters = [self.schema[number].name for number in _COUNTERS]
        rest = [path for path in self.ids if path not in {*plain, *counters}]
        return {
            "compression": _CODECS.get(codec, codec),
            "compression_level": int(level) if level and codec in _LEVELLED else None,
            "use_dictionary": rest,
            "write_statistics": [*counters, *rest],
            "store_schema": False,
            "store_decimal_as_integer": True,
            "bloom_filter_options": parquet_options(self.table, self.properties),
            "write_page_checksum": True,  # without it many a flipped bit decodes to something else
        }


class DataFileWriter:
    """Writes each table given as one row group."""

    def __init__(self, layout: Layout, io: FileIO, location: str) -> None:
        self._layout = layout
        self._io = io
        self._location = location
        self._stream = io.new_output(location).create(overwrite=True)  # the name is new: no need to look
        self._parquet = pq.ParquetWriter(self._stream, layout.schema, **layout.options)
        self._filters = OwnFilters(own_options(layout.table, layout.properties))
        self.message_count = 0
        self.first_offset = -1
        self.last_offset = -1

    @property
    def size(self) -> int:
        return int(self._stream.tell())

    def write(self, rows: pa.Table) -> None:
        self._parquet.write_table(rows, row_group_size=rows.num_rows)
        self._filters.add(rows, self._stream)
        bounds = pc.min_max(rows.column(0)).as_py()
        if self.message_count == 0:
            self.first_offset = bounds["min"]
        self.last_offset = bounds["max"]
        self.message_count += rows.num_rows

    def close(self, partition: Record, sort_order_id: int | None) -> DataFile:
        self._parquet.add_key_value_metadata(self._filters.finish(self._stream))
        self._parquet.close()
        size = self.size
        self._stream.close()
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self._location,
            file_format=FileFormat.PARQUET,
            partition=partition,
            file_size_in_bytes=size,
            sort_order_id=sort_order_id,
            equality_ids=None,
            key_metadata=None,
            **data_file_statistics(self._parquet.writer.metadata, self._layout.plan, self._layout.ids),
        )

    def discard(self) -> None:
        """Close the file however it stands, and remove it; one that is hidden until it is complete stays so."""
        end = self._stream.discard if isinstance(self._stream, SyncedFile) else self._stream.close
        for step in (self._parquet.close, end):
            with contextlib.suppress(Exception):  # whatever made the write fail may make this fail too
                step()
        self._parquet.is_open = False  # or it would try again when it is collected
        with contextlib.suppress(Exception):  # then it is left to the clean-up of orphans
            self._io.delete(self._location)
