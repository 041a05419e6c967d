"""What `icestream trace` and `icestream logs` ask for reaches the table: as conditions, and with few columns."""

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.integration.query.test_tiers import engine_of
from tests.otlp_requests import START, serialized
from tests.reading import Stage

from icestream.cli.telemetry.logs import LogQuery
from icestream.cli.telemetry.trace import spans_query
from icestream.model.filters import And, Compare, Field, Instant, Predicate
from icestream.model.names import TopicName
from icestream.table import TopicTable
from icestream.telemetry import Signal, to_batch, topic_schema

TOPIC = TopicName("default", "events")
Scan = tuple[Predicate | None, list[str]]


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[Scan]:
    """Each scan of a table: its condition and its columns."""
    seen: list[Scan] = []
    scan = TopicTable.scan

    def noting(table: TopicTable, start: int, end: int, columns: Any = None, **options: Any) -> Any:
        where = options.get("where")
        seen.append((None if where is None else where.predicate, list(columns)))
        return scan(table, start, end, columns, **options)

    monkeypatch.setattr(TopicTable, "scan", noting)
    return seen


@pytest.fixture
def stages(tmp_path: Path) -> Iterator[dict[Signal, Stage]]:
    """A topic of each signal; half of its rows are in the table."""
    made = {}
    for signal in (Signal.TRACES, Signal.LOGS):
        stage = made[signal] = Stage(tmp_path / signal, schema=topic_schema(signal))
        for name in ("in the table", "in the log"):
            stage.storage.publish(stage.topic, to_batch(signal, serialized(signal, 5, name=name)))
            if name == "in the table":
                stage.commit()
    yield made
    for stage in made.values():
        stage.close()


def rows(stage: Stage, sql: str) -> pa.Table:
    with engine_of(stage.storage).run(sql) as query:
        return pa.Table.from_batches(query.batches(), query.schema)


def test_a_trace_is_looked_up_by_its_bytes(stages: dict[Signal, Stage], scans: list[Scan]) -> None:
    trace_id = (3).to_bytes(16)
    found = rows(stages[Signal.TRACES], spans_query(TOPIC, trace_id, details=False, limit=10))
    assert found["name"].to_pylist() == ["in the table 3", "in the log 3"]
    ((predicate, columns),) = scans
    assert predicate == And((Compare(Field("trace_id"), "=", trace_id),))
    assert not {"attributes", "events", "resource"} & set(columns)


def test_log_records_are_looked_up_by_service_time_and_trace(stages: dict[Signal, Stage], scans: list[Scan]) -> None:
    trace_id = bytes(range(16))
    wanted = LogQuery(service="it's", trace_id=trace_id, pattern="x", since_us=5)
    assert rows(stages[Signal.LOGS], wanted.history(TOPIC, end=10, limit=10)).num_rows == 0
    assert rows(stages[Signal.LOGS], "SELECT 1 FROM events WHERE severity_number >= 13").num_rows == 0
    (predicate, columns), (severity, _) = scans
    assert isinstance(predicate, And)
    assert set(predicate.parts) == {
        Compare(Field("service_name"), "=", "it's"),
        Compare(Field("time"), ">=", Instant(5)),
        Compare(Field("trace_id"), "=", trace_id),
    }
    assert "resource" not in columns
    assert severity == And((Compare(Field("severity_number"), ">=", Decimal(13)),))


def test_history_has_rows_of_every_tier_below_its_end(stages: dict[Signal, Stage]) -> None:
    wanted = LogQuery(service="shop", pattern="in the", since_us=START // 1000, until_us=START // 1000 + 1)
    found = rows(stages[Signal.LOGS], wanted.history(TOPIC, end=9, limit=6))
    assert found["_offset"].to_pylist() == [3, 4, 5, 6, 7, 8]
