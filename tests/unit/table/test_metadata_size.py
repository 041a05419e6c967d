"""What commits leave behind stays small: snapshots, manifests, metadata bytes, files."""

import re
from collections import Counter
from pathlib import Path

import pytest
from pyiceberg.manifest import ManifestContent, ManifestFile
from tests.unit.table.conftest import OpenTable, append, local

from icestream.table import TopicTable
from icestream.table.commit import MAX_MERGED_FILES, merge_group, snapshots_to_expire
from icestream.table.planning import live_files


def _metadata(state: TopicTable) -> Path:
    return local(state.iceberg.metadata_location)


def _manifests(state: TopicTable) -> list[ManifestFile]:
    snapshot = state.iceberg.metadata.current_snapshot()
    assert snapshot is not None
    return snapshot.manifests(state.iceberg.io)


def _work(state: TopicTable) -> tuple[int, int, int]:
    """What a commit has to read, copy and write again."""
    return len(state.iceberg.metadata.snapshots), len(_manifests(state)), _metadata(state).stat().st_size


def test_the_two_hundredth_commit_has_no_more_to_do_than_the_twentieth(open_table: OpenTable) -> None:
    state = open_table(max_snapshots=10, manifest_merge_count=4, metadata_versions=5)
    seen = []
    for start in range(200):
        state = append(state, start, start + 1)
        seen.append(_work(state))
    early = [max(column) for column in zip(*seen[15:25], strict=True)]
    late = [max(column) for column in zip(*seen[100:], strict=True)]
    assert late[0] <= 10
    assert late[1] <= 4 * 4
    assert late[2] <= early[2] * 1.2
    assert sum(live_files(manifest) or 0 for manifest in _manifests(state)) == 200
    assert [offset for batch in state.refresh().scan() for offset in batch["offset"].to_pylist()] == list(range(200))


def test_merged_manifests_keep_who_added_a_file_and_when(open_table: OpenTable) -> None:
    state = open_table(manifest_merge_count=3)
    added = []
    for start in range(9):
        state = append(state, start, start + 1)
        added.append((state.snapshot_id, start + 1))
    entries = [entry for manifest in _manifests(state) for entry in manifest.fetch_manifest_entry(state.iceberg.io)]
    assert sorted((entry.snapshot_id, entry.sequence_number) for entry in entries) == sorted(added)


def test_unused_files_are_removed_and_used_ones_stay(open_table: OpenTable) -> None:
    state = open_table(max_snapshots=4, manifest_merge_count=3, metadata_versions=3, unused_file_grace_seconds=0)
    for start in range(60):
        state = append(state, start, start + 1)
    state.unused_files.flush()
    files = Counter(_kind(path.name) for path in _metadata(state).parent.iterdir())
    assert files["metadata"] <= 3 + 1
    assert files["list"] <= 4
    assert files["manifest"] <= 30
    state = state.refresh()
    for snapshot in state.iceberg.metadata.snapshots:
        count = state.iceberg.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows
        assert snapshot.summary is not None
        assert str(count) == snapshot.summary["total-records"]


def _kind(name: str) -> str:
    if name.endswith(".metadata.json"):
        return "metadata"
    return "list" if re.match(r"snap-\d+-", name) else "manifest"


def test_what_a_tag_names_stays_readable(open_table: OpenTable) -> None:
    state = open_table(max_snapshots=4, manifest_merge_count=3, unused_file_grace_seconds=0)
    tagged: list[tuple[int, int]] = []
    for start in range(40):
        state = append(state, start, start + 1)
        if start % 7 == 2:
            assert state.snapshot_id is not None
            tagged.append((state.snapshot_id, start + 1))
            state.iceberg.manage_snapshots().create_tag(state.snapshot_id, f"tag-{start}").commit()
    state.unused_files.flush()
    state = state.refresh()
    for snapshot_id, count in tagged:
        assert state.iceberg.scan(snapshot_id=snapshot_id).to_arrow().num_rows == count


def test_a_tag_set_since_the_table_was_loaded_is_not_lost(open_table: OpenTable) -> None:
    state = append(open_table(max_snapshots=4), 0, 1)
    oldest = state.snapshot_id
    assert oldest is not None
    for start in range(1, 4):
        state = append(state, start, start + 1)
    state.refresh().iceberg.manage_snapshots().create_tag(oldest, "keep").commit()
    for start in range(4, 9):
        state = append(state, start, start + 1)
    assert state.refresh().iceberg.metadata.refs["keep"].snapshot_id == oldest


def test_unused_files_wait_for_their_time(open_table: OpenTable) -> None:
    state = open_table(max_snapshots=2, metadata_versions=1, unused_file_grace_seconds=600)
    for start in range(10):
        state = append(state, start, start + 1)
    state.unused_files.flush()
    assert len(list(_metadata(state).parent.glob("*.metadata.json"))) == 11
    now = state.unused_files._clock()
    state.unused_files._clock = lambda: now + 601
    state.unused_files.flush()
    assert len(list(_metadata(state).parent.glob("*.metadata.json"))) == 2


def test_a_history_that_is_far_too_long_shrinks_over_several_commits(open_table: OpenTable) -> None:
    state = open_table(max_snapshots=1000)
    for start in range(50):
        state = append(state, start, start + 1)
    shorter = open_table(max_snapshots=5)
    lengths = []
    for start in range(50, 56):
        shorter = append(shorter, start, start + 1)
        lengths.append(len(shorter.iceberg.metadata.snapshots))
    assert lengths == [31, 12, 5, 5, 5, 5]


def test_snapshots_that_others_have_staged_are_not_dropped(open_table: OpenTable) -> None:
    state = append(open_table(max_snapshots=3), 0, 1)
    branched = state.snapshot_id
    assert branched is not None
    state.iceberg.manage_snapshots().create_branch(branched, "audit").commit()
    state = state.refresh()
    for start in range(1, 10):
        state = append(state, start, start + 1)
        assert branched not in [old.snapshot_id for old in snapshots_to_expire(state.iceberg.metadata, 2)]
    assert state.refresh().iceberg.metadata.refs["audit"].snapshot_id == branched


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([1] * 3, []),
        ([1] * 4, [1] * 4),
        ([1, 1, 1, 4, 4, 4], []),
        ([1, 1, 1, 4, 4, 4, 5], [4, 4, 4, 5]),
        ([1, 1, 1, 1, 4, 4, 4, 4], [1] * 4),
        ([400] * 6, [400, 400]),
        ([MAX_MERGED_FILES] * 9, []),
    ],
)
def test_manifests_of_one_size_are_merged_when_there_are_enough(sizes: list[int], expected: list[int]) -> None:
    manifests = [_manifest(number, size) for number, size in enumerate(sizes)]
    assert [manifest.added_files_count for manifest in merge_group(manifests, 4)] == expected


def test_manifests_of_deletes_and_of_other_specs_are_left_alone() -> None:
    mixed = [_manifest(number, 1, spec=number % 2) for number in range(6)]
    deletes = [_manifest(number, 1, content=ManifestContent.DELETES) for number in range(6, 12)]
    assert merge_group([*mixed, *deletes], 4) == []


def _manifest(
    number: int, files: int, *, spec: int = 0, content: ManifestContent = ManifestContent.DATA
) -> ManifestFile:
    return ManifestFile.from_args(
        manifest_path=f"m{number}",
        manifest_length=1,
        partition_spec_id=spec,
        content=content,
        sequence_number=number,
        min_sequence_number=number,
        added_snapshot_id=number,
        added_files_count=files,
        existing_files_count=0,
        deleted_files_count=0,
    )
