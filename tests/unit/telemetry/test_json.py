"""OTLP's JSON form, in the shapes that the specification's examples have."""

import json
from typing import Any

import pytest

from icestream.telemetry import Signal, json_to_request, to_batch

RESOURCE = {"attributes": [{"key": "service.name", "value": {"stringValue": "my.service"}}]}
SCOPE = {
    "name": "my.library",
    "version": "1.0.0",
    "attributes": [{"key": "my.scope.attribute", "value": {"stringValue": "some scope attribute"}}],
}
ATTRIBUTES = [{"key": "my.attribute", "value": {"stringValue": "some value"}}]
START, END = "1544712660000000000", "1544712661000000000"
TRACE_ID, SPAN_ID = "5B8EFFF798038103D269B633813FC60C", "EEE19B7EC3C1B174"


def rows(signal: Signal, tree: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = to_batch(signal, json_to_request(signal, json.dumps(tree))).to_pylist()
    return found


def traces(span: dict[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"resource": RESOURCE, "scopeSpans": [{"scope": SCOPE, "spans": [span]}]}]}


def logs(record: dict[str, Any]) -> dict[str, Any]:
    return {"resourceLogs": [{"resource": RESOURCE, "scopeLogs": [{"scope": SCOPE, "logRecords": [record]}]}]}


def metrics(*found: dict[str, Any]) -> dict[str, Any]:
    return {"resourceMetrics": [{"resource": RESOURCE, "scopeMetrics": [{"scope": SCOPE, "metrics": list(found)}]}]}


def test_a_span() -> None:
    (row,) = rows(
        Signal.TRACES,
        traces(
            {
                "traceId": TRACE_ID,
                "spanId": SPAN_ID,
                "parentSpanId": "eee19b7ec3c1b173",
                "name": "I'm a server span",
                "startTimeUnixNano": START,
                "endTimeUnixNano": END,
                "kind": 2,
                "attributes": ATTRIBUTES,
                "links": [{"traceId": TRACE_ID, "spanId": SPAN_ID}],
                "status": {"code": 2},
                "somethingNew": {"traceId": "not hexadecimal, and unknown"},
            }
        ),
    )
    assert row["trace_id"] == bytes.fromhex(TRACE_ID)
    assert row["span_id"] == bytes.fromhex(SPAN_ID)
    assert row["parent_span_id"] == bytes.fromhex("eee19b7ec3c1b173")
    assert row["links"][0]["trace_id"] == bytes.fromhex(TRACE_ID)
    assert (row["name"], row["kind"], row["status_code"]) == ("I'm a server span", 2, 2)
    assert (row["start_time_unix_nano"], row["end_time_unix_nano"]) == (int(START), int(END))
    assert (row["service_name"], row["scope"]["name"]) == ("my.service", "my.library")
    assert row["attributes"] == [("my.attribute", "some value")]


def test_a_log_record_with_values_of_every_type() -> None:
    values = [
        {"key": "boolean.attribute", "value": {"boolValue": True}},
        {"key": "int.attribute", "value": {"intValue": "10"}},
        {"key": "bare.int.attribute", "value": {"intValue": 10}},
        {"key": "double.attribute", "value": {"doubleValue": 637.704}},
        {"key": "bytes.attribute", "value": {"bytesValue": "AP8="}},
        {"key": "array.attribute", "value": {"arrayValue": {"values": [{"stringValue": "many"}, {"intValue": "1"}]}}},
        {"key": "map.attribute", "value": {"kvlistValue": {"values": ATTRIBUTES}}},
    ]
    (row,) = rows(
        Signal.LOGS,
        logs(
            {
                "timeUnixNano": START,
                "observedTimeUnixNano": END,
                "severityNumber": 10,
                "severityText": "Information",
                "traceId": TRACE_ID,
                "spanId": SPAN_ID,
                "eventName": "browser.page_view",
                "body": {"stringValue": "Example log record"},
                "attributes": values,
            }
        ),
    )
    assert (row["body"], row["severity_number"], row["severity_text"]) == ("Example log record", 10, "Information")
    assert (row["trace_id"], row["event_name"]) == (bytes.fromhex(TRACE_ID), "browser.page_view")
    assert [value for _, value in row["attributes"]] == [
        "true",
        "10",
        "10",
        "637.704",
        "AP8=",
        '["many",1]',
        '{"my.attribute":"some value"}',
    ]


def test_metrics_of_every_kind() -> None:
    times = {"startTimeUnixNano": START, "timeUnixNano": END, "attributes": ATTRIBUTES}
    found = rows(
        Signal.METRICS,
        metrics(
            {
                "name": "my.counter",
                "unit": "1",
                "description": "I am a Counter",
                "sum": {"aggregationTemporality": 1, "isMonotonic": True, "dataPoints": [{"asDouble": 5, **times}]},
            },
            {"name": "my.gauge", "gauge": {"dataPoints": [{"asInt": "10", **times}]}},
            {
                "name": "my.histogram",
                "histogram": {
                    "aggregationTemporality": 1,
                    "dataPoints": [
                        {"count": "2", "sum": 2, "bucketCounts": ["1", "1"], "explicitBounds": [1], "min": 0, **times}
                    ],
                },
            },
            {
                "name": "my.exponential.histogram",
                "exponentialHistogram": {
                    "aggregationTemporality": 2,
                    "dataPoints": [
                        {
                            "count": "3",
                            "sum": "NaN",
                            "scale": 0,
                            "zeroCount": "1",
                            "positive": {"offset": 1, "bucketCounts": [0, "2"]},
                            "exemplars": [{"traceId": TRACE_ID, "asDouble": 0.5}],
                            **times,
                        }
                    ],
                },
            },
            {
                "name": "my.summary",
                "summary": {
                    "dataPoints": [{"count": 1, "sum": 2, "quantileValues": [{"quantile": 1, "value": 2}], **times}]
                },
            },
        ),
    )
    assert [row["type"] for row in found] == ["sum", "gauge", "histogram", "exponential_histogram", "summary"]
    assert (found[0]["value_double"], found[1]["value_int"]) == (5.0, 10)
    assert (found[2]["bucket_counts"], found[2]["min"], found[2]["max"]) == ([1, 1], 0.0, None)
    assert found[3]["positive"] == {"offset": 1, "bucket_counts": [0, 2]}
    assert found[3]["exemplars"][0]["trace_id"] == bytes.fromhex(TRACE_ID)
    assert found[4]["quantile_values"] == [{"quantile": 1.0, "value": 2.0}]


@pytest.mark.parametrize("kind", [2, "SPAN_KIND_SERVER"])
def test_an_enum_is_a_number_and_its_name_is_understood(kind: Any) -> None:
    assert rows(Signal.TRACES, traces({"kind": kind}))[0]["kind"] == 2


def test_an_enum_value_of_a_later_version_is_kept() -> None:
    assert rows(Signal.TRACES, traces({"kind": 77}))[0]["kind"] == 77


def test_names_in_snake_case_are_understood_ids_among_them() -> None:
    (row,) = rows(Signal.TRACES, {"resource_spans": [{"scope_spans": [{"spans": [{"trace_id": TRACE_ID}]}]}]})
    assert row["trace_id"] == bytes.fromhex(TRACE_ID)


def test_null_stands_for_what_is_left_out() -> None:
    (row,) = rows(Signal.TRACES, traces({"traceId": None, "attributes": None, "status": None, "name": None}))
    assert (row["trace_id"], row["attributes"], row["status_code"], row["name"]) == (None, [], None, "")
