"""Requests beyond the limits are refused by name before they cost much."""

from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList

from icestream.model.errors import InvalidMessageError, TooLargeError
from icestream.telemetry import ConversionOptions, Signal, json_to_request, to_batch


def spans(count: int) -> Any:
    made = ExportTraceServiceRequest()
    inner = made.resource_spans.add().scope_spans.add()
    for _ in range(count):
        inner.spans.add(name="s")
    return made


def in_arrays(value: AnyValue) -> AnyValue:
    return AnyValue(array_value=ArrayValue(values=[value]))


def in_maps(value: AnyValue) -> AnyValue:
    return AnyValue(kvlist_value=KeyValueList(values=[KeyValue(key="k", value=value)]))


def test_the_bytes_of_a_request_are_limited() -> None:
    data = spans(10).SerializeToString()
    assert to_batch(Signal.TRACES, data, ConversionOptions(max_request_bytes=len(data))).num_rows == 10
    with pytest.raises(TooLargeError, match=f"{len(data)} bytes in the request"):
        to_batch(Signal.TRACES, data, ConversionOptions(max_request_bytes=len(data) - 1))


def test_the_items_of_a_request_are_limited() -> None:
    data = spans(10).SerializeToString()
    assert to_batch(Signal.TRACES, data, ConversionOptions(max_rows=10)).num_rows == 10
    with pytest.raises(TooLargeError, match="10 items"):
        to_batch(Signal.TRACES, data, ConversionOptions(max_rows=9))


def test_the_data_points_of_a_request_are_limited() -> None:
    made = ExportMetricsServiceRequest()
    metrics = made.resource_metrics.add().scope_metrics.add().metrics
    for _ in range(5):
        points = metrics.add().sum.data_points
        points.add()
        points.add()
    with pytest.raises(TooLargeError, match="10 data points"):
        to_batch(Signal.METRICS, made.SerializeToString(), ConversionOptions(max_rows=9))


def test_a_large_resource_is_not_repeated_for_rows_without_end() -> None:
    made = spans(20_000)
    made.resource_spans[0].resource.attributes.add(key="k").value.string_value = "x" * 1_000_000
    with pytest.raises(TooLargeError, match="repeated resources"):
        to_batch(Signal.TRACES, made.SerializeToString())


def test_a_large_resource_with_few_rows_among_many_others_is_taken() -> None:
    made = spans(20_000)
    large = made.resource_spans.add()
    large.resource.attributes.add(key="k").value.string_value = "x" * 1_000_000
    large.scope_spans.add().spans.add()
    assert to_batch(Signal.TRACES, made.SerializeToString()).num_rows == 20_001


def test_the_bytes_of_the_rows_are_limited() -> None:
    data = spans(100).SerializeToString()
    size = to_batch(Signal.TRACES, data).nbytes
    with pytest.raises(TooLargeError, match="bytes in the rows"):
        to_batch(Signal.TRACES, data, ConversionOptions(max_batch_bytes=size - 1))


@pytest.mark.parametrize("wrap", [in_arrays, in_maps])
def test_values_nest_as_deep_as_allowed(wrap: Callable[[AnyValue], AnyValue]) -> None:
    made, value = spans(1), AnyValue(int_value=1)
    attribute = made.resource_spans[0].scope_spans[0].spans[0].attributes.add(key="deep")
    for _ in range(ConversionOptions().max_depth):
        value = wrap(value)
    attribute.value.CopyFrom(value)
    assert to_batch(Signal.TRACES, made.SerializeToString()).num_rows == 1
    attribute.value.CopyFrom(wrap(value))
    with pytest.raises(InvalidMessageError, match="deeper than 24"):
        to_batch(Signal.TRACES, made.SerializeToString())


def test_a_value_nested_without_end_is_refused() -> None:
    made = spans(1)
    inner = AnyValue(int_value=1).SerializeToString()
    for _ in range(2_000):
        inner = b"\x0a" + _varint(len(inner)) + inner  # ArrayValue.values
        inner = b"\x2a" + _varint(len(inner)) + inner  # AnyValue.array_value
    data = b"\x12" + _varint(len(inner)) + inner  # KeyValue.value
    for tag in (b"\x4a", b"\x12", b"\x12", b"\x0a"):  # attributes, spans, scope_spans, resource_spans
        data = tag + _varint(len(data)) + data
    with pytest.raises(InvalidMessageError):
        to_batch(Signal.TRACES, made.SerializeToString() + data)


def _varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x05ab", b"hello", b"\x00", b"\x0a" + b"\xff" * 10])
@pytest.mark.parametrize("signal", Signal)
def test_bytes_that_are_no_request_are_refused(signal: Signal, data: bytes) -> None:
    with pytest.raises(InvalidMessageError, match=f"not an OTLP request of {signal}"):
        to_batch(signal, data)


def test_text_that_is_not_utf8_is_refused() -> None:
    made = spans(1)
    data = made.SerializeToString().replace(b"\x01s", b"\x01\xff")
    with pytest.raises(InvalidMessageError):
        to_batch(Signal.TRACES, data)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "1",
        "null",
        '"text"',
        "{",
        '{"resourceSpans": 1}',
        '{"resourceSpans": [1]}',
        '{"resourceSpans": ["text"]}',
        '{"resourceSpans": "text"}',
        '{"resourceSpans": [{"resource": "text"}]}',
        '{"resourceSpans": [{"resource": []}]}',
        '{"resourceSpans": [{"resource": {}, "resource": {}}, {"scopeSpans": "x"}]}',
        '{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "xyz"}]}]}]}',
        '{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "é"}]}]}]}',
        '{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": 7}]}]}]}',
        '{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "\\ud800"}]}]}]}',
        '{"resourceSpans": [{"scopeSpans": [{"spans": [{"startTimeUnixNano": "-1"}]}]}]}',
        '{"resourceSpans": [{"scopeSpans": [{"spans": [{"startTimeUnixNano": ' + "9" * 10_000 + "}]}]}]}",
        "[" * 200_000,
        '{"a":' * 200_000,
        b"\xff\xfe{",
    ],
)
def test_text_that_is_no_request_in_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(InvalidMessageError, match="not an OTLP request of traces in JSON"):
        json_to_request(Signal.TRACES, text)


def test_text_is_limited_too() -> None:
    with pytest.raises(TooLargeError):
        json_to_request(Signal.TRACES, "{}" + " " * 100, ConversionOptions(max_request_bytes=100))
