"""Migrations and brokers killed at any point, and run again: every row of every file is there once, in order."""

import contextlib
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from tests.parquet_trees import body, migrated, spans, write_tree
from tests.topics import Topics

from icestream import Client
from icestream.broker_process import BrokerProcess
from icestream.config import Settings
from icestream.migration import FileState, Migration, MigrationReport, MigrationRequest, open_source
from icestream.model.errors import IcestreamError, UnavailableError
from icestream.model.names import TopicName

SOAK = bool(os.environ.get("ICESTREAM_SOAK"))
KILLS = 60 if SOAK else 4
BROKER_KILLS = 20 if SOAK else 2
PATIENCE_SECONDS = 120.0
FILES, ROWS = 8, 150
TOPIC = TopicName("acme", "traces")


@contextlib.contextmanager
def broker_with(folder: Path, **environ: str) -> Iterator[Topics]:
    settings = {"ICESTREAM_CATALOG__NAME": f"c{uuid4().hex[:12]}", **environ}
    with BrokerProcess(folder, environ=settings) as broker, Topics(broker, settings) as topics:
        yield topics


def start_migrating(topics: Topics, place: Path) -> "subprocess.Popen[bytes]":
    arguments = [str(place), "--tenant", TOPIC.namespace, "--no-wait", "--batch-rows", "7"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ICESTREAM_")}
    command = [sys.executable, "-m", "icestream.cli", "migrate", "parquet-to-iceberg", *arguments]
    return subprocess.Popen(
        [*command, "--broker", topics.broker.flight],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environ,
    )


def rows_there(client: Client) -> int:
    try:
        return client.describe_topic(TOPIC).durable_end
    except IcestreamError:  # not made yet, or the broker is just starting
        return 0


def wait_for_rows(client: Client, count: int, process: "subprocess.Popen[bytes]") -> None:
    """Until the topic has so many, or the migration is over."""
    while rows_there(client) < count:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.002)
            return


def migrate(topics: Topics, place: Path, progress: Any = None, **request: Any) -> MigrationReport:
    given = MigrationRequest(**{"tenant": TOPIC.namespace, "wait": False, "batch_rows": 7, **request})
    with Client(topics.broker.flight) as client:
        return Migration(client, open_source(str(place), Settings()), Settings(), given, progress).run()


def check(topics: Topics, rows: pa.Table) -> None:
    """In topic and table each row is there once, in the order of its file."""
    stream = topics.client.read(TOPIC)
    assert stream["_offset"].to_pylist() == list(range(stream.num_rows))
    found = migrated(stream)
    assert found.num_rows == rows.num_rows
    assert _ordered(found).equals(_by_name(rows))
    topics.drain(TOPIC)
    assert not topics.verify(TOPIC).findings
    with topics.client.consume(TOPIC, 0, end=stream.num_rows, committed=True) as consumer:
        table = pa.Table.from_batches(consumer.batches())
    assert table["_offset"].to_pylist() == list(range(stream.num_rows))
    assert _ordered(migrated(table)).equals(_by_name(rows))


def _ordered(found: pa.Table) -> pa.Table:
    """What was published, by file; fails where a file's rows are not in its order."""
    for producer in found["_producer"].unique().to_pylist():
        sequences = found.filter(pa.compute.equal(found["_producer"], producer))["_sequence"].to_pylist()
        assert sequences == list(range(len(sequences)))
    return _by_name(body(found))


def _by_name(rows: pa.Table) -> pa.Table:
    return rows.sort_by([("start_time_unix_nano", "ascending")]).combine_chunks()


@pytest.mark.parametrize("seed", [1])
def test_kill_9_of_the_migration_at_random_points(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    rows = write_tree(tmp_path / "old", FILES, ROWS)
    points = sorted(rng.randrange(FILES * ROWS) for _ in range(KILLS))
    with broker_with(tmp_path / "data") as topics:
        for point in points:
            process = start_migrating(topics, tmp_path / "old")
            wait_for_rows(topics.client, point, process)
            process.kill()
            process.wait()
            if rng.random() < 0.3 and rows_there(topics.client):
                topics.drain(TOPIC)
        report = migrate(topics, tmp_path / "old")
        assert not report.failed
        assert all(file.verified for file in report.files)
        check(topics, rows)


@pytest.mark.parametrize("seed", [2])
def test_kill_9_of_the_broker_while_it_goes_on(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    rows = write_tree(tmp_path / "old", FILES, ROWS)
    with broker_with(tmp_path / "data", ICESTREAM_WAL__MAX_FILE_SIZE="65536") as topics:
        process = start_migrating(topics, tmp_path / "old")
        for point in sorted(rng.randrange(FILES * ROWS) for _ in range(BROKER_KILLS)):
            wait_for_rows(topics.client, point, process)
            topics.broker.kill()
            topics.broker.start()
        assert process.wait(PATIENCE_SECONDS) == 0
        report = migrate(topics, tmp_path / "old")
        assert all(file.verified for file in report.files)
        check(topics, rows)


class Crash(BaseException):
    """Nothing in a migration catches it."""


class Crashing:
    """Ends the migration at its n-th sign of life."""

    def __init__(self, after: int) -> None:
        self.left = after

    def begin(self, _what: str, _total: int, _unit: str) -> None:
        self.advance(0)

    def advance(self, _amount: float) -> None:
        self.left -= 1
        if self.left == 0:
            raise Crash


def test_ended_at_every_step_and_gone_on_with(tmp_path: Path) -> None:
    rows = write_tree(tmp_path / "old", 2, 20, row_group=8)
    with broker_with(tmp_path / "data") as topics:
        for point in range(1, 100):
            tenant = f"step{point}"
            try:
                migrate(topics, tmp_path / "old", Crashing(point), tenant=tenant, batch_rows=4)
            except Crash:
                report = migrate(topics, tmp_path / "old", tenant=tenant, batch_rows=4)
                assert all(file.verified for file in report.files)
                found = topics.client.read(TopicName(tenant, "traces"))
                assert body(found).equals(rows)
            else:
                break
        assert point > 25


def test_a_file_is_gone_on_with_though_the_broker_has_forgotten_its_producer(tmp_path: Path) -> None:
    rows = write_tree(tmp_path / "old", 1, 120)
    with broker_with(tmp_path / "data", ICESTREAM_WAL__MAX_PRODUCERS="3") as topics:
        with pytest.raises(Crash):
            migrate(topics, tmp_path / "old", Crashing(30))
        begun = rows_there(topics.client)
        assert 0 < begun < 120
        for number in range(5):
            with topics.client.producer(TOPIC, name=f"other-{number}") as producer:
                producer.send_batch(spans(2, 900 + number)).result()
        [report] = migrate(topics, tmp_path / "old").files
        assert (report.published, report.verified) == (120 - begun, True)
        check(topics, rows)


class WhileMoving:
    def __init__(self, work: Any) -> None:
        self._work = work

    def begin(self, what: str, _total: int, _unit: str) -> None:
        if what == "moving":
            self._work()

    def advance(self, _amount: float) -> None:
        pass


def test_what_another_migration_finished_meanwhile_is_not_published_again_by_one_that_was_slow(tmp_path: Path) -> None:
    """Though the broker has forgotten the producers: the topic is asked again."""
    rows = write_tree(tmp_path / "old", 10, 120)
    with broker_with(tmp_path / "data", ICESTREAM_WAL__MAX_PRODUCERS="2") as topics:
        other: list[MigrationReport] = []
        slow = migrate(topics, tmp_path / "old", WhileMoving(lambda: other.append(migrate(topics, tmp_path / "old"))))
        assert other[0].published == 1_200
        assert (slow.published, {file.state for file in slow.files}) == (0, {FileState.PUBLISHED})
        check(topics, rows)


def test_a_broker_that_stays_away_ends_it_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icestream.migration.retries.RETRY_SECONDS", 1.0)
    rows = write_tree(tmp_path / "old", 4, 100)
    with broker_with(tmp_path / "data") as topics:
        killed = threading.Event()

        class KillOnce:
            def begin(self, _what: str, _total: int, _unit: str) -> None:
                pass

            def advance(self, _amount: float) -> None:
                if not killed.is_set() and rows_there(topics.client) > 150:
                    killed.set()
                    topics.broker.kill()

        with pytest.raises(UnavailableError):
            migrate(topics, tmp_path / "old", KillOnce())
        topics.broker.start()
        assert all(file.verified for file in migrate(topics, tmp_path / "old").files)
        check(topics, rows)
