"""`bench lookup`: bytes and time to find one trace in a table that is written as the pipeline writes it.

Each look-up opens the catalog anew, like a new process; only the kernel caches files. Bytes are all that the process
reads meanwhile, as the kernel counts them: catalog, manifests, footers, filters, rows. The floor is a reader without
filters, which scans the whole column.
"""

import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icestream.config import Settings
from icestream.model.filters import Filter
from icestream.model.names import TopicName
from icestream.table import FilePlan, OpenFile, ScanRequest, Tables, TableSpec, TopicTable, filter_notes
from icestream.telemetry import Signal
from icestream.telemetry.topics import SORT_BY
from icestream_bench.figures import Latencies, bytes_read
from icestream_bench.spans import SCHEMA, SPANS_A_TRACE, Spans

_TOPIC = TopicName("bench", "traces")
_SPANS_A_COMMIT = 250_000
_MIN_COMMITS = 4
_SECONDS = 10
_WRITE_SHARE = 0.8

Progress = Callable[[float], None]


def measure_lookup(settings: Settings, *, spans: int, lookups: int, progress: Progress) -> dict[str, Any]:
    source = Spans()
    figures: dict[str, Any] = {"spans": spans, "table": _write(settings, source, spans, progress)}
    nbytes = figures["table"]["bytes"]
    sampled = random.Random(2).choices(source.trace_ids, k=lookups + 1)
    traces = [f"trace_id = x'{trace_id.hex()}'" for trace_id in sampled]
    _look_up(settings, traces.pop())  # the first look-up also loads libraries
    figures["trace"] = _measured(settings, traces, nbytes)
    if figures["trace"]["rows"] != lookups * SPANS_A_TRACE:
        raise RuntimeError(f"{figures['trace']['rows']} spans of {lookups} traces were found")
    progress(0.95)
    figures["ten_seconds"] = _measured(settings, [_some_time(spans)], nbytes)
    figures["floor_column_scan"] = _column_scan(settings, sampled[0], nbytes)
    return figures


def _write(settings: Settings, source: Spans, spans: int, progress: Progress) -> dict[str, Any]:
    began = perf_counter()
    spec = TableSpec(_TOPIC, "bench", 1, SCHEMA, ("day(_publish_time)",), SORT_BY[Signal.TRACES])
    with contextlib.closing(Tables(settings)) as tables:
        table = tables.open(spec)
        step = min(_SPANS_A_COMMIT, -(-spans // _MIN_COMMITS))
        for start in range(0, spans, step):
            end = min(start + step, spans)
            memory = settings.writer.max_memory_bytes
            files = table.writer().write(source.batches(start, end), max_memory_bytes=memory)
            table = table.commit(files, start=start, end=end, epoch=1)
            progress(_WRITE_SHARE * end / spans)
        paths = _paths(table)
    footers = [pq.read_metadata(path) for path in paths]
    return {
        "bytes": sum(path.stat().st_size for path in paths),
        "files": len(paths),
        "row_groups": sum(footer.num_row_groups for footer in footers),
        "footer_bytes": sum(footer.serialized_size for footer in footers),
        "filter_bytes": sum(_filter_bytes(footer) for footer in footers),
        "written_spans_per_s": round(spans / (perf_counter() - began)),
    }


def _paths(table: TopicTable) -> list[Path]:
    return [Path(file.path.removeprefix("file://")) for file in FilePlan(table).files()]


def _filter_bytes(footer: pq.FileMetaData) -> int:
    return sum(note.nbytes for notes in filter_notes(footer).values() for note in notes)


def _look_up(settings: Settings, text: str) -> int:
    """Open the catalog and read the matching rows; return their number."""
    with contextlib.closing(Tables(settings)) as tables:
        table = tables.find(_TOPIC)
        assert table is not None
        return sum(batch.num_rows for batch in table.scan(where=Filter.parse(text)))


def _measured(settings: Settings, filters: list[str], nbytes: int) -> dict[str, Any]:
    seconds, cores, read, rows = [], [], [], 0
    for text in filters:
        before, began, began_cpu = bytes_read(), perf_counter(), process_time()
        rows += _look_up(settings, text)
        seconds.append(perf_counter() - began)
        cores.append(process_time() - began_cpu)
        read.append(bytes_read() - before)
    latencies = Latencies.of(seconds)
    files, groups = zip(*(_opened(settings, text) for text in filters), strict=True)
    return {
        "lookups": len(filters),
        "rows": rows,
        "bytes_p50": round(median(read)),
        "bytes_max": max(read),
        "share_of_bytes_p50": round(median(read) / nbytes, 5),
        "share_of_bytes_max": round(max(read) / nbytes, 5),
        "files_opened_p50": round(median(files)),
        "row_groups_read_p50": round(median(groups)),
        "row_groups_read_max": max(groups),
        "p50_ms": latencies.p50_ms,
        "p99_ms": latencies.p99_ms,
        "processor_p50_ms": Latencies.of(cores).p50_ms,
    }


def _opened(settings: Settings, text: str) -> tuple[int, int]:
    """Return how many files and row groups a look-up reads."""
    groups = files = 0
    with contextlib.closing(Tables(settings)) as tables:
        table = tables.find(_TOPIC)
        assert table is not None
        request = ScanRequest(table, tuple(SCHEMA.names), 0, table.ledger.committed_offset, Filter.parse(text))
        for planned in FilePlan(table, 0, request.end, request.pruning).files():
            file = OpenFile(request, planned)
            groups, files = groups + len(file.row_groups), files + 1
            file.close()
    return files, groups


def _some_time(spans: int) -> str:
    """Return a filter for ten seconds in the middle of the table."""
    middle = Spans.time_us(spans // 2)
    begin, end = (pa.scalar(time, SCHEMA.field("time").type) for time in (middle, middle + _SECONDS * 10**6))
    return f"time >= '{begin.as_py().isoformat()}' and time < '{end.as_py().isoformat()}'"


def _column_scan(settings: Settings, trace_id: bytes, nbytes: int) -> dict[str, Any]:
    """Read the column of all files with Parquet's own reader."""
    with contextlib.closing(Tables(settings)) as tables:
        table = tables.find(_TOPIC)
        assert table is not None
        paths = _paths(table)
    before, began, rows = bytes_read(), perf_counter(), 0
    for path in paths:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            for batch in file.iter_batches(columns=["trace_id"]):
                rows += pc.sum(pc.equal(batch.column(0), trace_id)).as_py() or 0
    if rows != SPANS_A_TRACE:
        raise RuntimeError(f"{rows} spans of one trace were found")
    read = bytes_read() - before
    return {
        "bytes": read,
        "share_of_bytes": round(read / nbytes, 5),
        "ms": round((perf_counter() - began) * 1000, 1),
    }
