"""Which data files a read has to open, in the order in which they begin.

What it guarantees: every file of the state that may hold a row of the range comes, once, in the order of first offsets.
Memory is bounded whatever the number of files: `WINDOW_FILES` of them are held at a time, and further ones are looked
for when these are used up, in the manifests that can have them.

A REST catalog that is asked to plans instead, see `rest`; and where rows were deleted with delete files the library
says which files are concerned.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import nsmallest
from typing import TYPE_CHECKING

from pyiceberg.expressions import And, BooleanExpression
from pyiceberg.manifest import ManifestContent, ManifestFile

from icestream.table.catalogs import reporting
from icestream.table.expired import expired_or_damaged
from icestream.table.manifest_index import NO_END, MayHold, PlannedFile, planned
from icestream.table.manifests import live_files
from icestream.table.pruning import Pruning
from icestream.table.row_filter import compared

if TYPE_CHECKING:
    from icestream.table.topic_table import TopicTable

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
                raise expired_or_damaged(self.table, error, "plan read") from error

    def _files(self, after: PlannedFile | None) -> Iterator[PlannedFile]:
        """Files of the range, in no order; some of those up to `after` may be missing."""
        manifests = self.table.manifests
        if not manifests or self.start >= self.end:
            return iter(())
        if self.table.iceberg.catalog.supports_server_side_planning():
            from icestream.table.rest import server_planned  # noqa: PLC0415 - loaded for those with such a catalog

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
