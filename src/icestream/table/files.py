"""The files of tables, durable before a commit names them.

A commit names data files, manifests and a metadata file. On an object store a finished upload is durable. On a local
disk a closed file is not: after a power cut the catalog would name files without bytes. `DurableFileIO` syncs each
local file, and new directories, when the file is closed. Every catalog of icestream writes through it.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.fs
from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

LOCAL_SCHEME = "file"
_HIDDEN = "."
_UNFINISHED = ".part"
IMPLEMENTATION = f"{__name__}.DurableFileIO"


class DurableFileIO(PyArrowFileIO):
    """File access whose local files are durable once they are closed."""

    _hides_unfinished_files = False

    def new_output(self, location: str) -> PyArrowFile:
        scheme, netloc, path = self.parse_location(location, self.properties)
        if scheme != LOCAL_SCHEME:
            return super().new_output(location)
        return _LocalFile(location, path, self.fs_by_scheme(scheme, netloc), hidden=self._hides_unfinished_files)

    def list_files(self, folder: str) -> dict[str, str]:
        """Return the files below a folder at any depth: path below the folder to path in the store."""
        found = self._found(folder, recursive=True)
        return {below: info.path for below, info in found if info.type == pa.fs.FileType.File}

    def list_folders(self, folder: str) -> list[str]:
        """Return the names of the folders in a folder."""
        return [below for below, info in self._found(folder) if info.type == pa.fs.FileType.Directory]

    def remove_listed(self, folder: str, paths: Iterable[str]) -> None:
        """Remove files that `list_files` returned for the folder. A missing file is no error."""
        store, _ = self._store(folder)
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                store.delete_file(path)

    def _found(self, folder: str, *, recursive: bool = False) -> Iterator[tuple[str, pa.fs.FileInfo]]:
        store, path = self._store(folder)
        chosen = pa.fs.FileSelector(path, recursive=recursive, allow_not_found=True)
        return ((info.path.removeprefix(path).strip("/"), info) for info in store.get_file_info(chosen))

    def _store(self, folder: str) -> tuple[pa.fs.FileSystem, str]:
        scheme, netloc, path = self.parse_location(folder, self.properties)
        return self.fs_by_scheme(scheme, netloc), path.rstrip("/")


class HiddenUntilCompleteFileIO(DurableFileIO):
    """Local files get their name when they are complete, as objects in a store do anyway."""

    _hides_unfinished_files = True


class _LocalFile(PyArrowFile):
    def __init__(self, location: str, path: str, fs: pa.fs.FileSystem, *, hidden: bool) -> None:
        super().__init__(location, path, fs)
        self._target = Path(path)
        self._hidden = hidden

    def create(self, overwrite: bool = False) -> OutputStream:
        target = self._target
        _make_directories(target.parent)
        if not overwrite and target.exists():
            raise FileExistsError(f"Cannot create file, already exists: {self.location}")
        stream: OutputStream
        if self._hidden:
            stream = RenamedFile(str(target.parent / f"{_HIDDEN}{target.name}{_UNFINISHED}"), "w")
        else:
            stream = SyncedFile(str(target), "w")
        return stream


class SyncedFile(pa.OSFile):  # type: ignore[misc]  # pyarrow is untyped
    """A local file that is durable once it is closed. Arrow writes into it without Python."""

    def __init__(self, path: str, _mode: str) -> None:
        super().__init__()  # the base class opens the file before __init__ runs
        self._path = path

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        _sync(self._path)
        _sync(os.path.dirname(self._path))  # noqa: PTH120 - on the hot path a string is cheaper than a Path

    def discard(self) -> None:
        """Close the file as it is, and remove it under its present name."""
        super().close()
        os.unlink(self._path)  # noqa: PTH108 - as above

    def __exit__(self, *_exception: object) -> None:
        self.close()


class RenamedFile(SyncedFile):
    """A local file with a hidden name until it is closed."""

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        folder, hidden = os.path.split(self._path)
        name = hidden.removeprefix(_HIDDEN).removesuffix(_UNFINISHED)
        os.rename(self._path, os.path.join(folder, name))  # noqa: PTH104, PTH118 - as above
        _sync(folder)


def _make_directories(directory: Path) -> None:
    """Create a directory and its parents, and sync each new name into its parent."""
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
