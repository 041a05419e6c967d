"""Which files a compaction takes together."""

from collections.abc import Sequence

import pytest

from icestream.config import MaintenanceSettings
from icestream.pipeline.maintenance.plan import CompactionLimits, Rewrite, plan_rewrites, small_files
from icestream.table.contents import StoredFile, TableContents

TARGET = 1_000
LIMITS = CompactionLimits(target_bytes=TARGET, min_input_files=3, max_rewrite_bytes=10_000)


def contents(
    sizes: Sequence[int], *, partitions: Sequence[int] | None = None, sort_by: tuple[str, ...] = ()
) -> TableContents:
    """Files of ten messages each, of these sizes, one after the other."""
    files = [
        StoredFile(
            f"file-{number}", (0, partitions[number] if partitions else None), size, 10, number * 10, number * 10 + 9
        )
        for number, size in enumerate(sizes)
    ]
    return TableContents(tuple(files), 0, (), 1, TARGET, partitions is not None, sort_by, "offset")


def test_neighbouring_small_files_are_taken_together() -> None:
    assert plan_rewrites(contents([10, 20, 30]), LIMITS) == [Rewrite(0, 29, files=3, nbytes=60)]


def test_few_small_files_are_left_alone_until_they_fill_a_file() -> None:
    assert plan_rewrites(contents([10, 20]), LIMITS) == []
    assert plan_rewrites(contents([600, 600]), LIMITS) == [Rewrite(0, 19, files=2, nbytes=1_200)]


def test_a_large_file_ends_a_run() -> None:
    sizes = [10, 10, 10, 900, 10, 10, 10]
    assert plan_rewrites(contents(sizes), LIMITS) == [
        Rewrite(0, 29, files=3, nbytes=30),
        Rewrite(40, 69, files=3, nbytes=30),
    ]


def test_one_commit_replaces_a_bounded_number_of_bytes() -> None:
    limits = CompactionLimits(TARGET, 2, max_rewrite_bytes=1_500)
    found = plan_rewrites(contents([700] * 5), limits)
    assert [(rewrite.files, rewrite.nbytes) for rewrite in found] == [(2, 1_400), (2, 1_400)]


def test_a_single_file_is_never_rewritten() -> None:
    assert plan_rewrites(contents([10]), CompactionLimits(TARGET, 2, 10_000)) == []


def test_each_partition_has_its_own_runs() -> None:
    spread = contents([10] * 6, partitions=[1, 2, 1, 2, 1, 2])
    assert plan_rewrites(spread, LIMITS) == [Rewrite(0, 59, files=6, nbytes=60)]
    lonely = contents([10] * 6, partitions=[1, 2, 3, 4, 5, 6])
    assert plan_rewrites(lonely, LIMITS) == []


def test_files_without_offsets_are_left_alone() -> None:
    file = StoredFile("strange", (0,), 10, 10, -1, -1)
    assert plan_rewrites(TableContents((file,) * 5, 0, (), 1, TARGET, False, (), "offset"), LIMITS) == []


def test_a_table_that_is_sorted_otherwise_is_compacted_file_by_file() -> None:
    """Two files that are sorted by another column would overlap in their offsets."""
    limits = CompactionLimits.of(contents([10], sort_by=("key",)), MaintenanceSettings(max_rewrite_bytes=1 << 30))
    assert limits.max_rewrite_bytes < TARGET
    found = plan_rewrites(contents([300] * 7, sort_by=("key",)), limits)
    assert all(rewrite.nbytes <= TARGET for rewrite in found)


@pytest.mark.parametrize(("given", "target"), [(None, TARGET), (1 << 20, 1 << 20)])
def test_the_target_is_the_settings_or_the_tables(given: int | None, target: int) -> None:
    limits = CompactionLimits.of(contents([10]), MaintenanceSettings(target_file_bytes=given))
    assert limits.target_bytes == target


def test_small_is_less_than_three_quarters_of_the_target() -> None:
    assert [file.nbytes for file in small_files(contents([749, 750, 751]), LIMITS)] == [749]
