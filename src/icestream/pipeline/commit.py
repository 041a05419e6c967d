"""Commits written files: one catalog commit a table. After any doubt the ledger is read before anything else.

1. commit the files on the table state that the range was planned on. *Killed before: files that no table names. Killed
   after: the ledger has moved, and the next plan begins after these messages.*
2. refused, or the outcome is unknown: load the table again. *No file is removed: an unknown outcome may be a commit.*
3. the ledger has moved: these messages are in the table, by this commit or another, and the files stay where they are.
   The ledger has not moved (a compaction was committed): commit the same files on the new state. If the commit of step
   1 arrives late, one of the two requires an old snapshot, and the catalog refuses it.

A Parquet copy has a stricter step 3, because its readers read every file in its folders: files are committed on the
snapshot that they were planned on, or never. If the table has another snapshot and does not name the files, they are
deleted, and the messages are planned again. `icestream.table.parquet_copy.leftovers` relies on this, and says why.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from icestream.model.errors import (
    CatalogUnavailableError,
    CommitConflictError,
    CommitUnknownError,
    IcestreamError,
    IncompatibleTableError,
    LedgerMismatchError,
)
from icestream.model.offsets import NO_OFFSETS, OffsetRanges
from icestream.model.quarantine import Quarantined
from icestream.table import TopicTable, WrittenFile
from icestream.table.parquet_copy import discard_files, holds_files

MAX_TRIES = 10
MAX_WAIT_SECONDS = 12 * 3600.0
"""Half of the shortest age at which maintenance removes a file that no table names."""
_PAUSE_SECONDS = 0.02


@dataclass(frozen=True)
class PendingCommit:
    """Written files that hold the messages `start` to before `end`, and are in no table yet."""

    files: tuple[WrittenFile, ...]
    start: int
    end: int
    epoch: int
    lost: OffsetRanges = NO_OFFSETS
    """Messages that are in no file because a repair of the log gave them up."""
    quarantined: tuple[Quarantined, ...] = ()
    """Messages that are in no file because they are in quarantine."""
    planned_on: int | None = None
    """The table's snapshot when they were planned; None if it had none."""
    written_at: float = field(default_factory=time.monotonic)

    @property
    def is_stale(self) -> bool:
        """Whether the files have waited so long that maintenance may soon remove them as orphans."""
        return time.monotonic() - self.written_at > MAX_WAIT_SECONDS


@dataclass(frozen=True)
class Outcome:
    table: TopicTable
    ours: bool
    """Whether these files are in the table. Else another pipeline's are, or none are yet."""
    conflicts: int


def commit(table: TopicTable, pending: PendingCommit) -> Outcome:
    """Do steps 1 to 3. After an error the same call may be made again."""
    for conflicts in range(MAX_TRIES):
        if table.is_parquet_copy and table.snapshot_id != pending.planned_on:
            return _settle(table, pending, conflicts)
        try:
            done = table.commit(
                pending.files,
                start=pending.start,
                end=pending.end,
                epoch=pending.epoch,
                lost=pending.lost,
                quarantined=pending.quarantined,
            )
        except (CommitConflictError, CommitUnknownError, LedgerMismatchError) as error:
            table = reload(table)
            if table.ledger.committed_offset != pending.start and not table.is_parquet_copy:
                unknown = isinstance(error, CommitUnknownError) and _holds(table, pending.files)
                return Outcome(table, unknown, conflicts + 1)
            time.sleep(random.uniform(0.0, _PAUSE_SECONDS) * (1 << min(conflicts, 5)))  # noqa: S311 - no secret
        else:
            return Outcome(done, ours=True, conflicts=conflicts)
    raise CommitConflictError(
        f"{MAX_TRIES} commits in a row lost to other commits",
        operation="commit",
        place=str(table.name),
        remedy="the pipeline tries again",
    )


def _settle(table: TopicTable, pending: PendingCommit, conflicts: int) -> Outcome:
    """Settle files of a Parquet copy whose snapshot has changed: no commit of them can arrive any more."""
    ours = bool(pending.files) and holds_files(table, pending.files)
    if not ours:
        discard_files(table, pending.files)
    return Outcome(table, ours, conflicts)


def reload(table: TopicTable) -> TopicTable:
    """Return the table as it is now. Raise if it belongs to another stream."""
    stream_id = table.ledger.stream_id
    try:
        found = table.refresh()
        ledger = found.ledger
    except IcestreamError:
        raise
    except Exception as error:
        raise CatalogUnavailableError(
            f"the catalog failed: {error}", operation="load table", place=str(table.name)
        ) from error
    if ledger.stream_id != stream_id:
        raise IncompatibleTableError(
            f"the table was created again for the stream {ledger.stream_id}; it was {stream_id}'s",
            operation="commit",
            place=str(table.name),
        )
    return found


def _holds(table: TopicTable, files: Sequence[WrittenFile]) -> bool:
    """Return whether the newest commit is the one whose outcome was unknown; for the figures only."""
    return bool(files) and table.ledger.committed_offset == files[-1].last_offset + 1
