"""Decides from a table's metadata which files to compact. Pure functions.

Files are compacted in *runs*: small files that are neighbours in offset order. A large file, or the limit of bytes,
ends a run. A run is replaced as a whole and sorted, so the new files cover the same offsets as the old, and overlap no
other file. (Iceberg chooses by size alone, and would join two small files across the large one between them.)

In a partitioned table files of different partitions overlap anyway, and runs are made for each partition. Iceberg's
procedure can select offsets but not any partition, so overlapping runs become one *range*, in which Iceberg chooses the
small files.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from icestream.config import MaintenanceSettings
from icestream.table import StoredFile, TableContents

_SMALL = 0.75
"""A file smaller than this share of the target is small. Iceberg has the same limit."""
_SORTED_ROOM = 0.9
"""Share of the target that a run may have in a table sorted by other columns: it must become one file."""


@dataclass(frozen=True)
class CompactionLimits:
    target_bytes: int
    min_input_files: int
    max_rewrite_bytes: int

    @classmethod
    def of(cls, contents: TableContents, settings: MaintenanceSettings) -> "CompactionLimits":
        target = settings.target_file_bytes or contents.target_file_bytes
        # If sorted by other columns, two files of one run would overlap in their offsets: a run must become one file.
        most = int(target * _SORTED_ROOM) if contents.sort_by else max(settings.max_rewrite_bytes, target)
        return cls(target, settings.min_input_files, most)

    def is_small(self, file: StoredFile) -> bool:
        return file.nbytes < self.target_bytes * _SMALL

    def is_worth_it(self, files: Sequence[StoredFile]) -> bool:
        """Return whether rewriting these files makes clearly fewer."""
        if len(files) < 2:  # noqa: PLR2004 - one file stays one file
            return False
        return len(files) >= self.min_input_files or sum(file.nbytes for file in files) >= self.target_bytes


@dataclass(frozen=True)
class Rewrite:
    """Small files from `first_offset` to `last_offset`, which one commit replaces by larger ones."""

    first_offset: int
    last_offset: int
    files: int
    nbytes: int


def small_files(contents: TableContents, limits: CompactionLimits) -> list[StoredFile]:
    return [file for file in contents.files if limits.is_small(file)]


def plan_rewrites(contents: TableContents, limits: CompactionLimits) -> list[Rewrite]:
    """Return the rewrites of a compaction, in offset order."""
    by_partition: dict[tuple[object, ...], list[StoredFile]] = defaultdict(list)
    for file in contents.files:
        if file.first_offset >= 0:
            by_partition[file.partition].append(file)
    runs = [run for files in by_partition.values() for run in _runs(files, limits) if limits.is_worth_it(run)]
    rewrites = sorted((_rewrite(run) for run in runs), key=lambda rewrite: rewrite.first_offset)
    return _joined(rewrites, limits.max_rewrite_bytes) if contents.is_partitioned else rewrites


def _runs(files: Iterable[StoredFile], limits: CompactionLimits) -> list[list[StoredFile]]:
    runs: list[list[StoredFile]] = [[]]
    size = 0
    for file in files:
        if not limits.is_small(file):
            runs.append([])
            size = 0
            continue
        if size + file.nbytes > limits.max_rewrite_bytes:
            runs.append([])
            size = 0
        runs[-1].append(file)
        size += file.nbytes
    return runs


def _rewrite(run: Sequence[StoredFile]) -> Rewrite:
    return Rewrite(
        first_offset=min(file.first_offset for file in run),
        last_offset=max(file.last_offset for file in run),
        files=len(run),
        nbytes=sum(file.nbytes for file in run),
    )


def _joined(rewrites: Sequence[Rewrite], max_bytes: int) -> list[Rewrite]:
    """Join runs of several partitions into ranges of offsets. A range ends when it has enough bytes."""
    joined: list[Rewrite] = []
    for rewrite in rewrites:
        last = joined[-1] if joined else None
        if last is None or rewrite.first_offset > last.last_offset or last.nbytes + rewrite.nbytes > max_bytes:
            joined.append(rewrite)
            continue
        joined[-1] = Rewrite(
            last.first_offset,
            max(last.last_offset, rewrite.last_offset),
            last.files + rewrite.files,
            last.nbytes + rewrite.nbytes,
        )
    return joined
