"""Removes metadata files that no snapshot needs any more, after a delay and in the background.

Each commit writes a metadata file, a manifest list and a manifest, and drops old snapshots. After the commit the files
that only dropped snapshots named are queued here. They are removed after a grace period, so that an engine that has
just loaded the older metadata can still plan its query. Files that are not removed, because the process ended, the
store failed or the queue is full, are left to orphan clean-up. Data files always are.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import BoundedSemaphore

import structlog
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot, ancestors_of

MAX_WAITING_FILES = 20_000
MAX_PENDING_COMMITS = 64
MAX_LISTS_READ = 10
_DELETE_AFTER_COMMIT = "write.metadata.delete-after-commit.enabled"
_log = structlog.get_logger(__name__)


class UnusedFileRemover:
    """Queues unused metadata files and removes them on one thread."""

    def __init__(self, grace_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._grace_seconds = grace_seconds
        self._clock = clock
        self._waiting: deque[tuple[float, FileIO, str]] = deque()  # only the one thread touches it
        self._pending = BoundedSemaphore(MAX_PENDING_COMMITS)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="table-trash")

    def after_commit(self, before: Table, after: Table, expired: Sequence[Snapshot]) -> None:
        """Queue the files that the commit from `before` to `after` has made unused, and remove those that are due."""
        if not self._pending.acquire(blocking=False):
            return
        try:
            self._thread.submit(self._take_in, before, after, expired)
        except RuntimeError:  # closed meanwhile
            self._pending.release()

    def flush(self) -> None:
        """Wait until everything queued so far is processed, and remove what is due."""
        self._thread.submit(self._sweep).result()

    def close(self) -> None:
        """Stop. Queued files are left to orphan clean-up."""
        self._thread.shutdown(cancel_futures=True)

    def _take_in(self, before: Table, after: Table, expired: Sequence[Snapshot]) -> None:
        try:
            due = self._clock() + self._grace_seconds
            for path in unused_files_after(before, after, expired):
                if len(self._waiting) >= MAX_WAITING_FILES:
                    break
                self._waiting.append((due, after.io, path))
            self._sweep()
        except Exception as error:  # noqa: BLE001 - a failing store must not end the thread
            _log.warning("unused_files_not_removed", table=".".join(after.name()), error=str(error))
        finally:
            self._pending.release()

    def _sweep(self) -> None:
        now = self._clock()
        while self._waiting and self._waiting[0][0] <= now:
            _, io, path = self._waiting.popleft()
            try:
                io.delete(path)
            except FileNotFoundError:
                continue
            except Exception as error:  # noqa: BLE001 - as above; orphan clean-up finds the file
                _log.warning("unused_file_not_removed", path=path, error=str(error))


def unused_files_after(before: Table, after: Table, expired: Sequence[Snapshot]) -> Iterator[str]:
    """Yield the metadata files that `before` needs and `after` does not."""
    if isinstance(after.catalog, MetastoreCatalog) and after.metadata.properties.get(_DELETE_AFTER_COMMIT) == "true":
        # A REST server removes old metadata files itself; with other catalogs the committer does.
        kept = {entry.metadata_file for entry in after.metadata.metadata_log}
        yield from (entry.metadata_file for entry in before.metadata.metadata_log if entry.metadata_file not in kept)
    if not expired:
        return
    needed = _manifests_of_the_rest(after.metadata, after.io)
    for snapshot in expired:
        if needed is not None:
            yield from {manifest.manifest_path for manifest in snapshot.manifests(after.io)} - needed
        yield snapshot.manifest_list


def _manifests_of_the_rest(metadata: TableMetadata, io: FileIO) -> set[str] | None:
    """Return the manifests of remaining snapshots that may also be those of dropped ones; None if that costs too much.

    A snapshot keeps manifests of its parent and adds new ones. So on the main branch the oldest remaining snapshot
    names all manifests that are as old as the dropped ones. Tags and other branches are read one by one.
    """
    line = list(ancestors_of(metadata.current_snapshot(), metadata))
    on_line = {snapshot.snapshot_id for snapshot in line}
    asked = [*line[-1:], *(snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id not in on_line)]
    if len(asked) > MAX_LISTS_READ:
        return None
    return {manifest.manifest_path for snapshot in asked for manifest in snapshot.manifests(io)}
