"""Looking up a value in a compacted table still reads little, and Parquet's bloom filters are there for who asked."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.integration.maintenance.conftest import Keep
from tests.topics import Topics

from icestream.model.filters import Filter
from icestream.pipeline.maintenance.report import MaintenanceStep
from icestream.table import TopicTable
from icestream.table.contents import read_contents
from icestream.table.planning import FilePlan
from icestream.table.scan import OpenFile, ScanRequest

SCHEMA = pa.schema([(name, pa.binary()) for name in ("trace_id", "span_id", "text")])
COMMITS, TRACES = 5, 500
PROPERTIES = {
    "write.parquet.row-group-size-bytes": "131072",
    "write.parquet.bloom-filter-enabled.column.span_id": "true",
}


def chunks(table: TopicTable, column: str) -> list[Any]:
    """Those of a column in all files."""
    found = []
    for file in FilePlan(table).files():
        metadata = pq.read_metadata(Path(file.path.removeprefix("file://")))
        number = metadata.schema.to_arrow_schema().get_field_index(column)
        found += [metadata.row_group(group).column(number) for group in range(metadata.num_row_groups)]
    return found


def spans(trace_ids: list[bytes], chance: random.Random) -> pa.RecordBatch:
    ids = trace_ids * 4
    span_ids, texts = ([chance.randbytes(count) for _ in ids] for count in (8, 200))
    return pa.record_batch([pa.array(values, pa.binary()) for values in (ids, span_ids, texts)], schema=SCHEMA)


def looked_up(table: TopicTable, trace_id: bytes) -> tuple[pa.Table, int]:
    """The rows of a trace, and how many row groups have to be read for them."""
    where = Filter.parse(f"trace_id = x'{trace_id.hex()}'")
    request = ScanRequest(table, tuple(table.stream_schema.names), 0, table.ledger.committed_offset, where)
    groups = 0
    for planned in FilePlan(table, pruning=request.pruning).files():
        file = OpenFile(request, planned)
        groups += len(file.row_groups)
        file.close()
    return pa.Table.from_batches(table.scan(where=where), table.stream_schema).combine_chunks(), groups


def test_compaction_keeps_look_ups_cheap(topics: Topics, maintenance: Keep) -> None:
    chance = random.Random(6)
    topic = topics.create("compact/traces", SCHEMA, sort_by=["trace_id"])
    wanted = []
    for commit in range(COMMITS):
        trace_ids = [chance.randbytes(16) for _ in range(TRACES)]
        wanted.append(chance.choice(trace_ids))
        topics.publish(topic, spans(trace_ids, chance))
        topics.drain(topic)
        if commit == 0:
            topics.table(topic).iceberg.transaction().set_properties(PROPERTIES).commit_transaction()
    assert [bool(chunk.bloom_filter_offset) for chunk in chunks(topics.table(topic), "span_id")][1:] == [True] * 4
    before = [looked_up(topics.table(topic), trace_id) for trace_id in wanted]
    assert [groups for _, groups in before] == [1] * COMMITS
    (report,) = maintenance().run([topic], [MaintenanceStep.COMPACT])
    assert report.errors == []
    table = topics.table(topic)
    assert len(read_contents(table).files) == 1
    compacted = chunks(table, "trace_id")
    assert len(compacted) >= 4
    assert all(chunk.bloom_filter_offset for chunk in chunks(table, "span_id"))
    lows, highs = [[getattr(chunk.statistics, end) for chunk in compacted] for end in ("min", "max")]
    assert all(high <= low for high, low in zip(highs, lows[1:], strict=False))
    for (rows, _), trace_id in zip(before, wanted, strict=True):
        again, groups = looked_up(table, trace_id)
        assert again.equals(rows)
        assert rows.num_rows == 4
        assert groups <= 2
    assert topics.verify(topic).is_sound
