"""What rows look like: the mapping that `docs/telemetry-mapping.md` describes."""

import json
import struct
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList

from icestream.model.errors import InvalidMessageError, InvalidRequestError
from icestream.model.messages import check_topic_schema, stream_schema
from icestream.table.schema import Columns, check_table_schema
from icestream.telemetry import AttributeOwner, ConversionOptions, Promoted, Signal, to_batch, to_request, topic_schema
from icestream.telemetry.schemas import REQUESTS

NANOS = 1_700_000_000_123_456_789
BEYOND_INT64 = 2**63 + 5


def attribute(key: str, **member: Any) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(**member))


def request(signal: Signal) -> tuple[Any, Any]:
    """A request with one resource and one scope, and the list of its items."""
    outer, inner, items = {
        Signal.TRACES: ("resource_spans", "scope_spans", "spans"),
        Signal.LOGS: ("resource_logs", "scope_logs", "log_records"),
        Signal.METRICS: ("resource_metrics", "scope_metrics", "metrics"),
    }[signal]
    made = REQUESTS[signal]()
    resource = getattr(made, outer).add()
    resource.resource.attributes.append(attribute("service.name", string_value="checkout"))
    return made, getattr(getattr(resource, inner).add(), items)


def rows(signal: Signal, made: Any, options: ConversionOptions | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = to_batch(signal, made.SerializeToString(), options or ConversionOptions()).to_pylist()
    return found


def only_row(signal: Signal, made: Any, options: ConversionOptions | None = None) -> dict[str, Any]:
    (row,) = rows(signal, made, options)
    return row


@pytest.mark.parametrize("signal", Signal)
def test_a_topic_and_a_table_can_have_the_columns_and_the_table_casts_none(signal: Signal) -> None:
    schema = stream_schema(check_topic_schema(topic_schema(signal)))
    check_table_schema(schema, ["hour(time)"], ["service_name", "time"])
    for field, stored in zip(schema, Columns.of(schema).stored, strict=True):
        assert [part.type for part in stored] == [field.type], field.name


def test_times_are_exact_in_nanoseconds_and_have_a_column_to_partition_by() -> None:
    made, spans = request(Signal.TRACES)
    spans.add(start_time_unix_nano=NANOS, end_time_unix_nano=NANOS + 1)
    row = only_row(Signal.TRACES, made)
    assert (row["start_time_unix_nano"], row["end_time_unix_nano"]) == (NANOS, NANOS + 1)
    assert row["time"] == datetime(2023, 11, 14, 22, 13, 20, 123456, UTC)


def test_a_time_beyond_int64_keeps_its_bits_and_its_year() -> None:
    made, spans = request(Signal.TRACES)
    spans.add(start_time_unix_nano=BEYOND_INT64)
    row = only_row(Signal.TRACES, made)
    assert row["start_time_unix_nano"] == BEYOND_INT64 - 2**64
    assert row["time"].year == 2262


def test_a_time_that_is_not_known_is_null_and_a_log_record_then_has_the_observed_one() -> None:
    made, spans = request(Signal.TRACES)
    spans.add()
    assert only_row(Signal.TRACES, made)["time"] is None
    logged, records = request(Signal.LOGS)
    records.add(observed_time_unix_nano=NANOS)
    assert only_row(Signal.LOGS, logged)["time"] == datetime(2023, 11, 14, 22, 13, 20, 123456, UTC)


def test_an_id_that_is_left_out_is_null() -> None:
    made, spans = request(Signal.TRACES)
    spans.add(trace_id=b"t" * 16, span_id=b"s" * 8)
    spans.add(trace_id=b"t" * 16, span_id=b"z" * 8, parent_span_id=b"s" * 8)
    assert [row["parent_span_id"] for row in rows(Signal.TRACES, made)] == [None, b"s" * 8]


def test_no_status_differs_from_an_empty_one() -> None:
    made, spans = request(Signal.TRACES)
    spans.add()
    spans.add().status.SetInParent()
    assert [(row["status_code"], row["status_message"]) for row in rows(Signal.TRACES, made)] == [(None, None), (0, "")]


def test_plain_values_are_text_and_their_types_stand_beside() -> None:
    made, spans = request(Signal.TRACES)
    spans.add().attributes.extend(
        [
            attribute("text", string_value="GET"),
            attribute("yes", bool_value=True),
            attribute("status", int_value=-200),
            attribute("load", double_value=0.1),
            attribute("raw", bytes_value=b"\x00\xff"),
        ]
    )
    row = only_row(Signal.TRACES, made)
    assert dict(row["attributes"]) == {"text": "GET", "yes": "true", "status": "-200", "load": "0.1", "raw": "AP8="}
    assert row["attributes_types"] == bytes([1, 2, 3, 4, 7])
    assert row["attributes_otlp"] is None


def test_nested_values_are_json_and_exact_beside_it() -> None:
    inner = AnyValue(
        kvlist_value=KeyValueList(values=[attribute("é", double_value=float("inf")), attribute("none")]),
    )
    nested = KeyValue(key="list", value=AnyValue(array_value=ArrayValue(values=[inner, AnyValue(bytes_value=b"\xff")])))
    made, spans = request(Signal.TRACES)
    spans.add().attributes.extend([attribute("plain", int_value=1), nested])
    row = only_row(Signal.TRACES, made)
    assert json.loads(dict(row["attributes"])["list"]) == [{"é": "Infinity", "none": None}, "/w=="]
    assert row["attributes_otlp"][1] == nested.SerializeToString()


def test_of_two_values_of_one_key_the_map_has_the_first_and_none_is_lost() -> None:
    made, spans = request(Signal.TRACES)
    spans.add().attributes.append(attribute("a", string_value="fine"))
    spans.add().attributes.extend(
        [attribute("a", string_value="1"), attribute("b", int_value=2), attribute("a", int_value=3)]
    )
    spans.add().attributes.append(attribute("a", int_value=4))
    batch = to_batch(Signal.TRACES, made.SerializeToString())
    assert batch.column("attributes").to_pylist() == [[("a", "fine")], [("a", "1"), ("b", "2")], [("a", "4")]]
    assert [exact is None for exact in batch.column("attributes_otlp").to_pylist()] == [True, False, True]
    assert to_request(Signal.TRACES, batch) == made.SerializeToString()


@pytest.mark.parametrize("bits", [0x7FF8000000000000, 0xFFF8000000000000, 0x7FF8000000000001, 0x8000000000000000, 1])
def test_every_double_comes_back_with_all_its_bits(bits: int) -> None:
    (number,) = struct.unpack("<d", bits.to_bytes(8, "little"))
    made, spans = request(Signal.TRACES)
    spans.add().attributes.append(attribute("n", double_value=number))
    data = made.SerializeToString()
    assert bits.to_bytes(8, "little") in data
    assert to_request(Signal.TRACES, to_batch(Signal.TRACES, data)) == data


def test_an_index_of_a_key_is_kept() -> None:
    made, spans = request(Signal.TRACES)
    spans.add().attributes.add(key_strindex=7).value.int_value = 1
    data = made.SerializeToString()
    assert to_request(Signal.TRACES, to_batch(Signal.TRACES, data)) == data


def test_many_rows_with_many_keys_are_searched_for_twins_too() -> None:
    made, spans = request(Signal.TRACES)
    for number in range(2_100):
        spans.add().attributes.append(attribute(f"key {number}", int_value=number))
    spans[2_000].attributes.append(attribute("key 2000", int_value=0))
    found = to_batch(Signal.TRACES, made.SerializeToString()).column("attributes_otlp")
    assert [number for number, exact in enumerate(found.to_pylist()) if exact is not None] == [2_000]


def test_a_body_is_text_whatever_it_was() -> None:
    made, records = request(Signal.LOGS)
    records.add().body.string_value = "it works"
    records.add().body.kvlist_value.values.append(attribute("code", int_value=7))
    records.add()
    records.add().body.SetInParent()
    found = [(row["body"], row["body_type"], row["body_otlp"] is not None) for row in rows(Signal.LOGS, made)]
    assert found == [("it works", 1, False), ('{"code":7}', 6, True), (None, None, False), (None, 0, True)]


def test_data_points_of_all_kinds_stand_in_the_order_of_the_request() -> None:
    made, metrics = request(Signal.METRICS)
    metrics.add(name="up").gauge.data_points.add(as_int=1)
    requests = metrics.add(name="requests", unit="1")
    requests.sum.is_monotonic, requests.sum.aggregation_temporality = True, 2
    requests.sum.data_points.add(as_double=0.5)
    latency = metrics.add(name="latency").histogram
    latency.data_points.add(count=3, sum=1.5, bucket_counts=[1, 2], explicit_bounds=[0.5])
    metrics.add(name="nothing yet").gauge.SetInParent()
    metrics.add(name="sizes").exponential_histogram.data_points.add(scale=-1).positive.bucket_counts.append(2**64 - 1)
    metrics.add(name="quantiles").summary.data_points.add().quantile_values.add(quantile=0.5, value=2.0)
    metrics.add(name="down").gauge.data_points.add(flags=1)

    found = rows(Signal.METRICS, made)

    assert [(row["name"], row["type"]) for row in found] == [
        ("up", "gauge"),
        ("requests", "sum"),
        ("latency", "histogram"),
        ("sizes", "exponential_histogram"),
        ("quantiles", "summary"),
        ("down", "gauge"),
    ]
    assert [(row["value_int"], row["value_double"]) for row in found[:2]] == [(1, None), (None, 0.5)]
    assert (found[0]["is_monotonic"], found[1]["is_monotonic"]) == (None, True)
    assert (found[2]["sum"], found[2]["min"], found[2]["bucket_counts"]) == (1.5, None, [1, 2])
    assert found[3]["positive"] == {"offset": 0, "bucket_counts": [-1]}
    assert found[3]["negative"] is None
    assert found[4]["quantile_values"] == [{"quantile": 0.5, "value": 2.0}]
    assert (found[5]["flags"], found[5]["value_int"], found[5]["value_double"]) == (1, None, None)


def test_each_row_names_its_own_resource_and_scope() -> None:
    made = REQUESTS[Signal.TRACES]()
    for service in ("a", "b"):
        group = made.resource_spans.add(schema_url=f"https://{service}")
        group.resource.attributes.append(attribute("service.name", string_value=service))
        for scope in ("x", "y"):
            inner = group.scope_spans.add(schema_url=f"https://{scope}")
            inner.scope.name = scope
            inner.spans.add()
            inner.spans.add()
    made.resource_spans.add().scope_spans.add().spans.add()
    found = [
        (row["service_name"], row["resource_schema_url"], row["scope"] and row["scope"]["name"])
        for row in rows(Signal.TRACES, made)
    ]
    pairs = [(service, f"https://{service}", scope) for service in "ab" for scope in "xxyy"]
    assert found == [*pairs, (None, "", None)]


def test_attributes_are_promoted_from_where_they_are_asked_for() -> None:
    options = ConversionOptions(
        promoted=(
            Promoted("http.status", "http_status"),
            Promoted("host.name", "host", AttributeOwner.RESOURCE),
            Promoted("team", "team", AttributeOwner.SCOPE),
        )
    )
    made, spans = request(Signal.TRACES)
    made.resource_spans[0].resource.attributes.append(attribute("host.name", string_value="h1"))
    made.resource_spans[0].scope_spans[0].scope.attributes.append(attribute("team", string_value="red"))
    spans.add().attributes.append(attribute("http.status", int_value=200))
    spans.add()
    batch = to_batch(Signal.TRACES, made.SerializeToString(), options)
    assert batch.schema.equals(topic_schema(Signal.TRACES, options))
    assert batch.select(["http_status", "host", "team"]).to_pylist() == [
        {"http_status": "200", "host": "h1", "team": "red"},
        {"http_status": None, "host": "h1", "team": "red"},
    ]
    assert to_request(Signal.TRACES, batch) == made.SerializeToString()


@pytest.mark.parametrize("column", ["trace_id", "service_name", "twice"])
def test_a_promoted_column_cannot_take_a_name_that_is_taken(column: str) -> None:
    promoted = (Promoted("a", column), Promoted("b", "twice"))
    with pytest.raises(InvalidRequestError, match="taken"):
        topic_schema(Signal.TRACES, ConversionOptions(promoted=promoted))


@pytest.mark.parametrize("signal", Signal)
def test_an_empty_request_has_no_rows(signal: Signal) -> None:
    batch = to_batch(signal, b"")
    assert batch.num_rows == 0
    assert batch.schema.equals(topic_schema(signal))
    assert to_request(signal, batch) == b""


def test_groups_without_items_make_no_row_and_split_groups_come_back_as_one() -> None:
    made = REQUESTS[Signal.LOGS]()
    made.resource_logs.add().scope_logs.add()
    for text in ("a", "b"):
        made.resource_logs.add().scope_logs.add().log_records.add().body.string_value = text
    again = REQUESTS[Signal.LOGS].FromString(to_request(Signal.LOGS, to_batch(Signal.LOGS, made.SerializeToString())))
    (group,) = again.resource_logs
    (scope,) = group.scope_logs
    assert [record.body.string_value for record in scope.log_records] == ["a", "b"]


def test_rows_without_the_columns_of_the_signal_cannot_become_a_request() -> None:
    with pytest.raises(InvalidMessageError, match="trace_id"):
        to_request(Signal.TRACES, pa.record_batch({"a": [1]}))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("attributes_types", b""),
        ("attributes_types", b"\x01\x01"),
        ("attributes_types", b"\x05"),
        ("attributes_types", b"\x03"),
        ("attributes_types", None),
        ("attributes_otlp", [b"\xff"]),
        ("attributes", None),
        ("events", None),
        ("flags", -1),
        ("resource", {"entity_refs": None}),
    ],
)
def test_rows_that_no_request_makes_cannot_become_one(column: str, value: Any) -> None:
    made, spans = request(Signal.TRACES)
    spans.add().attributes.append(attribute("a", string_value="b"))
    batch = to_batch(Signal.TRACES, made.SerializeToString())
    place, field = batch.schema.get_field_index(column), batch.schema.field(column)
    spoilt = batch.set_column(place, field, pa.array([value], field.type))
    with pytest.raises(InvalidMessageError):
        to_request(Signal.TRACES, spoilt)


def test_a_data_point_of_an_unknown_type_cannot_become_a_request() -> None:
    made, metrics = request(Signal.METRICS)
    metrics.add(name="up").gauge.data_points.add(as_int=1)
    batch = to_batch(Signal.METRICS, made.SerializeToString())
    place = batch.schema.get_field_index("type")
    for kind in ("unknown", "name", "__class__"):
        with pytest.raises(InvalidMessageError):
            to_request(Signal.METRICS, batch.set_column(place, batch.schema.field(place), pa.array([kind])))


def test_metrics_of_the_same_name_in_two_scopes_come_back_in_two() -> None:
    made = REQUESTS[Signal.METRICS]()
    group = made.resource_metrics.add()
    for scope in ("a", "b"):
        inner = group.scope_metrics.add()
        inner.scope.name = scope
        inner.metrics.add(name="up").gauge.data_points.add(as_int=1)
    data = made.SerializeToString()
    assert to_request(Signal.METRICS, to_batch(Signal.METRICS, data)) == data
