"""Objects in the store that no description names: what an earlier owner, or a lost note, left behind the head.

Those that follow on the head and hold what the log holds are described and need not be sent again; the others are
removed. Never touched are objects of a later owner, objects before the head, and objects with offsets that the log does
not have: where the metadata store was set back, they may be all that is left of these.
"""

from collections import deque

import structlog

from icestream.cloud.descriptor import Head
from icestream.cloud.names import ObjectName, stream_prefix
from icestream.cloud.store import ObjectStore
from icestream.cloud.upload_notes import Pending
from icestream.model.names import TopicName

_log = structlog.get_logger(__name__)


class StrayObjects:
    def __init__(self, store: ObjectStore, pending: list[Pending] | None = None) -> None:
        self._store = store
        self._found = deque(pending or ())

    def __bool__(self) -> bool:
        return bool(self._found)

    @classmethod
    def find(
        cls, store: ObjectStore, topic: TopicName, stream_id: str, head: Head, bounds: tuple[int, int]
    ) -> "StrayObjects":
        """By offset. Once the topic was claimed, nobody can describe them but this owner."""
        found: list[Pending] = []
        start_offset, durable_end = bounds
        for info in store.list(stream_prefix(topic, stream_id)):
            name = ObjectName.parse(info.key)
            if name is None or name.epoch > head.epoch or name.first_offset < head.uploaded_end:
                continue
            if name.first_offset < start_offset or name.end_offset > durable_end:
                _log.warning("an object has messages that the log does not have; it is left alone", object=info.key)
            else:
                found.append(Pending(info.key, name.first_offset, name.end_offset))
        return cls(store, sorted(found, key=lambda one: one.first_offset))

    def take(self, offset: int) -> Pending | None:
        """The next one that begins at an offset, to be described if it is sound; those that cannot be are removed."""
        while self._found:
            stray = self._found.popleft()
            if stray.first_offset == offset:
                return stray
            _log.info("an object that nothing describes is removed", object=stray.key)
            self._store.delete(stray.key)
        return None
