"""Object stores through OpenDAL.

OpenDAL tries requests that fail again, and ends those that take too long. Its calls let other threads of Python run
while they wait, but for one, the step of a blocking list. So lists are asynchronous here, each on a loop of its own.
"""

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import opendal
from opendal.layers import RetryLayer, TimeoutLayer
from opendal.types import Entry

from icestream.cloud import directory
from icestream.cloud.backends import Backend, backend_of
from icestream.cloud.opendal_errors import FAILURES, may_be_short, typed
from icestream.cloud.opendal_writer import OpendalWriter
from icestream.cloud.store import ObjectInfo, ObjectStore, ObjectWriter
from icestream.config import CloudSettings
from icestream.model.errors import (
    DamagedError,
    IcestreamError,
    InvalidRequestError,
    ObjectNotFoundError,
    UnavailableError,
)

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
_PAGE = 1_000
_MIB = 1024 * 1024
# A key is a path below the prefix. OpenDAL or a store would quietly make other keys of these.
_UNUSABLE_KEY = re.compile(r"^$|^[\s/]|[\s/]$|//|(?:^|/)\.{1,2}(?:/|$)|[\x00-\x1f\x7f\\]|^\.unfinished/")

_memory: dict[str, opendal.Operator] = {}
_memory_lock = threading.Lock()


def open_object_store(settings: CloudSettings, prefix: str) -> ObjectStore:
    """The store that the settings name; names of objects begin with the prefix.

    No request is made yet. Stores in memory are shared by all of this process that give the same `root`.
    """
    backend = backend_of(settings, prefix)
    if backend.scheme == "fs":
        return DirectoryStore(backend, settings)
    return OpendalStore(backend, settings)


class OpendalStore:
    def __init__(self, backend: Backend, settings: CloudSettings) -> None:
        self._backend = backend
        self._part_bytes = settings.part_mb * _MIB
        self._parallel = settings.parallel_parts
        try:
            self._operator = _operator(backend, settings)
        except FAILURES as error:
            raise self._typed(error, "open store", "") from None

    @property
    def name(self) -> str:
        return self._backend.name

    def writer(self, key: str) -> ObjectWriter:
        return OpendalWriter(
            self._operator,
            self._path(key),
            self._place(key),
            part_bytes=self._part_bytes,
            parallel=self._parallel,
            secrets=self._backend.secrets,
        )

    def put(self, key: str, data: bytes) -> None:
        try:
            self._operator.write(self._path(key), data)
        except FAILURES as error:
            raise self._typed(error, "put object", key) from None

    def read(self, key: str, start: int, length: int) -> bytes:
        path = self._path(key)
        if not length:
            return b""
        try:
            data = self._operator.read(
                path, offset=start, size=length, chunk=self._part_bytes, concurrent=self._parallel
            )
        except FAILURES as error:
            ours = self._typed(error, "read object", key)
            if isinstance(ours, UnavailableError) and may_be_short(error):
                self._check_size(key, start + length)
            raise ours from None
        if len(data) != length:
            self._check_size(key, start + length)
            raise UnavailableError("the answer came cut", operation="read object", place=self._place(key))
        return data

    def stat(self, key: str) -> ObjectInfo | None:
        try:
            found = self._operator.stat(self._path(key))
        except FAILURES as error:
            ours = self._typed(error, "stat object", key)
            if isinstance(ours, ObjectNotFoundError):
                return None
            raise ours from None
        return ObjectInfo(key, found.content_length, _microseconds(found.last_modified))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        base = self._backend.base
        listing = _Listing(self._operator.to_async_operator(), base + prefix)
        try:
            while page := listing.page():
                for entry in page:
                    if entry.path.startswith(base + prefix) and not entry.path.endswith("/"):
                        metadata = entry.metadata
                        modified_us = _microseconds(metadata.last_modified)
                        yield ObjectInfo(entry.path[len(base) :], metadata.content_length, modified_us)
        except FAILURES as error:
            raise self._typed(error, "list objects", prefix) from None
        finally:
            listing.close()

    def delete(self, key: str) -> None:
        try:
            self._operator.delete(self._path(key))
        except FAILURES as error:
            ours = self._typed(error, "delete object", key)
            if not isinstance(ours, ObjectNotFoundError):
                raise ours from None

    def close(self) -> None:
        """Connections end when the last user of OpenDAL's operator is gone."""

    def _check_size(self, key: str, needed: int) -> None:
        found = self.stat(key)
        if found is None:
            raise ObjectNotFoundError("there is no such object", operation="read object", place=self._place(key))
        if found.size < needed:
            raise DamagedError(
                f"the object has {found.size} bytes, and is read up to {needed}",
                operation="read object",
                place=self._place(key),
            )

    def _path(self, key: str) -> str:
        if _UNUSABLE_KEY.search(key):
            raise InvalidRequestError("this cannot be the name of an object", operation="name object", place=repr(key))
        return self._backend.base + key

    def _place(self, key: str) -> str:
        return f"{self.name}/{key}"

    def _typed(self, error: BaseException, operation: str, key: str) -> IcestreamError:
        return typed(error, self._backend.secrets, operation=operation, place=self._place(key))


class DirectoryStore(OpendalStore):
    """Reads through OpenDAL and writes itself; see `directory`."""

    def __init__(self, backend: Backend, settings: CloudSettings) -> None:
        super().__init__(backend, settings)
        self._root = Path(backend.options["root"])
        directory.remove_unfinished(self._root)

    def writer(self, key: str) -> directory.FileWriter:
        return directory.FileWriter(self._root, self._path(key))

    def put(self, key: str, data: bytes) -> None:
        writer = self.writer(key)
        try:
            writer.write(data)
            writer.finish(replace=True)
        finally:
            writer.abort()

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        base = self._backend.base
        try:
            for info in directory.walk(self._root, base + prefix):
                yield info._replace(key=info.key[len(base) :])
        except OSError as error:
            raise self._typed(error, "list objects", prefix) from None


class _Listing:
    """Pages of a list; only this thread waits for them."""

    def __init__(self, operator: opendal.AsyncOperator, path: str) -> None:
        self._operator = operator
        self._path = path
        self._loop = asyncio.new_event_loop()
        self._entries: AsyncIterator[Entry] | None = None

    def page(self) -> list[Entry]:
        return self._loop.run_until_complete(self._next_page())

    def close(self) -> None:
        self._loop.close()

    async def _next_page(self) -> list[Entry]:
        if self._entries is None:
            self._entries = aiter(await self._operator.list(self._path, recursive=True))
        page: list[Entry] = []
        with suppress(StopAsyncIteration):
            while len(page) < _PAGE:
                page.append(await anext(self._entries))
        return page


def _operator(backend: Backend, settings: CloudSettings) -> opendal.Operator:
    if backend.scheme == "memory":
        with _memory_lock:
            root = settings.root or ""
            if root not in _memory:
                _memory[root] = opendal.Operator("memory")
            return _memory[root]
    seconds = settings.timeout_ms / 1000
    return (
        opendal.Operator(backend.scheme, **backend.options)
        .layer(TimeoutLayer(timeout=seconds, io_timeout=seconds))
        .layer(
            RetryLayer(
                max_times=settings.max_retries,
                factor=2.0,
                jitter=True,
                min_delay=_FIRST_PAUSE_SECONDS,
                max_delay=_LONGEST_PAUSE_SECONDS,
            )
        )
    )


def _microseconds(time: datetime | None) -> int | None:
    return None if time is None else round(time.timestamp() * 1_000_000)
