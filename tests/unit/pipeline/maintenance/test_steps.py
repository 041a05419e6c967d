"""Steps that lose against other commits, and steps that have nothing to do; Spark is not needed for either."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from icestream.config import MaintenanceSettings, Settings
from icestream.model.errors import CommitConflictError
from icestream.model.messages import STREAM_SCHEMA
from icestream.model.names import TopicName
from icestream.pipeline.maintenance.plan import Rewrite
from icestream.pipeline.maintenance.report import MaintenanceStep
from icestream.pipeline.maintenance.run import Maintenance
from icestream.pipeline.maintenance.session import MaintenanceFailedError, SparkSql, options, text
from icestream.table import Tables, TableSpec

TOPIC = TopicName("default", "events")


class ScriptedSql(SparkSql):
    """Answers each call with the next of its answers, and remembers what it was asked."""

    def __init__(self, settings: Settings, answers: list[Any]) -> None:
        super().__init__(settings)
        self._answers = answers
        self.asked: list[str] = []

    def rows(self, statement: str, *, place: str = "") -> list[dict[str, Any]]:
        del place
        self.asked.append(statement)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return [answer]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path, maintenance=MaintenanceSettings(min_input_files=2, conflict_tries=3))


@pytest.fixture
def tables(settings: Settings) -> Iterator[Tables]:
    made = Tables(settings)
    table = made.open(TableSpec(TOPIC, "stream-1", 1, STREAM_SCHEMA))
    for start in (0, 10):
        rows = pa.RecordBatch.from_arrays(
            [pa.nulls(10, field.type) if field.nullable else _filled(field, start) for field in STREAM_SCHEMA],
            schema=STREAM_SCHEMA,
        )
        table = table.commit(
            table.writer().write([rows], max_memory_bytes=1 << 24), start=start, end=start + 10, epoch=1
        )
    yield made
    made.close()


def _filled(field: pa.Field, start: int) -> pa.Array:
    numbers = pa.arange(start, start + 10)
    return numbers.cast(pa.string()).cast(field.type) if pa.types.is_binary(field.type) else numbers.cast(field.type)


def conflict() -> CommitConflictError:
    return CommitConflictError("somebody was faster")


def keeper(settings: Settings, tables: Tables, answers: list[Any], pauses: list[float]) -> tuple[Maintenance, Any]:
    sql = ScriptedSql(settings, answers)
    return Maintenance(settings, tables, sql, now=lambda: datetime.now(UTC), sleep=pauses.append), sql


def test_a_conflict_is_tried_again_after_pauses_that_grow(settings: Settings, tables: Tables) -> None:
    pauses: list[float] = []
    done = {"rewritten_data_files_count": 2, "added_data_files_count": 1}
    made, sql = keeper(settings, tables, [conflict(), conflict(), done], pauses)
    (report,) = made.run([TOPIC], [MaintenanceStep.COMPACT])
    assert report.errors == []
    assert report.steps[0].conflicts == 2
    assert report.steps[0].done == done
    assert len(sql.asked) == 3
    assert 0 < pauses[0] < pauses[1]


def test_conflicts_that_do_not_end_are_given_up_until_the_next_run(settings: Settings, tables: Tables) -> None:
    pauses: list[float] = []
    made, sql = keeper(settings, tables, [conflict() for _ in range(9)], pauses)
    (report,) = made.run([TOPIC], [MaintenanceStep.COMPACT])
    assert len(sql.asked) == 3
    assert report.steps[0].error is not None
    assert "faster" in report.steps[0].error


def test_a_failed_step_does_not_keep_the_next_one_from_its_work(settings: Settings, tables: Tables) -> None:
    answers = [*(conflict() for _ in range(3)), {"orphan_file_location": "file:///x"}]
    made, _ = keeper(settings, tables, answers, [])
    (report,) = made.run([TOPIC], [MaintenanceStep.COMPACT, MaintenanceStep.ORPHANS])
    assert report.steps[0].error is not None
    assert report.steps[1].done == {"files": 1}


def test_what_was_compacted_before_a_failure_is_told(
    settings: Settings, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = [Rewrite(0, 9, 2, 1000), Rewrite(10, 19, 2, 1000)]
    monkeypatch.setattr("icestream.pipeline.maintenance.run.plan_rewrites", lambda _contents, _limits: two)
    done = {"rewritten_data_files_count": 2}
    made, _ = keeper(settings, tables, [done, MaintenanceFailedError("no room on the disk")], [])
    (report,) = made.run([TOPIC], [MaintenanceStep.COMPACT])
    assert report.steps[0].done == done
    assert "no room" in str(report.steps[0].error)


def test_a_table_that_cannot_be_read_is_not_passed_over(settings: Settings, tables: Tables) -> None:
    tables.catalog.create_table(("default", "foreign"), pa.schema([("n", pa.int64())]))
    made, _ = keeper(settings, tables, [], [])
    assert made.topics() == [TOPIC]
    table = tables.find(TOPIC)
    assert table is not None
    Path(table.iceberg.metadata_location.removeprefix("file://")).unlink()
    assert made.topics() == [TOPIC]
    (report,) = made.run(made.topics(), [MaintenanceStep.EXPIRE])
    assert report.error is not None


def test_steps_with_nothing_to_do_do_not_start_spark(settings: Settings, tables: Tables) -> None:
    made, sql = keeper(settings, tables, [], [])
    (report,) = made.run([TOPIC], [MaintenanceStep.MANIFESTS, MaintenanceStep.EXPIRE])
    assert report.errors == []
    assert sql.asked == []


def test_texts_are_quoted() -> None:
    assert text("it's a \\") == "'it\\'s a \\\\'"
    assert options({"a": 1, "b": "x"}) == "map('a', '1', 'b', 'x')"
