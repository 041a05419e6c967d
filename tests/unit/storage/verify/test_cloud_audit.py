"""Objects in the cloud beside log and table: what is sound is called sound, and every kind of damage is found."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from tests.cloud_objects import CloudStage
from tests.reading import TOPIC

from icestream.cloud import ObjectDescriptor, UploadHead
from icestream.cloud.object import ObjectName, object_key
from icestream.metadata import keys
from icestream.model.messages import message_batch
from icestream.model.names import TopicName
from icestream.model.offsets import NO_OFFSETS, OffsetRanges
from icestream.storage.verify import LogView, Verification, verify_topic
from icestream.storage.verify.logs import DirectoryLogs

NAME = TopicName.parse(TOPIC)
BATCHES = 30
MESSAGES = 3 * BATCHES
THIRD = MESSAGES // 3


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[CloudStage]:
    """A topic in three objects, which end in the middle of segments, and a log that goes on behind them."""
    stage = CloudStage(tmp_path)
    for number in range(BATCHES):
        stage.publish([b"%d-%d" % (number, index) + b"x" * 80 for index in range(3)])
    for end in (THIRD, 2 * THIRD, MESSAGES - 6):
        assert stage.upload(end) is not None
    yield stage
    stage.close()


def verify(stage: CloudStage, *, without_log: bool = False) -> Verification:
    logs = DirectoryLogs(Path(str(stage.settings.wal.dir)))

    def view(topic: TopicName) -> LogView | None:
        return None if without_log else logs.view(topic)

    return verify_topic(NAME, view, stage.tables, find_cloud=lambda _topic, _stream_id: stage.cloud)


def objects(stage: CloudStage) -> list[ObjectDescriptor]:
    return stage.cloud.registry.objects()


def found(report: Verification) -> list[tuple[str, int | None, int | None]]:
    return [(finding.kind, finding.first_offset, finding.last_offset) for finding in report.findings]


def prune(stage: CloudStage, below: int) -> int:
    """Leave the beginning to the cloud; where the log begins then."""
    first = stage.prune_to(below)
    assert 0 < first <= below
    return first


def test_three_objects_beside_log_and_table_are_sound(stage: CloudStage) -> None:
    stage.commit(2 * THIRD)
    report = verify(stage)
    assert report.is_sound, report.findings
    assert (report.cloud_objects, report.cloud_first, report.cloud_end) == (3, 0, MESSAGES - 6)
    assert (report.compared, report.cloud_compared) == (2 * THIRD, MESSAGES - 6)
    assert (report.waiting, report.lost, report.notes) == (MESSAGES - 2 * THIRD, 0, [])
    assert report.cloud_bytes == sum(map(len, stage.store.objects.values()))


def test_where_the_log_is_pruned_the_table_is_compared_with_the_cloud(stage: CloudStage) -> None:
    stage.commit()
    first = prune(stage, 2 * THIRD)
    report = verify(stage)
    assert report.is_sound, report.findings
    assert (report.log_start, report.compared) == (first, MESSAGES)
    assert report.cloud_compared == MESSAGES - 6 - first


def test_without_a_log_the_cloud_stands_for_it(stage: CloudStage) -> None:
    stage.commit(MESSAGES - 6)
    report = verify(stage, without_log=True)
    assert report.is_sound, report.findings
    assert (report.log_start, report.compared, report.cloud_end) == (None, MESSAGES - 6, MESSAGES - 6)


def test_a_topic_that_only_the_cloud_has_is_no_finding(stage: CloudStage) -> None:
    assert verify(stage, without_log=True).is_sound


def test_every_flipped_bit_of_an_object_is_found(stage: CloudStage) -> None:
    second = objects(stage)[1]
    for position in range(0, second.size, 97):
        stage.store.flip(second.key, position, position % 8)
        report = verify(stage)
        (one,) = report.findings
        assert (one.kind, one.last_offset) == ("damaged", 2 * THIRD - 1), position
        assert THIRD <= (one.first_offset or 0) < 2 * THIRD
        assert second.key in one.place
        stage.store.flip(second.key, position, position % 8)
    assert verify(stage).is_sound


def test_a_missing_object_is_a_finding_also_where_log_and_table_have_its_messages(stage: CloudStage) -> None:
    stage.commit()
    second = objects(stage)[1]
    del stage.store.objects[second.key]
    assert found(verify(stage)) == [("cloud", THIRD, 2 * THIRD - 1)]


def test_an_object_of_another_size_is_a_finding(stage: CloudStage) -> None:
    last = objects(stage)[2]
    stage.store.objects[last.key] += b"more"
    assert ("cloud", 2 * THIRD, MESSAGES - 7) in found(verify(stage))


def test_objects_that_leave_a_gap_are_a_finding(stage: CloudStage) -> None:
    second = objects(stage)[1]
    stage.metadata.delete(keys.cloud_object(NAME, second.first_offset))
    report = verify(stage)
    assert ("gap", THIRD, 2 * THIRD - 1) in found(report)
    assert any(finding.kind == "cloud" for finding in report.findings)
    assert [note for note in report.notes if second.key in note]


def test_a_head_that_counts_other_objects_is_a_finding(stage: CloudStage) -> None:
    head = stage.cloud.registry.head()
    assert head is not None
    key = keys.cloud_head(NAME)
    for wrong in (
        replace(head, uploaded_end=head.uploaded_end + 1),
        replace(head, first_offset=1),
        replace(head, object_count=2),
        replace(head, object_bytes=1),
    ):
        stage.metadata.put(key, wrong.to_bytes())
        assert found(verify(stage)) == [("cloud", None, None)]
    stage.metadata.delete(key)
    assert found(verify(stage)) == [("cloud", None, None)]


def test_a_head_without_any_object_is_a_finding(stage: CloudStage) -> None:
    for descriptor in objects(stage):
        stage.metadata.delete(keys.cloud_object(NAME, descriptor.first_offset))
    assert ("cloud", None, None) in found(verify(stage))


def test_an_empty_head_is_sound(tmp_path: Path) -> None:
    stage = CloudStage(tmp_path)
    stage.publish([b"x"])
    stage.cloud.registry.claim(UploadHead(stage.topic.record.stream_id, 1, reserved_end=100))
    assert verify(stage).is_sound
    stage.close()


def test_an_object_that_no_record_names_is_a_note(stage: CloudStage) -> None:
    stream_id = stage.topic.record.stream_id
    for name, why in (
        (ObjectName(MESSAGES - 6, MESSAGES, 1), "an upload under way"),
        (ObjectName(0, 7, 9), "an earlier owner left"),
    ):
        key = object_key(NAME, stream_id, name)
        stage.store.put(key, b"anything")
        report = verify(stage)
        assert report.is_sound
        assert [note for note in report.notes if key in note and why in note]
    stage.store.put(f"{TOPIC}/{stream_id}/topic.json", b"{}")
    assert len(verify(stage).notes) == 2


def test_other_content_than_the_logs_is_found(stage: CloudStage, tmp_path: Path) -> None:
    """The same offsets in sound objects, of another log."""
    other = CloudStage(tmp_path / "other")
    for number in range(BATCHES):
        other.publish([b"%d-%d" % (number, index) + b"y" * 80 for index in range(3)])
    logs = DirectoryLogs(Path(str(other.settings.wal.dir)))
    report = verify_topic(NAME, logs.view, stage.tables, find_cloud=lambda _topic, _stream_id: stage.cloud)
    other.close()
    assert {finding.kind for finding in report.findings} == {"content"}
    assert report.findings[0].first_offset == 0


def test_a_cloud_that_is_ahead_of_the_log_is_found(stage: CloudStage) -> None:
    logs = DirectoryLogs(Path(str(stage.settings.wal.dir)))

    class Shorter:
        """The log as an older copy of the disk has it."""

        def __init__(self, view: LogView) -> None:
            self._view = view
            self.durable_end = THIRD

        def __getattr__(self, name: str) -> object:
            return getattr(self._view, name)

        def batches(self, _aside: OffsetRanges = NO_OFFSETS) -> Iterator[pa.RecordBatch]:
            for batch in self._view.batches():
                if batch.column(0)[0].as_py() < THIRD:
                    yield batch.slice(0, THIRD - batch.column(0)[0].as_py())

    def view(topic: TopicName) -> LogView | None:
        whole = logs.view(topic)
        assert whole is not None
        return Shorter(whole)  # type: ignore[return-value]

    report = verify_topic(NAME, view, stage.tables, find_cloud=lambda _topic, _stream_id: stage.cloud)
    assert found(report) == [("cloud", THIRD, MESSAGES - 7)]


def test_a_log_topic_needs_no_table_and_may_begin_anywhere(tmp_path: Path) -> None:
    stage = CloudStage(tmp_path, log_topic=True)
    for _ in range(BATCHES):
        stage.storage.publish(stage.topic, message_batch([b"x" * 200] * 3))
    stage.upload(THIRD)
    stage.upload(2 * THIRD)
    assert stage.topic.log.stream.storage == "log"
    prune(stage, THIRD)
    report = verify(stage)
    assert report.is_sound, report.findings
    assert (report.waiting, report.lost, report.committed_offset) == (0, 0, None)
    first = objects(stage)[0]
    head = stage.cloud.registry.head()
    assert head is not None
    left = replace(head, first_offset=THIRD, object_count=1, object_bytes=head.object_bytes - first.size)
    stage.cloud.registry.remove([first], left)
    stage.store.delete(first.key)
    assert verify(stage).is_sound
    stage.close()
