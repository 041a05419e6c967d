"""What child processes say, kept in one file of bounded size, with the one before beside it."""

import contextlib
import os
import threading
from pathlib import Path
from typing import IO

_CHUNK_BYTES = 64 * 1024


class BoundedLog:
    """A file that takes all that is written, begun anew at a size; a disk that is full loses text and stops nobody."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._closed = False
        self._file: IO[bytes] | None = None

    def copy(self, source: IO[bytes]) -> None:
        """Write what comes, until it ends."""
        with source:
            while data := os.read(source.fileno(), min(_CHUNK_BYTES, self._max_bytes)):
                with contextlib.suppress(OSError), self._lock:
                    self._write(data)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _write(self, data: bytes) -> None:
        if self._closed:
            return
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("ab", buffering=0)
        if self._file.tell() + len(data) > self._max_bytes:
            self._close_file()
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
            self._file = self._path.open("ab", buffering=0)
        self._file.write(data)
