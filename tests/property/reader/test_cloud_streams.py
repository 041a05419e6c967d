"""Log, cloud and table cut at random places: each reader's stream is the topic's, from its start.

Objects of random sizes, retention that takes segments and objects as soon as a farther tier has them, under readers
too, objects that are damaged or lost while the table has their messages, restarts, and readers at random positions
that read a little now and then.
"""

import os
import shutil
import tempfile
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, rule
from tests.cloud_objects import CloudStage
from tests.reading import pairs

from icestream.reader import TopicReader

SOAK = bool(os.environ.get("ICESTREAM_SOAK"))
Messages = list[tuple[int, bytes]]


class Follower:
    """A reader and what it has found."""

    def __init__(self, stage: CloudStage, start: int | str, max_bytes: int) -> None:
        self.storage = stage.storage
        self.reader: TopicReader = stage.reader(start)
        self.start = self.reader.offset
        self.max_bytes = max_bytes
        self.found: Messages = []

    def read(self, stage: CloudStage) -> bool:
        if self.storage is not stage.storage:  # restarted: its offset is all that a reader needs to go on
            self.reader.close()
            self.reader, self.storage = stage.reader(self.reader.offset), stage.storage
        batches = self.reader.read(self.max_bytes)
        for batch in batches:
            self.found += pairs(batch)
        return bool(batches)


class CloudStreams(RuleBasedStateMachine):
    followers = Bundle("followers")

    @initialize(cached=st.booleans(), ahead=st.sampled_from([0, 3_000, 1 << 24]))
    def begin(self, *, cached: bool, ahead: int) -> None:
        self.path = Path(tempfile.mkdtemp())
        wal = {"cache_max_bytes": 1 << 20 if cached else 1}
        self.stage = CloudStage(self.path, wal=wal, reader={"cloud_prefetch_bytes": ahead})
        self.messages: Messages = []
        self.committed = 0
        self.ends: list[int] = []
        """Of frames: where objects may be cut."""

    @rule(count=st.integers(1, 30), size=st.sampled_from([1, 300, 2_000]), together=st.booleans())
    def publish(self, count: int, size: int, *, together: bool) -> None:
        first = len(self.messages)
        made = [(first + number, b"%d/" % (first + number) + b"x" * size) for number in range(count)]
        payloads = [payload for _, payload in made]
        for part in [payloads] if together else [[payload] for payload in payloads]:
            self.stage.publish(part)
            self.ends.append(first + len(part) if together else self.stage.topic.log.durable_end)
        self.messages += made

    @rule(at=st.floats(0, 1), inline=st.booleans(), interval=st.sampled_from([1, 2_000]))
    def upload(self, at: float, interval: int, *, inline: bool) -> None:
        uploaded = self._uploaded()
        ends = [end for end in self.ends if end > uploaded]
        if ends and self.stage.topic.log.start_offset <= uploaded:
            self.stage.upload(ends[round(at * (len(ends) - 1))], inline=inline, index_interval=interval)

    @rule(part=st.integers(1, 4))
    def commit(self, part: int) -> None:
        waiting = len(self.messages) - self.committed
        if waiting:
            self.committed += max(1, waiting // part)
            self.stage.commit(self.committed)

    @rule(both=st.booleans())
    def prune(self, *, both: bool) -> None:
        """The log up to what table and cloud have, or one of them; then the cloud may end before the log begins."""
        bounds = (self.committed, self._uploaded())
        below = min(bounds) if both else max(bounds)
        assert self.stage.prune_to(below) <= max(below, self.stage.topic.log.start_offset)

    @rule(at=st.floats(0, 1))
    def drop_objects(self, at: float) -> None:
        self.stage.drop_objects(round(at * self.committed))

    @rule(at=st.floats(0, 1), place=st.floats(0, 1), lost=st.booleans())
    def damage(self, at: float, place: float, *, lost: bool) -> None:
        spans = [span for span in self.stage.cloud.objects.spans if span.end_offset <= self.committed]
        if spans:
            descriptor = self.stage.cloud.objects.find(spans[round(at * (len(spans) - 1))].first_offset)
            assert descriptor is not None
            if lost:
                self.stage.store.delete(descriptor.key)
            elif descriptor.key in self.stage.store.objects:
                self.stage.store.flip(descriptor.key, round(place * (descriptor.size - 1)))

    @rule()
    def restart(self) -> None:
        self.stage.restart()
        self.stage.storage.table_watch.hint(self.stage.topic.name)

    @rule(target=followers, at=st.floats(0, 1), max_bytes=st.sampled_from([1, 1_000, 1 << 20]))
    def open_at_an_offset(self, at: float, max_bytes: int) -> Follower:
        return Follower(self.stage, round(at * len(self.messages)), max_bytes)

    @rule(target=followers)
    def open_at_the_beginning(self) -> Follower:
        follower = Follower(self.stage, "earliest", 1_000)
        assert follower.start == 0
        return follower

    @rule(follower=followers, times=st.integers(1, 5))
    def read(self, follower: Follower, times: int) -> None:
        for _ in range(times):
            follower.read(self.stage)
        self._check(follower)

    @rule(follower=consumes(followers))
    def read_to_the_end(self, follower: Follower) -> None:
        while follower.read(self.stage):
            pass
        self._check(follower)
        assert follower.start + len(follower.found) == len(self.messages)
        follower.reader.close()

    def _uploaded(self) -> int:
        head = self.stage.cloud.registry.head()
        return head.uploaded_end if head is not None else 0

    def _check(self, follower: Follower) -> None:
        end = follower.start + len(follower.found)
        assert follower.found == self.messages[follower.start : end]

    def teardown(self) -> None:
        if hasattr(self, "stage"):
            self.stage.close()
            shutil.rmtree(self.path)


TestCloudStreams = CloudStreams.TestCase
TestCloudStreams.settings = settings(
    max_examples=200 if SOAK else 15, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
