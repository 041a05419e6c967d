"""From the doors into tables: partitioned by the time of publishing, sorted for look-ups, whatever times rows claim."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from tests.integration.otlp.conftest import PATIENCE_SECONDS, PROTOBUF
from tests.otlp_requests import request
from tests.topics import Topics

from icestream.broker_process import BrokerProcess
from icestream.model.names import TopicName
from icestream.telemetry import Signal

TIMES = [0, 1, 10**18, 1_700_000_000_123_456_789, 2**63 - 1, 2**63, 2**64 - 1]


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    data_dir: Path = tmp_path_factory.mktemp("otlp-tables")
    environ = {"ICESTREAM_CATALOG__NAME": f"c{uuid4().hex[:12]}"}
    with BrokerProcess(data_dir, environ=environ, otlp=True) as broker, Topics(broker, environ) as topics:
        yield topics


def send(topics: Topics, signal: Signal, message: Any) -> None:
    answer = httpx.post(
        f"{topics.broker.doors['otlp_http']}/v1/{signal}",
        content=message.SerializeToString(),
        headers={"content-type": PROTOBUF, "x-tenant-id": "acme"},
        timeout=PATIENCE_SECONDS,
        trust_env=False,
    )
    assert answer.status_code == 200, answer.content


def test_rows_with_any_times_go_into_one_partition_sorted_by_trace(topics: Topics) -> None:
    message = request(Signal.TRACES, len(TIMES))
    spans = message.resource_spans[0].scope_spans[0].spans
    for number, (span, time) in enumerate(zip(spans, TIMES, strict=True)):
        span.trace_id, span.start_time_unix_nano = bytes([200 - number]) * 16, time
    send(topics, Signal.TRACES, message)
    table = topics.drain(TopicName("acme", "traces"))
    assert len(table.iceberg.inspect.partitions()) == 1
    rows = table.iceberg.scan().to_arrow()
    assert rows["trace_id"].to_pylist() == sorted(span.trace_id for span in spans)
    kept = [time - 2**64 if time >= 2**63 else time for time in reversed(TIMES)]
    assert rows["start_time_unix_nano"].to_pylist() == kept


@pytest.mark.parametrize("signal", [Signal.LOGS, Signal.METRICS])
def test_other_signals_have_tables_too(topics: Topics, signal: Signal) -> None:
    send(topics, signal, request(signal, 5))
    table = topics.drain(TopicName("acme", signal.value))
    rows = table.iceberg.scan().to_arrow()
    assert rows["service_name"].to_pylist() == ["shop"] * 5
