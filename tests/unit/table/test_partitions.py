import pyarrow as pa
import pytest
from pyiceberg.transforms import parse_transform

from icestream.model.errors import InvalidRequestError
from icestream.model.messages import STREAM_SCHEMA, stream_schema
from icestream.table import check_table_schema
from icestream.table.partitions import parse_partition, partition_spec
from icestream.table.schema import Columns, iceberg_schema

OWN = stream_schema(
    pa.schema(
        [
            ("at", pa.timestamp("ns", "UTC")),
            ("day", pa.date32()),
            ("price", pa.decimal128(10, 2)),
            ("ratio", pa.float64()),
            ("tags", pa.list_(pa.string())),
            ("labels", pa.map_(pa.string(), pa.string())),
            ("place", pa.struct([("country", pa.string()), ("zip", pa.list_(pa.int32()))])),
            ("at_day", pa.int32()),
            ("dotted.name", pa.int32()),
        ]
    )
)


@pytest.mark.parametrize(
    ("text", "column", "transform", "name"),
    [
        ("key", "key", "identity", "key"),
        ("identity(key)", "key", "identity", "key"),
        ("day(publish_time)", "publish_time", "day", "publish_time_day"),
        ("HOUR( publish_time )", "publish_time", "hour", "publish_time_hour"),
        ("month(publish_time)", "publish_time", "month", "publish_time_month"),
        ("year(publish_time)", "publish_time", "year", "publish_time_year"),
        (" bucket( 16 , key ) ", "key", "bucket[16]", "key_bucket"),
        ("truncate(4,key)", "key", "truncate[4]", "key_trunc"),
        ("day", "day", "identity", "day"),
    ],
)
def test_a_field_is_read_as(text: str, column: str, transform: str, name: str) -> None:
    parsed = parse_partition(text)
    assert (parsed.column, parsed.transform, parsed.name) == (column, parse_transform(transform), name)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "()",
        "day()",
        "day(a",
        "day(a, b)",
        "day(2, a)",
        "bucket(key)",
        "bucket(0, key)",
        "bucket(-1, key)",
        "bucket(x, key)",
        "bucket(٣, key)",
        "bucket(99999999999, key)",
        "truncate(4, )",
        "week(publish_time)",
        "a, b",
        "day(hour(a))",
    ],
)
def test_what_is_not_a_partition_field_is_refused_with_what_is(text: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_partition(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (["nope"], "names a column 'nope' that the topic does not have"),
        (["day(price)"], "cannot be computed from the type"),
        (["bucket(4, ratio)"], "cannot be computed from the type"),
        (["tags"], "cannot be computed from the type"),
        (["tags.element"], "one message has many values"),
        (["labels.value"], "one message has many values"),
        (["place.zip.element"], "one message has many values"),
        (["day", "day"], "is given twice"),
        ([f"bucket({n}, at)" for n in range(1, 18)], "are too many"),
    ],
)
def test_a_spec_that_cannot_work_is_refused_when_the_topic_is_made(fields: list[str], problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        check_table_schema(OWN, fields)


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        (["nope"], "no column"),
        (["tags"], "no order"),
        (["at"] * 2, "twice"),
        (["place.country"], "'place.country' is nested; only top-level columns can be sorted by"),
        (["tags.element"], "'tags.element' is nested"),
        (["dotted.name"], "'dotted.name' has a dot in its name"),
    ],
)
def test_an_order_that_cannot_work_is_refused_when_the_topic_is_made(columns: list[str], problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        check_table_schema(OWN, (), columns)


def test_sound_specs_pass() -> None:
    check_table_schema(STREAM_SCHEMA, ["day(publish_time)", "bucket(16, key)"], ["producer"])
    check_table_schema(OWN, ["day(at)", "hour(at)", "day", "truncate(10, price)", "place.country"], ["at", "day"])


def test_a_name_that_a_column_has_is_not_taken() -> None:
    spec = partition_spec(["day(at)", "day(day)"], iceberg_schema(Columns.of(OWN)))
    assert [field.name for field in spec.fields] == ["at_day_part", "day_day"]
