"""One process at a time owns a directory of logs."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from icestream.model.errors import DirectoryInUseError

LOCK_FILE = ".lock"


@contextlib.contextmanager
def exclusive_directory(directory: Path) -> Iterator[None]:
    """Hold a directory for this process; the operating system lets go of it however the process ends."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / LOCK_FILE
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            raise DirectoryInUseError(
                f"another broker uses this data directory (process {owner})",
                operation="start",
                place=str(directory),
                remedy="stop it, or give this one a directory of its own",
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
