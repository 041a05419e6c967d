"""Bloom filters of data files: which values a row group does not hold.

A filter has Parquet's format:

```
header                                              blocks, 32 bytes each
15 <bytes of all blocks> 1c1c0000 1c1c0000 1c1c0000 00 │ 8 words of 32 bits │ 8 words │ …
   zigzag varint         split block, xxHash64, uncompressed
```

The upper half of a value's hash chooses a block, the lower half one bit in each of its words. A value in the filter has
all eight bits set; of the other values about one in a hundred has.

**Own filters** are for the columns in the property `icestream.bloom-filter-columns`. They lie behind row groups, where
Parquet allows them. But the file's key-value metadata says where, and not its columns:

    icestream.bloom-filters = {"trace_id": [[position, bytes, crc32], … one for each row group]}

There are two reasons. Parquet has a checksum for pages and none for filters, and a lost bit in a filter hides rows;
with our checksum a damaged filter is skipped. And DuckDB, up to 1.5.5, probes a binary column's filter with the printed
value instead of the bytes, so that `WHERE trace_id = …` finds nothing; it does not see our filters.

**Parquet's filters** are for columns with Iceberg's property `write.parquet.bloom-filter-enabled.column.NAME`, which
other engines obey too. icestream writes them and does not read them. `write.parquet.bloom-filter-fpp.column.NAME` and
`write.parquet.bloom-filter-max-bytes` apply to both kinds. Only columns of primitive types have filters.

What reading guarantees: a row group is skipped only because of a filter whose checksum matches. A damaged filter costs
time and hides no row.
"""

import json
import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import log
from typing import Any, NamedTuple, Self
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.parquet import FileMetaData
from pyiceberg.schema import Schema
from pyiceberg.types import BooleanType, PrimitiveType
from xxhash import xxh64_intdigest

from icestream.table.statistics import written_metadata

_BLOCK = struct.Struct("<8I")
_NUMBER_OF_BYTES = 0x15
_KIND = bytes.fromhex("1c1c0000 1c1c0000 1c1c0000 00")
_LOW = 0xFFFFFFFF
_SALTS = (0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31)
_MAX_VARINT_BYTES = 5


@dataclass(frozen=True)
class BloomFilter:
    blocks: memoryview

    @classmethod
    def parse(cls, content: bytes | memoryview) -> Self | None:
        """Parse a filter; None if it is not of the only known kind."""
        content = memoryview(content)
        size, start = _blocks_size(content)
        if content[start : start + len(_KIND)] != _KIND:
            return None
        blocks = content[start + len(_KIND) :]
        if not len(blocks) or len(blocks) != size or size % _BLOCK.size:
            return None
        return cls(blocks)

    def may_hold(self, value: bytes) -> bool:
        """Return False only for a value that is not in the filter. Takes Parquet's plain encoding, without length."""
        digest = xxh64_intdigest(value)
        count = len(self.blocks) // _BLOCK.size
        words = _BLOCK.unpack_from(self.blocks, (((digest >> 32) * count) >> 32) * _BLOCK.size)
        low = digest & _LOW
        return all(word >> (((low * salt) & _LOW) >> 27) & 1 for word, salt in zip(words, _SALTS, strict=True))


def stored(value: object, physical_type: str) -> bytes | None:
    """Return a value in Parquet's plain encoding; None for types that have no filters."""
    if physical_type in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"):
        if isinstance(value, str):
            return value.encode()
        return value if isinstance(value, bytes) else None
    if type(value) is not int or physical_type not in ("INT32", "INT64"):
        return None
    nbytes = 4 if physical_type == "INT32" else 8
    try:
        return value.to_bytes(nbytes, "little", signed=True)
    except OverflowError:
        return None


def _blocks_size(content: memoryview) -> tuple[int, int]:
    """Return the bytes of all blocks, and the position of the rest of the header; zeros if it cannot be read."""
    if not len(content) or content[0] != _NUMBER_OF_BYTES:
        return 0, 0
    value = 0
    for index, byte in enumerate(content[1 : 1 + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * index)
        if not byte & 0x80:
            return 0 if value & 1 else value >> 1, index + 2  # odd numbers are negative
    return 0, 0


OWN_COLUMNS = "icestream.bloom-filter-columns"
"""The columns, one a line."""
NOTES = "icestream.bloom-filters"

_ENABLED = "write.parquet.bloom-filter-enabled.column."
_FPP = "write.parquet.bloom-filter-fpp.column."
_MAX_BYTES = "write.parquet.bloom-filter-max-bytes"
_DEFAULT_FPP = 0.01
_DEFAULT_MAX_BYTES = 1024 * 1024
_HASHES = 8
_COLLECTED_BYTES = 1024 * 1024

FilterOptions = dict[str, dict[str, Any]]
"""Options of Parquet's writer: for each column the expected number of values and the false-positive rate."""


def own_options(table: Schema, properties: Mapping[str, str]) -> FilterOptions:
    wanted = set(properties.get(OWN_COLUMNS, "").split("\n"))
    return {name: _options(name, properties) for name in _plain_columns(table) if name in wanted}


def parquet_options(table: Schema, properties: Mapping[str, str]) -> FilterOptions:
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
    """Return the options for as many values as fit. Parquet makes the filter as small as its values allow."""
    fpp = _number_between(properties.get(_FPP + name), 1.0, _DEFAULT_FPP)
    most = _number_between(properties.get(_MAX_BYTES), float("inf"), _DEFAULT_MAX_BYTES)
    return {"ndv": max(1, int(most * 8 * -log(1 - fpp ** (1 / _HASHES)) / _HASHES)), "fpp": fpp}


def _number_between(text: str | None, below: float, default: float) -> float:
    """Return a number between 0 and a limit; the default if the text is no such number."""
    try:
        number = float(text or default)
    except ValueError:
        return default
    return number if 0 < number < below else default


class FilterNote(NamedTuple):
    """Position, length and checksum of a row group's filter."""

    position: int
    nbytes: int
    checksum: int


@dataclass
class OwnFilters:
    """The own filters of one file, made while its row groups are written.

    They are collected up to a size and then written side by side, so that one request reads many.
    """

    options: FilterOptions
    notes: dict[str, list[FilterNote]] = field(default_factory=lambda: defaultdict(list))
    collected: list[tuple[str, bytes]] = field(default_factory=list)

    def add(self, rows: pa.Table, stream: pa.NativeFile) -> None:
        """Make the filters of the row group that was just written."""
        if self.options:
            self.collected += _made(rows.select(list(self.options)), self.options)
        if sum(len(content) for _, content in self.collected) >= _COLLECTED_BYTES:
            self._flush(stream)

    def finish(self, stream: pa.NativeFile) -> dict[str, str]:
        """Write the remaining filters, and return their metadata. Call it just before the footer is written."""
        self._flush(stream)
        return {NOTES: json.dumps(self.notes, separators=(",", ":"))} if self.notes else {}

    def _flush(self, stream: pa.NativeFile) -> None:
        for column, content in self.collected:
            self.notes[column].append(FilterNote(stream.tell(), len(content), crc32(content)))
            stream.write(content)
        self.collected = []


def _made(columns: pa.Table, options: FilterOptions) -> Iterator[tuple[str, bytes]]:
    """Yield the filters of some columns. Parquet's writer makes them: it writes the columns again, into memory."""
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
    group = written_metadata(writer).row_group(0)
    for chunk in (group.column(number) for number in range(group.num_columns)):
        begin = chunk.bloom_filter_offset
        yield chunk.path_in_schema, bytes(content[begin : begin + chunk.bloom_filter_length])


def filter_notes(metadata: pq.FileMetaData) -> dict[str, list[FilterNote]]:
    """Return for each column its filters by row group; nothing for metadata that cannot be read."""
    try:
        found = json.loads((metadata.metadata or {})[NOTES.encode()])
        return {
            name: [FilterNote(int(position), int(nbytes), int(checksum)) for position, nbytes, checksum in notes]
            for name, notes in found.items()
            if len(notes) == metadata.num_row_groups
        }
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError):
        return {}


_MAX_GAP_BYTES = 64 * 1024
_MAX_READ_BYTES = 8 * 1024 * 1024
"""Bytes of one request. A larger filter is not read."""

ReadAt = Callable[[int, int], bytes]
"""Reads bytes of a file: position and length."""


class FileFilters:
    """The own filters of a data file. They are read when first needed, those of a column with few requests."""

    def __init__(self, metadata: FileMetaData, numbers: Mapping[str, int], groups: Sequence[int], read: ReadAt) -> None:
        """`groups` are the row groups that may still match; `numbers` are the indexes of the columns."""
        self._metadata = metadata
        self._numbers = numbers
        self._groups = groups
        self._read = read
        self._loaded: dict[str, dict[int, BloomFilter]] = {}

    def may_hold(self, group: int, column: str, value: object) -> bool:
        """Return whether a row group can have rows with a value in a column, by the file's name of the column."""
        if column not in self._notes or column not in self._numbers:
            return True
        if column not in self._loaded:
            self._loaded[column] = dict(self._load(column))
        found = self._loaded[column].get(group)
        if found is None:
            return True
        content = stored(value, self._metadata.row_group(group).column(self._numbers[column]).physical_type)
        return content is None or found.may_hold(content)

    @cached_property
    def _notes(self) -> dict[str, list[FilterNote]]:
        return filter_notes(self._metadata)

    def _load(self, column: str) -> Iterator[tuple[int, BloomFilter]]:
        notes = {group: self._notes[column][group] for group in self._groups}
        contents = _contents(sorted(set(notes.values())), self._read)
        for group, note in notes.items():
            content = contents.get(note)
            if content is None or crc32(content) != note.checksum:
                continue
            if (found := BloomFilter.parse(content)) is not None:
                yield group, found


def _contents(notes: Iterable[FilterNote], read: ReadAt) -> dict[FilterNote, memoryview]:
    """Read filters, in the order of their positions, with few requests."""
    found: dict[FilterNote, memoryview] = {}
    for neighbours in _neighbours(notes):
        begin = neighbours[0].position
        content = memoryview(read(begin, max(note.position + note.nbytes for note in neighbours) - begin))
        found |= {note: content[note.position - begin :][: note.nbytes] for note in neighbours}
    return found


def _neighbours(notes: Iterable[FilterNote]) -> Iterator[list[FilterNote]]:
    neighbours: list[FilterNote] = []
    for note in notes:
        if note.position < 0 or not 0 < note.nbytes <= _MAX_READ_BYTES:
            continue
        if neighbours:
            gap = note.position - neighbours[-1].position - neighbours[-1].nbytes
            if gap > _MAX_GAP_BYTES or note.position + note.nbytes - neighbours[0].position > _MAX_READ_BYTES:
                yield neighbours
                neighbours = []
        neighbours.append(note)
    if neighbours:
        yield neighbours
