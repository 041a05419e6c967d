"""A pushed-down filter never excludes a row that the condition accepts."""

from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from icestream.model.filters import And, Compare, Field, In, Instant, Or, Predicate
from icestream.query.pushdown import FieldRef, FunctionCall, read_expression, scan_range

TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("time", TIME),
        ("exact", pa.timestamp("ns")),
        ("key", pa.binary()),
        ("name", pa.string()),
        ("price", pa.float64()),
        ("sold", pa.bool_()),
        ("in", pa.struct([("a", pa.int32())])),
        ("level", pa.int32()),
        ("count", pa.uint64()),
    ]
)
OFFSET, KEY, NAME, PRICE = (pc.field(name) for name in ("offset", "key", "name", "price"))


def where_of(expression: pc.Expression) -> Predicate | None:
    found = scan_range(expression, SCHEMA, 0, 100).where
    return None if found is None else found.predicate


def test_an_expression_is_read_with_all_its_parts() -> None:
    found = read_expression((OFFSET >= 5) & (NAME.isin(["a", "b"])) & (pc.field("in", "a") == 3))
    assert isinstance(found, FunctionCall)
    assert found.function == "and_kleene"
    first, second = found.arguments
    assert isinstance(first, FunctionCall)
    assert first.arguments == (
        FunctionCall("greater_equal", (FieldRef("offset"), pa.scalar(5)), None),
        first.arguments[1],
    )
    assert isinstance(second, FunctionCall)
    assert second.arguments[0] is None  # a field inside a struct


def test_what_has_another_form_is_not_read() -> None:
    class Strange:
        def __reduce__(self) -> tuple[type, tuple[bytes]]:
            return Strange, (b"not what Arrow writes",)

    assert read_expression(Strange()) is None


@pytest.mark.parametrize(
    ("expression", "bounds"),
    [
        ((OFFSET > 5) & (OFFSET <= 50), (6, 51)),
        ((OFFSET >= 5) & (OFFSET < 50) & (OFFSET < 40), (5, 40)),
        (OFFSET == 7, (7, 8)),
        ((OFFSET == 7) & (OFFSET == 9), (9, 9)),
        (OFFSET > 1000, (1001, 1001)),
        (OFFSET < -5, (0, 0)),
        (OFFSET != 7, (0, 100)),
        ((OFFSET == 7) | (OFFSET == 9), (0, 100)),
        (~(OFFSET > 5), (0, 100)),
        ((OFFSET > 5) & (PRICE > 1), (6, 100)),
    ],
)
def test_offsets_bound_what_is_read(expression: pc.Expression, bounds: tuple[int, int]) -> None:
    found = scan_range(expression, SCHEMA, 0, 100)
    assert (found.start, found.end) == bounds


@pytest.mark.parametrize(
    ("expression", "predicate"),
    [
        (KEY == b"k", And((Compare(Field("key"), "=", b"k"),))),
        ((NAME >= "a") & (NAME < "b"), And((Compare(Field("name"), ">=", "a"), Compare(Field("name"), "<", "b")))),
        (NAME.isin(["x", "y"]), And((In(Field("name"), ("x", "y")),))),
        (
            (NAME == "x") | (KEY == b"k"),
            And((Or((Compare(Field("name"), "=", "x"), Compare(Field("key"), "=", b"k"))),)),
        ),
        (
            pc.field("time") > pa.scalar(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), TIME),
            And((Compare(Field("time"), ">", Instant(1_000_000)),)),
        ),
        (pc.field("sold") == True, And((Compare(Field("sold"), "=", True),))),  # noqa: E712
        (KEY.isin([b"k", b"\x00\xff"]), And((In(Field("key"), (b"k", b"\x00\xff")),))),
        (pc.field("level") >= pa.scalar(13, pa.int32()), And((Compare(Field("level"), ">=", Decimal(13)),))),
        (pc.field("level") >= pa.scalar(13, pa.int64()), And((Compare(Field("level"), ">=", Decimal(13)),))),
        (pc.field("count") == pa.scalar(1, pa.uint64()), And((Compare(Field("count"), "=", Decimal(1)),))),
    ],
)
def test_conditions_that_compare_alike_are_passed_on(expression: pc.Expression, predicate: Predicate) -> None:
    assert where_of(expression) == predicate


@pytest.mark.parametrize(
    "expression",
    [
        PRICE > 1.0,  # NaN compares otherwise in SQL
        ~(NAME == "x"),
        (NAME == "x") | (PRICE > 1.0),
        NAME.is_null(),
        NAME.is_valid(),
        pc.field("in", "a") == 3,
        pc.utf8_lower(NAME) == "x",
        NAME.cast(pa.binary()) == b"x",
        pc.field("exact") == pa.scalar(1, pa.timestamp("ns")),
        pc.field("absent") == 1,
        OFFSET == 1.5,
        pc.field("count") > pa.scalar(-1, pa.int64()),  # Arrow cannot make them alike
        pc.field("name") == pa.scalar(5, pa.int64()),
        pc.field("name") == pa.scalar(None, pa.string()),
        NAME.isin(["x", None]),
        NAME.isin([str(number) for number in range(2_000)]),
    ],
)
def test_other_conditions_are_left_to_the_query(expression: pc.Expression) -> None:
    assert where_of(expression) is None
    assert where_of(expression & (KEY == b"k")) == And((Compare(Field("key"), "=", b"k"),))


def test_without_a_condition_everything_is_read() -> None:
    assert scan_range(None, SCHEMA, 3, 9) == (3, 9, None)
