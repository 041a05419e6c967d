"""Parquet files of telemetry, as older deployments have them: hive-style trees, with all that is nested in spans."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icestream.telemetry import Signal, to_batch
from icestream.telemetry.schemas import REQUESTS

START = 1_700_000_000_123_456_789
SPANS_A_REQUEST = 50


def spans(count: int, seed: int = 0) -> pa.Table:
    """So many spans, each with a name of its own; some with events, links, attributes, a status."""
    request = REQUESTS[Signal.TRACES]()
    group = request.resource_spans.add()
    group.resource.attributes.add(key="service.name").value.string_value = f"shop-{seed % 3}"
    scope = group.scope_spans.add()
    for number in range(count):
        _fill(scope.spans.add(), seed * 1_000_000 + number)
    return pa.Table.from_batches([to_batch(Signal.TRACES, request.SerializeToString())])


def _fill(span: Any, number: int) -> None:
    span.name = f"span {number}"
    span.trace_id, span.span_id = (number // 7 + 1).to_bytes(16, "big"), (number + 1).to_bytes(8, "big")
    span.start_time_unix_nano = START + number * 1_000_003
    span.end_time_unix_nano = span.start_time_unix_nano + 5
    if number % 2:
        span.attributes.add(key="http.route").value.string_value = f"/{number % 5}"
        span.attributes.add(key="size").value.double_value = float("nan") if number % 3 else number / 7
        span.parent_span_id = number.to_bytes(8, "big")
    if number % 3 == 0:
        event = span.events.add(name="exception", time_unix_nano=span.start_time_unix_nano)
        event.attributes.add(key="message").value.string_value = "é" * (number % 4)
        span.links.add(trace_id=b"l" * 16, span_id=b"s" * 8)
        span.status.message = "failed"


def write_tree(folder: Path, files: int, rows: int, *, row_group: int = 64) -> pa.Table:
    """`files` files of `rows` spans each, below `date=…/hour=…`; gives all rows in the order of the files."""
    written = []
    for number in range(files):
        made = spans(rows, number)
        hour = folder / f"date=2026-01-{number // 24 + 1:02}" / f"hour={number % 24:02}"
        hour.mkdir(parents=True, exist_ok=True)
        pq.write_table(made, hour / f"part-{number:05}.parquet", row_group_size=row_group)
        written.append(made)
    return pa.concat_tables(written)


def body(stream: pa.Table) -> pa.Table:
    """What was published, without what the log added."""
    return stream.select(stream.schema.names[4:]).replace_schema_metadata()


def migrated(stream: pa.Table) -> pa.Table:
    """The rows of migrations, by file and by their place in it."""
    names = stream.schema.names
    own = stream.filter(pa.compute.starts_with(stream[names[2]], "migrate-"))
    return own.sort_by([(names[0], "ascending")])
