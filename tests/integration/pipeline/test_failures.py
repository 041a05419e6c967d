"""Whatever goes wrong: no gap, no duplicate, and the others go on."""

import pickle
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.integration.pipeline.conftest import InlineJobs, Pipelines

from icestream.broker_process import BrokerProcess
from icestream.config import Settings
from icestream.model.errors import CatalogUnavailableError, CommitUnknownError, TopicNotFoundError
from icestream.model.names import TopicName
from icestream.model.offsets import OffsetRanges
from icestream.pipeline.spark.session import JobFailedError
from icestream.pipeline.tasks import Work, Written
from icestream.storage.verify import verify_topic
from icestream.table import Tables, TableSpec, TopicTable
from icestream.wal import LocalFiles
from icestream.wal.repair import repair_directory


class Racing(InlineJobs):
    """Lets another act between the writing and the commit of a job."""

    def __init__(self, *actions: Any) -> None:
        super().__init__()
        self.actions = list(actions)

    def run(self, parcels: Sequence[bytes], /) -> list[Written]:
        written = super().run(parcels)
        if self.actions:
            self.actions.pop(0)()
        return written


class Crashing(InlineJobs):
    """Fails as Spark does when a worker dies: whenever a topic of a name is in the job."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def run(self, parcels: Sequence[bytes], /) -> list[Written]:
        works: list[Work] = [work for parcel in parcels for work in pickle.loads(parcel)]
        if any(work.topic.name == self._name for work in works):
            self.jobs += 1
            raise JobFailedError("a worker died")
        return super().run(parcels)


def test_two_pipelines_at_once_write_each_message_once(pipelines: Pipelines) -> None:
    names, rounds = ("one", "two", "three"), 30
    stopping = threading.Event()
    runners = [pipelines.runner(InlineJobs(), writer={"flush_interval_ms": 1}) for _ in range(2)]
    loops = [threading.Thread(target=runner.run, args=(stopping,)) for runner in runners]
    for loop in loops:
        loop.start()
    try:
        for number in range(rounds):
            for name in names:
                pipelines.publish(name, [f"{name} {number}".encode()] * 10)
    finally:
        stopping.set()
        for loop in loops:
            loop.join()
    pipelines.drain(pipelines.runner(InlineJobs()))
    for name in names:
        pipelines.check(name, [f"{name} {number}".encode() for number in range(rounds) for _ in range(10)])


def test_somebody_elses_commit_of_the_same_range_wins_and_ours_is_dropped(pipelines: Pipelines) -> None:
    pipelines.publish("raced", [b"a", b"b"])
    other = pipelines.runner(InlineJobs())
    jobs = Racing(lambda: pipelines.drain(other))
    figures = pipelines.drain(pipelines.runner(jobs)).topics[pipelines.topic("raced")]
    assert (figures.commits, figures.conflicts, figures.messages) == (0, 1, 0)
    pipelines.check("raced", [b"a", b"b"])


def test_a_zombie_that_planned_on_an_old_state_commits_nothing(pipelines: Pipelines) -> None:
    pipelines.publish("old", [b"a"])
    zombie = pipelines.runner(InlineJobs())
    pipelines.drain(zombie)
    pipelines.publish("old", [b"b"])
    zombie.topics.refresh_all()
    pipelines.drain(pipelines.runner(InlineJobs()))
    pipelines.publish("old", [b"c"])
    pipelines.drain(pipelines.runner(InlineJobs()))
    pipelines.drain(zombie)
    pipelines.check("old", [b"a", b"b", b"c"])


def test_a_commit_that_is_in_the_way_but_moves_no_ledger_is_overcome(pipelines: Pipelines) -> None:
    topic = pipelines.topic("compacted")
    runner = pipelines.runner(InlineJobs())
    pipelines.publish("compacted", [b"a"])
    pipelines.drain(runner)
    pipelines.publish("compacted", [b"b"])

    def change_something_else() -> None:
        table = pipelines.tables.find(topic)
        assert table is not None
        rows = table.iceberg.scan().to_arrow()
        table.iceberg.overwrite(rows)

    runner = pipelines.runner(Racing(change_something_else))
    figures = pipelines.drain(runner).topics[topic]
    assert (figures.commits, figures.conflicts) == (1, 1)
    pipelines.check("compacted", [b"a", b"b"])


class Unsure(Tables):
    """A catalog that makes commits and loses its answers, as often as it is told to."""

    def __init__(self, settings: Settings, lost_answers: int) -> None:
        super().__init__(settings)
        self.lost_answers = lost_answers

    def open(self, spec: TableSpec) -> TopicTable:
        return self._unsure(super().open(spec))

    def _unsure(self, table: TopicTable) -> TopicTable:
        commit = table.commit

        def commit_and_say_nothing(*args: Any, **kwargs: Any) -> TopicTable:
            done = commit(*args, **kwargs)
            if self.lost_answers:
                self.lost_answers -= 1
                raise CommitUnknownError("the answer was lost")
            return self._unsure(done)

        object.__setattr__(table, "commit", commit_and_say_nothing)
        return table


def test_a_commit_whose_answer_is_lost_is_found_in_the_ledger(pipelines: Pipelines) -> None:
    tables = Unsure(pipelines.settings(), lost_answers=1)
    runner = pipelines.runner(InlineJobs(), tables=tables)
    pipelines.publish("unsure", [b"a"])
    figures = pipelines.drain(runner).topics[pipelines.topic("unsure")]
    assert (figures.commits, figures.conflicts, figures.messages) == (1, 1, 1)
    pipelines.publish("unsure", [b"b"])
    pipelines.drain(runner)
    pipelines.check("unsure", [b"a", b"b"])
    tables.close()


class Outage(Tables):
    """A catalog that is away when files are to be committed, as often as it is told to."""

    def __init__(self, settings: Settings, refusals: int) -> None:
        super().__init__(settings)
        self.refusals = refusals

    def open(self, spec: TableSpec) -> TopicTable:
        table = super().open(spec)
        commit = table.commit

        def refuse_first(*args: Any, **kwargs: Any) -> TopicTable:
            if self.refusals:
                self.refusals -= 1
                raise CatalogUnavailableError("the catalog is away")
            return commit(*args, **kwargs)

        object.__setattr__(table, "commit", refuse_first)
        return table


def test_while_the_catalog_is_away_files_wait_for_their_commit(pipelines: Pipelines) -> None:
    tables, jobs = Outage(pipelines.settings(), refusals=2), InlineJobs()
    pipelines.publish("delayed", [b"a", b"b"])
    runner = pipelines.runner(jobs, tables=tables)
    figures = runner.drain(threading.Event()).topics[pipelines.topic("delayed")]
    assert (figures.failures, figures.commits, figures.error) == (2, 1, None)
    assert jobs.jobs == 1
    pipelines.check("delayed", [b"a", b"b"])
    tables.close()


def test_a_topic_that_fails_is_reported_and_the_others_go_on(pipelines: Pipelines) -> None:
    bad = pipelines.topic("bad")
    pipelines.tables.open(TableSpec(bad, "another stream", 1, pipelines.client.read(_other(pipelines)).schema))
    pipelines.publish("bad", [b"x"])
    pipelines.publish("good", [b"y"])
    figures = pipelines.runner(InlineJobs()).drain(threading.Event())
    assert "another stream" in str(figures.topics[bad].error)
    assert figures.topics[pipelines.topic("good")].error is None
    pipelines.check("good", [b"y"])
    told = pipelines.client.stats(bad)["pipeline"]["topics"][str(bad)]
    assert "another stream" in told["error"]
    assert told["retry_ms"] > 0


def _other(pipelines: Pipelines) -> TopicName:
    pipelines.client.create_topic(pipelines.topic("other"))
    return pipelines.topic("other")


def test_a_topic_that_takes_workers_down_takes_no_other_topic_with_it(pipelines: Pipelines) -> None:
    names = ["a", "b", "poison", "x", "y"]
    for name in names:
        pipelines.publish(name, [name.encode()])
    jobs = Crashing("poison")
    runner = pipelines.runner(jobs, pipeline={"quarantine_after": 0})
    figures = runner.drain(threading.Event())
    assert "a worker died" in str(figures.topics[pipelines.topic("poison")].error)
    for name in names:
        if name != "poison":
            pipelines.check(name, [name.encode()])
    before = jobs.jobs
    for name in names:
        pipelines.publish(name, [b"more"])
    runner.topics.refresh_all()
    runner.topics[pipelines.topic("poison")].pause.until = 0.0
    runner.passes.run({pipelines.topic(name): 10 for name in names})
    assert jobs.jobs - before == 2, "it has a job of its own now"
    pipelines.check("a", [b"a", b"more"])


def test_what_stands_before_a_bad_range_is_committed(pipelines: Pipelines) -> None:
    for _ in range(3):
        pipelines.publish("partly", [bytes(1_000_000)] * 9)

    class SecondRangeFails(InlineJobs):
        def run(self, parcels: Sequence[bytes], /) -> list[Written]:
            written = sorted(super().run(parcels), key=lambda one: one.start)
            return [
                one if number == 0 else Written(one.topic, one.start, one.end, error=CatalogUnavailableError("no room"))
                for number, one in enumerate(written)
            ]

    runner = pipelines.runner(SecondRangeFails())
    topic = pipelines.topic("partly")
    runner.topics.refresh_all()
    figures = runner.passes.run({topic: 27}).topics[topic]
    assert figures.commits == 1
    assert 0 < figures.messages < 27
    assert "no room" in str(figures.error)
    pipelines.drain(pipelines.runner(InlineJobs()))
    pipelines.check("partly")


def test_a_topic_made_again_meanwhile_leaves_nothing_of_the_old_in_the_new(pipelines: Pipelines) -> None:
    topic = pipelines.topic("again")
    pipelines.publish("again", [b"old"] * 5)

    def make_again() -> None:
        pipelines.client.delete_topic(topic)
        pipelines.publish("again", [b"new"] * 3)

    runner = pipelines.runner(Racing(make_again))
    runner.drain(threading.Event())
    pipelines.drain(runner)
    pipelines.check("again", [b"new"] * 3)


def test_a_range_is_not_read_from_a_topic_that_was_made_again(pipelines: Pipelines) -> None:
    topic = pipelines.topic("reborn")
    pipelines.publish("reborn", [b"old"])
    old = pipelines.client.describe_topic(topic).stream_id
    pipelines.client.delete_topic(topic)
    pipelines.publish("reborn", [b"new"])
    with pytest.raises(TopicNotFoundError, match="made again"):
        list(pipelines.client.read_range(topic, old, 0, 1).batches())


def test_a_log_that_is_older_than_its_table_is_refused(pipelines: Pipelines) -> None:
    pipelines.publish("restored", [b"a", b"b"])
    topic = pipelines.topic("restored")
    description = pipelines.client.describe_topic(topic)
    table = pipelines.tables.open(TableSpec(topic, description.stream_id, 1, pipelines.client.read(topic).schema))
    table.commit([], start=0, end=5, epoch=1, lost=OffsetRanges.of([(0, 5)]))
    figures = pipelines.runner(InlineJobs()).drain(threading.Event())
    assert "the log ends at 2" in str(figures.topics[topic].error)


def test_a_deleted_topic_is_forgotten(pipelines: Pipelines) -> None:
    runner = pipelines.runner(InlineJobs())
    pipelines.publish("gone", [b"a"])
    pipelines.drain(runner)
    pipelines.client.delete_topic(pipelines.topic("gone"))
    runner.topics.refresh_all()
    assert list(runner.topics) == []


def test_a_broker_that_was_restarted_is_found_again(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", arguments=["--no-pipeline"]) as broker:
        pipelines = Pipelines(broker.data_dir, broker.flight, "restart")
        runner = pipelines.runner(InlineJobs())
        pipelines.publish("events", [b"a"])
        pipelines.drain(runner)
        pipelines.publish("events", [b"b"])
        broker.kill()
        broker.start()
        pipelines.publish("events", [b"c"])
        pipelines.drain(runner)
        pipelines.check("events", [b"a", b"b", b"c"])
        pipelines.close()


def test_messages_that_a_repair_gave_up_are_a_gap_in_the_table_and_nothing_more(tmp_path: Path) -> None:
    environ = {"ICESTREAM_WAL__MAX_FILE_SIZE": "65536"}
    broker = BrokerProcess(tmp_path / "data", arguments=["--no-pipeline"], environ=environ).start()
    pipelines = Pipelines(broker.data_dir, broker.flight, "repaired")
    for number in range(30):
        pipelines.publish("middle", [f"{number}".encode() + bytes(10_000)])
        pipelines.publish("end", [f"{number}".encode() + bytes(10_000)])
    assert broker.terminate() == 0
    logs = {name: broker.data_dir / "wal" / "repaired" / name for name in ("middle", "end")}
    segments = sorted(logs["middle"].glob("*.log"))
    segments[1].unlink()
    max(logs["end"].glob("*.log")).unlink()
    ((first, after),) = repair_directory(LocalFiles(), logs["middle"]).lost
    ((last, end),) = repair_directory(LocalFiles(), logs["end"]).lost
    assert (first > 0, end) == (True, 30)
    with broker:
        figures = pipelines.drain(pipelines.runner(InlineJobs()))
        kept = {"middle": [*range(first), *range(after, 30)], "end": list(range(last))}
        for name, offsets in kept.items():
            rows = pipelines.rows(name)
            assert rows.column("offset").to_pylist() == offsets
            assert [int(value.rstrip(b"\0")) for value in rows.column("payload").to_pylist()] == offsets
            told = figures.topics[pipelines.topic(name)]
            assert (told.committed_offset, told.lost, told.messages) == (30, 30 - len(offsets), len(offsets))
            pruned = verify_topic(pipelines.topic(name), lambda _topic: None, pipelines.tables)
            assert pruned.is_sound, pruned.findings
            assert pruned.lost == told.lost
        pipelines.close()
