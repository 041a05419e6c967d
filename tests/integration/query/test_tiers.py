"""Rows of every tier in one result: what only the table has, what only the log has, what both have."""

import os
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from tests.integration.cloud.test_log_topics import NAME, LogStage
from tests.reading import Stage

from icestream.model.errors import CatalogUnavailableError, InvalidRequestError
from icestream.model.messages import message_batch
from icestream.model.offsets import StartPosition
from icestream.query import BrokerTopics, CatalogTopics, QueryEngine
from icestream.storage import IcebergStorage, ReadOnlyStorage
from icestream.table import TopicTable

COUNT = "SELECT count(*) FROM default.events"
IN_TABLE = 38
CONDITIONS = 2_000 if os.environ.get("ICESTREAM_SOAK") else 40


def engine_of(storage: IcebergStorage, **query: Any) -> QueryEngine:
    return QueryEngine(storage.settings.query.model_copy(update=query), BrokerTopics(storage))


def answer(engine: QueryEngine, sql: str, *, fresh: bool = True) -> list[tuple[Any, ...]]:
    with engine.run(sql, fresh=fresh) as query:
        table = pa.Table.from_batches(query.batches(), query.schema)
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def spread(stage: Stage, count: int = 60) -> list[bytes]:
    """Messages of which the table has the first, the log the last, and both a few in between."""
    payloads = [b"%d %s" % (offset, b"x" * 900) for offset in range(count)]
    for payload in payloads:
        stage.publish([payload])
    stage.commit(IN_TABLE)
    assert 0 < stage.prune() < IN_TABLE
    return payloads


def test_a_topic_without_messages_has_no_rows(stage: Stage) -> None:
    engine = engine_of(stage.storage)
    assert answer(engine, COUNT) == answer(engine, COUNT, fresh=False) == [(0,)]


def test_fresh_rows_are_seen_before_any_commit(stage: Stage) -> None:
    engine = engine_of(stage.storage)
    stage.publish([b"a", b"b"])
    assert answer(engine, COUNT) == [(2,)]
    assert answer(engine, COUNT, fresh=False) == [(0,)]
    stage.commit()
    stage.publish([b"c"])
    assert answer(engine, COUNT) == [(3,)]
    assert answer(engine, COUNT, fresh=False) == [(2,)]


def test_rows_of_a_pruned_log_come_from_the_table_and_the_rest_from_the_log(stage: Stage) -> None:
    payloads = spread(stage)
    engine = engine_of(stage.storage)
    rows = list(enumerate(payloads))
    assert answer(engine, "SELECT offset, payload FROM default.events ORDER BY offset") == rows
    assert answer(engine, "SELECT offset, payload FROM default.events ORDER BY 1", fresh=False) == rows[:IN_TABLE]
    assert answer(engine, "SELECT offset FROM default.events WHERE offset BETWEEN 38 AND 41") == [
        (38,),
        (39,),
        (40,),
        (41,),
    ]
    assert answer(engine, "SELECT payload FROM default.events WHERE offset = 59") == [(payloads[59],)]
    assert answer(engine, "SELECT payload FROM default.events WHERE offset = 59", fresh=False) == []


def test_a_query_ends_at_what_was_durable_when_it_began(stage: Stage) -> None:
    spread(stage)
    with engine_of(stage.storage).run("SELECT offset FROM default.events") as query:
        stage.publish([b"late"])
        stage.commit()
        assert [offset for batch in query.batches() for offset in batch.column(0).to_pylist()] == list(range(60))


def test_a_topic_is_joined_with_itself_and_with_another(stage: Stage) -> None:
    payloads = spread(stage)
    stage.storage.topics.create("shop/orders-eu.v2")
    orders = stage.storage.topic("shop/orders-eu.v2")
    stage.storage.publish(orders, message_batch([b"3", b"45", b"99"]))
    engine = engine_of(stage.storage)
    twice = "SELECT a.offset, b.payload FROM events a JOIN events b ON a.offset + 30 = b.offset ORDER BY 1"
    assert answer(engine, twice) == [(offset, payloads[offset + 30]) for offset in range(30)]
    joined = (
        'SELECT o.offset, e.payload FROM shop."orders-eu.v2" o LEFT JOIN default.events e '
        "ON e.offset = decode(o.payload)::bigint ORDER BY o.offset"
    )
    assert answer(engine, joined) == [(0, payloads[3]), (1, payloads[45]), (2, None)]


def test_a_topic_has_its_own_columns(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            ("name", pa.string()),
            ("price", pa.decimal128(10, 2)),
            ("moment", pa.timestamp("ns", tz="UTC")),
            ("tags", pa.list_(pa.string())),
            ("half", pa.float16()),
        ]
    )
    stage = Stage(tmp_path, schema=schema)
    rows = {"name": ["a", "b", None], "tags": [["x", "y"], [], None]}
    batch = pa.record_batch(
        [
            pa.array(rows["name"], pa.string()),
            pa.array([Decimal(1), Decimal(2), None], schema.field("price").type),
            pa.array([1, 2_001, None], schema.field("moment").type),
            pa.array(rows["tags"], schema.field("tags").type),
            pa.array([1.5, None, 0.25], pa.float32()).cast(pa.float16()),
        ],
        schema=schema,
    )
    stage.storage.publish(stage.topic, batch)
    engine = engine_of(stage.storage)
    assert answer(engine, "SELECT name, _offset FROM events WHERE len(tags) = 2") == [("a", 0)]
    assert answer(engine, "SELECT sum(price)::int, sum(half)::int FROM events") == [(3, 2)]
    assert answer(engine, "SELECT epoch_ns(moment) FROM events WHERE moment IS NOT NULL ORDER BY 1") == [(1,), (2_001,)]
    stage.close()


def test_an_attribute_that_comes_twice_has_its_first_value(stage: Stage) -> None:
    batch = message_batch([b"a", b"b"], attributes=[[("x", "1"), ("x", "2")], [("x", "3"), ("y", "4")]])
    stage.storage.publish(stage.topic, batch)
    engine = engine_of(stage.storage)
    assert answer(engine, "SELECT attributes['x'] FROM events ORDER BY offset") == [("1",), ("3",)]
    assert answer(engine, "SELECT offset FROM events WHERE attributes['x'] = '2'") == []


def test_a_topic_without_a_table_is_read_from_the_cloud_and_the_log(tmp_path: Path) -> None:
    stage = LogStage(tmp_path)
    messages = stage.put(40)
    assert stage.prune() > 0
    stage.storage.publish(stage.topic, message_batch([b"new"]))
    engine = engine_of(stage.storage)
    assert answer(engine, "SELECT offset, payload FROM kept ORDER BY offset") == [*messages, (40, b"new")]
    with pytest.raises(InvalidRequestError, match="no table"):
        engine.run(f"SELECT 1 FROM {NAME.replace('/', '.')}", fresh=False)
    stage.close()


def test_the_log_is_queried_while_the_catalog_is_away(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.publish([b"a", b"b"])

    def away(_: object) -> TopicTable | None:
        raise CatalogUnavailableError("no answer")

    monkeypatch.setattr(stage.storage.table_watch.tables, "find", away)
    engine = engine_of(stage.storage)
    assert answer(engine, COUNT) == [(2,)]
    with pytest.raises(CatalogUnavailableError):
        engine.run(COUNT, fresh=False)


def test_tables_are_queried_without_a_broker(stage: Stage) -> None:
    payloads = spread(stage)
    with ReadOnlyStorage(stage.settings) as storage:
        engine = QueryEngine(stage.settings.query, CatalogTopics(storage))
        assert answer(engine, "SELECT offset, payload FROM events ORDER BY 1") == list(enumerate(payloads[:IN_TABLE]))
        assert answer(engine, "SELECT count(*) FROM events WHERE offset >= 30") == [(IN_TABLE - 30,)]


def condition(choose: random.Random, depth: int = 0) -> str:
    """Some condition on a topic's columns."""
    if depth < 3 and choose.random() < 0.5:
        joined = choose.choice([" AND ", " OR "])
        text = "(" + joined.join(condition(choose, depth + 1) for _ in range(choose.randint(2, 3))) + ")"
        return f"NOT {text}" if choose.random() < 0.2 else text
    number = choose.randint(-5, 320)
    key = choose.choice(["'a'", "'b'", "'\\x00'", "''", "'zz'"])
    operator = choose.choice(["=", "<>", "<", "<=", ">", ">="])
    return choose.choice(
        [
            f'"offset" {operator} {number}',
            f"sequence {operator} {number}",
            f"{number} {operator} sequence + 3",
            f'"offset" IN ({number}, {number + 7}, 1)',
            f'"offset" BETWEEN {number} AND {number + 40}',
            f"key {operator} {key}",
            f"key IN ({key}, 'a')",
            f"key IS {choose.choice(['', 'NOT'])} NULL",
            f"producer {operator} ''",
            f"producer LIKE '{choose.choice(['%', 'p%', '_', ''])}'",
            f"publish_time {operator} '2026-01-01'",
            f"publish_time {operator} now()",
            f"attributes['a'] {operator} '{number % 3}'",
            f"decode(payload)::int {operator} {number}",
            f"payload {operator} '{number}'::blob",
        ]
    )


def test_conditions_that_are_pushed_down_change_no_result(stage: Stage) -> None:
    choose = random.Random(7)
    for first in range(0, 300, 50):
        numbers = range(first, first + 50)
        keys = [choose.choice([None, b"", b"a", b"b", b"\0", b"zz"]) for _ in numbers]
        attributes = [choose.choice([None, [("a", str(number % 3))], [("b", "1")]]) for number in numbers]
        batch = message_batch([b"%d" % number for number in numbers], keys, attributes)
        stage.storage.publish(stage.topic, batch, producer=choose.choice(["", "p", "q"]) if first else "")
        if first < 200:
            stage.commit()
    stage.prune()
    engine = engine_of(stage.storage)
    rows = pa.Table.from_batches(stage.topic.read(stage.topic.reader(StartPosition.earliest())))
    assert rows.num_rows == 300
    with duckdb.connect() as plain:
        plain.execute("SET TimeZone = 'UTC'")
        plain.register("arrow", rows)
        plain.execute("CREATE TABLE events AS FROM arrow")
        for _ in range(CONDITIONS):
            sql = f'SELECT "offset" FROM events WHERE {condition(choose)} ORDER BY 1'
            assert answer(engine, sql) == plain.execute(sql).fetchall(), sql


def test_a_count_reads_no_other_column_than_the_offset(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    spread(stage)
    scanned: list[Any] = []
    scan = TopicTable.scan

    def noting(table: TopicTable, start: int, end: int, columns: Any = None, **options: Any) -> Any:
        scanned.append((start, end, columns, options.get("where") is not None))
        return scan(table, start, end, columns, **options)

    monkeypatch.setattr(TopicTable, "scan", noting)
    engine = engine_of(stage.storage)
    assert answer(engine, COUNT) == [(60,)]
    assert answer(engine, "SELECT key FROM events WHERE offset >= 35 AND offset < 37 AND producer = ''")
    assert answer(engine, "SELECT key FROM events WHERE offset > 50")
    assert scanned == [
        (0, IN_TABLE, ["offset"], False),
        (35, 37, ["offset", "producer", "key"], True),
    ]
