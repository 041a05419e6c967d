"""Topics that are deleted, but for what takes longer: the log's files, the table, the objects, the record."""

import threading
from collections.abc import Callable

import structlog

from icestream.model.errors import IcestreamError, TopicExistsError
from icestream.model.names import TopicName
from icestream.storage.record import TopicRecord

_PATIENCE_SECONDS = 5.0
"""How long a deletion is waited for before it goes on alone."""
_log = structlog.get_logger(__name__)


class Deletions:
    """`finish` removes what is left of a topic, its record last. What it cannot do now is tried again."""

    def __init__(self, finish: Callable[[TopicRecord], None]) -> None:
        self._finish = finish
        self._finishing = threading.Lock()
        """Held while the rest of a deleted topic is removed."""
        self._tried = threading.Condition()
        """Guards all below; told when a deletion was finished, or could not be."""
        self._unfinished: dict[TopicName, TopicRecord] = {}
        self._reasons: dict[TopicName, str] = {}
        """Why they were not finished when it was tried last."""
        self.hurry: Callable[[], None] | None = None
        """Set by who calls `finish_all` now and then, to be told when there is something new to do."""

    def __contains__(self, name: TopicName) -> bool:
        return name in self._unfinished

    def add(self, record: TopicRecord) -> None:
        with self._tried:
            self._unfinished[record.name] = record

    def why_not(self, name: TopicName) -> TopicExistsError:
        """The error for who wants the name of a topic that is not gone yet."""
        reason = self._reasons.get(name, "it takes its time")
        return TopicExistsError(
            f"the topic of this name is being deleted, and not all of it is gone yet: {reason}",
            operation="create topic",
            place=str(name),
            remedy="it goes on by itself; try again later",
        )

    def wait_for(self, name: TopicName) -> None:
        """Let a deletion be gone on with, and wait for that, but not for long."""
        if self.hurry is None:
            self.finish_all()
            return
        with self._tried:
            self._reasons.pop(name, None)
            self.hurry()
            self._tried.wait_for(lambda: name not in self._unfinished or name in self._reasons, _PATIENCE_SECONDS)

    def finish_all(self) -> None:
        """Each once; while a store or the catalog is away they are left for later."""
        seen: set[str] = set()
        while (record := self._next(seen)) is not None:
            seen.add(record.stream_id)
            with self._finishing:
                if self._unfinished.get(record.name) is record:  # else somebody else was faster
                    self._try(record)

    def _try(self, record: TopicRecord) -> None:
        reason = None
        try:
            self._finish(record)
        except (IcestreamError, OSError) as error:
            reason = str(error)
            _log.warning("a topic is not deleted wholly yet", topic=record.topic, error=reason)
        with self._tried:
            if reason is not None:
                self._reasons[record.name] = reason
            else:
                del self._unfinished[record.name]
                self._reasons.pop(record.name, None)
            self._tried.notify_all()

    def _next(self, seen: set[str]) -> TopicRecord | None:
        """One that was not seen yet; those that were never tried come first, for somebody may wait for them."""
        with self._tried:
            left = [record for record in self._unfinished.values() if record.stream_id not in seen]
            return min(left, key=lambda record: record.name in self._reasons, default=None)
