"""A frame that cannot be written is found and put aside; everything else comes into the table, and nothing is lost."""

import pickle
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from tests.integration.pipeline.conftest import InlineJobs, Pipelines
from tests.integration.quarantine.conftest import (
    QUICK,
    CrashingAt,
    drain,
    offsets,
    poison,
    settings_of,
    table_of,
)

from icestream.app import Broker
from icestream.model.enums import StorageFormat
from icestream.model.errors import CatalogUnavailableError, IcestreamError
from icestream.model.messages import Encoding
from icestream.pipeline.tasks import Work, Written
from icestream.storage.verify import BrokerLogs, verify_topic
from icestream.table.quarantine import FOLDER, mark_retried, read_frame, read_record
from icestream.wal import prepare


def test_one_frame_of_many_is_quarantined_and_all_others_are_written(site: Pipelines, running: Broker) -> None:
    topic = site.topic("events")
    for number in range(20):
        site.publish("events", [f"{number}".encode()] * 5)
    first = poison(running, topic)
    for number in range(20):
        site.publish("events", [f"after {number}".encode()] * 5)
    figures = drain(site)[topic]
    assert (figures.error, figures.quarantined, figures.messages) == (None, 1, 200)
    assert (first, figures.committed_offset) == (100, 203)
    assert offsets(site, "events") == [*range(100), *range(103, 203)]

    table = table_of(site, "events")
    (entry,) = table.quarantined
    assert (entry.first_offset, entry.end_offset) == (100, 103)
    assert "cannot be decoded" in entry.reason
    assert f"/{FOLDER}/100-102-" in entry.file
    assert table.lost_ranges.ranges == ((100, 103),)
    frame = read_frame(table, entry)
    assert (bytes(frame.body), frame.base_offset, frame.message_count) == (b"no Arrow at all", 100, 3)
    assert read_record(table, entry).stream_id == table.ledger.stream_id


def test_a_value_that_no_table_can_hold_is_quarantined_with_its_columns(site: Pipelines, running: Broker) -> None:
    topic = site.topic("times")
    schema = pa.schema([("at", pa.timestamp("s"))])
    site.client.create_topic(topic, schema=schema)
    sound, wrong = (
        pa.RecordBatch.from_arrays([pa.array([at], pa.int64()).cast(pa.timestamp("s"))], schema=schema)
        for at in (1, 1 << 60)
    )
    with site.client.producer(topic) as producer:
        producer.send_batch(sound).result()
        log = running.storage.topic(topic).log
        schema_id = running.storage.topic(topic).schema_id
        log.append(prepare(wrong.serialize(), message_count=1, encoding=Encoding.ARROW_IPC, schema_id=schema_id))
        producer.send_batch(sound).result()
    figures = drain(site)[topic]
    assert (figures.error, figures.quarantined) == (None, 1)
    assert offsets(site, "times") == [0, 2]
    table = table_of(site, "times")
    (entry,) = table.quarantined
    assert read_record(table, entry).schema is not None


def test_a_frame_that_takes_workers_down_is_found_and_the_log_still_has_it(site: Pipelines) -> None:
    for number in range(30):
        site.publish("crash", [f"{number}".encode()] * 2)
    figures = drain(site, CrashingAt(17))[site.topic("crash")]
    assert (figures.error, figures.quarantined) == (None, 1)
    assert offsets(site, "crash") == [*range(16), *range(18, 60)]
    assert site.client.read(site.topic("crash")).num_rows == 60, "who reads the log sees it still"


class Failing(InlineJobs):
    def __init__(self, error: IcestreamError) -> None:
        super().__init__()
        self._error = error

    def run(self, parcels: Sequence[bytes], /) -> list[Written]:
        works: list[Work] = [work for parcel in parcels for work in pickle.loads(parcel)]
        return [Written(work.topic, *work.ranges[0], error=self._error) for work in works]


def test_a_store_that_is_away_never_counts(site: Pipelines) -> None:
    site.publish("away", [b"a"])
    runner = site.runner(Failing(CatalogUnavailableError("the store is away")), pipeline=QUICK)
    runner.topics.refresh_all()
    state = runner.topics[site.topic("away")]
    for _ in range(20):
        state.pause.until = 0.0
        runner.passes.run({site.topic("away"): 1})
    assert state.pause.failures == 20
    assert state.poison_search is None


def test_it_can_be_switched_off(site: Pipelines, running: Broker) -> None:
    site.publish("strict", [b"a"])
    poison(running, site.topic("strict"))
    figures = drain(site, quarantine_after=0)[site.topic("strict")]
    assert "cannot be decoded" in str(figures.error)
    assert table_of(site, "strict").quarantined == ()


def test_a_topic_that_is_wrong_throughout_rests_after_a_few_frames(site: Pipelines, running: Broker) -> None:
    topic = site.topic("wrong")
    for _ in range(8):
        poison(running, topic)
    figures = drain(site, max_quarantined=3)[topic]
    assert figures.quarantined == 3
    assert "3 frames of the topic are already in quarantine" in str(figures.error)
    assert table_of(site, "wrong").ledger.committed_offset == 9
    again = drain(site, max_quarantined=8)[topic]
    assert (again.error, again.quarantined) == (None, 5)
    assert len(table_of(site, "wrong").quarantined) == 8


def test_frames_that_were_published_again_leave_room_for_others(site: Pipelines, running: Broker) -> None:
    topic = site.topic("room")
    for _ in range(3):
        poison(running, topic)
    runner = site.runner(InlineJobs(), pipeline={**QUICK, "max_quarantined": 2})
    assert "2 frames of the topic are already in quarantine" in str(runner.drain(threading.Event()).topics[topic].error)
    table = table_of(site, "room")
    mark_retried(table, table.quarantined[0], {"first_offset": 9, "end_offset": 12})
    runner.topics[topic].pause.end()
    figures = runner.drain(threading.Event()).topics[topic]
    assert (figures.error, figures.quarantined, figures.committed_offset) == (None, 1, 9)


def test_the_list_of_a_table_has_a_bound_whatever_was_published_again(
    site: Pipelines, running: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icestream.pipeline.quarantine.quarantine.MAX_QUARANTINED", 1)
    topic = site.topic("bound")
    poison(running, topic)
    drain(site)
    table = table_of(site, "bound")
    mark_retried(table, table.quarantined[0], {"first_offset": 9, "end_offset": 12})
    poison(running, topic)
    assert "list of quarantined frames is full" in str(drain(site)[topic].error)
    assert len(table_of(site, "bound").quarantined) == 1


def test_two_pipelines_put_it_aside_once(site: Pipelines, running: Broker) -> None:
    topic = site.topic("twice")
    site.publish("twice", [b"a"])
    poison(running, topic)
    site.publish("twice", [b"b"])
    stopping = threading.Event()
    runners = [site.runner(InlineJobs(), pipeline=QUICK, writer={"flush_interval_ms": 1}) for _ in range(2)]
    loops = [threading.Thread(target=runner.run, args=(stopping,)) for runner in runners]
    for loop in loops:
        loop.start()
    site.client.wait_committed(topic, 4, timeout=60)
    stopping.set()
    for loop in loops:
        loop.join()
    assert offsets(site, "twice") == [0, 4]
    assert len(table_of(site, "twice").quarantined) == 1


def test_a_pipeline_that_was_too_late_goes_on_behind_it(site: Pipelines, running: Broker) -> None:
    topic = site.topic("late")
    site.publish("late", [b"a"])
    poison(running, topic)
    site.publish("late", [b"b"])
    jobs = FirstAnother(lambda: site.drain(site.runner(InlineJobs(), pipeline=QUICK)))
    runner = site.runner(jobs, pipeline=QUICK)
    stopping = threading.Event()
    draining = threading.Thread(target=runner.drain, args=(stopping,))
    draining.start()
    draining.join(60)
    was_running = draining.is_alive()
    stopping.set()
    draining.join()
    assert jobs.was_overtaken
    assert not was_running
    assert runner.topics[topic].committed == 5
    assert offsets(site, "late") == [0, 4]
    assert len(table_of(site, "late").quarantined) == 1


class FirstAnother(InlineJobs):
    """Has somebody else do all of it while the frame that cannot be opened is tried alone."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__()
        self._act = act
        self.was_overtaken = False

    def run(self, parcels: Sequence[bytes], /) -> list[Written]:
        written = super().run(parcels)
        alone = [(one.start, one.end) for one in written if one.error is not None] == [(1, 4)]
        if alone and not self.was_overtaken:
            self.was_overtaken = True
            self._act()
        return written


def test_verify_tells_it_from_damage_and_figures_count_it(site: Pipelines, running: Broker) -> None:
    topic = site.topic("audited")
    site.publish("audited", [b"a", b"b"])
    poison(running, topic)
    site.publish("audited", [b"c", b"d"])
    drain(site)
    site.client.wait_committed(topic, 6, timeout=60)
    assert site.client.describe_topic(topic).quarantined == 1
    (stats,) = site.client.stats(topic)["topics"]
    assert stats["quarantined"] == 1
    assert site.client.stats(topic)["pipeline"]["quarantined"] == 1
    assert b'icestream_topic_quarantined{topic="aside/audited"} 1.0' in running.metrics.render()[0]

    report = verify_topic(topic, BrokerLogs(site.client).view, site.tables)
    assert report.is_sound, report.findings
    assert [(one.first_offset, one.end_offset) for one in report.quarantined] == [(2, 5)]
    assert (report.lost, report.compared, report.rows) == (0, 4, 4)
    pruned = verify_topic(topic, lambda _topic: None, site.tables)
    assert pruned.is_sound, pruned.findings
    assert (pruned.lost, len(pruned.quarantined)) == (0, 1)

    (entry,) = table_of(site, "audited").quarantined
    file = Path(entry.file.removeprefix("file://"))
    file.write_bytes(file.read_bytes()[:-8] + b"8 bytes!")
    (finding,) = verify_topic(topic, BrokerLogs(site.client).view, site.tables).findings
    assert (finding.kind, finding.first_offset, finding.last_offset) == ("damaged", 2, 4)
    file.unlink()
    (finding,) = verify_topic(topic, BrokerLogs(site.client).view, site.tables).findings
    assert "missing" in finding.text


def test_readers_of_the_table_pass_over_it(site: Pipelines, running: Broker) -> None:
    topic = site.topic("passed")
    site.publish("passed", [b"a"])
    poison(running, topic)
    site.publish("passed", [b"b"])
    drain(site)
    table = table_of(site, "passed")
    assert [row for batch in table.scan() for row in batch.column(0).to_pylist()] == [0, 4]


def test_a_dropped_table_takes_its_quarantine_along(site: Pipelines, running: Broker) -> None:
    topic = site.topic("dropped")
    poison(running, topic)
    drain(site)
    table = table_of(site, "dropped")
    file = Path(table.quarantined[0].file.removeprefix("file://"))
    assert file.exists()
    site.client.delete_topic(topic)
    assert list(file.parent.glob("*")) == []


def test_frames_travel_undecoded(site: Pipelines, running: Broker) -> None:
    topic = site.topic("raw")
    site.publish("raw", [b"a", b"b"])
    first = poison(running, topic)
    stream_id = site.client.describe_topic(topic).stream_id
    whole = [frame for frames in site.client.read_frames(topic, stream_id, 1, 5) for frame in frames]
    assert [(frame.base_offset, frame.message_count) for frame in whole] == [(0, 2), (first, 3)]
    assert bytes(whole[1].body) == b"no Arrow at all"
    heads = [frame for frames in site.client.read_frames(topic, stream_id, 0, 2, bodies=False) for frame in frames]
    assert [(frame.end_offset, frame.nbytes) for frame in heads] == [(2, 0)]
    with pytest.raises(IcestreamError, match="ends at 9"):
        list(site.client.read_frames(topic, stream_id, 0, 9))
    with pytest.raises(IcestreamError, match="made again"):
        list(site.client.read_frames(topic, "another", 0, 2))


@pytest.mark.parametrize("kept_as", ["both", "parquet"])
def test_every_table_of_a_topic_has_it_aside(tmp_path: Path, kept_as: str) -> None:
    with Broker(settings_of(tmp_path / "data", storage={"format": kept_as})) as broker:
        site = Pipelines(broker.settings.data_dir, broker.doors["flight"], "aside")
        topic = site.topic("copied")
        site.publish("copied", [b"a", b"b"])
        poison(broker, topic)
        site.publish("copied", [b"c", b"d"])
        figures = drain(site)[topic]
        assert (figures.error, figures.quarantined) == (None, 1)
        for name in StorageFormat(kept_as).fed(topic):
            table = site.tables.find(name)
            assert table is not None
            assert [row for batch in table.scan() for row in batch.column(0).to_pylist()] == [0, 1, 5, 6]
            (entry,) = table.quarantined
            assert bytes(read_frame(table, entry).body) == b"no Arrow at all"
        report = verify_topic(topic, BrokerLogs(site.client).view, site.tables)
        assert report.is_sound, report.findings
        site.close()
