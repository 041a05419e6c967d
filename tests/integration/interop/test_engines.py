"""The same table read by PyIceberg, Spark SQL, DuckDB and Polars: the same rows, which are the messages of the log."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from duckdb_extensions import import_extension  # type: ignore[import-untyped]
from tests.topics import Topics

from icestream.model.messages import message_batch
from icestream.model.names import TopicName
from icestream.pipeline.maintenance.report import MaintenanceStep
from icestream.pipeline.maintenance.run import Maintenance
from icestream.table import TopicTable
from icestream_servers.spark_process import SparkProcess

OWN_SCHEMA = pa.schema(
    [
        pa.field("device-id", pa.string(), nullable=False),
        pa.field("reading", pa.struct([("degrees", pa.float64()), ("tags", pa.list_(pa.string()))])),
        pa.field("history", pa.list_(pa.struct([("at", pa.timestamp("us", tz="UTC")), ("value", pa.int32())]))),
        pa.field("labels", pa.map_(pa.string(), pa.int64())),
        pa.field("price", pa.decimal128(12, 3)),
        pa.field("day", pa.date32()),
        pa.field("raw", pa.binary()),
    ]
)
MAPS = {"attributes", "labels"}
Rows = list[dict[str, Any]]


def plain_batch(start: int) -> pa.RecordBatch:
    numbers = range(start, start + 20)
    keys = [None if number % 4 == 0 else b"key %d" % (number % 5) for number in numbers]
    attributes = [None if number % 3 == 0 else [("n", str(number)), ("ü", "é")] for number in numbers]
    return message_batch([b"payload %d \x00\xff" % number for number in numbers], keys, attributes)


def own_batch(start: int) -> pa.RecordBatch:
    rows: Rows = [
        {
            "device-id": f"device {number % 3}",
            "reading": None if number % 5 == 0 else {"degrees": number / 4, "tags": ["a", None, str(number)]},
            "history": [{"at": datetime(2026, 1, 1, 0, 0, number % 60, tzinfo=UTC), "value": number}],
            "labels": None if number % 7 == 0 else [("n", number)],
            "price": Decimal(number) / 8,
            "day": None if number % 6 == 0 else datetime(2026, 1, 1 + number % 28, tzinfo=UTC).date(),
            "raw": bytes([number % 256]),
        }
        for number in range(start, start + 20)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=OWN_SCHEMA)


TOPICS: dict[str, tuple[pa.Schema | None, dict[str, Any], Callable[[int], pa.RecordBatch]]] = {
    "plain": (None, {}, plain_batch),
    "partitioned": (None, {"partition_by": ["day(publish_time)", "bucket(4, key)"]}, plain_batch),
    "own": (OWN_SCHEMA, {}, own_batch),
    "own_partitioned": (OWN_SCHEMA, {"partition_by": ["device-id"]}, own_batch),
}


def pyiceberg(table: TopicTable, _topics: Topics, _spark: SparkProcess) -> Rows:
    rows: Rows = table.iceberg.scan().to_arrow().to_pylist()
    return rows


def polars(table: TopicTable, _topics: Topics, _spark: SparkProcess) -> Rows:
    return pl.scan_iceberg(table.iceberg).collect().to_dicts()


def duck(table: TopicTable, topics: Topics, _spark: SparkProcess) -> Rows:
    folder = topics.settings.data_dir / "duckdb"
    with duckdb.connect(config={"extension_directory": str(folder)}) as database:
        for extension in ("avro", "iceberg"):
            import_extension(extension, con=database)
            database.load_extension(extension)
        found = database.sql(f"FROM iceberg_scan('{table.iceberg.metadata_location}')").to_arrow_table()
    rows: Rows = found.to_pylist()
    return rows


def spark_sql(table: TopicTable, topics: Topics, spark: SparkProcess) -> Rows:
    sql = spark.sql(topics.settings)
    return sql.rows(f"SELECT * FROM {sql.table(table.name)}")


ENGINES = {"pyiceberg": pyiceberg, "polars": polars, "duckdb": duck, "spark": spark_sql}


@pytest.fixture(scope="module", params=TOPICS)
def topic(request: pytest.FixtureRequest, topics: Topics, spark_process: SparkProcess) -> TopicName:
    """A table of which one part was compacted by Spark, and another is as the pipeline wrote it."""
    schema, options, batch = TOPICS[request.param]
    name = topics.create(f"interop/{request.param}", schema, **options)
    for start in (0, 20, 40):
        topics.publish(name, batch(start))
        topics.drain(name)
    settings = topics.settings_with(maintenance={"min_input_files": 2})
    (report,) = Maintenance(settings, topics.tables, spark_process.sql(settings)).run([name], [MaintenanceStep.COMPACT])
    assert report.errors == []
    assert report.steps[0].done["rewritten_data_files_count"] > 0
    topics.publish(name, batch(60))
    topics.drain(name)
    return name


@pytest.mark.filterwarnings("ignore:Iceberg scan planning:polars.exceptions.PerformanceWarning")
@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_reads_what_was_published(
    topics: Topics, spark_process: SparkProcess, topic: TopicName, engine: str
) -> None:
    log: Rows = topics.client.read(topic).to_pylist()
    found = ENGINES[engine](topics.table(topic), topics, spark_process)
    key = next(iter(log[0]))
    expected = [_normal(row) for row in log]
    assert sorted((_normal(row) for row in found), key=lambda row: int(row[key])) == expected
    assert len(expected) == 80


def _normal(row: dict[str, Any]) -> dict[str, Any]:
    maps = {name: dict(_pairs(row[name])) for name in MAPS & row.keys() if row[name] is not None}
    return {name: _value(maps.get(name, value)) for name, value in row.items()}


def _pairs(value: Any) -> Iterator[tuple[Any, Any]]:
    """A map, which engines give as dictionary, list of pairs or list of structs."""
    if isinstance(value, dict):
        yield from value.items()
        return
    for item in value:
        yield (item["key"], item["value"]) if isinstance(item, dict) else item


def _value(value: Any) -> Any:
    if hasattr(value, "asDict"):  # a row of Spark's, which is a tuple too
        return _value(value.asDict())
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if isinstance(value, dict):
        return {name: _value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_value(item) for item in value]
    return value


def test_the_log_and_all_tables_agree(topics: Topics, topic: TopicName) -> None:
    report = topics.verify(topic)
    assert report.is_sound, report.findings
