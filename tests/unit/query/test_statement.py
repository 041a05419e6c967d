"""A query is one SELECT over topics. Every other statement is refused, or has no effect."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from icestream.config import QuerySettings
from icestream.model.errors import (
    IcestreamError,
    InvalidNameError,
    InvalidRequestError,
    TooLargeError,
    TopicNotFoundError,
)
from icestream.model.filters import Filter
from icestream.model.names import TopicName
from icestream.query import QueryEngine
from icestream.query.session import open_session
from icestream.query.statement import TableName, parse

SCHEMA = pa.schema([("offset", pa.int64()), ("payload", pa.binary())])


class Rows:
    schema = SCHEMA
    start = 0
    end = 2

    def batches(self, columns: Any, where: Filter | None, start: int, end: int) -> Iterator[pa.RecordBatch]:
        del columns, where
        rows = pa.record_batch([pa.array([0, 1]), pa.array([b"a", b"b"])], schema=SCHEMA)
        yield rows.slice(start, end - start)


class OneTopic:
    def find(self, topic: TopicName, *, fresh: bool) -> Rows:
        del fresh
        if str(topic) not in ("default/events", "a-b/c.d", "default/Events"):
            raise TopicNotFoundError("there is no such topic", place=str(topic))
        return Rows()


@pytest.fixture(scope="module")
def engine() -> QueryEngine:
    return QueryEngine(QuerySettings(), OneTopic())


def rows_of(engine: QueryEngine, sql: str) -> list[tuple[Any, ...]]:
    with engine.run(sql) as query:
        return [tuple(row.values()) for batch in query.batches() for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT count(*) FROM default.events", [(2,)]),
        ("select sum(offset) from events;", [(1,)]),
        ('select count(*) from "a-b"."c.d"', [(2,)]),
        ("with e as (select offset + 1 as n from default.events) select max(n) from e", [(2,)]),
        ("with events as (select * from default.events limit 1) select count(*) from events", [(1,)]),
        ("with recursive r as (select 1 x union all select x + 1 from r where x < 5) select sum(x) from r", [(15,)]),
        ("from default.events select payload where offset = 1", [(b"b",)]),
        ("table default.events", [(0, b"a"), (1, b"b")]),
        ("select " + "(select " * 8 + "1" + ")" * 8, [(1,)]),
        ("select " + "(" * 5_000 + "1" + ")" * 5_000, [(1,)]),
        ("values (1), (2)", [(1,), (2,)]),
        ("select count(*) from range(3), generate_series(1, 2), unnest([1])", [(6,)]),
        ("select offset from events union all select 7 order by 1 limit 2 offset 1", [(1,), (7,)]),
        ("select (select max(offset) from events), exists (from events)", [(1, True)]),
        ("select payload::varchar, json_extract('{\"a\": 1}', '$.a')::int from events limit 1", [("a", 1)]),
    ],
)
def test_selects_are_run(engine: QueryEngine, sql: str, rows: list[tuple[Any, ...]]) -> None:
    assert rows_of(engine, sql) == rows


@pytest.mark.parametrize("sql", ["describe default.events", "summarize default.events", "explain select * from events"])
def test_questions_about_topics_are_answered(engine: QueryEngine, sql: str) -> None:
    assert rows_of(engine, sql)


HOSTILE = [
    "",
    ";",
    "selct",
    "select 1; select 2",
    "select 1; drop view events",
    "insert into default.events values (1)",
    "with a as (insert into events values (1) returning *) select * from a",
    "create table x as select 1",
    "create macro m() as 1",
    "drop view default.events",
    "update events set payload = 'x'",
    "delete from events",
    "copy (select 1) to '{path}'",
    "copy events from '{path}'",
    "export database '{path}'",
    "explain copy (select 1) to '{path}'",
    "explain analyze copy (select 1) to '{path}'",
    "explain analyze create table x as select 1",
    "attach '{path}'",
    "attach ':memory:' as other",
    "detach memory",
    "use temp",
    "install httpfs",
    "load httpfs",
    "set memory_limit = '100GB'",
    "reset lock_configuration",
    "set enable_external_access = true",
    "pragma database_list",
    "pragma enable_profiling",
    "call pragma_version()",
    "show tables",
    "show all tables",
    "checkpoint",
    "vacuum",
    "begin",
    "prepare p as select 1",
    "select * from '{secret}'",
    'select * from "{secret}"',
    "select * from read_csv('{secret}')",
    "select * from read_csv_auto('{secret}')",
    "select * from read_text('{secret}')",
    "select * from read_blob('{secret}')",
    "select * from read_json('{secret}')",
    "select * from read_parquet('{secret}')",
    "select * from parquet_metadata('{secret}')",
    "select * from read_parquet('http://127.0.0.1:1/x')",
    "select * from sniff_csv('{secret}')",
    "select * from glob('/*')",
    "select * from query('select 1')",
    "select * from query_table('events')",
    "select * from arrow_scan(1, 2, 3)",
    "select * from pandas_scan(1)",
    "select * from python_map_function(1)",
    "select * from seq_scan('x')",
    "select * from json_execute_serialized_sql('{{}}')",
    "select * from enable_logging(storage = 'file', storage_path = '{path}')",
    "select * from enable_profiling('{path}')",
    "select * from duckdb_settings()",
    "select * from duckdb_secrets()",
    "select * from which_secret('a', 'b')",
    "select * from sqlite_scan('{secret}', 'x')",
    "select * from (select * from read_text('{secret}'))",
    "with x as (select * from read_text('{secret}')) select 1",
    "select (select content from read_text('{secret}'))",
    "select 1 where exists (from read_text('{secret}'))",
    "select * from events, lateral (select * from glob('/*'))",
    "select write_log('x')",
    "select getenv('HOME')",
    "select * from information_schema.tables",
    "select * from pg_catalog.pg_tables",
    "select * from sqlite_master",
    "select * from duckdb_tables",
    "select * from system.main.duckdb_tables",
    'select * from "rows of topic 0"',
    "select * from SCHEMA",
    "select * from engine",
    "select * from self",
    "select '\0'",
    "select " + "abs(" * 1_500 + "1" + ")" * 1_500,
    "select " + "(select " * 9 + "1" + ")" * 9,
    "select " + "(select " * 5_000 + "1" + ")" * 5_000,
    "select " + "list_transform([1], x -> " * 9 + "1" + ")" * 9,
    "select * from " + "(select * from " * 1_500 + "events" + ")" * 1_500,
    "select count(*) from events" + " join events using (offset)" * 64,
    "select " + "1+" * 60_000 + "1",
    "select '\ud800'",
]


@pytest.mark.parametrize("sql", HOSTILE, ids=lambda sql: ascii(sql[:60]))
def test_everything_else_is_refused(engine: QueryEngine, tmp_path: Path, sql: str) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("secret\n1\n")
    written = tmp_path / "written"
    text = sql.replace("{path}", str(written)).replace("{secret}", str(secret)).replace("{{}}", "{}")
    with pytest.raises((InvalidRequestError, InvalidNameError, TopicNotFoundError)) as refusal:
        rows_of(engine, text)
    assert "\n" not in str(refusal.value)
    assert not written.exists()
    assert rows_of(engine, "select count(*) from default.events") == [(2,)]


@pytest.mark.parametrize(
    "sql",
    [
        "copy (select 1) to '{path}'",
        "attach '{path}'",
        "select * from read_text('{secret}')",
        "select * from '{secret}'",
        "load httpfs",
        "install httpfs",
        "set enable_external_access = true",
        "set python_enable_replacements = true",
        "select * from SCHEMA",
    ],
)
def test_the_session_itself_has_no_way_out(tmp_path: Path, sql: str) -> None:
    """Even a statement that the check before it has let through."""
    secret = tmp_path / "secret.csv"
    secret.write_text("secret\n1\n")
    session = open_session(QuerySettings())
    with pytest.raises(Exception, match="Error"):
        session.execute(sql.replace("{path}", str(tmp_path / "x")).replace("{secret}", str(secret))).fetchall()
    assert list(tmp_path.iterdir()) == [secret]
    session.close()


def test_topics_are_found_wherever_they_stand() -> None:
    session = open_session(QuerySettings())
    statement = parse(
        session,
        'with x as (select * from one.a) select (select 1 from two.b) from x, "th-ree"."c.d" t '
        "where exists (from four) and 1 in (select y from default.five)",
    )
    assert statement.tables == {
        TableName("", "one", "a"),
        TableName("", "two", "b"),
        TableName("", "", "x"),
        TableName("", "th-ree", "c.d"),
        TableName("", "", "four"),
        TableName("", "default", "five"),
    }
    assert statement.with_names == {"x"}
    session.close()


def test_a_topic_that_is_missing_is_named(engine: QueryEngine) -> None:
    with pytest.raises(TopicNotFoundError, match="shop/orders"):
        engine.run("select * from default.events join shop.orders using (offset)")
    with pytest.raises(TopicNotFoundError, match=r"other\.default\.events"):
        engine.run("select * from other.default.events")


def test_topics_that_differ_in_case_alone_are_not_confused(engine: QueryEngine) -> None:
    assert rows_of(engine, 'select count(*) from default."Events"') == [(2,)]
    with pytest.raises(InvalidRequestError, match="differ only in case"):
        engine.run('select * from default.events, default."Events"')


def test_wrong_queries_are_explained_in_one_line(engine: QueryEngine) -> None:
    with pytest.raises(InvalidRequestError, match='"nope" not found') as refusal:
        engine.run("select nope from default.events")
    assert "\n" not in str(refusal.value)
    with pytest.raises(InvalidRequestError, match="Conversion Error"):
        rows_of(engine, "select payload::varchar::int from default.events")
    with pytest.raises(TooLargeError, match="100000"):
        engine.run("select 1" + " " * 100_000)


@pytest.mark.parametrize(
    "namespace", ["temp", "system", "information_schema", "pg_catalog", "main", "memory", "select"]
)
def test_namespaces_with_names_of_the_engine_are_queried_or_refused(namespace: str) -> None:
    class AnyTopic:
        def find(self, topic: TopicName, *, fresh: bool) -> Rows:
            del topic, fresh
            return Rows()

    try:
        rows = rows_of(QueryEngine(QuerySettings(), AnyTopic()), f'select count(*) from "{namespace}".events')
    except IcestreamError as refusal:
        assert namespace in str(refusal)  # noqa: PT017 - one or the other
    else:
        assert rows == [(2,)]
