"""What others do to a table that a pipeline has in its memory: commits go on, and nothing is doubled."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.table import Table
from pyiceberg.types import StringType
from tests.fault.pipeline.harness import InlineJobs, Site, once

TABLE = {"manifest_merge_count": 3}


def expire(table: Table) -> None:
    """All snapshots but the newest, as engines do it."""
    old = [snapshot.snapshot_id for snapshot in table.snapshots()][:-1]
    if old:
        table.maintenance.expire_snapshots().by_ids(old).commit()


def rewrite_everything(table: Table) -> None:
    """As a compaction of all files to one, whose snapshot knows nothing of the ledger."""
    table.overwrite(table.scan().to_arrow().sort_by("offset"))


def rewrite_the_newest(table: Table) -> None:
    table.overwrite(table.scan("offset >= 10").to_arrow().sort_by("offset"), "offset >= 10")


def files_of(table: Table) -> set[str]:
    """What the newest snapshot names."""
    snapshot = table.refresh().current_snapshot()
    assert snapshot is not None
    manifests = snapshot.manifests(table.io)
    data = {entry.data_file.file_path for one in manifests for entry in one.fetch_manifest_entry(table.io)}
    return {snapshot.manifest_list, table.metadata_location, *(one.manifest_path for one in manifests)} | data


def expire_and_remove_files(table: Table) -> None:
    """Everything that the table has named and does not name any more is gone, at once."""
    before = files_of(table)
    rewrite_everything(table)
    expire(table.refresh())
    kept = files_of(table)
    folder = Path(table.location().removeprefix("file://"))
    before |= {f"file://{path}" for path in (folder / "metadata").iterdir()}
    for path in before - kept:
        Path(path.removeprefix("file://")).unlink()


def change_a_property(table: Table) -> None:
    with table.transaction() as transaction:
        transaction.set_properties({"owner": "somebody else"})


def remove_our_properties(table: Table) -> None:
    with table.transaction() as transaction:
        transaction.remove_properties("write.target-file-size-bytes", "write.parquet.compression-codec")


def retry_by_themselves(table: Table) -> None:
    with table.transaction() as transaction:
        transaction.set_properties({"commit.retry.num-retries": "10", "commit.manifest-merge.enabled": "true"})


def add_a_column(table: Table) -> None:
    with table.update_schema() as update:
        update.add_column("note", StringType())


def tag(table: Table) -> None:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    table.manage_snapshots().create_tag(snapshot.snapshot_id, f"tag-{snapshot.snapshot_id}").commit()


ACTIONS = [
    expire,
    rewrite_everything,
    rewrite_the_newest,
    expire_and_remove_files,
    change_a_property,
    remove_our_properties,
    retry_by_themselves,
    add_a_column,
    tag,
]


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: str(action.__name__))
@pytest.mark.parametrize("between", ["passes", "write and commit"])
def test_commits_go_on_whatever_others_do_to_the_table_meanwhile(
    site: Site, action: Callable[[Table], None], between: str
) -> None:
    def act() -> None:
        found = site.tables.find(site.topic("events"))
        assert found is not None
        action(found.iceberg)

    jobs = InlineJobs()
    runner = site.runner(jobs, table=TABLE)
    for _ in range(4):
        site.publish("events")
        site.drain(runner)
    if between == "passes":
        act()
    else:
        jobs.after = once(act)
    for _ in range(3):
        site.publish("events")
        site.drain(runner)
    site.check("events")


def test_a_compaction_between_each_write_and_its_commit_does_not_stop_commits(site: Site) -> None:
    def compact() -> None:
        found = site.tables.find(site.topic("events"))
        assert found is not None
        if found.snapshot_id is not None:
            rewrite_everything(found.iceberg)

    jobs = InlineJobs(after=compact)
    runner = site.runner(jobs, table=TABLE)
    conflicts = 0
    for _ in range(10):
        site.publish("events", 3)
        conflicts += site.drain(runner).topics[site.topic("events")].conflicts
    assert conflicts == 9
    assert jobs.jobs == 10, "what was written is committed on the compacted table"
    site.check("events")
