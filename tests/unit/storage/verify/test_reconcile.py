"""Log and table side by side: gaps, duplicates, content; pruned logs, and messages that a repair has given up."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from icestream.model.messages import STREAM_SCHEMA
from icestream.model.names import TopicName
from icestream.model.offsets import NO_OFFSETS, OffsetRanges
from icestream.storage.verify import Finding, Verification
from icestream.storage.verify.reconcile import Reconciliation

TOPIC = TopicName("default", "events")


def rows(offsets: Sequence[int], payload: bytes = b"payload") -> pa.RecordBatch:
    numbers = pa.array(offsets, pa.int64())
    return pa.RecordBatch.from_arrays(
        [
            numbers,
            numbers.cast(STREAM_SCHEMA.field("publish_time").type),
            pa.repeat("producer", len(offsets)),
            numbers,
            *(pa.nulls(len(offsets), STREAM_SCHEMA.field(name).type) for name in ("key", "attributes")),
            pa.array([payload] * len(offsets), pa.binary()),
        ],
        schema=STREAM_SCHEMA,
    )


@dataclass
class Log:
    """A log in memory."""

    start_offset: int
    durable_end: int
    parts: list[pa.RecordBatch]
    topic: TopicName = TOPIC
    stream_id: str = "stream-1"
    storage: str = "table"
    known_committed: int = 0
    problems: list[str] = field(default_factory=list)

    def batches(self, _aside: OffsetRanges = NO_OFFSETS) -> Iterator[pa.RecordBatch]:
        yield from self.parts


def reconcile(
    table: list[pa.RecordBatch], log: Log | None, committed: int, lost: Sequence[tuple[int, int]] = ()
) -> Verification:
    report = Verification(TOPIC)
    work = Reconciliation(log, committed, STREAM_SCHEMA, report, lambda _offset: None, lost=OffsetRanges.of(lost))
    work.run(iter(table))
    return report


def ranges(report: Verification, kind: str) -> list[tuple[int | None, int | None]]:
    return [(found.first_offset, found.last_offset) for found in report.findings if found.kind == kind]


def test_equal_streams_with_other_batches_are_sound() -> None:
    table = [rows(range(7)), rows(range(7, 20))]
    log = Log(0, 25, [rows(range(3)), rows(range(3, 11)), rows(range(11, 25))])
    report = reconcile(table, log, 20)
    assert report.is_sound, report.findings
    assert (report.rows, report.compared, report.waiting, report.lost) == (20, 20, 5, 0)


@pytest.mark.parametrize("cut", [1, 4, 10])
def test_a_gap_is_one_finding_however_it_is_cut(cut: int) -> None:
    table = [rows([offset for offset in range(20) if not 5 <= offset < 15])]
    log = Log(0, 20, [rows(range(start, min(start + cut, 20))) for start in range(0, 20, cut)])
    report = reconcile(table, log, 20)
    assert ranges(report, "gap") == [(5, 14)]
    assert len(report.findings) == 1


def test_a_table_that_ends_too_early_has_a_gap() -> None:
    report = reconcile([rows(range(10))], Log(0, 20, [rows(range(20))]), 15)
    assert ranges(report, "gap") == [(10, 14)]
    assert report.waiting == 5


def test_an_empty_table_with_a_ledger_has_a_gap() -> None:
    assert ranges(reconcile([], Log(0, 20, [rows(range(20))]), 20), "gap") == [(0, 19)]
    assert ranges(reconcile([], None, 20), "gap") == [(0, 19)]


def test_duplicates_are_found_and_still_compared() -> None:
    report = reconcile([rows([0, 1, 1, 2, 3, 3, 4])], Log(0, 5, [rows(range(5))]), 5)
    assert ranges(report, "duplicate") == [(1, 1), (3, 3)]
    assert report.compared == 7


def test_what_a_repair_gave_up_is_no_gap() -> None:
    log = Log(0, 20, [rows(range(5)), rows(range(9, 18))])  # 5 to 8 are lost, and the two last
    report = reconcile([rows([*range(5), *range(9, 18)])], log, 20)
    assert report.is_sound, report.findings
    assert report.lost == 6


def test_what_the_table_calls_lost_is_no_gap_once_the_log_is_pruned() -> None:
    lost = [(0, 2), (5, 9), (18, 20)]
    kept = [2, 3, 4, *range(9, 18)]
    logs = [
        Log(25, 30, [rows(range(25, 30))]),
        Log(20, 30, [rows(range(20, 30))]),
        Log(6, 30, [rows(range(9, 18)), rows(range(20, 30))]),
    ]
    for log in logs:
        report = reconcile([rows([*kept, *range(20, 30)])], log, 30, lost)
        assert report.is_sound, report.findings
        assert report.lost == 8
    alone = reconcile([rows(kept)], None, 20, lost)
    assert alone.is_sound, alone.findings
    assert alone.lost == 8


def test_what_is_missing_beside_that_still_is_a_gap() -> None:
    report = reconcile([rows([2, 3, 10, 11])], None, 14, [(0, 2), (5, 9), (11, 13)])
    assert ranges(report, "gap") == [(4, 4), (9, 9), (13, 13)]
    held = reconcile([rows(range(5))], Log(0, 8, [rows(range(8))]), 8, [(5, 8)])
    assert ranges(held, "gap") == [(5, 7)]  # the log still has them


def test_a_table_may_still_have_what_the_log_has_lost() -> None:
    log = Log(0, 20, [rows(range(5)), rows(range(9, 20))])
    report = reconcile([rows(range(20))], log, 20)
    assert report.is_sound, report.findings
    assert (report.compared, report.lost) == (16, 4)


def test_below_a_pruned_log_the_table_is_checked_alone() -> None:
    log = Log(12, 20, [rows(range(12, 20))])
    assert reconcile([rows(range(8)), rows(range(8, 20))], log, 20).is_sound
    broken = reconcile([rows([0, 1, 2, 2, 5, 6, 7, 8, *range(12, 20)])], log, 20)
    assert ranges(broken, "gap") == [(3, 4), (9, 11)]
    assert ranges(broken, "duplicate") == [(2, 2)]


def test_a_table_that_ends_before_the_log_begins_has_a_gap() -> None:
    assert ranges(reconcile([rows(range(5))], Log(12, 20, [rows(range(12, 20))]), 12), "gap") == [(5, 11)]


def test_without_a_log_the_offsets_must_count_up_to_the_ledger() -> None:
    assert reconcile([rows(range(5)), rows(range(5, 9))], None, 9).is_sound
    assert ranges(reconcile([rows(range(1, 5))], None, 9), "gap") == [(0, 0), (5, 8)]


def test_rows_above_the_ledger_are_found() -> None:
    report = reconcile([rows(range(12))], Log(0, 12, [rows(range(12))]), 10)
    assert ranges(report, "ledger") == [(10, 11)]


def test_other_content_names_column_and_offset() -> None:
    table = [rows(range(100)), rows(range(100, 101), b"other"), rows(range(101, 200))]
    report = reconcile(table, Log(0, 200, [rows(range(200))]), 200)
    assert ranges(report, "content") == [(100, 100)]
    assert "'payload'" in report.findings[0].text


def test_findings_are_bounded() -> None:
    table = [rows([offset]) for offset in range(0, 2_000, 2)]
    report = reconcile(table, Log(0, 2_000, [rows(range(2_000))]), 2_000)
    assert len(report.findings) == 100
    assert report.further_findings > 500
    assert isinstance(report.findings[0], Finding)


def test_a_finding_that_goes_on_keeps_its_place() -> None:
    report = Verification(TOPIC)
    for first in (3, 4):
        report.add(Finding("damaged", "cannot be read", first, first, place="file.parquet"))
    assert report.findings == [Finding("damaged", "cannot be read", 3, 4, place="file.parquet")]
