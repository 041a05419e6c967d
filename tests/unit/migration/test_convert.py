"""Which types become which, and that values arrive as they were."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from icestream.migration.mapping import UnfitError, converter

MOMENT = datetime(2026, 1, 31, 12, 0, 0, 123456, UTC)
MICROS = pa.timestamp("us", tz="UTC")


def converted(values: pa.Array, target: pa.DataType, name: str = "x") -> pa.Array:
    convert = converter(values.type, target, name)
    found = values if convert is None else convert(values)
    found.validate(full=True)
    assert found.type.equals(target)
    return found


@pytest.mark.parametrize(
    ("source", "target", "values"),
    [
        (pa.int32(), pa.int64(), [1, None, -5]),
        (pa.uint64(), pa.int64(), [2**63 - 1, 0]),
        (pa.int64(), pa.int32(), [2**31 - 1]),
        (pa.float32(), pa.float64(), [0.5, None]),
        (pa.large_string(), pa.string(), ["é", None, ""]),
        (pa.string(), pa.large_string(), ["é"]),
        (pa.binary(4), pa.binary(), [b"abcd", None]),
        (pa.string(), pa.binary(), [None]),
        (pa.dictionary(pa.int8(), pa.string()), pa.string(), ["a", None, "a"]),
        (pa.timestamp("ms", tz="Europe/Paris"), MICROS, [MOMENT.replace(microsecond=0), None]),
        (pa.timestamp("ns", tz="UTC"), MICROS, [MOMENT]),
        (pa.null(), pa.string(), [None, None]),
        (pa.large_list(pa.int32()), pa.list_(pa.field("element", pa.int64())), [[1, 2], None, [], [None]]),
        (pa.map_(pa.string(), pa.large_string()), pa.map_(pa.string(), pa.string()), [[("a", "1")], None, []]),
        (
            pa.struct([("b", pa.int16()), ("a", pa.large_string())]),
            pa.struct([("a", pa.string()), ("b", pa.int64()), ("c", pa.string())]),
            [{"a": "x", "b": 1, "c": None}, None],
        ),
    ],
)
def test_values_keep_their_meaning_also_in_slices(source: pa.DataType, target: pa.DataType, values: list[Any]) -> None:
    whole = pa.array([*values, *values], source)
    assert converted(whole, target).to_pylist() == pa.array([*values, *values], target).to_pylist()
    assert converted(whole.slice(1), target).to_pylist() == pa.array([*values, *values][1:], target).to_pylist()


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (pa.string(), pa.int64()),
        (pa.float64(), pa.int64()),
        (pa.float64(), pa.float32()),
        (pa.int64(), pa.string()),
        (pa.bool_(), pa.int32()),
        (pa.list_(pa.string()), pa.string()),
        (pa.list_(pa.string()), pa.list_(pa.int64())),
        (pa.struct([("a", pa.int64()), ("z", pa.int64())]), pa.struct([("a", pa.int64())])),
    ],
)
def test_what_could_change_a_value_is_refused_by_type(source: pa.DataType, target: pa.DataType) -> None:
    with pytest.raises(UnfitError):
        converter(source, target, "x")


def test_a_refusal_names_the_place_inside() -> None:
    source = pa.list_(pa.struct([("inner", pa.string())]))
    target = pa.list_(pa.struct([("inner", pa.int64())]))
    with pytest.raises(UnfitError, match="element: inner: string does not become int64"):
        converter(source, target, "x")


@pytest.mark.parametrize(
    ("values", "target", "name"),
    [
        (pa.array([2**63], pa.uint64()), pa.int64(), "x"),
        (pa.array([2**31]), pa.int32(), "x"),
        (pa.array([b"\xff"]), pa.string(), "x"),
        (pa.array(["xyz1"]), pa.binary(), "trace_id"),
        (pa.array(["abc"]), pa.binary(), "span_id"),
        (pa.array([1001], pa.timestamp("ns", tz="UTC")), MICROS, "x"),
    ],
)
def test_a_value_that_does_not_fit_is_an_error_and_no_other_value(
    values: pa.Array, target: pa.DataType, name: str
) -> None:
    with pytest.raises(pa.ArrowInvalid):
        converted(values, target, name)


def test_ids_are_hexadecimal_in_texts_and_null_when_empty() -> None:
    texts = pa.array(["xx", "00ff", None, "", "ABcd"]).slice(1)
    assert converted(texts, pa.binary(), "trace_id").to_pylist() == [b"\x00\xff", None, None, b"\xab\xcd"]
    assert converted(pa.array([b"", b"a"]), pa.binary(), "span_id").to_pylist() == [None, b"a"]
    links = pa.array([[{"trace_id": "0a"}], None], pa.list_(pa.struct([("trace_id", pa.string())])))
    target = pa.list_(pa.struct([("trace_id", pa.binary())]))
    assert converted(links, target, "links").to_pylist() == [[{"trace_id": b"\n"}], None]


def test_other_texts_are_their_bytes() -> None:
    assert converted(pa.array(["é"]), pa.binary(), "payload").to_pylist() == ["é".encode()]


def test_times_become_nanoseconds_where_those_are_wanted() -> None:
    times = pa.array([MOMENT, None], pa.timestamp("us"))
    micros = int(MOMENT.timestamp()) * 1_000_000 + MOMENT.microsecond
    assert converted(times, pa.int64(), "time_unix_nano").to_pylist() == [micros * 1000, None]
