"""The bloom filters of one data file, asked which row groups can hold a value.

What it guarantees: a row group is left out only on the word of a filter that is, by its checksum, what was written. One
that is not says nothing, and the rows are read: a damaged filter costs time and hides no row. Parquet's own filters
have no checksum and are not asked. Filters are read when first needed, those of a column together as far as they lie
near each other: a store answers one request sooner than many.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from zlib import crc32

from pyarrow.parquet import FileMetaData

from icestream.table.bloom import BloomFilter, stored
from icestream.table.bloom_writing import FilterNote, filter_notes

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
