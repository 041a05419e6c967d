"""Plans find the files of a range, in order, and hold few words about few of them."""

import random
import tracemalloc
from collections import Counter
from dataclasses import replace

import pytest
from pyiceberg.io.pyarrow import PyArrowFile
from pyiceberg.manifest import ManifestFile
from tests.unit.table.conftest import OpenTable, append, compact, local, many_files

from icestream.model.names import TopicName
from icestream.table import ReadLimits, TopicTable
from icestream.table.files import DurableFileIO
from icestream.table.planning import WINDOW_FILES, FilePlan, ManifestIndex


def firsts(table: TopicTable, start: int = 0, end: int = 1 << 40, window_files: int = WINDOW_FILES) -> list[int]:
    return [file.first_offset for file in FilePlan(table, start, end, window_files=window_files).files()]


def remove(manifests: tuple[ManifestFile, ...]) -> None:
    for manifest in manifests:
        local(manifest.manifest_path).unlink()


def test_only_files_of_the_range_are_planned_and_in_order(open_table: OpenTable) -> None:
    table = many_files(open_table(manifest_merge_count=2), 100, commits=7)
    assert firsts(table) == list(range(0, 1_000, 10))
    assert firsts(table, 555, 571) == [550, 560, 570]
    assert firsts(table, 1_000) == []
    assert firsts(table, 7, 3) == []
    assert firsts(open_table(stream_id="stream-1"), 990) == [990]


def test_a_plan_holds_a_window_of_files_whatever_their_number(open_table: OpenTable) -> None:
    table = many_files(open_table(), 300, commits=5)
    windows = list(FilePlan(table, window_files=64).windows())
    assert [len(window) for window in windows] == [64, 64, 64, 64, 44]
    assert [file.first_offset for window in windows for file in window] == list(range(0, 3_000, 10))


def test_manifests_are_read_once(open_table: OpenTable) -> None:
    table = many_files(open_table(), 100, commits=5)
    assert len(firsts(table)) == 100
    remove(table.manifests)
    assert len(firsts(table)) == 100
    assert firsts(table, 990) == [990]


def test_manifests_that_are_too_large_to_keep_are_skipped_by_their_extent(open_table: OpenTable) -> None:
    table = replace(many_files(open_table(), 100, commits=5), manifest_index=ManifestIndex(max_kept_files=25))
    assert firsts(table, window_files=7) == list(range(0, 1_000, 10))
    assert table.manifest_index.kept_files <= 25
    table.manifest_index._kept.clear()
    by_place = sorted(table.manifests, key=lambda manifest: manifest.sequence_number)
    remove(tuple(by_place[:-1]))
    assert firsts(table, 900) == list(range(900, 1_000, 10))


def test_a_plan_after_a_commit_reads_the_new_manifest_alone(open_table: OpenTable) -> None:
    table = many_files(open_table(manifest_merge_count=100), 50, commits=5)
    firsts(table)
    old = table.manifests
    table = append(table, 500, 510)
    remove(old)
    assert firsts(table, 500) == [500]


def test_what_is_kept_is_bounded_over_many_tables(open_table: OpenTable) -> None:
    index = ManifestIndex(max_kept_files=120)
    for stream in range(4):
        name = f"stream-{stream}"
        table = many_files(open_table(stream_id=name, topic=TopicName("default", f"events-{stream}")), 50, commits=2)
        assert len(firsts(replace(table, manifest_index=index))) == 50
        assert index.kept_files <= 120


def test_compacted_files_are_planned_instead_of_the_old_ones(open_table: OpenTable) -> None:
    table = append(append(open_table(), 0, 10), 10, 20)
    before = firsts(table)
    made = compact(table)
    assert (before, firsts(made)) == ([0, 10], [0])
    assert not made.holds(next(FilePlan(table).files()))
    assert made.holds(next(FilePlan(made).files()))


def test_ten_thousand_files_are_planned_in_bounded_memory_and_few_are_opened_for_the_first_batch(
    open_table: OpenTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = many_files(open_table(), 10_000, commits=10)
    table = replace(table.refresh(), manifest_index=ManifestIndex(max_kept_files=0))
    tracemalloc.start()
    plan = FilePlan(table)
    files = sum(len(window) for window in plan.windows())
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert files == 10_000
    assert peak_bytes < 16 * 1024 * 1024
    table = replace(table.refresh(), manifest_index=ManifestIndex())
    opened: Counter[str] = Counter()
    new_input = DurableFileIO.new_input

    def counting(io: DurableFileIO, location: str) -> PyArrowFile:
        opened[location] += 1
        return new_input(io, location)

    monkeypatch.setattr(DurableFileIO, "new_input", counting)
    batches = table.scan()
    assert next(batches)["offset"][0].as_py() == 0
    batches.close()
    manifests = {manifest.manifest_path for manifest in table.manifests}
    assert all(opened[path] == 1 for path in manifests), "each manifest is read once"
    data_files = [path for path in opened if path.endswith(".parquet")]
    assert 1 <= len(data_files) <= ReadLimits().max_concurrent_reads


def test_files_in_any_order_of_commits_are_planned_in_offset_order(open_table: OpenTable) -> None:
    table = many_files(open_table(manifest_merge_count=1_000), 64, commits=16)
    shuffled = list(table.manifests)
    random.Random(5).shuffle(shuffled)
    table = replace(table, known_manifests=tuple(shuffled))
    assert firsts(table, window_files=5) == list(range(0, 640, 10))
