"""Whatever happens to the tiers of a topic, and in whatever order: each reader's stream is the topic's, from its start.

Publishes, commits, retention at its most aggressive, rewrites of the table's files, expiry with every unused file
removed at once, restarts, and readers at random positions that read a little now and then.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, multiple, rule
from tests.reading import PATIENCE_SECONDS, TOPIC, Stage, pairs

from icestream.model.offsets import StartPosition
from icestream.reader import StatelessReader, TopicReader
from icestream.storage import IcebergStorage

SOAK = bool(os.environ.get("ICESTREAM_SOAK"))


class Follower:
    """A reader and what it has found."""

    def __init__(self, stage: Stage, reader: TopicReader, max_bytes: int) -> None:
        self.storage = stage.storage
        self.reader = reader
        self.start = reader.offset
        self.max_bytes = max_bytes
        self.found: list[tuple[int, bytes]] = []

    def read(self) -> bool:
        batches = self.reader.read(self.max_bytes)
        for batch in batches:
            self.found += pairs(batch)
        return bool(batches)


class StreamsAgainstAModel(RuleBasedStateMachine):
    followers = Bundle("followers")

    @initialize(cached=st.booleans(), shared=st.booleans())
    def begin(self, *, cached: bool, shared: bool) -> None:
        self.path = Path(tempfile.mkdtemp())
        wal = {"cache_max_bytes": 1 << 20 if cached else 1}
        self.stage = Stage(self.path, wal=wal, reader={"tail_max_bytes": 1 << 20 if shared else 0})
        self.messages: list[tuple[int, bytes]] = []
        self.committed = 0
        self.snapshots: list[tuple[int, int]] = []
        self.tables = IcebergStorage.read_only(self.stage.settings)
        self.stateless: StatelessReader | None = None
        self.stateless_offset = 0

    @rule(count=st.integers(1, 30), size=st.sampled_from([1, 300, 2_000]), together=st.booleans())
    def publish(self, count: int, size: int, *, together: bool) -> None:
        first = len(self.messages)
        made = [(first + number, b"%d/" % (first + number) + b"x" * size) for number in range(count)]
        payloads = [payload for _, payload in made]
        for part in [payloads] if together else [[payload] for payload in payloads]:
            self.stage.publish(part)
        self.messages += made

    @rule(part=st.integers(1, 4))
    def commit(self, part: int) -> None:
        waiting = len(self.messages) - self.committed
        if waiting:
            self.committed += max(1, waiting // part)
            table = self.stage.commit(self.committed)
            assert table.snapshot_id is not None
            self.snapshots.append((table.snapshot_id, self.committed))

    @rule()
    def prune(self) -> None:
        assert self.stage.prune() <= self.committed

    @rule(first=st.integers(0, 3), count=st.integers(2, 8))
    def compact(self, first: int, count: int) -> None:
        if self.committed:
            self.stage.compact(first, first + count)

    @rule()
    def expire(self) -> None:
        if self.committed:
            kept = {snapshot.snapshot_id for snapshot in self.stage.expire().iceberg.snapshots()}
            self.snapshots = [found for found in self.snapshots if found[0] in kept]

    @rule()
    def restart(self) -> None:
        self.stage.restart()
        self.stage.storage.table_watch.hint(self.stage.topic.name)

    @rule(target=followers, at=st.floats(0, 1), max_bytes=st.sampled_from([1, 1_000, 1 << 20]))
    def open_at_an_offset(self, at: float, max_bytes: int) -> Follower:
        return Follower(self.stage, self.stage.reader(round(at * len(self.messages))), max_bytes)

    @rule(target=followers, kind=st.sampled_from(["earliest", "latest"]))
    def open_at_an_end(self, kind: str) -> Follower:
        follower = Follower(self.stage, self.stage.reader(kind), 1_000)
        assert follower.start == (0 if kind == "earliest" else len(self.messages))
        return follower

    @rule(target=followers, at=st.floats(0, 1))
    def open_at_a_snapshot(self, at: float) -> Any:
        if not self.snapshots:
            return multiple()
        snapshot_id, offset = self.snapshots[round(at * (len(self.snapshots) - 1))]
        follower = Follower(self.stage, self.stage.reader(f"snapshot:{snapshot_id}"), 1_000)
        assert follower.start == offset
        return follower

    @rule(follower=followers, times=st.integers(1, 5))
    def read(self, follower: Follower, times: int) -> None:
        self._renew(follower)
        for _ in range(times):
            follower.read()
        self._check(follower)

    @rule(follower=consumes(followers))
    def read_to_the_end(self, follower: Follower) -> None:
        self._renew(follower)
        while follower.read():
            pass
        self._check(follower)
        assert follower.start + len(follower.found) == len(self.messages)
        follower.reader.close()

    @rule(at=st.floats(0, 1))
    def read_with_no_broker(self, at: float) -> None:
        """Beside the one that is there: the readers kept from step to step see new snapshots, and nothing else."""
        offset = round(at * self.committed)
        if self.stateless is None or at < 1 / 4:
            self._forget_stateless()
            self.stateless = self.tables.reader(TOPIC, StartPosition.offset(offset))
            self.stateless_offset = offset
        found: list[tuple[int, bytes]] = []
        while self.stateless_offset + len(found) < self.committed:
            assert self.stateless.wait(PATIENCE_SECONDS)
            for batch in self.stateless.read(1_000):
                found += pairs(batch)
        end = self.stateless_offset + len(found)
        assert found == self.messages[self.stateless_offset : end]
        assert end == self.committed
        self.stateless_offset = end

    def _forget_stateless(self) -> None:
        if self.stateless is not None:
            self.stateless.close()

    def _renew(self, follower: Follower) -> None:
        """A reader of a storage that was closed is opened again where it was: its offset is all it needs."""
        assert follower.reader.offset == follower.start + len(follower.found)
        if follower.storage is not self.stage.storage:
            follower.reader.close()
            follower.reader, follower.storage = self.stage.reader(follower.reader.offset), self.stage.storage

    def _check(self, follower: Follower) -> None:
        end = follower.start + len(follower.found)
        assert follower.found == self.messages[follower.start : end]

    def teardown(self) -> None:
        if hasattr(self, "stage"):
            self._forget_stateless()
            self.tables.close()
            self.stage.close()
            shutil.rmtree(self.path)


TestStreamsAgainstAModel = StreamsAgainstAModel.TestCase
TestStreamsAgainstAModel.settings = settings(
    max_examples=200 if SOAK else 15, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
