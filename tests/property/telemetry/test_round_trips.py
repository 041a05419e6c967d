"""Whatever an OTLP request says, its rows say too."""

import base64
import json
import os
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf.json_format import MessageToDict, ParseDict
from hypothesis import HealthCheck, given, settings
from tests.otlp import as_bytes, grouped, requests

from icestream.model.messages import check_batch, check_topic_schema
from icestream.table.schema import Columns, file_schema, iceberg_schema
from icestream.telemetry import Signal, json_to_request, to_batch, to_request, topic_schema

EXAMPLES = 300 if os.environ.get("ICESTREAM_SOAK") else 30
SLOW_TO_MAKE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


@pytest.mark.parametrize("signal", Signal)
@settings(max_examples=EXAMPLES, suppress_health_check=SLOW_TO_MAKE)
@given(data=st.data())
def test_a_request_made_from_its_rows_is_the_request_that_came(signal: Signal, data: st.DataObject) -> None:
    request: Any = data.draw(requests(signal))

    batch = to_batch(signal, request.SerializeToString())

    check_batch(batch, check_topic_schema(topic_schema(signal)))
    made = type(request).FromString(to_request(signal, batch))
    expected = grouped(signal, request)
    assert as_bytes(made) == as_bytes(expected), f"{MessageToDict(made)}\n{MessageToDict(expected)}"


@pytest.mark.parametrize("signal", Signal)
@settings(max_examples=EXAMPLES // 3, suppress_health_check=SLOW_TO_MAKE)
@given(data=st.data())
def test_rows_come_back_from_the_files_of_a_table_as_they_went_in(signal: Signal, data: st.DataObject) -> None:
    request: Any = data.draw(requests(signal))
    batch = to_batch(signal, request.SerializeToString())
    columns = Columns.of(batch.schema)
    file = pa.BufferOutputStream()

    pq.write_table(columns.to_table([batch], file_schema(columns, iceberg_schema(columns))), file)
    rows = columns.from_table(pq.read_table(pa.BufferReader(file.getvalue())), batch.schema.names)

    found = to_request(signal, rows.combine_chunks().to_batches()[0]) if rows.num_rows else b""
    assert found == as_bytes(grouped(signal, request))


@pytest.mark.parametrize("signal", Signal)
@settings(max_examples=EXAMPLES // 3, suppress_health_check=SLOW_TO_MAKE)
@given(data=st.data())
def test_json_says_what_protobuf_says(signal: Signal, data: st.DataObject) -> None:
    request: Any = data.draw(requests(signal))
    plain = MessageToDict(request, use_integers_for_enums=True)
    expected = ParseDict(plain, type(request)())  # JSON has one NaN only

    made = type(request).FromString(json_to_request(signal, json.dumps(with_hex_ids(plain))))

    assert as_bytes(made) == as_bytes(expected)


def with_hex_ids(node: Any) -> Any:
    """Protobuf's JSON form as OTLP has it."""
    if isinstance(node, list):
        return [with_hex_ids(part) for part in node]
    if not isinstance(node, dict):
        return node
    ids = {name for name in ("traceId", "spanId", "parentSpanId") if name in node}
    return {
        name: base64.b64decode(value).hex().upper() if name in ids else with_hex_ids(value)
        for name, value in node.items()
    }
