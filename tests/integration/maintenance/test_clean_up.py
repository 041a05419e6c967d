"""Expiry, orphan files, manifests, and runs that only look."""

import os
import time
from pathlib import Path

from tests.integration.maintenance.conftest import Keep
from tests.topics import Topics

from icestream.model.messages import Frame
from icestream.pipeline.maintenance.report import MaintenanceStep
from icestream.table import TopicTable
from icestream.table.contents import read_contents
from icestream.table.quarantine import FOLDER, quarantine_frame, read_frame

DAY_SECONDS = 86_400


def folder(table: TopicTable) -> Path:
    return Path(table.location.removeprefix("file://"))


def files_of(table: TopicTable) -> set[Path]:
    return {path for path in folder(table).rglob("*") if path.is_file()}


def test_a_dry_run_says_what_would_be_done_and_changes_nothing(topics: Topics, maintenance: Keep) -> None:
    topic = topics.create("clean/dry")
    table = topics.fill(topic, 6)
    orphan = folder(table) / "data" / "left-behind.parquet"
    orphan.write_bytes(b"nobody names this")
    os.utime(orphan, (time.time() - 5 * DAY_SECONDS,) * 2)
    before = files_of(table)
    keeper = maintenance(hours_ahead=48, min_snapshots=1, min_manifests=2)
    (report,) = keeper.run([topic], dry_run=True)
    assert report.errors == []
    planned = {step.step: step.planned for step in report.steps}
    assert planned[MaintenanceStep.COMPACT]["files"] == 6
    assert planned[MaintenanceStep.EXPIRE] == {"snapshots": 5}
    assert planned[MaintenanceStep.MANIFESTS] == {"manifests": 6}
    assert planned[MaintenanceStep.ORPHANS] == {"files": 1}
    assert report.steps[-1].named[0].endswith("left-behind.parquet")
    assert report.after is None
    assert files_of(table) == before
    assert topics.table(topic).iceberg.metadata_location == table.iceberg.metadata_location


def test_expiry_keeps_what_tags_and_branches_name(topics: Topics, maintenance: Keep) -> None:
    topic = topics.create("clean/expire")
    topics.fill(topic, 2)
    tagged = topics.table(topic)
    assert tagged.snapshot_id is not None
    tagged.iceberg.manage_snapshots().create_tag(tagged.snapshot_id, "release").commit()
    topics.fill(topic, 4)
    keeper = maintenance(hours_ahead=48, min_snapshots=2)
    (report,) = keeper.run([topic], [MaintenanceStep.COMPACT, MaintenanceStep.EXPIRE])
    assert report.errors == []
    table = topics.table(topic)
    kept = {snapshot.snapshot_id for snapshot in table.iceberg.metadata.snapshots}
    assert tagged.snapshot_id in kept
    assert len(kept) == 3  # the two newest, and the tagged one
    assert table.iceberg.scan(snapshot_id=tagged.snapshot_id).to_arrow().num_rows == 20
    assert topics.verify(topic).is_sound


def test_nothing_is_expired_before_its_time(topics: Topics, maintenance: Keep) -> None:
    topic = topics.create("clean/young")
    topics.fill(topic, 4)
    (report,) = maintenance(hours_ahead=23, min_snapshots=1).run([topic], [MaintenanceStep.EXPIRE])
    assert report.steps[0].done == {}
    assert len(topics.table(topic).iceberg.metadata.snapshots) == 4


def test_old_orphans_go_and_young_ones_stay(topics: Topics, maintenance: Keep) -> None:
    """Both are files of attempts that were never committed: written, described, named by nothing."""
    topic = topics.create("clean/orphans")
    table = topics.fill(topic, 2)
    abandoned = table.writer().write(table.scan(), max_memory_bytes=1 << 24)[0].data_file.file_path
    under_way = table.writer().write(table.scan(), max_memory_bytes=1 << 24)[0].data_file.file_path
    old, young = (Path(path.removeprefix("file://")) for path in (abandoned, under_way))
    os.utime(old, (time.time() - 4 * DAY_SECONDS,) * 2)
    live = files_of(table) - {old, young}
    for path in live:
        os.utime(path, (time.time() - 4 * DAY_SECONDS,) * 2)
    (report,) = maintenance().run([topic], [MaintenanceStep.ORPHANS])
    assert report.errors == []
    assert report.steps[0].done == {"files": 1}
    assert files_of(table) == live | {young}
    assert topics.verify(topic).is_sound


def test_manifests_become_few(topics: Topics, maintenance: Keep) -> None:
    topic = topics.create("clean/manifests")
    before = topics.fill(topic, 5)
    (report,) = maintenance(min_manifests=3).run([topic], [MaintenanceStep.MANIFESTS])
    assert report.errors == []
    table = topics.table(topic)
    assert read_contents(table).manifests == 1
    assert table.ledger == before.ledger
    topics.fill(topic, 1)  # commits go on from there
    assert topics.verify(topic).is_sound


def test_all_tables_of_the_catalog_are_found_and_kept(topics: Topics, maintenance: Keep) -> None:
    topic = topics.create("name.with.dots/events")
    topics.fill(topic, 5)
    keeper = maintenance(hours_ahead=25, min_snapshots=1, min_manifests=2)
    assert topic in keeper.topics()
    (report,) = keeper.run([topic])
    assert report.errors == []
    assert report.after is not None
    assert (report.after.files, report.after.snapshots, report.after.manifests) == (1, 1, 1)
    verified = topics.verify(topic)
    assert verified.is_sound, verified.findings


def test_what_is_in_quarantine_is_no_orphan(topics: Topics, maintenance: Keep) -> None:
    topic = topics.create("clean/aside")
    table = topics.fill(topic, 2)
    end = table.ledger.committed_offset
    frame = Frame(end, 3, 0, table.ledger.epoch, "", 0, 1, 0, b"cannot be opened")
    entry = quarantine_frame(table, frame, first_offset=end, reason="a test", schema=None)
    table = table.commit([], start=end, end=end + 3, epoch=table.ledger.epoch, quarantined=[entry])
    kept = [path for path in files_of(table) if path.parent.name == FOLDER]
    assert len(kept) == 2
    for path in kept:
        os.utime(path, (time.time() - 40 * DAY_SECONDS,) * 2)
    (report,) = maintenance().run([topic], [MaintenanceStep.ORPHANS])
    assert report.errors == []
    assert all(path.exists() for path in kept)
    assert read_frame(topics.table(topic), entry).body == b"cannot be opened"
