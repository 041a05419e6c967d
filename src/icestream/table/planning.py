"""Plans a read: which data files to open, in the order of their first offsets.

What it guarantees: every file of the state that may hold a row of the range comes exactly once, in the order of first
offsets. Memory is bounded whatever the number of files: `WINDOW_FILES` are held at a time. When they are used up, the
next ones are looked for in the manifests that can name them.

A manifest never changes, so its files are cached for the next plan, up to a number of files. Of the other manifests
only the range of offsets is kept, so that most plans need not read them again. Entries are decoded one by one: a plan
never holds the statistics of thousands of files.

If the catalog is configured so, a REST server plans instead (`rest_catalog`). If rows were deleted with delete files,
the library plans.
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

from icestream.model.errors import DamagedError, IcestreamError, SnapshotExpiredError
from icestream.table.catalogs import catalog_errors
from icestream.table.deleting_snapshots import missing_rows_error
from icestream.table.pruning import Pruning, compared

if TYPE_CHECKING:
    from icestream.table.tables import TopicTable


MAX_KEPT_FILES = 50_000
"""About 15 MiB."""
MAX_KNOWN_MANIFESTS = 20_000
MANIFESTS_AHEAD = 8
NO_END = (1 << 63) - 1

FileTest = Callable[[DataFile], bool]


class PlannedFile(NamedTuple):
    """A data file as a plan holds it. Sorts by first offset."""

    first_offset: int
    """-1 if the manifests do not say."""
    path: str
    last_offset: int
    rows: int
    nbytes: int
    has_deletes: bool = False

    @property
    def known_last_offset(self) -> int:
        """The last offset; -1 if the manifests do not say."""
        return -1 if self.last_offset == NO_END else self.last_offset


class ManifestOffsets(NamedTuple):
    """The offsets of a manifest's files."""

    lowest: int
    highest_first: int
    highest: int

    def meets(self, start: int, end: int) -> bool:
        return self.highest >= start and self.lowest < end


class ManifestIndex:
    """The offsets of data files, by manifest. Thread-safe; shared by all tables of a catalog."""

    def __init__(self, max_kept_files: int = MAX_KEPT_FILES) -> None:
        self._max_kept_files = max_kept_files
        self._lock = Lock()
        self._kept: OrderedDict[str, tuple[PlannedFile, ...]] = OrderedDict()
        self._kept_files = 0
        self._offsets: OrderedDict[str, ManifestOffsets] = OrderedDict()

    @property
    def kept_files(self) -> int:
        return self._kept_files

    def offsets(self, path: str) -> ManifestOffsets | None:
        """Return the offsets of a manifest's files, if it was read before."""
        with self._lock:
            return self._offsets.get(path)

    def files(
        self, manifests: Sequence[ManifestFile], io: FileIO, offset_id: int, may_hold: FileTest | None = None
    ) -> Iterator[PlannedFile]:
        """Yield the live data files of manifests, in no order, without those that `may_hold` excludes."""
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
        self, manifest: ManifestFile, reader: AvroFile[ManifestEntry], offset_id: int, may_hold: FileTest | None
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

    def _put(self, path: str, offsets: ManifestOffsets, files: list[PlannedFile] | None) -> None:
        with self._lock:
            self._offsets[path] = offsets
            if len(self._offsets) > MAX_KNOWN_MANIFESTS:
                self._offsets.popitem(last=False)
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
    """Return what a plan holds of a data file."""
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
    """Yield manifests with their bytes read, a few ahead: a remote store serves many requests as fast as one."""
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
    """Read the bytes of a manifest. Entries are decoded on demand; the library's own reader decodes all at once."""
    return AvroFile[ManifestEntry](
        io.new_input(manifest.manifest_path),
        MANIFEST_ENTRY_SCHEMAS[DEFAULT_READ_VERSION],
        read_types={-1: ManifestEntry, 2: DataFile},
        read_enums={0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
    ).__enter__()


def missing_file_error(
    table: "TopicTable", error: Exception, operation: str, file: PlannedFile | None = None
) -> IcestreamError:
    """Return the error for a missing file of the state `table`: a data file, or a metadata file.

    If the table's current state still names the file, the table is damaged. Otherwise the snapshot was expired.
    """
    now = table.refresh()
    is_current = now.snapshot_id == table.snapshot_id if file is None else now.holds(file)
    place = str(table.name) if file is None else file.path
    if is_current:
        what = "a data file is missing" if file is not None else "a metadata file of the table is missing"
        return DamagedError(f"{what}: {error}", operation=operation, place=place)
    return SnapshotExpiredError(
        "the snapshot was expired during the read",
        operation=operation,
        place=place,
        remedy="load the table again and continue from the next offset",
    )


WINDOW_FILES = 4_096


@dataclass(frozen=True)
class FilePlan:
    """The files of a table that may hold rows with `start <= offset < end` that match the filter."""

    table: "TopicTable"
    start: int = 0
    end: int = NO_END
    pruning: Pruning | None = None
    window_files: int = WINDOW_FILES
    with_deleted: bool = False
    """Whether delete files are ignored: their rows are read too."""

    def windows(self) -> Iterator[list[PlannedFile]]:
        """Yield the files in order, at most `window_files` at a time."""
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
        with catalog_errors("plan read", str(self.table.name)):
            try:
                found = (file for file in self._files(after) if after is None or file > after)
                return nsmallest(self.window_files, found)
            except FileNotFoundError as error:
                raise missing_file_error(self.table, error, "plan read") from error

    def _files(self, after: PlannedFile | None) -> Iterator[PlannedFile]:
        """Return the files of the range, in no order. Some of those up to `after` may be left out."""
        manifests = self.table.manifests
        if not manifests or self.start >= self.end:
            return iter(())
        if not self.with_deleted and self.table.iceberg.catalog.supports_server_side_planning():
            from icestream.table.rest_catalog import server_planned  # noqa: PLC0415 - loaded only with a REST catalog

            if (planned_there := server_planned(self.table, self._expression(after))) is not None:
                return planned_there
        deletes = [one for one in manifests if one.content == ManifestContent.DELETES and live_files(one) != 0]
        if deletes and not self.with_deleted:
            self._check_deletes(deletes)
            return self._with_deletes(after)
        wanted = [manifest for manifest in manifests if self._may_hold(manifest, after)]
        found = self.table.manifest_index.files(wanted, self.table.iceberg.io, self.table.offset_id, self._file_filter)
        return (file for file in found if file.last_offset >= self.start and file.first_offset < self.end)

    def _may_hold(self, manifest: ManifestFile, after: PlannedFile | None) -> bool:
        if manifest.content != ManifestContent.DATA:
            return False
        offsets = self.table.manifest_index.offsets(manifest.manifest_path)
        if offsets is not None and not offsets.meets(self.start, self.end):
            return False
        if offsets is not None and after is not None and offsets.highest_first < after.first_offset:
            return False
        return self.pruning is None or self.pruning.manifest_may_match(manifest)

    @property
    def _file_filter(self) -> FileTest | None:
        return None if self.pruning is None else self.pruning.file_may_match

    def _expression(self, after: PlannedFile | None) -> BooleanExpression:
        offset, start = self.table.offset_column, self.start if after is None else max(self.start, after.first_offset)
        found = And(compared(offset, ">=", start), compared(offset, "<", self.end))
        return found if self.pruning is None else And(found, self.pruning.expression)

    def _check_deletes(self, manifests: Sequence[ManifestFile]) -> None:
        """Raise if there are delete files that name rows by their values: only a look into every file tells which."""
        for manifest in manifests:
            for entry in manifest.fetch_manifest_entry(self.table.iceberg.io, discard_deleted=True):
                if entry.data_file.content is DataFileContent.EQUALITY_DELETES:
                    raise missing_rows_error(self.table, "delete files name rows by their values")

    def _with_deletes(self, after: PlannedFile | None) -> Iterator[PlannedFile]:
        for task in self.table.iceberg.scan(row_filter=self._expression(after)).plan_files():
            yield planned(task.file, self.table.offset_id)._replace(has_deletes=bool(task.delete_files))
