"""What the doors take and what they refuse, by the bodies of requests."""

import gzip
import json
import threading
from typing import Any

import grpc
import pyarrow as pa
import pytest
from tests.integration.otlp.conftest import PROTOBUF, Doors, OpenDoors, Outcome
from tests.otlp_requests import serialized

from icestream.config import ServerSettings, TelemetrySettings
from icestream.telemetry import Signal

DOORS = ["grpc", "http"]
JSON = "application/json"
INVALID = {"grpc": grpc.StatusCode.INVALID_ARGUMENT.value[0], "http": 400}
SPAN = {"name": "GET /", "traceId": "5B8EFFF798038103D269B633813FC60C", "spanId": "eee19b7ec3c1b174"}
LOG = {"timeUnixNano": "1544712660300000000", "body": {"stringValue": "Example log record"}}
GAUGE = {"name": "my.gauge", "gauge": {"dataPoints": [{"asDouble": 10, "timeUnixNano": "1544712660300000000"}]}}
JSON_SAMPLES = {
    Signal.TRACES: {"resourceSpans": [{"scopeSpans": [{"spans": [SPAN]}]}]},
    Signal.LOGS: {"resourceLogs": [{"scopeLogs": [{"logRecords": [LOG]}]}]},
    Signal.METRICS: {"resourceMetrics": [{"scopeMetrics": [{"metrics": [GAUGE]}]}]},
}


def compress(data: bytes, codec: str) -> bytes:
    return gzip.compress(data) if codec == "gzip" else bytes(pa.Codec(codec).compress(data, asbytes=True))


@pytest.mark.parametrize("door", DOORS)
class TestBothDoors:
    @pytest.mark.parametrize("signal", Signal)
    def test_an_answer_means_that_the_rows_are_in_the_log(self, doors: Doors, door: str, signal: Signal) -> None:
        tenant = f"stored-{door}"
        outcome = doors.send(door, signal, serialized(signal, 3), x_tenant_id=tenant)
        assert outcome.ok
        assert outcome.body == b""
        topic = doors.storage.topics.get(f"{tenant}/{signal}")
        assert topic.log.durable_end == 3
        assert doors.rows(f"{tenant}/{signal}").num_rows == 3

    @pytest.mark.parametrize("signal", Signal)
    def test_an_empty_request_succeeds_and_stores_nothing(self, doors: Doors, door: str, signal: Signal) -> None:
        for body in (b"", serialized(signal, 0)):
            assert doors.send(door, signal, body, x_tenant_id=f"empty-{door}").ok
        assert not any(name.startswith(f"empty-{door}/") for name in doors.topics())

    @pytest.mark.parametrize("body", [b"\xff", b"not OTLP at all", b"\x0a\xff\xff\xff\xff\x0f", b"\x1f\x8b\x08\x00"])
    def test_what_is_no_request_is_refused_for_good(self, doors: Doors, door: str, body: bytes) -> None:
        outcome = doors.send(door, Signal.TRACES, body, x_tenant_id=f"malformed-{door}")
        assert outcome.code == INVALID[door]
        assert outcome.status.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
        assert outcome.retry_seconds is None
        assert f"malformed-{door}/traces" not in doors.topics()

    def test_a_dataset_has_topics_of_its_own(self, doors: Doors, door: str) -> None:
        tenant = f"datasets-{door}"
        assert doors.send(door, Signal.LOGS, serialized(Signal.LOGS), x_tenant_id=tenant, x_dataset_id="prod").ok
        assert doors.rows(f"{tenant}/prod_logs").num_rows == 1
        assert f"{tenant}/logs" not in doors.topics()

    def test_too_many_rows_are_refused_for_good(self, open_doors: OpenDoors, door: str) -> None:
        doors = open_doors(telemetry=TelemetrySettings(max_request_rows=10))
        assert doors.send(door, Signal.LOGS, serialized(Signal.LOGS, 10)).ok
        outcome = doors.send(door, Signal.LOGS, serialized(Signal.LOGS, 11))
        assert outcome.code == {"grpc": INVALID["grpc"], "http": 413}[door]
        assert doors.rows("default/logs").num_rows == 10

    def test_a_full_budget_is_told_as_retryable(self, open_doors: OpenDoors, door: str) -> None:
        doors = open_doors(server=ServerSettings(max_in_flight_bytes=64 << 20))
        body = serialized(Signal.TRACES, 3)
        doors.storage.budget.take((64 << 20) - 10)
        outcome = doors.send(door, Signal.TRACES, body)
        assert outcome.code == {"grpc": grpc.StatusCode.UNAVAILABLE.value[0], "http": 503}[door]
        assert outcome.retry_seconds == 1.0
        doors.storage.budget.give_back((64 << 20) - 10)
        assert doors.send(door, Signal.TRACES, body).ok
        assert doors.storage.budget.used_bytes == 0

    def test_many_first_requests_at_once_make_one_topic(self, open_doors: OpenDoors, door: str) -> None:
        doors = open_doors()
        body, outcomes = serialized(Signal.TRACES, 2), list[Outcome]()
        start = threading.Barrier(16)

        def send() -> None:
            start.wait()
            outcomes.append(doors.send(door, Signal.TRACES, body, x_tenant_id="raced"))

        threads = [threading.Thread(target=send) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [outcome.ok for outcome in outcomes] == [True] * 16
        assert doors.topics() == ["raced/traces"]
        assert doors.rows("raced/traces").num_rows == 32


class TestGrpc:
    def test_too_large_a_request_is_refused(self, open_doors: OpenDoors) -> None:
        doors = open_doors(telemetry=TelemetrySettings(max_request_bytes=10_000))
        for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
            outcome = doors.call(Signal.TRACES, bytes(1 << 24), {}, compression)
            assert outcome.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
            assert outcome.retry_seconds is None
        assert doors.call(Signal.TRACES, serialized(Signal.TRACES), {}).ok

    def test_there_are_no_other_methods(self, doors: Doors) -> None:
        method: Any = doors.channel.unary_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Import")
        with pytest.raises(grpc.RpcError) as caught:
            method(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


class TestHttp:
    @pytest.mark.parametrize("codec", ["gzip", "zstd"])
    def test_compressed_bodies(self, doors: Doors, codec: str) -> None:
        headers = {"content-encoding": codec, "x-tenant-id": f"compressed-{codec}"}
        assert doors.post(Signal.TRACES, compress(serialized(Signal.TRACES, 5), codec), headers).ok
        assert doors.rows(f"compressed-{codec}/traces").num_rows == 5

    @pytest.mark.parametrize("codec", ["gzip", "zstd"])
    def test_broken_compression_is_refused(self, doors: Doors, codec: str) -> None:
        whole = compress(serialized(Signal.TRACES, 50), codec)
        for body in (whole[:-3], b"abc", whole + b"more", b"\0" * 100):
            assert doors.post(Signal.TRACES, body, {"content-encoding": codec}).code == 400
        assert doors.storage.budget.used_bytes == 0

    @pytest.mark.parametrize("codec", ["gzip", "zstd"])
    def test_a_bomb_is_refused_before_it_is_large(self, open_doors: OpenDoors, codec: str) -> None:
        """The budget has no room for what it would become, and is not what refuses it."""
        doors = open_doors(
            telemetry=TelemetrySettings(max_request_bytes=1 << 20),
            server=ServerSettings(max_message_bytes=1 << 21, max_batch_bytes=1 << 21, max_in_flight_bytes=1 << 22),
        )
        bomb = compress(bytes(1 << 28), codec)
        assert len(bomb) < 1 << 19
        outcome = doors.post(Signal.TRACES, bomb, {"content-encoding": codec})
        assert (outcome.code, outcome.retry_seconds) == (413, None)
        assert doors.storage.budget.used_bytes == 0

    def test_too_large_a_body_is_refused(self, open_doors: OpenDoors) -> None:
        doors = open_doors(telemetry=TelemetrySettings(max_request_bytes=10_000))
        assert doors.post(Signal.TRACES, bytes(10_001), {}).code == 413

    @pytest.mark.parametrize("signal", Signal)
    def test_json_samples(self, doors: Doors, signal: Signal) -> None:
        body = json.dumps(JSON_SAMPLES[signal]).encode()
        headers = {"content-type": f"{JSON}; charset=utf-8", "x-tenant-id": "json"}
        outcome = doors.post(signal, body, headers)
        assert (outcome.code, outcome.body, outcome.headers["content-type"]) == (200, b"{}", JSON)
        row = doors.rows(f"json/{signal}").to_pylist()[0]
        if signal is Signal.TRACES:
            assert row["trace_id"].hex() == SPAN["traceId"].lower()

    @pytest.mark.parametrize(
        "body", [b"", b"{", b"[]", b'{"resourceSpans": 3}', b'{"resourceSpans": [{"scopeSpans": {}}]}']
    )
    def test_broken_json_is_refused_in_json(self, doors: Doors, body: bytes) -> None:
        outcome = doors.post(Signal.TRACES, body, {"content-type": JSON})
        assert (outcome.code, outcome.headers["content-type"]) == (400, JSON)
        assert json.loads(outcome.body)["code"] == INVALID["grpc"]

    @pytest.mark.parametrize("kind", ["", "text/plain", "application/octet-stream", "multipart/form-data"])
    def test_other_types_are_refused(self, doors: Doors, kind: str) -> None:
        assert doors.post(Signal.TRACES, b"", {"content-type": kind}).code == 415

    def test_other_encodings_are_refused(self, doors: Doors) -> None:
        assert doors.post(Signal.TRACES, b"", {"content-encoding": "br"}).code == 415
        assert doors.post(Signal.TRACES, b"", {"content-encoding": "identity"}).ok

    @pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"])
    def test_other_methods_are_refused(self, doors: Doors, method: str) -> None:
        answer = doors.http.request(method, "/v1/traces")
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")

    @pytest.mark.parametrize("path", ["/", "/v1", "/v1/traces/", "/v1/profiles", "/V1/traces"])
    def test_there_is_nothing_elsewhere(self, doors: Doors, path: str) -> None:
        assert doors.http.post(path, headers={"content-type": PROTOBUF}).status_code == 404

    def test_the_answer_in_json_tells_rejected_rows(self, open_doors: OpenDoors) -> None:
        doors = open_doors(telemetry=TelemetrySettings(tenant_attribute="tenant", auto_create_tenants=False))
        span = {"spans": [SPAN, SPAN]}
        other = {"attributes": [{"key": "tenant", "value": {"stringValue": "nobody"}}]}
        body = {"resourceSpans": [{"scopeSpans": [span]}, {"resource": other, "scopeSpans": [span]}]}
        outcome = doors.post(Signal.TRACES, json.dumps(body).encode(), {"content-type": JSON})
        partial = json.loads(outcome.body)["partialSuccess"]
        assert (outcome.code, partial["rejectedSpans"]) == (200, "2")
        assert "no tenant 'nobody'" in partial["errorMessage"]


def test_what_was_published_and_refused_is_counted(open_doors: OpenDoors) -> None:
    doors = open_doors()
    assert doors.send("grpc", Signal.TRACES, serialized(Signal.TRACES, 4)).ok
    assert doors.send("http", Signal.TRACES, b"\xff").code == 400
    text = doors.metrics.render()[0].decode()
    assert "icestream_published_messages_total 4.0" in text
    assert 'icestream_refused_batches_total{code="invalid_message"} 1.0' in text
    assert 'icestream_open_streams{door="otlp_grpc"} 0.0' in text
