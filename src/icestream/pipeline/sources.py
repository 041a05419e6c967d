"""Where a pipeline learns of messages and reads them: the broker, and cloud objects for what it cannot serve.

Messages that the broker's log does not have any more are read from the cloud. A broker that does not answer for a while
is left for the cloud altogether, and asked again now and then; the tables' ledgers see to it that nothing is written
twice or left out, whoever told of it.
"""

import contextlib
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Self
from uuid import uuid4

import structlog

from icestream.client import Client
from icestream.client.pipeline import BacklogAnswer, TopicBacklog
from icestream.config import Settings
from icestream.model.errors import DeadlineError, OffsetOutOfRangeError, UnavailableError
from icestream.model.frames import Frame
from icestream.pipeline.cloud_backlog import CloudBacklog, CloudStreams
from icestream.pipeline.fetch import Fetch, FromBroker, FromCloud
from icestream.pipeline.planner import mean_bytes

# --------------------
# Messages that neither log nor cloud have any more, for a table that lacks them: another table of the topic has them.
#
# They are read through the broker, which finds them by itself: its readers look into every table of a topic. So a table
# that is new, or was not fed for a while, is filled up like from the log: in pieces, each once, from its ledger on.


@dataclass(frozen=True)
class BackfillBacklog(TopicBacklog):
    """What a table of the topic holds before its log begins."""


def backfill_before_log(log: TopicBacklog, start: int, end: int) -> BackfillBacklog:
    """The messages from an offset on to where the log begins, or to where the table that has them ends."""
    end = min(end, log.start_offset)
    nbytes = max(1, round(mean_bytes(log) * (end - start)))
    return replace(BackfillBacklog(**vars(log)), start_offset=start, durable_end=end, nbytes=nbytes)


def cut_evenly(held: TopicBacklog, start: int, end: int, *, piece_bytes: int, max_pieces: int) -> list[int]:
    """Where pieces of about `piece_bytes` end, if all messages are of the same size."""
    step = max(1, int(piece_bytes / mean_bytes(held)))
    return [min(end, start + step * number) for number in range(1, max_pieces + 1) if start + step * (number - 1) < end]


_log = structlog.get_logger(__name__)
_LOOK_SECONDS = 5.0
"""How often the cloud is looked into, and a broker that is away asked again, counted from the end of a look."""
_AGAIN_SECONDS = 5.0
"""How long a broker that is away is given to answer."""


class CloudSource:
    """The topics of an object store."""

    def __init__(self, settings: Settings, streams: CloudStreams, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._streams = streams
        self._clock = clock
        self._mark = f"cloud-{uuid4().hex}"
        self._looked_at = -_LOOK_SECONDS

    def backlog(self, topics: str, *, mark: str | None, wait_ms: int) -> BacklogAnswer:
        """All topics that match, unless that was told a moment ago: then nothing, after the time to wait."""
        left = self._looked_at + _LOOK_SECONDS - self._clock()
        if mark == self._mark and left > 0:
            time.sleep(min(left, wait_ms / 1000))
            return BacklogAnswer(self._mark, complete=True, topics=[])
        found = self._streams.find(topics, anew=mark != self._mark)
        self._looked_at = self._clock()
        return BacklogAnswer(self._mark, complete=True, topics=list(found))

    def before(self, topic: TopicBacklog, offset: int) -> CloudBacklog | None:
        """What the cloud has of a topic from an offset on and before its log begins; None if not that offset."""
        for found in self._streams.find(str(topic.topic)):
            end = min(found.durable_end, topic.start_offset)
            if found.stream_id == topic.stream_id and found.start_offset <= offset < end:
                return replace(found, epoch=topic.epoch, durable_end=end, awaited_end=topic.awaited_end)
        return None

    def fetch(self, topic: CloudBacklog) -> FromCloud:
        settings = self._settings
        prefix = settings.uploader.root_prefix
        return FromCloud(settings.cloud, prefix, settings.reader, topic.objects, topic.schemas)


def cut_objects(topic: CloudBacklog, start: int, end: int, *, piece_bytes: int, max_pieces: int) -> list[int]:
    """Where pieces of about `piece_bytes` end; an object's messages are taken to be of about the same size."""
    objects = topic.objects
    cuts: list[int] = []
    offset = start
    while offset < end and len(cuts) < max_pieces:
        room = piece_bytes
        place = max(0, bisect_right(objects, offset, key=lambda one: one.first_offset) - 1)
        while room > 0 and offset < end and place < len(objects):
            one = objects[place]
            mean = max(1, one.data_bytes) / (one.end_offset - one.first_offset)
            reached = min(one.end_offset, offset + max(1, round(room / mean)))
            room -= max(1, round((reached - offset) * mean))
            offset = max(offset, reached)
            place += offset >= one.end_offset
        cuts.append(min(end, offset))
    return cuts


class MessageSources:
    """The broker first, the cloud where there is one to stand in for it. Not for several threads but for the hints."""

    def __init__(self, settings: Settings, client: Client, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._timeout_seconds = settings.pipeline.broker_timeout_ms / 1000
        self._away_since: float | None = None
        self._asked_at = 0.0
        self._format = settings.storage.format
        """What a broker wanted the last time; objects do not tell."""
        self._resources = contextlib.ExitStack()
        self._cloud = self._open_cloud(settings)
        self.is_on_cloud = False
        """Whether the broker is away and the cloud stands in for it."""

    def _open_cloud(self, settings: Settings) -> CloudSource | None:
        if settings.cloud.backend is None:
            return None
        from icestream.cloud.opendal_store import open_object_store  # noqa: PLC0415 - only who uses it loads it

        store = open_object_store(settings.cloud, settings.uploader.root_prefix)
        self._resources.callback(store.close)
        return CloudSource(settings, CloudStreams(settings, store), self._clock)

    @property
    def is_patient(self) -> bool:
        """Whether a broker that does not answer is still waited for, before the cloud stands in for it."""
        return self._cloud is not None and not self.is_on_cloud

    @property
    def is_away(self) -> bool:
        """Whether the broker gave no answer the last time, and the cloud does not stand in for it yet."""
        return self._away_since is not None and not self.is_on_cloud

    def backlog(self, topics: str, *, mark: str | None, wait_ms: int) -> BacklogAnswer:
        cloud = self._cloud
        if cloud is None:
            return self._client.backlog(topics, mark=mark, wait_ms=wait_ms)
        if not self.is_on_cloud or self._clock() - self._asked_at >= _LOOK_SECONDS:
            # Who has given no answer is not waited for as long again: a host that drops packets would hold up all.
            timeout = _AGAIN_SECONDS + wait_ms / 1000 if self._away_since is not None else None
            try:
                answer = self._client.backlog(topics, mark=mark, wait_ms=wait_ms, timeout=timeout)
            except (UnavailableError, DeadlineError) as error:
                self._note_away(error)
            else:
                self._note_back()
                self._format = next((topic.format for topic in answer.topics), self._format)
                return answer
        found = cloud.backlog(topics, mark=mark, wait_ms=wait_ms)
        return replace(found, topics=[replace(topic, format=self._format) for topic in found.topics])

    def _note_away(self, error: UnavailableError | DeadlineError) -> None:
        self._asked_at = now = self._clock()
        if self._away_since is None:
            self._away_since = now
        if now - self._away_since < self._timeout_seconds:
            raise error
        if not self.is_on_cloud:
            _log.warning("the broker is away: going on with what is in the cloud", error=str(error))
        self.is_on_cloud = True

    def _note_back(self) -> None:
        if self.is_on_cloud:
            _log.info("the broker is back", broker=self._client.url)
        self._away_since, self.is_on_cloud = None, False

    def before_log(self, topic: TopicBacklog, offset: int) -> CloudBacklog:
        """What the cloud has of the messages that are not in the table, and not in the log any more."""
        found = self._cloud.before(topic, offset) if self._cloud is not None else None
        if found is None:
            raise OffsetOutOfRangeError(
                f"the table ends at {offset} and the log begins at {topic.start_offset}: "
                "the messages between are in neither",
                operation="plan",
                place=str(topic.topic),
                remedy="restore the table or the cloud objects that held them, or delete the topic",
            )
        return found

    def cut_range(self, topic: TopicBacklog, start: int, end: int, *, piece_bytes: int, max_pieces: int) -> list[int]:
        if isinstance(topic, CloudBacklog):
            return cut_objects(topic, start, end, piece_bytes=piece_bytes, max_pieces=max_pieces)
        if isinstance(topic, BackfillBacklog):
            return cut_evenly(topic, start, end, piece_bytes=piece_bytes, max_pieces=max_pieces)
        return self._client.cut_range(topic.topic, start, end, piece_bytes=piece_bytes, max_pieces=max_pieces)

    def fetch(self, topic: TopicBacklog, *, by_frame: bool = False) -> Fetch:
        """How tasks read a topic's messages; `by_frame`, they decode the frames of a range and no other."""
        if isinstance(topic, CloudBacklog) and self._cloud is not None:
            return self._cloud.fetch(topic)
        return FromBroker(self._client.url, by_frame, token=self._client.token)

    def frame_ends(self, topic: TopicBacklog, start: int, end: int) -> list[int]:
        """Where the frames end that hold a range. Raises where one of them is not as it was written."""
        found, _ = self._frames(topic, start, end, bodies=False)
        return [frame.end_offset for frames in found for frame in frames if frame.base_offset < end]

    def frame_at(self, topic: TopicBacklog, offset: int) -> tuple[Frame, str | None]:
        """The frame that holds an offset, undecoded, and its own schema; none where that is the plain one."""
        found, schemas = self._frames(topic, offset, offset + 1, bodies=True)
        frame, *_ = (frame for frames in found for frame in frames)
        return frame, schemas().get(frame.schema_id)

    def _frames(
        self, topic: TopicBacklog, start: int, end: int, *, bodies: bool
    ) -> tuple[Iterable[list[Frame]], Callable[[], dict[int, str]]]:
        if isinstance(topic, CloudBacklog) and self._cloud is not None:
            cloud = self._cloud.fetch(topic).within([(start, end)])
            return cloud.read(topic.topic, topic.stream_id, start, end).frames(), lambda: topic.schemas
        reader = self._client.read_frames(topic.topic, topic.stream_id, start, end, bodies=bodies)
        return reader, lambda: reader.schemas

    def tell_committed(self, topic: TopicBacklog, offset: int, snapshot_id: int | None) -> None:
        if not self.is_on_cloud:
            self._client.tell_committed(topic.topic, topic.stream_id, offset, snapshot_id)

    def report_pass(self, passed: dict[str, Any], topics: list[dict[str, Any]]) -> None:
        if not self.is_on_cloud:
            self._client.report_pass(passed, topics)

    def close(self) -> None:
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
