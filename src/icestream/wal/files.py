"""The file system as the log sees it: a small port.

The log uses storage only through `Files` and `File`. So a test can replace the disk: record every write and sync, cut
the power at any point, fail with EIO or ENOSPC, or take fewer bytes than given. `LocalFiles` is the real file system.

The log relies on this and nothing more:

* written bytes are durable once `datasync` on that file returns, or once their own durable `write` returns;
* a created, renamed or removed name is durable once `sync_directory` on its directory returns;
* `replace` is atomic.
"""

import errno
import os
import shutil
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from icestream.model.frames import Bytes

_MAX_BUFFERS = 1000  # the kernel takes 1024 in one call


class File(Protocol):
    def write(self, buffers: Sequence[Bytes], position: int, *, durable: bool = False) -> int:
        """Write the buffers one after the other at `position`, which is 0 or more. Return how many bytes were taken.

        The file may take fewer bytes than it was given. With `durable`, the bytes taken and the file's size are durable
        on return; bytes of earlier writes need not be.
        """

    def read(self, length: int, position: int) -> bytes:
        """Return `length` bytes; fewer only at the end of the file."""

    def datasync(self) -> None:
        """Make all written bytes and the file's size durable."""

    def allocate(self, end: int) -> None:
        """Reserve zeroed room up to `end`, so that later syncs need not change the file's size."""

    def truncate(self, length: int) -> None: ...

    def size(self) -> int: ...

    def close(self) -> None: ...


class Files(Protocol):
    def open(self, path: Path, *, create: bool = False) -> File:
        """Open for reading and writing. `create` makes a new file and fails if the file exists."""

    def read_bytes(self, path: Path) -> bytes: ...

    def exists(self, path: Path) -> bool: ...

    def size(self, path: Path) -> int: ...

    def names(self, directory: Path) -> list[str]:
        """Return the sorted names in a directory; none if the directory does not exist."""

    def make_directory(self, path: Path) -> None:
        """Make one directory below an existing one, unless it exists."""

    def replace(self, source: Path, target: Path) -> None: ...

    def remove(self, path: Path) -> None: ...

    def remove_tree(self, path: Path) -> None: ...

    def sync_directory(self, path: Path) -> None: ...


def write_durably(file: File, buffers: Sequence[Bytes], position: int) -> None:
    """Write all bytes durably, in one call if they fit into one."""
    at_once = len(buffers) <= _MAX_BUFFERS
    if at_once:  # the way of every acknowledgement: nearly always the file takes all
        written = file.write(buffers, position, durable=True)
        left = sum(map(len, buffers)) - written
        if not left:
            return
        if written:
            buffers, position = _after(buffers, written), position + written
    write_all(file, buffers, position, durable=at_once)
    if not at_once:
        file.datasync()


def _after(buffers: Sequence[Bytes], written: int) -> list[Bytes]:
    """Return what is left of buffers whose first bytes were written."""
    left = [memoryview(buffer) for buffer in buffers]
    while left and written >= len(left[0]):
        written -= len(left.pop(0))
    return [left[0][written:], *left[1:]] if left and written else [*left]


def write_all(file: File, buffers: Sequence[Bytes], position: int, *, durable: bool = False) -> None:
    """Write all bytes, in as many calls as the file needs."""
    for first in range(0, len(buffers), _MAX_BUFFERS):
        pending: Sequence[Bytes] = [memoryview(buffer) for buffer in buffers[first : first + _MAX_BUFFERS]]
        while pending:
            written = file.write(pending, position, durable=durable)
            if written <= 0:
                raise OSError("the file took no more bytes")
            position += written
            pending = _after(pending, written)


def write_file(files: Files, path: Path, buffers: Sequence[Bytes]) -> None:
    """Create a file with these bytes, durably, in place of an old one. The caller syncs the directory."""
    if files.exists(path):
        files.remove(path)
    file = files.open(path, create=True)
    try:
        write_all(file, buffers, 0)
        file.datasync()
    finally:
        file.close()


def make_directories(files: Files, path: Path) -> None:
    """Make a directory and its parents, each durable before the next.

    The lowest existing one is synced too: an interrupted run may have made it without a sync.
    """
    if not files.exists(path):
        make_directories(files, path.parent)
        files.make_directory(path)
    files.sync_directory(path.parent)


class LocalFiles:
    """The local file system. At most `max_open` descriptors are open; other files are reopened when used."""

    def __init__(self, max_open: int = 1024) -> None:
        self._max_open = max_open
        self._lock = threading.Lock()
        self._open: OrderedDict[LocalFile, None] = OrderedDict()

    @property
    def open_count(self) -> int:
        return len(self._open)

    def open(self, path: Path, *, create: bool = False) -> "LocalFile":
        if create:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        elif not path.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return LocalFile(self, path)

    def read_bytes(self, path: Path) -> bytes:
        return path.read_bytes()

    def exists(self, path: Path) -> bool:
        return path.exists()

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def names(self, directory: Path) -> list[str]:
        try:
            return sorted(path.name for path in directory.iterdir())
        except FileNotFoundError:
            return []

    def make_directory(self, path: Path) -> None:
        path.mkdir(0o700, exist_ok=True)

    def replace(self, source: Path, target: Path) -> None:
        source.replace(target)

    def remove(self, path: Path) -> None:
        path.unlink()

    def remove_tree(self, path: Path) -> None:
        shutil.rmtree(path)

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def acquire(self, file: "LocalFile") -> int:
        with self._lock:
            if file.descriptor >= 0:
                file.users += 1
                self._open.move_to_end(file)
                return file.descriptor
            file.descriptor = os.open(file.path, os.O_RDWR | os.O_CLOEXEC)
            file.users += 1
            self._open[file] = None
            if len(self._open) > self._max_open:
                self._evict_one()
            return file.descriptor

    def release(self, file: "LocalFile") -> None:
        with self._lock:
            file.users -= 1

    def forget(self, file: "LocalFile") -> None:
        with self._lock:
            self._open.pop(file, None)
            descriptor, file.descriptor = file.descriptor, -1
            if descriptor >= 0:
                os.close(descriptor)

    def _evict_one(self) -> None:
        """Close the descriptor unused for longest. A file with unsynced bytes keeps its own, to see sync errors."""
        for file in self._open:
            if file.users == 0 and not file.dirty:
                del self._open[file]
                os.close(file.descriptor)
                file.descriptor = -1
                return


def _write_through(descriptor: int, buffers: Sequence[Bytes], position: int) -> int:
    """Write and sync by one system call, or by two if the kernel or the file system does not support the one."""
    try:
        return os.pwritev(descriptor, buffers, position, os.RWF_DSYNC)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
            raise
    written = os.pwritev(descriptor, buffers, position)
    os.fdatasync(descriptor)
    return written


class LocalFile:
    __slots__ = ("_files", "descriptor", "dirty", "path", "users")

    def __init__(self, files: LocalFiles, path: Path) -> None:
        self._files = files
        self.path = path
        self.descriptor = -1
        self.users = 0
        self.dirty = False

    # No context manager here: these calls are on the path of every acknowledgement.

    def write(self, buffers: Sequence[Bytes], position: int, *, durable: bool = False) -> int:
        descriptor = self._files.acquire(self)
        try:
            if durable:
                return _write_through(descriptor, buffers, position)
            self.dirty = True
            return os.pwritev(descriptor, buffers, position)
        finally:
            self._files.release(self)

    def read(self, length: int, position: int) -> bytes:
        descriptor = self._files.acquire(self)
        try:
            return os.pread(descriptor, length, position)
        finally:
            self._files.release(self)

    def datasync(self) -> None:
        descriptor = self._files.acquire(self)
        try:
            os.fdatasync(descriptor)
            self.dirty = False
        finally:
            self._files.release(self)

    def allocate(self, end: int) -> None:
        descriptor = self._files.acquire(self)
        try:
            os.posix_fallocate(descriptor, 0, end)
        finally:
            self._files.release(self)

    def truncate(self, length: int) -> None:
        descriptor = self._files.acquire(self)
        try:
            self.dirty = True
            os.ftruncate(descriptor, length)
        finally:
            self._files.release(self)

    def size(self) -> int:
        descriptor = self._files.acquire(self)
        try:
            return os.fstat(descriptor).st_size
        finally:
            self._files.release(self)

    def close(self) -> None:
        self._files.forget(self)
