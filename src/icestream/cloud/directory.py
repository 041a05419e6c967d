"""Objects as files of a directory. After a power cut an object is whole or absent.

OpenDAL's own writer does not suffice: it replaces a file that appeared meanwhile, and does not sync directories. Here
an object is written as a file in `.unfinished`, synced, and hard-linked to its name, which fails if the name exists.
Then the directories are synced. A writer holds a lock on its unfinished file; unlocked files are removed at start.
"""

import contextlib
import errno
import fcntl
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from icestream.cloud.opendal_errors import to_typed_error
from icestream.cloud.store import ObjectInfo
from icestream.model.errors import ClosedError, IcestreamError
from icestream.model.frames import Bytes

UNFINISHED = ".unfinished"


class FileWriter:
    """An `ObjectWriter` for a file."""

    def __init__(self, root: Path, path: str) -> None:
        self._target = root / path
        self._error: IcestreamError | None = None
        self._temporary = root / UNFINISHED / uuid.uuid4().hex
        try:
            make_durable(self._temporary.parent)
            self._file = self._temporary.open("xb")
            fcntl.flock(self._file, fcntl.LOCK_EX)
        except OSError as error:
            raise self._typed(error, "begin object") from None

    def write(self, data: Bytes, /) -> None:
        self._check()
        try:
            self._file.write(data)
        except OSError as error:
            self._error = self._typed(error, "write object")
            raise self._error from None

    def finish(self, *, replace: bool = False) -> None:
        """Give the file its name. An existing file is an error, unless `replace` is set."""
        self._check()
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            make_durable(self._target.parent)
            if replace:
                self._temporary.replace(self._target)
            else:
                self._target.hardlink_to(self._temporary)
            sync(self._target.parent)
        except OSError as error:
            raise self._typed(error, "finish object") from None
        finally:
            self.abort()

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self._temporary.unlink(missing_ok=True)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._file.closed:
            place = str(self._target)
            raise ClosedError("the object was finished or aborted", operation="write object", place=place)

    def _typed(self, error: OSError, operation: str) -> IcestreamError:
        return to_typed_error(error, (), operation=operation, place=str(self._target))


def remove_unfinished(root: Path) -> None:
    """Remove the files of writers that no longer run."""
    for path in (root / UNFINISHED).glob("*"):
        with contextlib.suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def walk(root: Path, prefix: str) -> Iterator[ObjectInfo]:
    """Yield the files whose path below the root begins with `prefix`, in path order. Holds one directory at a time."""
    folder = prefix.rpartition("/")[0]
    for info in _below(root, folder):
        if info.key.startswith(prefix):
            yield info


def _below(root: Path, folder: str) -> Iterator[ObjectInfo]:
    try:
        with os.scandir(root / folder) as entries:
            # The slash sorts a directory where the full paths of its files belong.
            found = sorted(f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries)
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in found:
        path = f"{folder}/{name}" if folder else name
        if name.endswith("/"):
            if path != f"{UNFINISHED}/":
                yield from _below(root, path[:-1])
            continue
        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
            status = (root / path).stat()
            yield ObjectInfo(path, status.st_size, status.st_mtime_ns // 1000)


def make_durable(folder: Path) -> None:
    """Create a directory and its parents, and sync the entries that name them."""
    if not folder.is_dir():
        make_durable(folder.parent)
        try:
            folder.mkdir(exist_ok=True)
        except FileExistsError as error:
            raise NotADirectoryError(errno.ENOTDIR, "an object has the name of a folder of this object") from error
        sync(folder.parent)


def sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
