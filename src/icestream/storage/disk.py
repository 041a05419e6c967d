"""The free space on the log's disk: publishing is refused before it is full.

A log that runs into a full disk loses nothing, but it cannot even note what retention took. So the last
`wal.min_free_mb` are not given to producers: while less is free, publishing is refused as retryable, what is there
stays readable, and retention takes all it may. Publishing goes on by itself when there is room again, and somewhat more
of it than the limit, so that it does not stop and go with every segment.
"""

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

import structlog

from icestream.model.errors import DiskFullError
from icestream.model.units import MIB

DISK_WATCH_SECONDS = 1.0
_LOOK_BYTES = 16 * MIB
"""The disk is looked at after so many published bytes, besides once a second; and when half of the room they leave is
used by count, as files take somewhat more than what was published."""
_MARGIN = 8
"""An eighth more than the limit must be free for publishing to go on."""
_log = structlog.get_logger(__name__)


def free_bytes(directory: Path) -> int:
    """Return the free space of the directory's file system for a process without special rights."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


class Disk:
    """Thread-safe."""

    def __init__(
        self,
        directory: Path,
        min_free_mb: int,
        *,
        measure: Callable[[Path], int] | None = None,
    ) -> None:
        self._directory = directory
        self._min_free_bytes = min_free_mb * MIB
        self._measure = measure or free_bytes
        self._lock = threading.Lock()
        self._room = 0
        """Bytes that may still be published before the free space is read again."""
        self.free_bytes = 0
        """As read last."""
        self.is_full = False
        self.look()

    def take(self, nbytes: int) -> None:
        """Count bytes that are about to be written; raise while there is too little free space."""
        if not self._min_free_bytes:
            return
        with self._lock:
            self._room -= nbytes
            is_known = self.is_full or self._room >= 0
        if not is_known:
            self.look()
        if self.is_full:
            raise DiskFullError(
                f"the disk of the log has {self.free_bytes // MIB} MiB left, and {self._min_free_bytes // MIB} MiB are "
                "kept free",
                operation="publish",
                place=str(self._directory),
                remedy="make room on the disk, or let the pipeline and the uploader catch up, so that retention can; "
                "publishing goes on by itself then",
                details={"free_bytes": self.free_bytes, "min_free_bytes": self._min_free_bytes},
            )

    def look(self) -> bool:
        """Read the free space; return whether it is enough."""
        limit = self._min_free_bytes
        with self._lock:
            with contextlib.suppress(OSError):  # if it is full, the write fails
                self.free_bytes = self._measure(self._directory)
            was_full = self.is_full
            self.is_full = self.free_bytes < (limit + limit // _MARGIN if was_full else limit)
            self._room = min((self.free_bytes - limit) // 2, _LOOK_BYTES)
        if self.is_full and not was_full:
            _log.warning("disk_full", directory=str(self._directory), free_bytes=self.free_bytes)
        elif was_full and not self.is_full:
            _log.info("disk_has_room", directory=str(self._directory))
        return not self.is_full
