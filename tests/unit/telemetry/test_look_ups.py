"""Looking up telemetry reads what can hold it: a trace by bloom filters, a time and a service by bounds."""

import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from icestream.config import Settings
from icestream.model.filters import Filter
from icestream.model.messages import stream_schema
from icestream.model.names import TopicName
from icestream.table import Tables, TableSpec, TopicTable
from icestream.table.planning import FilePlan
from icestream.table.scan import OpenFile, ScanRequest
from icestream.telemetry import Signal, to_batch, topic_schema
from icestream.telemetry.topics import SORT_BY
from icestream_bench.lookup import measure_lookup
from icestream_bench.otlp_convert import START_NANOS, logs_request

SPANS = 40_000
LOGS_SCHEMA = stream_schema(topic_schema(Signal.LOGS))
RECORDS = 50
HOUR_NANOS = 3_600 * 10**9


@pytest.mark.parametrize("columns", ["trace_id", ""])
def test_a_trace_is_found_with_few_bytes_and_only_because_of_filters(tmp_path: Path, columns: str) -> None:
    table = {"row_group_bytes": 2 << 20, "bloom_filter_columns": columns}
    settings = Settings.model_validate({"data_dir": tmp_path, "table": table})
    figures = measure_lookup(settings, spans=SPANS, lookups=5, progress=lambda _share: None)
    groups, trace = figures["table"]["row_groups"], figures["trace"]
    assert groups > 20
    assert trace["rows"] == 5 * 8
    if columns:
        assert trace["row_groups_read_p50"] <= 2
        assert trace["share_of_bytes_p50"] < 0.2  # here a footer is large beside its row groups
    else:
        assert trace["row_groups_read_p50"] == groups
    assert figures["ten_seconds"]["files_opened_p50"] <= 2


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[TopicTable]:
    """Ten files, each of another hour and of one of two services."""
    tables = Tables(Settings(data_dir=tmp_path))
    spec = TableSpec(TopicName("acme", "logs"), "stream", 1, LOGS_SCHEMA, ("day(_publish_time)",), SORT_BY[Signal.LOGS])
    table = tables.open(spec)
    for number in range(10):
        start = number * RECORDS
        files = table.writer().write([log_records(start, number)], max_memory_bytes=64 << 20)
        table = table.commit(files, start=start, end=start + RECORDS, epoch=1)
    yield table
    tables.close()


def log_records(start: int, hour: int) -> pa.RecordBatch:
    request = logs_request(random.Random(hour), RECORDS)
    request.resource_logs[0].resource.attributes[0].value.string_value = f"service {hour % 2}"
    for record in request.resource_logs[0].scope_logs[0].log_records:
        record.time_unix_nano += hour * HOUR_NANOS
    body = to_batch(Signal.LOGS, request.SerializeToString())
    offsets = pa.arange(start, start + RECORDS)
    published = pa.array([START_NANOS // 1_000] * RECORDS, LOGS_SCHEMA.field("_publish_time").type)
    return pa.RecordBatch.from_arrays(
        [offsets, published, pa.repeat("otlp", RECORDS), offsets, *body.columns], schema=LOGS_SCHEMA
    )


@pytest.mark.parametrize(
    ("text", "files"),
    [
        ("time >= '2023-11-15T03:00:00Z' and time < '2023-11-15T04:00:00Z'", [5]),
        ("service_name = 'service 1'", [1, 3, 5, 7, 9]),
        ("service_name = 'service 1' and time >= '2023-11-15T06:00:00Z'", [9]),
        ("service_name = 'nobody'", []),
    ],
)
def test_a_time_and_a_service_are_looked_for_in_few_files(logs: TopicTable, text: str, files: list[int]) -> None:
    request = ScanRequest(logs, ("body",), 0, 500, Filter.parse(text))
    assert [file.first_offset // RECORDS for file in FilePlan(logs, pruning=request.pruning).files()] == files
    assert sum(batch.num_rows for batch in logs.scan(where=request.where)) == len(files) * RECORDS


def test_log_records_of_a_trace_are_looked_for_where_they_can_be(logs: TopicTable) -> None:
    wanted = pa.Table.from_batches(logs.scan(columns=["trace_id"]))["trace_id"][7 * RECORDS + 3].as_py()
    request = ScanRequest(logs, ("body",), 0, 500, Filter.parse(f"trace_id = x'{wanted.hex()}'"))
    opened = [OpenFile(request, file) for file in FilePlan(logs, pruning=request.pruning).files()]
    for file in opened:
        file.close()
    assert sum(len(file.row_groups) for file in opened) <= 2
    assert sum(batch.num_rows for batch in logs.scan(where=request.where)) == 1
