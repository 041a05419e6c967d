"""Telemetry rows through a broker into a table: every engine can ask the map, and nothing was lost on the way."""

from collections.abc import Callable
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from duckdb_extensions import import_extension  # type: ignore[import-untyped]
from tests.topics import Topics

from icestream.model.names import TopicName
from icestream.table import TopicTable
from icestream.telemetry import Signal, to_batch, to_request, topic_schema
from icestream.telemetry.schemas import REQUESTS
from icestream_servers.spark_process import SparkProcess

HOUR_NANOS = 3_600_000_000_000
START = 1_700_000_000_123_456_789
ROUTES = ["/cart", "/pay", "/pay", None]


def traces() -> Any:
    """Spans of two hours and one without a time; an attribute with a twin, a nested one and one without a value."""
    request = REQUESTS[Signal.TRACES]()
    group = request.resource_spans.add(schema_url="https://example")
    group.resource.attributes.add(key="service.name").value.string_value = "shop"
    scope = group.scope_spans.add()
    for number, route in enumerate(ROUTES):
        span = scope.spans.add(name=f"span {number}", trace_id=b"t" * 16, span_id=bytes([number]) * 8)
        if route is not None:
            span.start_time_unix_nano = START + number * HOUR_NANOS
            span.attributes.add(key="http.route").value.string_value = route
    first = scope.spans[0]
    first.attributes.add(key="http.route").value.int_value = 2
    first.attributes.add(key="sizes").value.array_value.values.add().int_value = 7
    first.attributes.add(key="none")
    event = first.events.add(name="exception", time_unix_nano=2**64 - 1)
    event.attributes.add(key="load").value.double_value = 0.1
    first.links.add(span_id=b"l" * 8)
    first.status.message = "failed"
    return request


def logs() -> Any:
    request = REQUESTS[Signal.LOGS]()
    records = request.resource_logs.add().scope_logs.add().log_records
    records.add(time_unix_nano=START).body.string_value = "plain"
    records.add(observed_time_unix_nano=START).body.kvlist_value.values.add(key="a").value.bool_value = True
    records.add()
    return request


def metrics() -> Any:
    request = REQUESTS[Signal.METRICS]()
    found = request.resource_metrics.add().scope_metrics.add().metrics
    point = found.add(name="latency").histogram.data_points.add(time_unix_nano=START, count=2, bucket_counts=[1, 1])
    point.exemplars.add(as_int=5, trace_id=b"t" * 16).filtered_attributes.add(key="k").value.bytes_value = b"\xff"
    found.add(name="load").gauge.data_points.add(as_double=0.5)
    sizes = found.add(name="sizes").exponential_histogram.data_points.add(scale=2)
    sizes.negative.bucket_counts.extend([2**64 - 1, 0])
    found.add(name="old").summary.data_points.add(sum=1.5).quantile_values.add(quantile=0.9, value=1.0)
    return request


SAMPLES: dict[Signal, Callable[[], Any]] = {Signal.TRACES: traces, Signal.LOGS: logs, Signal.METRICS: metrics}


@pytest.fixture(scope="module")
def tables(topics: Topics) -> dict[Signal, TopicTable]:
    """Each signal's topic, published and written to its table."""
    made = {}
    for signal, sample in SAMPLES.items():
        name = topics.create(
            f"acme/{signal}", topic_schema(signal), partition_by=["hour(time)"], sort_by=["service_name", "time"]
        )
        topics.publish(name, to_batch(signal, sample().SerializeToString()))
        made[signal] = topics.drain(name)
    return made


def request_of(signal: Signal, rows: pa.Table) -> bytes:
    return to_request(signal, rows.sort_by("_offset").combine_chunks().to_batches()[0])


@pytest.mark.parametrize("signal", Signal)
def test_a_request_comes_back_from_its_table(topics: Topics, tables: dict[Signal, TopicTable], signal: Signal) -> None:
    expected = SAMPLES[signal]().SerializeToString()
    assert request_of(signal, topics.client.read(TopicName("acme", signal.value), start=0)) == expected
    assert request_of(signal, tables[signal].iceberg.scan().to_arrow()) == expected


def test_the_table_is_partitioned_by_the_time_of_the_spans(tables: dict[Signal, TopicTable]) -> None:
    assert len(tables[Signal.TRACES].iceberg.inspect.partitions()) == 4


@pytest.mark.parametrize("signal", Signal)
def test_duckdb_reads_every_column(topics: Topics, tables: dict[Signal, TopicTable], signal: Signal) -> None:
    with duckdb.connect(config={"extension_directory": str(topics.settings.data_dir / "duckdb")}) as database:
        for extension in ("avro", "iceberg"):
            import_extension(extension, con=database)
            database.load_extension(extension)
        scan = f"iceberg_scan('{tables[signal].iceberg.metadata_location}')"
        rows = database.sql(f"FROM {scan}").to_arrow_table()
        if signal is Signal.TRACES:
            question = f"SELECT attributes['http.route'], count(*) FROM {scan} GROUP BY 1 ORDER BY 1"
            assert database.sql(question).fetchall() == [("/cart", 1), ("/pay", 2), (None, 1)]
    assert request_of(signal, rows) == SAMPLES[signal]().SerializeToString()


@pytest.mark.parametrize("signal", Signal)
def test_polars_reads_every_column(
    tables: dict[Signal, TopicTable], signal: Signal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    rows = pl.scan_iceberg(tables[signal].iceberg).collect()
    assert rows.height == to_batch(signal, SAMPLES[signal]().SerializeToString()).num_rows


@pytest.mark.parametrize("signal", Signal)
def test_spark_reads_every_column(
    topics: Topics, tables: dict[Signal, TopicTable], spark_process: SparkProcess, signal: Signal
) -> None:
    sql = spark_process.sql(topics.settings)
    table = sql.table(tables[signal].name)
    assert len(sql.rows(f"SELECT * FROM {table}")) == len(tables[signal].iceberg.scan().to_arrow())
    if signal is Signal.TRACES:
        found = sql.rows(f"SELECT name FROM {table} WHERE attributes['http.route'] = '/pay' ORDER BY name")
        assert [row["name"] for row in found] == ["span 1", "span 2"]
