"""The tables' files, durable before anybody names them.

A commit names data files, manifests and a metadata file. On an object store a finished upload is durable; on a local
disk a closed file is not, and after a power cut the catalog would name files without bytes. `DurableFileIO` syncs each
local file, and the directories that are new to it, when it is closed. Every catalog of icestream writes through it.
"""

import os
from pathlib import Path

import pyarrow as pa
from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

LOCAL_SCHEME = "file"
IMPLEMENTATION = f"{__name__}.DurableFileIO"


class DurableFileIO(PyArrowFileIO):
    def new_output(self, location: str) -> PyArrowFile:
        scheme, netloc, path = self.parse_location(location, self.properties)
        if scheme != LOCAL_SCHEME:
            return super().new_output(location)
        return _LocalFile(location, path, self.fs_by_scheme(scheme, netloc))


class _LocalFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> OutputStream:
        path = Path(self._path)
        _make_directories(path.parent)
        if not overwrite and path.exists():
            raise FileExistsError(f"Cannot create file, already exists: {self.location}")
        stream: OutputStream = SyncedFile(str(path), "w")
        return stream


class SyncedFile(pa.OSFile):  # type: ignore[misc]  # pyarrow is untyped
    """A local file that is durable once it is closed; Arrow's own writers bypass Python on the way into it."""

    def __init__(self, path: str, _mode: str) -> None:
        super().__init__()  # the base class has opened the file before any __init__ ran
        self._path = path

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        _sync(self._path)
        _sync(os.path.dirname(self._path))  # noqa: PTH120 - a hot path's string, not worth a Path

    def __exit__(self, *_exception: object) -> None:
        self.close()


def _make_directories(directory: Path) -> None:
    """Like `mkdir -p`, with every new name synced into its parent."""
    missing = []
    while not directory.exists():
        missing.append(directory)
        directory = directory.parent
    for made in reversed(missing):
        made.mkdir(exist_ok=True)
        _sync(str(made.parent))


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
