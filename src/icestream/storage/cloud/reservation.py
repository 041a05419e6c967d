"""Offsets are reserved in the metadata store before any message gets them.

So it is known, when a broker's disk is lost with messages that were not uploaded, which offsets may have been seen:
none of them is ever used for another message.
"""

import contextlib
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from icestream.cloud import Head
from icestream.cloud.names import topic_key
from icestream.model.clock import Clock
from icestream.model.errors import ConflictError, IcestreamError, LogLostError
from icestream.storage.record import TopicRecord
from icestream.wal import Log

if TYPE_CHECKING:
    from icestream.storage.cloud.topic_cloud import TopicCloud

STEP = 16_777_216
"""How far ahead offsets are reserved; renewed when half of it is used."""
_MAX_CLAIMS = 5


class Reservation:
    """That of one topic: claimed when its log is opened, moved ahead while messages come, given back at the end."""

    def __init__(self, cloud: "TopicCloud", log: Log, record: TopicRecord, clock: Clock) -> None:
        self._cloud = cloud
        self._log = log
        self._clock = clock
        self._record = record
        self._written: tuple[TopicRecord, int] | None = None

    @property
    def record(self) -> TopicRecord:
        return self._record

    def use(self, record: TopicRecord) -> None:
        self._record = record

    def claim(self) -> None:
        """Become the owner, and reserve the first offsets. Before that nothing may be published."""
        registry, log = self._cloud.registry, self._log
        for _ in range(_MAX_CLAIMS):
            known = registry.head()
            head = known or Head(
                self._cloud.stream_id, log.stream.epoch, first_offset=log.start_offset, uploaded_end=log.start_offset
            )
            if head.uploaded_end > log.durable_end:
                raise self._lost(head)
            head = replace(
                head,
                epoch=log.stream.epoch,
                reserved_end=max(head.reserved_end, log.durable_end + STEP),
                updated_us=self._clock(),
            )
            with contextlib.suppress(ConflictError):  # a change of ours from before a crash came through late
                registry.claim(head)
                log.offset_limit = head.reserved_end
                return
        raise ConflictError(
            "the topic's record in the metadata store keeps changing",
            operation="open log",
            place=str(self._cloud.topic),
            remedy="look whether another broker has the topic too",
        )

    @property
    def is_used(self) -> bool:
        """Whether it is time to move it ahead."""
        return self._log.durable_end + STEP // 2 > self._log.offset_limit

    def renew(self) -> None:
        self._log.offset_limit = self._move(lambda: self._log.durable_end + STEP)

    def give_back(self) -> None:
        """At a clean end, when the log gives no more offsets out: those that no message has got are not lost."""
        self._move(lambda: self._log.durable_end)

    def _move(self, end: Callable[[], int]) -> int:
        cloud = self._cloud
        with cloud.changing:
            head = cloud.registry.owned or cloud.registry.refresh()
            head = replace(head, reserved_end=end(), updated_us=self._clock())
            cloud.registry.update(head)
        return head.reserved_end

    @property
    def is_written(self) -> bool:
        """Whether the object store knows record and reservation too."""
        head = self._cloud.registry.owned
        return head is None or self._written == (self._record, head.reserved_end)

    def write(self) -> None:
        """Tell the object store: the topic can be recovered even if the metadata store is lost with the disk."""
        cloud, record = self._cloud, self._record
        head = cloud.registry.owned
        if head is None:
            return
        data = json.dumps({"record": asdict(record), "head": asdict(head)}, separators=(",", ":")).encode()
        cloud.store.put(topic_key(cloud.topic, cloud.stream_id), data)
        self._written = (record, head.reserved_end)

    def _lost(self, head: Head) -> IcestreamError:
        return LogLostError(
            f"the cloud has messages up to offset {head.uploaded_end - 1}, the log only up to "
            f"{self._log.durable_end - 1}: it is not the log that was uploaded",
            operation="open log",
            place=str(self._log.directory),
            remedy="put the log's directory back in its place, or move this one away and make the topic live again "
            "with `icestream topic recover`",
        )
