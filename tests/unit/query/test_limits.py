"""Time, memory and number of queries are bounded; a query ends when its caller disconnects."""

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from icestream.config import QuerySettings
from icestream.model.errors import ClosedError, DamagedError, DeadlineError, LimitReachedError, OverloadedError
from icestream.model.filters import Filter
from icestream.model.names import TopicName
from icestream.query import QueryEngine

SCHEMA = pa.schema([("offset", pa.int64()), ("payload", pa.binary())])
ENDLESS = "SELECT count(*) FROM range(100000000) a, range(100000000) b"
PATIENCE_SECONDS = 30.0


class Endless:
    """A topic that has always more rows."""

    schema = SCHEMA
    start = 0
    end = 1 << 40

    def __init__(self) -> None:
        self.given = 0
        self.closed = threading.Event()

    def batches(self, columns: Any, where: Filter | None, start: int, end: int) -> Iterator[pa.RecordBatch]:
        del where, end
        payload = pa.array([b"x" * 1_000] * 1_000)
        try:
            while True:
                rows = pa.record_batch([pa.array(range(start, start + 1_000)), payload], schema=SCHEMA)
                self.given += 1_000
                yield rows.select(columns)
                start += 1_000
        finally:
            self.closed.set()


class Failing(Endless):
    def batches(self, columns: Any, where: Filter | None, start: int, end: int) -> Iterator[pa.RecordBatch]:
        yield next(super().batches(columns, where, start, end))
        raise DamagedError("the bytes are not those that were written", place="segment 7")


class Topics:
    def __init__(self, rows: Endless) -> None:
        self._rows = rows

    def find(self, topic: TopicName, *, fresh: bool) -> Endless:
        del topic, fresh
        return self._rows


def engine_of(rows: Endless | None = None, **settings: int) -> QueryEngine:
    return QueryEngine(QuerySettings(**settings), Topics(rows or Endless()))


def test_a_large_result_is_made_while_it_is_read() -> None:
    rows = Endless()
    engine = engine_of(rows, max_memory_mb=64, max_queries=1)
    query = engine.run("SELECT * FROM events")
    taken = 0
    for batch in query.batches():
        taken += batch.num_rows
        assert batch.nbytes < 4 << 20
        if taken > 200_000:  # three times the memory that it may have
            break
    assert rows.given < taken + 50_000
    query.close()
    assert rows.closed.wait(PATIENCE_SECONDS)
    with pytest.raises(ClosedError):
        list(query.batches())
    engine.run("SELECT 1").close()


def test_a_limit_ends_the_scan() -> None:
    rows = Endless()
    with engine_of(rows).run("SELECT offset FROM events LIMIT 3") as query:
        assert [batch.column(0).to_pylist() for batch in query.batches()] == [[0, 1, 2]]
    assert rows.closed.wait(PATIENCE_SECONDS)


@pytest.mark.parametrize("sql", [ENDLESS, "SELECT count(*) FROM events"])
def test_a_query_that_takes_too_long_is_ended(sql: str) -> None:
    engine = engine_of(timeout_ms=200, max_queries=1)
    with pytest.raises(DeadlineError, match=r"200 ms.*query\.timeout_ms") as refusal:
        list(engine.run(sql).batches())
    assert not refusal.value.retryable
    engine_of(max_queries=1).run("SELECT 1").close()


def test_a_result_that_nobody_takes_is_ended_too() -> None:
    rows = Endless()
    engine = engine_of(rows, timeout_ms=500, max_queries=1)
    query = engine.run("SELECT * FROM events")
    batches = query.batches()
    next(batches)
    assert rows.closed.wait(PATIENCE_SECONDS)
    with pytest.raises(DeadlineError):
        next(batches)
    engine.run("SELECT 1").close()


def test_who_goes_away_ends_its_query() -> None:
    gone = threading.Event()
    engine = engine_of(max_queries=1)
    threading.Timer(0.2, gone.set).start()
    with pytest.raises(ClosedError):
        list(engine.run(ENDLESS, cancelled=gone.is_set).batches())
    engine.run("SELECT 1").close()


def test_a_result_that_was_never_asked_for_is_let_go() -> None:
    rows = Endless()
    engine = engine_of(rows, max_queries=1)
    query = engine.run("SELECT * FROM events")
    del query
    gc.collect()
    assert rows.closed.wait(PATIENCE_SECONDS)
    engine.run("SELECT 1").close()


def test_one_query_too_many_is_refused_until_another_ends() -> None:
    engine = engine_of(max_queries=2)
    first, second = engine.run("SELECT * FROM events"), engine.run("SELECT 2")
    with pytest.raises(OverloadedError, match="2 queries run already") as refusal:
        engine.run("SELECT 3")
    assert refusal.value.retryable
    first.close()
    with engine.run("SELECT 3") as third:
        assert [batch.column(0).to_pylist() for batch in third.batches()] == [[3]]
    second.close()


def test_queries_that_fail_hold_no_place() -> None:
    engine = engine_of(max_queries=1)
    for _ in range(3):
        with pytest.raises(Exception, match="nope"):
            engine.run("SELECT nope FROM events")
        with pytest.raises(DeadlineError):
            list(engine_of(timeout_ms=50).run(ENDLESS).batches())
    engine.run("SELECT 1").close()


def test_a_query_that_needs_too_much_memory_fails_alone() -> None:
    engine = engine_of(max_memory_mb=32)
    with pytest.raises(LimitReachedError, match=r"query\.max_memory_mb"):
        list(engine.run("SELECT list(range) FROM range(100000000)").batches())
    engine.run("SELECT 1").close()


def test_what_a_topic_cannot_read_is_the_query_s_error() -> None:
    with pytest.raises(DamagedError, match="segment 7"):
        list(engine_of(Failing()).run("SELECT count(*) FROM events").batches())


def test_a_broker_that_has_run_no_query_has_not_loaded_duckdb() -> None:
    code = "import sys, icestream.query; sys.exit('duckdb' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
