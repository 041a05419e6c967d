"""The protocol of an object store: a bucket, container or directory, and a prefix in it."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from icestream.model.frames import Bytes


class ObjectInfo(NamedTuple):
    key: str
    size: int
    modified_us: int | None


class ObjectWriter(Protocol):
    """Writes one object. Nothing of it is visible before `finish` has returned, and then all of it."""

    def write(self, data: Bytes, /) -> None:
        """Append to the object. The data is sent in parts, with bounded memory."""

    def finish(self) -> None:
        """Create the object; raise `ObjectExistsError` if one of that name exists."""

    def abort(self) -> None:
        """Remove what was sent, if the store can be reached. Allowed at any time, also after `finish`."""


class ObjectStore(Protocol):
    """Reads and writes objects. Thread-safe. Keys are relative to the store's prefix.

    Raises `UnavailableError` if the store cannot be reached, is too slow or refuses to work now, after some retries;
    `ObjectNotFoundError`; `ObjectExistsError`; and `InvalidRequestError` if the store denies access. That error names
    the setting to check and never a secret.
    """

    @property
    def name(self) -> str:
        """The store for messages and logs: `s3://bucket/prefix`."""

    def writer(self, key: str) -> ObjectWriter:
        """Start a new object of any size."""

    def put(self, key: str, data: bytes) -> None:
        """Write a small object atomically, and replace an existing one."""

    def read(self, key: str, start: int, length: int) -> bytes:
        """Return `length` bytes from `start` on; raise `DamagedError` if the object has fewer."""

    def stat(self, key: str) -> ObjectInfo | None:
        """Return size and age of an object; None if there is no such object."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects whose keys begin with `prefix`, in key order, with one page in memory at a time."""

    def delete(self, key: str) -> None:
        """Delete an object; no error if it does not exist."""

    def close(self) -> None: ...
