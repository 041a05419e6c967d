"""What manifests say about data files' offsets, and no more of it than that.

A manifest never changes, so what was read of one is kept for the next plan, up to a number of files; of the others only
the range of their offsets is kept, so that most plans need not read them again. Entries are read one by one: a plan
holds descriptions of a few words, never the statistics of thousands of files at once.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import NamedTuple

from pyiceberg.avro.file import AvroFile
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DEFAULT_READ_VERSION,
    MANIFEST_ENTRY_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)

MAX_KEPT_FILES = 50_000
"""About 15 MiB."""
MAX_KNOWN_MANIFESTS = 20_000
MANIFESTS_AHEAD = 8
NO_END = (1 << 63) - 1

MayHold = Callable[[DataFile], bool]


class PlannedFile(NamedTuple):
    """A data file, as far as a read needs to know it. They sort by where they begin."""

    first_offset: int
    """-1 if the manifests do not say."""
    path: str
    last_offset: int
    rows: int
    nbytes: int
    has_deletes: bool = False


class Extent(NamedTuple):
    """Where the files of a manifest lie."""

    lowest: int
    highest_first: int
    highest: int

    def meets(self, start: int, end: int) -> bool:
        return self.highest >= start and self.lowest < end


class ManifestIndex:
    """Can be shared by threads, and by all tables of a catalog."""

    def __init__(self, max_kept_files: int = MAX_KEPT_FILES) -> None:
        self._max_kept_files = max_kept_files
        self._lock = Lock()
        self._kept: OrderedDict[str, tuple[PlannedFile, ...]] = OrderedDict()
        self._kept_files = 0
        self._extents: OrderedDict[str, Extent] = OrderedDict()

    @property
    def kept_files(self) -> int:
        return self._kept_files

    def extent(self, path: str) -> Extent | None:
        """Where a manifest's files lie, if it was read before."""
        with self._lock:
            return self._extents.get(path)

    def files(
        self, manifests: Sequence[ManifestFile], io: FileIO, offset_id: int, may_hold: MayHold | None = None
    ) -> Iterator[PlannedFile]:
        """The live data files of manifests, in no order; those that `may_hold` refuses are left out."""
        if may_hold is not None:
            for manifest, reader in _opened(manifests, io):
                yield from self._read(manifest, reader, offset_id, may_hold)
            return
        missing = []
        for manifest in manifests:
            if (kept := self._get(manifest.manifest_path)) is None:
                missing.append(manifest)
            else:
                yield from kept
        for manifest, reader in _opened(missing, io):
            yield from self._read(manifest, reader, offset_id, None)

    def _read(
        self, manifest: ManifestFile, reader: AvroFile[ManifestEntry], offset_id: int, may_hold: MayHold | None
    ) -> Iterator[PlannedFile]:
        kept: list[PlannedFile] | None = [] if may_hold is None else None
        lowest, highest_first, highest = NO_END, -1, -1
        for entry in reader:
            if entry.status == ManifestEntryStatus.DELETED:
                continue
            file = planned(entry.data_file, offset_id)
            lowest = min(lowest, file.first_offset)
            highest_first = max(highest_first, file.first_offset)
            highest = max(highest, file.last_offset)
            if kept is not None:
                kept.append(file)
                if len(kept) > self._max_kept_files:
                    kept = None
            if may_hold is not None:
                entry.data_file.spec_id = manifest.partition_spec_id
                if not may_hold(entry.data_file):
                    continue
            yield file
        self._put(manifest.manifest_path, Extent(lowest, highest_first, highest), kept)

    def _get(self, path: str) -> tuple[PlannedFile, ...] | None:
        with self._lock:
            if path in self._kept:
                self._kept.move_to_end(path)
            return self._kept.get(path)

    def _put(self, path: str, extent: Extent, files: list[PlannedFile] | None) -> None:
        with self._lock:
            self._extents[path] = extent
            if len(self._extents) > MAX_KNOWN_MANIFESTS:
                self._extents.popitem(last=False)
            if files is None or path in self._kept:
                return
            self._kept[path] = tuple(files)
            self._kept_files += len(files)
            while self._kept_files > self._max_kept_files:
                _, dropped = self._kept.popitem(last=False)
                self._kept_files -= len(dropped)


def planned(file: DataFile, offset_id: int) -> PlannedFile:
    first = offset_bound(file.lower_bounds, offset_id)
    last = offset_bound(file.upper_bounds, offset_id)
    return PlannedFile(
        -1 if first is None else first,
        file.file_path,
        NO_END if last is None else last,
        file.record_count,
        file.file_size_in_bytes,
    )


def offset_bound(bounds: dict[int, bytes] | None, offset_id: int) -> int | None:
    found = (bounds or {}).get(offset_id)
    return None if found is None else int.from_bytes(found, "little", signed=True)


def _opened(manifests: Sequence[ManifestFile], io: FileIO) -> Iterator[tuple[ManifestFile, AvroFile[ManifestEntry]]]:
    """Manifests with their bytes read, a few ahead: a store far away answers many requests as quickly as one."""
    if len(manifests) <= 1:
        yield from ((manifest, _open(manifest, io)) for manifest in manifests)
        return
    waiting: deque[tuple[ManifestFile, Future[AvroFile[ManifestEntry]]]] = deque()
    with ThreadPoolExecutor(MANIFESTS_AHEAD, thread_name_prefix="manifests") as pool:
        try:
            for manifest in manifests:
                waiting.append((manifest, pool.submit(_open, manifest, io)))
                if len(waiting) >= MANIFESTS_AHEAD:
                    first, reading = waiting.popleft()
                    yield first, reading.result()
            while waiting:
                first, reading = waiting.popleft()
                yield first, reading.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _open(manifest: ManifestFile, io: FileIO) -> AvroFile[ManifestEntry]:
    """Has the bytes when it returns; entries are decoded as they are asked for, unlike the library's own way."""
    return AvroFile[ManifestEntry](
        io.new_input(manifest.manifest_path),
        MANIFEST_ENTRY_SCHEMAS[DEFAULT_READ_VERSION],
        read_types={-1: ManifestEntry, 2: DataFile},
        read_enums={0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
    ).__enter__()
