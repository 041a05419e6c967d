"""Finds existing files: a file, a folder or a pattern, on a disk of this machine or in an object store.

In a pattern `*`, `?` and `[…]` match within one name, and `**` matches any number of folders, also none. Patterns mean
the same on a disk and in a bucket.
"""

import io
import os
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Protocol

from icestream.cloud import ObjectStore
from icestream.cloud.opendal_store import open_object_store
from icestream.config import CloudSettings, Settings
from icestream.model.errors import InvalidRequestError

_SIGN = re.compile(r"[*?\[]")
_ANY_FOLDERS = "**"


def split_pattern(text: str) -> tuple[str, str]:
    """Return the folder before the first wildcard, and the pattern below it; no pattern if there is no wildcard."""
    if (sign := _SIGN.search(text)) is None:
        return text, ""
    below = text.rfind("/", 0, sign.start()) + 1
    pattern = text[below:]
    if any(_ANY_FOLDERS in part and part != _ANY_FOLDERS for part in pattern.split("/")):
        raise InvalidRequestError(
            f"** in {text} is only part of a name", operation="find files", remedy="write /**/ for any folders"
        )
    return text[:below], f"{pattern}/*" if pattern.split("/")[-1] == _ANY_FOLDERS else pattern


def matches(path: str, pattern: str) -> bool:
    return _match(path.split("/"), pattern.split("/"))


def _match(parts: Sequence[str], patterns: Sequence[str]) -> bool:
    if not patterns or not parts:
        return not patterns and not parts
    if patterns[0] == _ANY_FOLDERS:
        return _match(parts, patterns[1:]) or _match(parts[1:], patterns)
    return fnmatchcase(parts[0], patterns[0]) and _match(parts[1:], patterns[1:])


_OPERATION = "find files"
_ENDINGS = (".parquet", ".parq", ".pq")
_SCHEMES = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "azblob": "azblob"}


_SHARED = {
    "s3": ("region", "endpoint", "access_key", "secret_key", "session_token"),
    "gcs": ("endpoint", "credentials_path"),
    "azblob": ("endpoint", "account_name", "account_key"),
}
"""Settings that the tables' store and the cloud tier have in common."""


class FoundFile(NamedTuple):
    path: str
    """Shown to people: the path below what was asked for."""
    place: str
    """The path or key that is opened."""
    size: int
    known_as: str
    """The full path, part of the file's identity. It does not depend on which folder was asked for."""


class FileSource(Protocol):
    @property
    def name(self) -> str:
        """The name that is shown to people."""

    @property
    def is_remote(self) -> bool: ...

    def files(self) -> list[FoundFile]:
        """Return the files, ordered by path."""

    def open(self, found: FoundFile) -> Any:
        """Open a file for reading and seeking."""

    def close(self) -> None: ...


def open_source(text: str, settings: Settings) -> FileSource:
    """Open what a path stands for. A bucket is opened with the settings `cloud`, else `object_store`."""
    scheme, separator, _ = text.partition("://")
    if not separator or scheme == "file":
        return LocalSource(text.removeprefix("file://"))
    if scheme not in _SCHEMES:
        raise InvalidRequestError(
            f"{scheme}:// is not a known store", operation=_OPERATION, remedy=f"use {', '.join(_SCHEMES)} or a path"
        )
    return StoreSource(text, _SCHEMES[scheme], settings)


class LocalSource:
    is_remote = False

    def __init__(self, text: str) -> None:
        self._text = str(Path(text).expanduser())

    @property
    def name(self) -> str:
        return self._text

    def files(self) -> list[FoundFile]:
        path = Path(self._text)
        if path.is_file():
            places = [(path.name, path)]
        elif path.is_dir():
            below = (found for found in path.rglob("*") if found.suffix in _ENDINGS and found.is_file())
            places = [(found.relative_to(path).as_posix(), found) for found in below]
            places = [(name, found) for name, found in places if not _is_hidden(name)]
        elif (split := split_pattern(self._text))[1]:
            base = Path(split[0])
            matched = base.glob(split[1])
            places = [(found.relative_to(base).as_posix(), found) for found in matched if found.is_file()]
        else:
            raise InvalidRequestError(f"there is nothing at {self._text}", operation=_OPERATION)
        return _checked([_local(name, place) for name, place in places], self.name)

    def open(self, found: FoundFile) -> Any:
        return Path(found.place).open("rb")

    def close(self) -> None:
        """Do nothing: no file is kept open."""


class StoreSource:
    is_remote = True

    def __init__(self, text: str, backend: str, settings: Settings) -> None:
        bucket, _, key = text.partition("://")[2].partition("/")  # urllib would end the path at a `?`
        self._text = text
        self._key = key.strip("/")
        self._bucket = f"{backend}://{bucket}/"
        self._store = open_object_store(store_settings(settings, backend, bucket), "")

    @property
    def name(self) -> str:
        return self._text

    def files(self) -> list[FoundFile]:
        if (alone := self._store.stat(self._key) if self._key else None) is not None:
            return _checked([self._found(PurePosixPath(self._key).name, self._key, alone.size)], self.name)
        base, pattern = split_pattern(self._key)
        base = f"{base.strip('/')}/" if base else ""
        found = [
            self._found(name, info.key, info.size)
            for info in self._store.list(base)
            if _is_asked_for(name := info.key.removeprefix(base), pattern)
        ]
        return _checked(found, self.name)

    def _found(self, name: str, key: str, size: int) -> FoundFile:
        return FoundFile(name, key, size, self._bucket + key)

    def open(self, found: FoundFile) -> Any:
        return io.BufferedReader(_StoredFile(self._store, found.place, found.size), _STORE_READ_BYTES)

    def close(self) -> None:
        self._store.close()


_STORE_READ_BYTES = 1024 * 1024


class _StoredFile(io.RawIOBase):
    """An object as a file, which is read by ranges."""

    def __init__(self, store: ObjectStore, key: str, size: int) -> None:
        self._store = store
        self._key = key
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        count = min(len(buffer), max(0, self._size - self._position))
        if count:
            buffer[:count] = self._store.read(self._key, self._position, count)
            self._position += count
        return count


def store_settings(settings: Settings, backend: str, bucket: str) -> CloudSettings:
    """Return the access to a bucket, from the settings of the cloud tier, else of the tables' store."""
    root = f"{backend}://{bucket}" if backend != "azblob" else bucket
    if settings.cloud.backend == backend:
        return settings.cloud.model_copy(update={"root": root})
    tables = settings.object_store
    given: dict[str, Any] = {"backend": backend, "root": root}
    if tables.type == backend:
        given |= {name: value for name in _SHARED[backend] if (value := getattr(tables, name)) is not None}
        if backend == "s3" and not tables.path_style and tables.endpoint is None:
            given["virtual_host_style"] = True
    return CloudSettings.model_validate(given)


def _is_asked_for(name: str, pattern: str) -> bool:
    return matches(name, pattern) if pattern else name.endswith(_ENDINGS) and not _is_hidden(name)


def _is_hidden(name: str) -> bool:
    """Return whether a name is a marker or an unfinished file, as Spark and Hive name them."""
    return any(part.startswith(("_", ".")) for part in PurePosixPath(name).parts)


def _local(name: str, place: Path) -> FoundFile:
    where = os.path.abspath(place)  # noqa: PTH100 - links are kept as they are
    return FoundFile(name, str(place), place.stat().st_size, where)


def _checked(found: list[FoundFile], name: str) -> list[FoundFile]:
    if not found:
        raise InvalidRequestError(
            f"there are no Parquet files at {name}",
            operation=_OPERATION,
            remedy=f"in a folder, files that end in {', '.join(_ENDINGS)} count; a pattern takes any",
        )
    return sorted(found)
