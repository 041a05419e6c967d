"""Committing what was written: one catalog commit a table, and on any doubt a look at the ledger before all else.

1. commit the files on the state that the range was planned on. *Killed before: files that nothing names. Killed after:
   the ledger says so, and the next plan begins behind them.*
2. refused, or the outcome is not known: load the table again. *Nothing is removed, ever: an outcome that is not known
   may be a commit.*
3. the ledger has moved: these messages are in the table, through this commit or somebody else's, and the files are left
   where they are. It has not (a compaction came in between): commit the same files on the new state. Should the commit
   of step 1 arrive after all, then one of the two finds another snapshot than it requires, and is refused.

A Parquet copy has a stricter step 3, because every file in its folders is read: the same files are committed on the
snapshot that they were planned on, or never. If the table has another one by now and does not name them, they are
deleted, and the messages are planned anew. `icestream.table.parquet_copy.leftovers` relies on it, and says why.
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
"""Half of the shortest age that maintenance takes for that of an orphan."""
_PAUSE_SECONDS = 0.02


@dataclass(frozen=True)
class PendingCommit:
    """Files that hold the messages `start` to below `end`, and are in no table yet."""

    files: tuple[WrittenFile, ...]
    start: int
    end: int
    epoch: int
    lost: OffsetRanges = NO_OFFSETS
    """Messages among them that are in no file, because a repair of the log gave them up."""
    quarantined: tuple[Quarantined, ...] = ()
    """Those that are in none because they were put aside."""
    planned_on: int | None = None
    """The table's snapshot when they were planned; none if it had none."""
    written_at: float = field(default_factory=time.monotonic)

    @property
    def is_stale(self) -> bool:
        """Whether the files waited so long that the clean-up of orphans may soon take them for abandoned."""
        return time.monotonic() - self.written_at > MAX_WAIT_SECONDS


@dataclass(frozen=True)
class Outcome:
    table: TopicTable
    ours: bool
    """Whether these files are in the table; else somebody else's are, of the same messages, or none are yet."""
    conflicts: int


def commit(table: TopicTable, pending: PendingCommit) -> Outcome:
    """Steps 1 to 3. Raises what keeps it from being known or done; the same call may be made again then."""
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
        f"others were faster {MAX_TRIES} times", operation="commit", place=str(table.name), remedy="it is tried again"
    )


def _settle(table: TopicTable, pending: PendingCommit, conflicts: int) -> Outcome:
    """What became of files for a Parquet copy whose snapshot is another by now: no commit of them can come any more."""
    ours = bool(pending.files) and holds_files(table, pending.files)
    if not ours:
        discard_files(table, pending.files)
    return Outcome(table, ours, conflicts)


def reload(table: TopicTable) -> TopicTable:
    """The table as it is now, if it still is the same stream's."""
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
            f"the table was made anew for the stream {ledger.stream_id}, the one before was {stream_id}",
            operation="commit",
            place=str(table.name),
        )
    return found


def _holds(table: TopicTable, files: Sequence[WrittenFile]) -> bool:
    """Whether the newest commit is the one whose outcome was not known; for the figures only."""
    return bool(files) and table.ledger.committed_offset == files[-1].last_offset + 1
