"""A place for objects: a bucket or container and a prefix in it, whatever kind of store that is."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from icestream.model.frame_bytes import Bytes


class ObjectInfo(NamedTuple):
    key: str
    size: int
    modified_us: int | None


class ObjectWriter(Protocol):
    """Writes one object. Nothing of it can be seen before `finish` has returned, and then all of it."""

    def write(self, data: Bytes, /) -> None:
        """Add to the object. What was given is sent in parts, with bounded memory."""

    def finish(self) -> None:
        """Make the object, whole; raises `ObjectExistsError` where there is one of that name already."""

    def abort(self) -> None:
        """Leave nothing behind, as far as the store can be reached. May be called at any time, also after `finish`."""


class ObjectStore(Protocol):
    """Thread-safe. Keys begin behind the store's prefix.

    Raises `UnavailableError` where the store cannot be reached, is too slow or refuses to work right now, after some
    tries; `ObjectNotFoundError`; `ObjectExistsError`; `InvalidRequestError` where the store does not let us in, which
    names the setting to look at and never a secret.
    """

    @property
    def name(self) -> str:
        """For people: `s3://bucket/prefix`."""

    def writer(self, key: str) -> ObjectWriter:
        """Begin a new object of any size."""

    def put(self, key: str, data: bytes) -> None:
        """Write a small object, over the one that is there if need be; atomic."""

    def read(self, key: str, start: int, length: int) -> bytes:
        """So many bytes; raises `DamagedError` where the object has fewer."""

    def stat(self, key: str) -> ObjectInfo | None:
        """None if there is no such object."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """All objects whose key begins so, by key, a page in memory at a time."""

    def delete(self, key: str) -> None:
        """No error where it is gone already."""

    def close(self) -> None: ...
