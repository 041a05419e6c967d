"""An object store in memory. Any operation can fail, before or after it has happened."""

import threading
from collections.abc import Callable, Iterator

from icestream.cloud import ObjectInfo
from icestream.model.clock import Clock, now_us
from icestream.model.errors import DamagedError, ObjectExistsError, ObjectNotFoundError
from icestream.model.frames import Bytes

Hook = Callable[[str, str], None]
"""Gets every operation's name and the object's key. What it raises is the operation's outcome."""


def _nothing(_operation: str, _key: str) -> None:
    pass


class MemoryObjects:
    """`icestream.cloud.ObjectStore`. Several may share `objects`: brokers on one bucket."""

    name = "memory://test"

    def __init__(
        self,
        objects: dict[str, bytes] | None = None,
        *,
        before: Hook = _nothing,
        after: Hook = _nothing,
        clock: Clock = now_us,
    ) -> None:
        self.objects: dict[str, bytes] = objects if objects is not None else {}
        self.before = before
        """Runs before the operation. If it raises, the operation does not happen."""
        self.after = after
        """Runs after the operation. If it raises, the operation has happened."""
        self.finished: list[tuple[str, int]] = []
        """Key and size of every object that was made with a writer."""
        self._clock = clock
        self._lock = threading.Lock()
        self._times: dict[str, int] = {}

    def writer(self, key: str) -> "MemoryWriter":
        self.before("writer", key)
        return MemoryWriter(self, key)

    def put(self, key: str, data: bytes) -> None:
        self.before("put", key)
        self.store(key, bytes(data))
        self.after("put", key)

    def read(self, key: str, start: int, length: int) -> bytes:
        self.before("read", key)
        data = self.objects.get(key)
        if data is None:
            raise ObjectNotFoundError("there is no such object", operation="read object", place=key)
        if len(data) < start + length:
            raise DamagedError("the object is too short", operation="read object", place=key)
        return data[start : start + length]

    def stat(self, key: str) -> ObjectInfo | None:
        self.before("stat", key)
        data = self.objects.get(key)
        return ObjectInfo(key, len(data), self._times.get(key)) if data is not None else None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self.before("list", prefix)
        with self._lock:
            found = sorted((key, len(data)) for key, data in self.objects.items() if key.startswith(prefix))
        for key, size in found:
            yield ObjectInfo(key, size, self._times.get(key))

    def delete(self, key: str) -> None:
        self.before("delete", key)
        with self._lock:
            self.objects.pop(key, None)
        self.after("delete", key)

    def close(self) -> None:
        pass

    def store(self, key: str, data: bytes, *, exclusive: bool = False) -> None:
        with self._lock:
            if exclusive and key in self.objects:
                raise ObjectExistsError("there is an object of that name", operation="write object", place=key)
            self.objects[key] = data
            self._times[key] = self._clock()


class MemoryWriter:
    def __init__(self, store: MemoryObjects, key: str) -> None:
        self._store = store
        self._key = key
        self._data = bytearray()

    def write(self, data: Bytes, /) -> None:
        self._store.before("write", self._key)
        self._data += data

    def finish(self) -> None:
        self._store.before("finish", self._key)
        self._store.store(self._key, bytes(self._data), exclusive=True)
        self._store.finished.append((self._key, len(self._data)))
        self._store.after("finish", self._key)

    def abort(self) -> None:
        self._data.clear()
