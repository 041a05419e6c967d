"""OpenTelemetry's exporters and a real broker process: killed under load, stopped, and beside Flight."""

import json
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.otlp_requests import serialized

from icestream import Client
from icestream.broker_process import BrokerProcess
from icestream.telemetry import Signal, to_batch, topic_schema
from icestream_bench.otlp import measure_otlp

PATIENCE_SECONDS = 120.0
BATCHES, SPANS, SENDERS = 60, 20, 3
KILLS_AT = (40, 110)


def spans(name: str) -> tuple[ReadableSpan, ...]:
    made, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(made))
    tracer = provider.get_tracer("test")
    for number in range(SPANS):
        with tracer.start_as_current_span(f"{name} {number}"):
            pass
    return made.get_finished_spans()


class Load:
    """Senders that count what was accepted."""

    def __init__(self) -> None:
        self.accepted: list[str] = []
        self.refused = 0
        self.moved = threading.Condition()

    def send(self, exporter: SpanExporter, sender: str) -> None:
        for number in range(BATCHES):
            batch = spans(f"{sender} {number}")
            result = exporter.export(batch)
            with self.moved:
                if result is SpanExportResult.SUCCESS:
                    self.accepted += [span.name for span in batch]
                else:
                    self.refused += 1
                self.moved.notify_all()

    def wait_for(self, batches: int) -> None:
        with self.moved:
            assert self.moved.wait_for(lambda: len(self.accepted) >= batches * SPANS, PATIENCE_SECONDS)


def test_kill_9_under_load_loses_nothing_that_an_exporter_was_told_is_stored(tmp_path: Path) -> None:
    load = Load()
    with BrokerProcess(tmp_path / "data", otlp=True) as broker:
        grpc, http = broker.doors["otlp_grpc"], f"{broker.doors['otlp_http']}/v1/traces"
        exporters: list[SpanExporter] = [
            GrpcExporter(endpoint=grpc, insecure=True, timeout=PATIENCE_SECONDS),
            GrpcExporter(endpoint=grpc, insecure=True, timeout=PATIENCE_SECONDS),
            HttpExporter(endpoint=http, timeout=PATIENCE_SECONDS),
        ]
        threads = [
            threading.Thread(target=load.send, args=(exporter, f"sender {number}"))
            for number, exporter in enumerate(exporters)
        ]
        for thread in threads:
            thread.start()
        for batches in KILLS_AT:
            load.wait_for(batches)
            broker.kill()
            broker.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        for exporter in exporters:
            exporter.shutdown()
        with Client(broker.flight) as client:
            found = client.read("default/traces", columns=["name", "_offset"])
    names = Counter(found["name"].to_pylist())
    assert not Counter(load.accepted) - names, "an exporter was told that a span is stored, and it is not"
    assert load.refused == 0
    assert len(load.accepted) == BATCHES * SPANS * SENDERS
    offsets = found["_offset"].to_pylist()
    assert offsets == list(range(len(offsets)))
    # A request is sent again when its answer was lost: only what was under way at a kill can be there twice.
    assert found.num_rows - len(load.accepted) <= len(KILLS_AT) * SENDERS * SPANS


@pytest.mark.parametrize("promoted", ["", "http.route"])
def test_arrow_rows_may_be_published_into_the_same_topic(tmp_path: Path, promoted: str) -> None:
    """Of the plain schema, whatever columns the broker's settings have added."""
    rows = to_batch(Signal.TRACES, serialized(Signal.TRACES, 3, name="by Flight"))
    environ = {"ICESTREAM_TELEMETRY__PROMOTED_ATTRIBUTES": promoted}
    with BrokerProcess(tmp_path / "data", otlp=True, environ=environ) as broker:
        exporter = GrpcExporter(endpoint=broker.doors["otlp_grpc"], insecure=True, headers={"x-tenant-id": "acme"})
        assert exporter.export(spans("by OTLP")) is SpanExportResult.SUCCESS
        exporter.shutdown()
        with Client(broker.flight) as client:
            with client.producer("acme/traces", schema=topic_schema(Signal.TRACES)) as producer:
                producer.send_batch(rows).result()
            found = client.read("acme/traces", columns=["name", "service_name"])
        assert pa.compute.sum(pa.compute.starts_with(found["name"], "by Flight")).as_py() == 3
        assert found.num_rows == SPANS + 3
        assert broker.terminate() == 0, broker.log()


def test_the_measurement_says_what_it_measured(tmp_path: Path) -> None:
    shares: list[float] = []
    with BrokerProcess(tmp_path / "data", otlp=True) as broker:
        figures = measure_otlp(broker, items=8, streams=2, requests=64, progress=shares.append)
        with Client(broker.flight) as client:
            assert client.describe_topic("default/logs").durable_end >= 64 * 8
    for signal in (Signal.TRACES, Signal.LOGS):
        assert figures[signal]["durable"]["per_s"] > 0
        assert figures[signal]["floor_bare_grpc"]["per_s"] > 0
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_the_measurement_counts_what_the_pipeline_wrote(tmp_path: Path) -> None:
    options = ["--items=8", "--streams=2", "--requests=64", f"--data={tmp_path}", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "icestream.cli", "bench", "otlp", *options],
        check=False,
        capture_output=True,
        text=True,
        timeout=5 * PATIENCE_SECONDS,  # a Spark session starts within it
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    for signal in (Signal.TRACES, Signal.LOGS):
        written = figures[signal]["pipeline"]
        sent_first = (64 // 2 // 4 + 1) * 2  # what a client sends before it counts
        assert written["rows"] == (64 + sent_first) * 8
        assert written["per_core_s"] > 0
        assert written["share_of_durable"] > 0


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "first", otlp=True) as broker:
        for door in ("grpc", "http"):
            port = broker.doors[f"otlp_{door}"].rpartition(":")[2]
            second = BrokerProcess(tmp_path / door, arguments=[f"--otlp-{door}-port={port}"])
            with pytest.raises(Exception, match=f"server.otlp_{door}_port"):
                second.start()
