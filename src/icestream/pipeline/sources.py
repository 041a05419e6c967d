"""Where the pipeline learns of messages and reads them: the broker, and cloud objects for what it cannot serve.

A topic's messages have three sources, each with a kind of backlog of its own:

- the broker's log (`TopicBacklog`);
- cloud objects (`CloudBacklog`), for messages that the log does not have any more, and for all messages while the
  broker is unreachable. The broker is asked again at intervals;
- another table of the topic (`BackfillBacklog`), for messages that only that table has. The broker reads them: its
  readers look into every table of a topic. So a table that is new, or was not fed for a while, is filled like from the
  log, from its ledger on.

The tables' ledgers decide what is written. No message is written twice or left out, whichever source it comes from.
"""

import contextlib
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any, Protocol, Self, TypeVar, cast
from uuid import uuid4

import structlog
from msgspec.structs import replace

from icestream.client import Client
from icestream.config import Settings
from icestream.model.errors import DeadlineError, OffsetOutOfRangeError, UnavailableError
from icestream.model.messages import Frame
from icestream.pipeline.cloud_backlog import CloudBacklog, CloudStreams
from icestream.pipeline.planner import mean_bytes
from icestream.pipeline.tasks import Fetch, FromBroker, FromCloud
from icestream.protocol.pipeline import PipelineBacklog, TopicBacklog

_log = structlog.get_logger(__name__)
_LOOK_SECONDS = 5.0
"""Pause between two listings of the cloud, and between two calls of an unreachable broker."""
_AGAIN_SECONDS = 5.0
"""Time-out of a call of a broker that did not respond the last time."""

Backlog = TypeVar("Backlog", bound=TopicBacklog)
Backlog_contra = TypeVar("Backlog_contra", bound=TopicBacklog, contravariant=True)
Schemas = Callable[[], dict[int, str]]
"""Returns the topic's own schemas by id, once frames were read."""


class MessageSource(Protocol[Backlog_contra]):
    """How messages of one kind of backlog are cut into ranges and read."""

    def cut_range(self, topic: Backlog_contra, start: int, end: int, *, range_bytes: int, max_ranges: int) -> list[int]:
        """Return where ranges of about `range_bytes` end: at most so many, none past `end`."""

    def fetch(self, topic: Backlog_contra, *, by_frame: bool) -> Fetch:
        """Return how tasks read the messages."""

    def frames(
        self, topic: Backlog_contra, start: int, end: int, *, bodies: bool
    ) -> tuple[Iterable[list[Frame]], Schemas]:
        """Return the undecoded frames that hold a range."""


class BrokerLogSource:
    """The broker's log."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def cut_range(self, topic: TopicBacklog, start: int, end: int, *, range_bytes: int, max_ranges: int) -> list[int]:
        return self._client.cut_range(topic.name, start, end, range_bytes=range_bytes, max_ranges=max_ranges)

    def fetch(self, topic: TopicBacklog, *, by_frame: bool) -> Fetch:
        del topic
        return FromBroker(self._client.endpoint, by_frame)

    def frames(
        self, topic: TopicBacklog, start: int, end: int, *, bodies: bool
    ) -> tuple[Iterable[list[Frame]], Schemas]:
        reader = self._client.read_frames(topic.name, topic.stream_id, start, end, bodies=bodies)
        return reader, lambda: reader.schemas


class BackfillBacklog(TopicBacklog):
    """What another table of the topic holds before the log begins."""


class BackfillSource(BrokerLogSource):
    """Another table of the topic, read through the broker."""

    def cut_range(self, topic: TopicBacklog, start: int, end: int, *, range_bytes: int, max_ranges: int) -> list[int]:
        """Cut as if all messages had the same size: the log, which knows sizes, does not have them."""
        step = max(1, int(range_bytes / mean_bytes(topic)))
        steps = range(1, max_ranges + 1)
        return [min(end, start + step * number) for number in steps if start + step * (number - 1) < end]


def backfill_before_log(log: TopicBacklog, start: int, end: int) -> BackfillBacklog:
    """Return the messages from `start` to where the log begins, or to `end`, where the table that has them ends."""
    end = min(end, log.start_offset)
    nbytes = max(1, round(mean_bytes(log) * (end - start)))
    fields = {name: getattr(log, name) for name in TopicBacklog.__struct_fields__}
    return BackfillBacklog(**fields | {"start_offset": start, "durable_end": end, "nbytes": nbytes})


class CloudObjectSource:
    """The topics of an object store."""

    def __init__(self, settings: Settings, streams: CloudStreams, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._streams = streams
        self._clock = clock
        self._mark = f"cloud-{uuid4().hex}"
        self._looked_at = -_LOOK_SECONDS

    def backlog(self, topics: str, *, mark: str | None, wait_ms: int) -> PipelineBacklog:
        """Return all topics that match; none, after waiting, if the last listing was a moment ago."""
        left = self._looked_at + _LOOK_SECONDS - self._clock()
        if mark == self._mark and left > 0:
            time.sleep(min(left, wait_ms / 1000))
            return PipelineBacklog(self._mark, complete=True, topics=[])
        found = self._streams.find(topics, reread_records=mark != self._mark)
        self._looked_at = self._clock()
        return PipelineBacklog(self._mark, complete=True, topics=list(found))

    def before(self, topic: TopicBacklog, offset: int) -> CloudBacklog | None:
        """Return what the cloud has of a topic from an offset to where its log begins; None if it lacks the offset."""
        for found in self._streams.find(topic.topic):
            end = min(found.durable_end, topic.start_offset)
            if found.stream_id == topic.stream_id and found.start_offset <= offset < end:
                return replace(found, epoch=topic.epoch, durable_end=end, awaited_end=topic.awaited_end)
        return None

    def cut_range(self, topic: CloudBacklog, start: int, end: int, *, range_bytes: int, max_ranges: int) -> list[int]:
        return cut_objects(topic, start, end, range_bytes=range_bytes, max_ranges=max_ranges)

    def fetch(self, topic: CloudBacklog, *, by_frame: bool = True) -> FromCloud:
        del by_frame  # objects hold frames, and tasks decode them in any case
        settings = self._settings
        prefix = settings.uploader.root_prefix
        return FromCloud(settings.cloud, prefix, settings.reader, topic.objects, topic.schemas)

    def frames(
        self, topic: CloudBacklog, start: int, end: int, *, bodies: bool
    ) -> tuple[Iterable[list[Frame]], Schemas]:
        del bodies  # an object is read as a whole
        fetch = self.fetch(topic).within([(start, end)])
        return fetch.read(topic.name, topic.stream_id, start, end).frames(), lambda: topic.schemas


def cut_objects(topic: CloudBacklog, start: int, end: int, *, range_bytes: int, max_ranges: int) -> list[int]:
    """Return where ranges of about `range_bytes` end, as if the messages of an object had the same size."""
    objects = topic.objects
    cuts: list[int] = []
    offset = start
    while offset < end and len(cuts) < max_ranges:
        room = range_bytes
        index = max(0, bisect_right(objects, offset, key=lambda one: one.first_offset) - 1)
        while room > 0 and offset < end and index < len(objects):
            one = objects[index]
            mean = max(1, one.data_bytes) / (one.end_offset - one.first_offset)
            reached = min(one.end_offset, offset + max(1, round(room / mean)))
            room -= max(1, round((reached - offset) * mean))
            offset = max(offset, reached)
            index += offset >= one.end_offset
        cuts.append(min(end, offset))
    return cuts


class MessageSources:
    """The broker, and the cloud while the broker is unreachable. Not thread-safe, except `tell_committed`."""

    def __init__(self, settings: Settings, client: Client, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._timeout_seconds = settings.pipeline.broker_timeout_ms / 1000
        self._away_since: float | None = None
        self._asked_at = 0.0
        self._format = settings.storage.format
        """What the broker wanted the last time. Objects do not say."""
        self._resources = contextlib.ExitStack()
        self._cloud = self._open_cloud(settings)
        self.is_on_cloud = False
        """Whether the broker is unreachable and the cloud is read in its place."""
        self._sources: dict[type[TopicBacklog], MessageSource[Any]] = {
            TopicBacklog: BrokerLogSource(client),
            BackfillBacklog: BackfillSource(client),
        }
        if self._cloud is not None:
            self._sources[CloudBacklog] = self._cloud

    def _open_cloud(self, settings: Settings) -> CloudObjectSource | None:
        if settings.cloud.backend is None:
            return None
        from icestream.cloud.opendal_store import open_object_store  # noqa: PLC0415 - a slow import, for users of the cloud only

        store = open_object_store(settings.cloud, settings.uploader.root_prefix)
        self._resources.callback(store.close)
        return CloudObjectSource(settings, CloudStreams(settings, store), self._clock)

    @property
    def can_fall_back_to_cloud(self) -> bool:
        """Whether an unreachable broker is still waited for, before the cloud is read in its place."""
        return self._cloud is not None and not self.is_on_cloud

    @property
    def is_away(self) -> bool:
        """Whether the broker did not respond the last time, and the cloud is not read in its place yet."""
        return self._away_since is not None and not self.is_on_cloud

    def backlog(self, topics: str, *, mark: str | None, wait_ms: int) -> PipelineBacklog:
        cloud = self._cloud
        if cloud is None:
            return self._client.backlog(topics, mark=mark, wait_ms=wait_ms)
        if not self.is_on_cloud or self._clock() - self._asked_at >= _LOOK_SECONDS:
            # A host that drops packets would hold up everything for the full time-out again and again.
            timeout = _AGAIN_SECONDS + wait_ms / 1000 if self._away_since is not None else None
            try:
                response = self._client.backlog(topics, mark=mark, wait_ms=wait_ms, timeout=timeout)
            except (UnavailableError, DeadlineError) as error:
                self._note_away(error)
            else:
                self._note_back()
                self._format = next((topic.format for topic in response.topics), self._format)
                return response
        found = cloud.backlog(topics, mark=mark, wait_ms=wait_ms)
        return replace(found, topics=[replace(topic, format=self._format) for topic in found.topics])

    def _note_away(self, error: UnavailableError | DeadlineError) -> None:
        self._asked_at = now = self._clock()
        if self._away_since is None:
            self._away_since = now
        if now - self._away_since < self._timeout_seconds:
            raise error
        if not self.is_on_cloud:
            _log.warning("broker_unreachable_reading_cloud", broker=self._client.url, reason=str(error))
        self.is_on_cloud = True

    def _note_back(self) -> None:
        if self.is_on_cloud:
            _log.info("broker_reachable_again", broker=self._client.url)
        self._away_since, self.is_on_cloud = None, False

    def before_log(self, topic: TopicBacklog, offset: int) -> CloudBacklog:
        """Return what the cloud has of the messages that neither the table nor the log has. Raise if it has none."""
        found = self._cloud.before(topic, offset) if self._cloud is not None else None
        if found is None:
            raise OffsetOutOfRangeError(
                f"the table ends at {offset} and the log begins at {topic.start_offset}: "
                "neither has the messages between",
                operation="plan",
                place=topic.topic,
                remedy="restore the table or the cloud objects that held them, or delete the topic",
            )
        return found

    def _source(self, topic: Backlog) -> MessageSource[Backlog]:
        return cast("MessageSource[Backlog]", self._sources[type(topic)])

    def cut_range(self, topic: TopicBacklog, start: int, end: int, *, range_bytes: int, max_ranges: int) -> list[int]:
        """Return where ranges of about `range_bytes` end: at most so many, none past `end`."""
        return self._source(topic).cut_range(topic, start, end, range_bytes=range_bytes, max_ranges=max_ranges)

    def fetch(self, topic: TopicBacklog, *, by_frame: bool = False) -> Fetch:
        """Return how tasks read a topic's messages; `by_frame`, they decode the frames of a range and no other."""
        return self._source(topic).fetch(topic, by_frame=by_frame)

    def has_frames(self, topic: TopicBacklog) -> bool:
        """Return whether messages are read from frames. A table has rows only."""
        return not isinstance(topic, BackfillBacklog)

    def frame_ends(self, topic: TopicBacklog, start: int, end: int) -> list[int]:
        """Return where the frames end that hold a range. Raise if one of them is not as it was written."""
        found, _ = self._source(topic).frames(topic, start, end, bodies=False)
        return [frame.end_offset for frames in found for frame in frames if frame.base_offset < end]

    def frame_at(self, topic: TopicBacklog, offset: int) -> tuple[Frame, str | None]:
        """Return the undecoded frame that holds an offset, and its own schema; None if that is the plain one."""
        found, schemas = self._source(topic).frames(topic, offset, offset + 1, bodies=True)
        frame, *_ = (frame for frames in found for frame in frames)
        return frame, schemas().get(frame.schema_id)

    def tell_committed(self, topic: TopicBacklog) -> None:
        if not self.is_on_cloud:
            self._client.tell_committed(topic.name, topic.stream_id)

    def report_pass(self, passed: dict[str, Any], topics: list[dict[str, Any]]) -> None:
        if not self.is_on_cloud:
            self._client.report_pass(passed, topics)

    def close(self) -> None:
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
