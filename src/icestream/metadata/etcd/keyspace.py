"""Translation between the store's keys and values and etcd's."""

from typing import assert_never

from icestream.metadata.etcd import messages as m
from icestream.metadata.store import (
    Absent,
    Condition,
    Delete,
    Entry,
    Event,
    Exists,
    Operation,
    Put,
    RevisionIs,
    ValueIs,
)


class Keyspace:
    """All keys begin with `prefix`. A key of the store continues with `/`; other keys are private to this client."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.encode()

    def encode(self, key: str) -> bytes:
        return self._prefix + key.encode()

    def range_of(self, prefix: str) -> tuple[bytes, bytes]:
        """Return the first key that could have the prefix, and the first one after all that could."""
        first = self.encode(prefix or "/")
        return first, first[:-1] + bytes([first[-1] + 1])  # UTF-8 text never ends in byte 0xFF

    def private(self, name: str) -> bytes:
        """Return a key that no caller of the store can name or list."""
        return self._prefix + name.encode()

    def entry(self, found: m.KeyValue) -> Entry:
        return Entry(
            self._decode(found.key), found.value, found.mod_revision, found.create_revision, found.lease or None
        )

    def event(self, found: m.Event) -> Event:
        key, revision = self._decode(found.kv.key), found.kv.mod_revision
        if found.type == m.Event.DELETE:
            return Event("delete", key, None, revision)
        return Event("put", key, found.kv.value, revision)

    def compare(self, condition: Condition) -> m.Compare:
        key = self.encode(condition.key)
        match condition:
            case Exists():
                return m.Compare(key=key, target=m.Compare.CREATE, result=m.Compare.GREATER, create_revision=0)
            case Absent():
                return m.Compare(key=key, target=m.Compare.CREATE, result=m.Compare.EQUAL, create_revision=0)
            case RevisionIs(mod_revision=revision):
                return m.Compare(key=key, target=m.Compare.MOD, result=m.Compare.EQUAL, mod_revision=revision)
            case ValueIs(value=value):
                return m.Compare(key=key, target=m.Compare.VALUE, result=m.Compare.EQUAL, value=value)
            case _:
                assert_never(condition)

    def request(self, operation: Operation) -> m.RequestOp:
        key = self.encode(operation.key)
        match operation:
            case Put(value=value, lease=lease):
                return m.RequestOp(request_put=m.PutRequest(key=key, value=value, lease=lease or 0))
            case Delete():
                return m.RequestOp(request_delete_range=m.DeleteRangeRequest(key=key))
            case _:
                assert_never(operation)

    def _decode(self, key: bytes) -> str:
        return key[len(self._prefix) :].decode(errors="surrogateescape")
