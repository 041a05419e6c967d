"""Which data files a read has to open, in the order in which they begin.

What it guarantees: every file of the state that may hold a row of the range comes, once, in the order of first offsets.
Memory is bounded whatever the number of files: `WINDOW_FILES` of them are held at a time, and further ones are looked
for when these are used up, in the manifests that can have them.

A REST catalog that is asked to plans instead, see `rest`; and where rows were deleted with delete files the library
says which files are concerned.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from heapq import nsmallest
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from pyiceberg.avro.file import AvroFile
from pyiceberg.expressions import And, BooleanExpression
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DEFAULT_READ_VERSION,
    MANIFEST_ENTRY_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)

from icestream.model.errors import (
    DamagedError,
    IcestreamError,
    SnapshotExpiredError,
)
from icestream.table.catalogs import reporting
from icestream.table.pruning import Pruning, compared

if TYPE_CHECKING:
    from icestream.table.topic_table import TopicTable

# --------------------
# What manifests say about data files' offsets, and no more of it than that.
#
# A manifest never changes, so what was read of one is kept for the next plan, up to a number of files; of the
# others only
# the range of their offsets is kept, so that most plans need not read them again. Entries are read one by one: a plan
# holds descriptions of a few words, never the statistics of thousands of files at once.


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


class ManifestOffsets(NamedTuple):
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
        self._extents: OrderedDict[str, ManifestOffsets] = OrderedDict()

    @property
    def kept_files(self) -> int:
        return self._kept_files

    def extent(self, path: str) -> ManifestOffsets | None:
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
        self._put(manifest.manifest_path, ManifestOffsets(lowest, highest_first, highest), kept)

    def _get(self, path: str) -> tuple[PlannedFile, ...] | None:
        with self._lock:
            if path in self._kept:
                self._kept.move_to_end(path)
            return self._kept.get(path)

    def _put(self, path: str, extent: ManifestOffsets, files: list[PlannedFile] | None) -> None:
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


def live_files(manifest: ManifestFile) -> int | None:
    """Return the number of live files of a manifest; None if the manifest does not say."""
    if manifest.added_files_count is None or manifest.existing_files_count is None:
        return None
    return manifest.added_files_count + manifest.existing_files_count


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


def missing_file_error(
    table: "TopicTable", error: Exception, operation: str, file: PlannedFile | None = None
) -> IcestreamError:
    """What it means that a file of the state `table` is not there: a data file, or one of its metadata.

    A file that the table still counts today is lost, whoever looks for it.
    """
    now = table.refresh()
    is_current = now.snapshot_id == table.snapshot_id if file is None else now.holds(file)
    place = str(table.name) if file is None else file.path
    if is_current:
        what = "a data file cannot be read" if file is not None else "a file of the table's metadata is missing"
        return DamagedError(f"{what}: {error}", operation=operation, place=place)
    return SnapshotExpiredError(
        "the snapshot was expired while it was read",
        operation=operation,
        place=place,
        remedy="load the table again and read on from the next offset",
    )


WINDOW_FILES = 4_096


@dataclass(frozen=True)
class FilePlan:
    table: "TopicTable"
    start: int = 0
    end: int = NO_END
    pruning: Pruning | None = None
    window_files: int = WINDOW_FILES

    def windows(self) -> Iterator[list[PlannedFile]]:
        """The files, in order, some at a time."""
        after: PlannedFile | None = None
        while window := self._window(after):
            yield window
            if len(window) < self.window_files:
                return
            after = window[-1]

    def files(self) -> Iterator[PlannedFile]:
        for window in self.windows():
            yield from window

    def _window(self, after: PlannedFile | None) -> list[PlannedFile]:
        with reporting("plan read", str(self.table.name)):
            try:
                found = (file for file in self._files(after) if after is None or file > after)
                return nsmallest(self.window_files, found)
            except FileNotFoundError as error:
                raise missing_file_error(self.table, error, "plan read") from error

    def _files(self, after: PlannedFile | None) -> Iterator[PlannedFile]:
        """Files of the range, in no order; some of those up to `after` may be missing."""
        manifests = self.table.manifests
        if not manifests or self.start >= self.end:
            return iter(())
        if self.table.iceberg.catalog.supports_server_side_planning():
            from icestream.table.rest_catalog import server_planned  # noqa: PLC0415 - loaded for those with such a catalog

            if (told := server_planned(self.table, self._expression(after))) is not None:
                return told
        if any(manifest.content == ManifestContent.DELETES and live_files(manifest) != 0 for manifest in manifests):
            return self._with_deletes(after)
        wanted = [manifest for manifest in manifests if self._may_hold(manifest, after)]
        found = self.table.manifest_index.files(wanted, self.table.iceberg.io, self.table.offset_id, self._file_filter)
        return (file for file in found if file.last_offset >= self.start and file.first_offset < self.end)

    def _may_hold(self, manifest: ManifestFile, after: PlannedFile | None) -> bool:
        if manifest.content != ManifestContent.DATA:
            return False
        extent = self.table.manifest_index.extent(manifest.manifest_path)
        if extent is not None and not extent.meets(self.start, self.end):
            return False
        if extent is not None and after is not None and extent.highest_first < after.first_offset:
            return False
        return self.pruning is None or self.pruning.manifest_may_match(manifest)

    @property
    def _file_filter(self) -> MayHold | None:
        return None if self.pruning is None else self.pruning.file_may_match

    def _expression(self, after: PlannedFile | None) -> BooleanExpression:
        offset, start = self.table.offset_column, self.start if after is None else max(self.start, after.first_offset)
        found = And(compared(offset, ">=", start), compared(offset, "<", self.end))
        return found if self.pruning is None else And(found, self.pruning.expression)

    def _with_deletes(self, after: PlannedFile | None) -> Iterator[PlannedFile]:
        for task in self.table.iceberg.scan(row_filter=self._expression(after)).plan_files():
            yield planned(task.file, self.table.offset_id)._replace(has_deletes=bool(task.delete_files))
