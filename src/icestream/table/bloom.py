"""A Parquet bloom filter: which values a row group does not hold.

```
header                                              blocks, 32 bytes each
15 <bytes of all blocks> 1c1c0000 1c1c0000 1c1c0000 00 │ 8 words of 32 bits │ 8 words │ …
   zigzag varint         split block, xxHash64, uncompressed
```

A value's hash chooses a block with its upper half, and one bit of each word with its lower. A value that was put in has
all eight bits set; of others about one in a hundred has.
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
        """None unless it is a filter of the one kind that there is so far."""
        content = memoryview(content)
        size, place = _number(content)
        if content[place : place + len(_KIND)] != _KIND:
            return None
        blocks = content[place + len(_KIND) :]
        if not len(blocks) or len(blocks) != size or size % _BLOCK.size:
            return None
        return cls(blocks)

    def may_hold(self, value: bytes) -> bool:
        """False only of a value that was not put in. The value is as Parquet stores it plainly, without its length."""
        digest = xxh64_intdigest(value)
        count = len(self.blocks) // _BLOCK.size
        words = _BLOCK.unpack_from(self.blocks, (((digest >> 32) * count) >> 32) * _BLOCK.size)
        low = digest & _LOW
        return all(word >> (((low * salt) & _LOW) >> 27) & 1 for word, salt in zip(words, _SALTS, strict=True))


def stored(value: object, physical_type: str) -> bytes | None:
    """A value as Parquet stores it; none for types about which filters are not asked."""
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


def _number(content: memoryview) -> tuple[int, int]:
    """The number of bytes of all blocks, and where the rest of the header begins; nothing if there is no number."""
    if not len(content) or content[0] != _NUMBER_OF_BYTES:
        return 0, 0
    value = 0
    for place, byte in enumerate(content[1 : 1 + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * place)
        if not byte & 0x80:
            return 0 if value & 1 else value >> 1, place + 2  # odd ones are negative
    return 0, 0


# --------------------
# Bloom filters of a data file: icestream's own, and those of Parquet where the table asks for them.
#
# **Own filters** are for the columns of the property `icestream.bloom-filter-columns`. They have Parquet's format
# and lie
# where it allows for them, behind row groups; but the file's key-value metadata says where, and not its columns:
#
#     icestream.bloom-filters = {"trace_id": [[position, bytes, crc32], … one for each row group]}
#
# For two reasons. Parquet has a checksum for pages and none for filters, and a bit that is lost in a filter hides rows;
# with one, a damaged filter is passed over. And DuckDB, up to 1.5.5, asks a binary column's filter for the printed
# value
# instead of the bytes, so that `WHERE trace_id = …` finds nothing; what it does not see does not mislead it.
#
# **Parquet's filters** are for columns with `write.parquet.bloom-filter-enabled.column.NAME`, which is Iceberg's
# word for
# them and that other engines obey too. `write.parquet.bloom-filter-fpp.column.NAME` and
# `write.parquet.bloom-filter-max-bytes` hold for both kinds. Only plain columns have filters.


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
    fpp = _note_number(properties.get(_FPP + name), 1.0, _DEFAULT_FPP)
    most = _note_number(properties.get(_MAX_BYTES), float("inf"), _DEFAULT_MAX_BYTES)
    return {"ndv": max(1, int(most * 8 * -log(1 - fpp ** (1 / _HASHES)) / _HASHES)), "fpp": fpp}


def _note_number(text: str | None, below: float, default: float) -> float:
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


# --------------------
# The bloom filters of one data file, asked which row groups can hold a value.
#
# What it guarantees: a row group is left out only on the word of a filter that is, by its checksum, what was
# written. One
# that is not says nothing, and the rows are read: a damaged filter costs time and hides no row. Parquet's own filters
# have no checksum and are not asked. Filters are read when first needed, those of a column together as far as they lie
# near each other: a store answers one request sooner than many.


_MAX_GAP_BYTES = 64 * 1024
_MAX_READ_BYTES = 8 * 1024 * 1024
"""Of one request; a filter that is larger is not read."""

ReadAt = Callable[[int, int], bytes]
"""So many bytes of the file from a position on."""


class FileFilters:
    def __init__(self, metadata: FileMetaData, numbers: Mapping[str, int], groups: Sequence[int], read: ReadAt) -> None:
        """For the row groups that are still in question; `numbers` are those of the columns."""
        self._metadata = metadata
        self._numbers = numbers
        self._groups = groups
        self._read = read
        self._loaded: dict[str, dict[int, BloomFilter]] = {}

    def may_hold(self, group: int, column: str, value: object) -> bool:
        """Whether a row group can have rows with a value in a column, which is called as in the file."""
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
    """The filters in the order of their positions, read with few requests."""
    found: dict[FilterNote, memoryview] = {}
    for together in _neighbours(notes):
        begin = together[0].position
        content = memoryview(read(begin, max(note.position + note.nbytes for note in together) - begin))
        found |= {note: content[note.position - begin :][: note.nbytes] for note in together}
    return found


def _neighbours(notes: Iterable[FilterNote]) -> Iterator[list[FilterNote]]:
    together: list[FilterNote] = []
    for note in notes:
        if note.position < 0 or not 0 < note.nbytes <= _MAX_READ_BYTES:
            continue
        if together:
            gap = note.position - together[-1].position - together[-1].nbytes
            if gap > _MAX_GAP_BYTES or note.position + note.nbytes - together[0].position > _MAX_READ_BYTES:
                yield together
                together = []
        together.append(note)
    if together:
        yield together
