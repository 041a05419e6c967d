"""Object stores through OpenDAL.

OpenDAL retries failed requests and ends those that take too long. Its calls release Python's global lock while they
wait, except the step of a blocking list. So lists are asynchronous here, each on an event loop of its own.
"""

import asyncio
import base64
import re
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import opendal
from opendal import exceptions
from opendal.file import File
from opendal.layers import RetryLayer, TimeoutLayer
from opendal.options import WriteKwargs
from opendal.types import Entry
from pydantic import SecretStr

from icestream.cloud import directory
from icestream.cloud.opendal_errors import FAILURES, may_be_short, to_typed_error
from icestream.cloud.store import ObjectInfo, ObjectStore, ObjectWriter
from icestream.config import CloudSettings
from icestream.model.errors import (
    ClosedError,
    DamagedError,
    IcestreamError,
    InvalidRequestError,
    ObjectExistsError,
    ObjectNotFoundError,
    UnavailableError,
)
from icestream.model.frames import Bytes
from icestream.model.units import MIB

_TOKEN = "writer"  # letters only: not every store allows other characters in names of metadata  # noqa: S105


class OpendalWriter:
    """Writes one object: in one request if it is small, otherwise in parts. For one thread.

    The store makes the object whole or not at all, and lets one of several writers win: the last request is conditional
    on there being no object. OpenDAL may repeat that request because its response was lost, and then finds the object
    that it made itself. So each writer leaves a token in the object's metadata, and recognizes its own.

    At most `parallel + 1` parts are in memory.
    """

    def __init__(
        self,
        operator: opendal.Operator,
        path: str,
        place: str,
        *,
        part_bytes: int,
        parallel: int,
        secrets: tuple[str, ...],
    ) -> None:
        self._operator = operator
        self._path = path
        self._place = place
        self._part_bytes = part_bytes
        self._secrets = secrets
        self._token = uuid.uuid4().hex
        self._written = 0
        self._state: File | IcestreamError | None
        options: WriteKwargs = {"chunk": part_bytes, "concurrent": parallel, "if_not_exists": True}
        if operator.capability().write_with_user_metadata:
            options["user_metadata"] = {_TOKEN: self._token}
        try:
            self._state = operator.open(path, "wb", **options)
        except FAILURES as error:
            raise self._typed(error, "begin object") from None

    def write(self, data: Bytes, /) -> None:
        file = self._file()
        with memoryview(data).cast("B") as view:
            for start in range(0, len(view), self._part_bytes):
                part = bytes(view[start : start + self._part_bytes])
                try:
                    file.write(part)
                except FAILURES as error:
                    # OpenDAL would continue without the part that failed, so it must not be called again.
                    self._state = self._typed(error, "write object")
                    raise self._state from None
                self._written += len(part)

    def finish(self) -> None:
        file, self._state = self._file(), None
        try:
            file.close()
        except FAILURES as error:
            self._settle(self._typed(error, "finish object"))

    def abort(self) -> None:
        """End the upload. OpenDAL cannot abort it: S3 keeps its parts until the bucket's rules remove them."""
        self._state = None

    def _file(self) -> File:
        if isinstance(self._state, IcestreamError):
            raise self._state
        if self._state is None:
            raise ClosedError("the object was finished or aborted", operation="write object", place=self._place)
        return self._state

    def _settle(self, error: IcestreamError) -> None:
        """Look at the store to see what the failure of the last request means; raise unless the object is ours."""
        try:
            found = self._operator.stat(self._path)
        except exceptions.NotFound:
            if isinstance(error, ObjectExistsError | ObjectNotFoundError):
                reason = "the store has lost the upload, or another upload of that name is in progress"
                raise UnavailableError(reason, operation="finish object", place=self._place) from None
        except FAILURES:
            pass
        else:
            if (found.user_metadata or {}).get(_TOKEN) == self._token and found.content_length == self._written:
                return  # only the response was lost
            if isinstance(error, ObjectNotFoundError):
                error = self._typed(exceptions.AlreadyExists(), "finish object")
        raise error from None

    def _typed(self, error: BaseException, operation: str) -> IcestreamError:
        return to_typed_error(error, self._secrets, operation=operation, place=self._place)


# OpenDAL's options for each backend. A setting that is not set is not passed on: then OpenDAL looks where each
# provider's own tools look, in environment variables, configuration files and the machine's identity.

_AZURE = "https://{account}.blob.core.windows.net"


@dataclass(frozen=True)
class Backend:
    """A service of OpenDAL, the location of our objects in it, and the secrets that no message may show."""

    scheme: str
    options: Mapping[str, str] = field(repr=False)
    base: str  # the prefix of every key; empty or ending with a slash
    name: str  # for messages and logs
    secrets: tuple[str, ...] = field(repr=False)


def backend_of(settings: CloudSettings, prefix: str) -> Backend:
    """Return the backend that the settings name. The settings are validated already."""
    if settings.backend is None:
        raise InvalidRequestError("no object store is configured", operation="open store", remedy="set cloud.backend")
    root = settings.root or ""
    if settings.backend in ("s3", "gcs", "azblob"):
        container, _, inner = root.rpartition("://")[2].partition("/")
        options = _CLOUDS[settings.backend](settings, container)
        name = f"{settings.backend}://{container}"
    else:
        is_directory, inner = settings.backend == "fs", ""
        path = str(Path(root).expanduser().absolute()) if is_directory else root
        options = {"root": path} if is_directory else {}
        name = path if is_directory else f"memory://{path}"
    base = "".join(f"{part}/" for part in f"{inner}/{prefix}".split("/") if part)
    given = {option: value for option, value in options.items() if value}
    return Backend(settings.backend, given, base, f"{name.rstrip('/')}/{base}".rstrip("/"), _secrets(settings))


def _s3(settings: CloudSettings, bucket: str) -> dict[str, str]:
    return {
        "bucket": bucket,
        "region": settings.region or "",
        "endpoint": settings.endpoint or "",
        "access_key_id": _shown(settings.access_key),
        "secret_access_key": _shown(settings.secret_key),
        "session_token": _shown(settings.session_token),
        "profile": settings.profile or "",
        "role_arn": settings.role_arn or "",
        "skip_signature": _flag(settings.anonymous),
        "enable_virtual_host_style": _flag(settings.virtual_host_style),
    }


def _gcs(settings: CloudSettings, bucket: str) -> dict[str, str]:
    return {
        "bucket": bucket,
        "endpoint": settings.endpoint or "",
        "credential": base64.b64encode(_shown(settings.credentials_json).encode()).decode(),
        "credential_path": str(settings.credentials_path or ""),
        "skip_signature": _flag(settings.anonymous),
    }


def _azblob(settings: CloudSettings, container: str) -> dict[str, str]:
    return {
        "container": container,
        "endpoint": settings.endpoint or _AZURE.format(account=settings.account_name),
        "account_name": settings.account_name or "",
        "account_key": _shown(settings.account_key),
        "skip_signature": _flag(settings.anonymous),
    }


_CLOUDS: Mapping[str, Callable[[CloudSettings, str], dict[str, str]]] = {"s3": _s3, "gcs": _gcs, "azblob": _azblob}


def _shown(secret: SecretStr | None) -> str:
    return secret.get_secret_value() if secret else ""


def _flag(value: bool) -> str:
    return "true" if value else ""


def _secrets(settings: CloudSettings) -> tuple[str, ...]:
    named = ("access_key", "secret_key", "session_token", "credentials_json", "account_key")
    return tuple(value for value in (_shown(getattr(settings, name)) for name in named) if value)


_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
_PAGE = 1_000
# A key is a path below the prefix. OpenDAL or a store would silently change keys like these.
_UNUSABLE_KEY = re.compile(r"^$|^[\s/]|[\s/]$|//|(?:^|/)\.{1,2}(?:/|$)|[\x00-\x1f\x7f\\]|^\.unfinished/")

_memory: dict[str, opendal.Operator] = {}
_memory_lock = threading.Lock()


def open_object_store(settings: CloudSettings, prefix: str) -> ObjectStore:
    """Return the store that the settings name. The prefix is added to every key.

    No request is made yet. In-memory stores with the same `root` are one store within a process.
    """
    backend = backend_of(settings, prefix)
    if backend.scheme == "fs":
        return DirectoryStore(backend, settings)
    return OpendalStore(backend, settings)


class OpendalStore:
    """An `ObjectStore` through OpenDAL."""

    def __init__(self, backend: Backend, settings: CloudSettings) -> None:
        self._backend = backend
        self._part_bytes = settings.part_mb * MIB
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
            raise UnavailableError("the response was cut short", operation="read object", place=self._place(key))
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
        """Do nothing: OpenDAL closes connections when its operator is garbage-collected."""

    def _check_size(self, key: str, needed: int) -> None:
        found = self.stat(key)
        if found is None:
            raise ObjectNotFoundError("there is no such object", operation="read object", place=self._place(key))
        if found.size < needed:
            raise DamagedError(
                f"the object has {found.size} bytes, {needed} are needed",
                operation="read object",
                place=self._place(key),
            )

    def _path(self, key: str) -> str:
        if _UNUSABLE_KEY.search(key):
            raise InvalidRequestError("an object cannot have this name", operation="name object", place=repr(key))
        return self._backend.base + key

    def _place(self, key: str) -> str:
        return f"{self.name}/{key}"

    def _typed(self, error: BaseException, operation: str, key: str) -> IcestreamError:
        return to_typed_error(error, self._backend.secrets, operation=operation, place=self._place(key))


class DirectoryStore(OpendalStore):
    """An `ObjectStore` in a local directory: reads through OpenDAL and writes with `directory`."""

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
    """Reads the pages of a list; only the calling thread waits."""

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
