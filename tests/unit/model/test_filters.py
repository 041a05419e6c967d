"""Filters match what SQL says, on whole columns, and refuse what they cannot answer."""

import operator
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.model.errors import InvalidRequestError, TooLargeError
from icestream.model.filters import Filter
from icestream.model.messages import STREAM_SCHEMA

SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("name", pa.string()),
        pa.field("view", pa.string_view()),
        pa.field("kind", pa.dictionary(pa.int8(), pa.string())),
        pa.field("n", pa.int16()),
        pa.field("u", pa.uint64()),
        pa.field("price", pa.decimal128(9, 2)),
        pa.field("ratio", pa.float32()),
        pa.field("at", pa.timestamp("ms", tz="UTC")),
        pa.field("day", pa.date32()),
        pa.field("flag", pa.bool_()),
        pa.field("attributes", pa.map_(pa.string(), pa.string())),
        pa.field("place", pa.struct([pa.field("city", pa.string()), pa.field("x", pa.int32())])),
        pa.field("raw", pa.binary(3)),
        pa.field("nothing", pa.null()),
        pa.field("tags", pa.list_(pa.string())),
    ]
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def batch(**columns: list[Any]) -> pa.RecordBatch:
    count = len(next(iter(columns.values())))
    arrays = [
        pa.array(columns[field.name], field.type) if field.name in columns else pa.nulls(count, field.type)
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def matches(text: str, **columns: list[Any]) -> list[bool]:
    found: list[bool] = Filter.parse(text).mask(batch(**columns)).to_pylist()
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("key = 'a'", [1, 0, 0]),
        ("key <> 'a'", [0, 1, 0]),
        ("not key = 'a'", [0, 1, 0]),
        ("key is null", [0, 0, 1]),
        ("key is not null", [1, 1, 0]),
        ("key = 'a' or key is null", [1, 0, 1]),
        ("not (key = 'a' or key is null)", [0, 1, 0]),
        ("key in ('a', 'b')", [1, 0, 0]),
        ("key not in ('a', 'b')", [0, 1, 0]),
        ("'a' = key", [1, 0, 0]),
        ("'b' > key", [1, 0, 0]),
        ("key like 'ü%'", [0, 1, 0]),
        ("key not like 'ü%'", [1, 0, 0]),
        ("key ilike 'A'", [1, 0, 0]),
        ("key = x'61'", [1, 0, 0]),
        ("key between 'a' and 'b'", [1, 0, 0]),
    ],
)
def test_null_is_neither_equal_nor_different(text: str, expected: list[int]) -> None:
    assert matches(text, key=[b"a", "üx".encode(), None]) == [bool(value) for value in expected]


def test_attributes_are_looked_up() -> None:
    rows = [[("source", "web"), ("n", "1")], [], None, [("source", None)]]
    assert matches("attributes['source'] = 'web'", attributes=rows) == [True, False, False, False]
    assert matches("attributes['source'] is null", attributes=rows) == [False, True, True, True]
    assert matches("attributes['n'] in ('1', '2')", attributes=rows) == [True, False, False, False]


def test_fields_of_structs_are_found() -> None:
    rows = [{"city": "Ulm", "x": 1}, None, {"city": None, "x": 5}]
    assert matches("place.city = 'Ulm'", place=rows) == [True, False, False]
    assert matches("place.x > 1", place=rows) == [False, False, True]


def test_booleans_stand_by_themselves() -> None:
    rows = [True, False, None]
    assert matches("flag", flag=rows) == [True, False, False]
    assert matches("not flag", flag=rows) == [False, True, False]
    assert matches("flag is true", flag=rows) == [True, False, False]
    assert matches("flag is not true", flag=rows) == [False, True, True]
    assert matches("flag = false", flag=rows) == [False, True, False]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n < 10.5", [1, 1, 0]),
        ("n = 10.5", [0, 0, 0]),
        ("n != 10.5", [1, 1, 1]),
        ("n >= 9.5", [0, 1, 1]),
        ("n > 99999999999999999999", [0, 0, 0]),
        ("n < 99999999999999999999", [1, 1, 1]),
        ("n >= -1e30", [1, 1, 1]),
        ("n in (10.0, 10.5, 1e3)", [0, 1, 0]),
        ("n between 10 and 1e9", [0, 1, 1]),
        ("n = -5", [1, 0, 0]),
    ],
)
def test_numbers_are_compared_exactly(text: str, expected: list[int]) -> None:
    assert matches(text, n=[-5, 10, 11]) == [bool(value) for value in expected]


def test_large_and_exact_numbers_are_not_rounded() -> None:
    assert matches("u = 18446744073709551615", u=[2**64 - 1, 2**64 - 2]) == [True, False]
    assert matches("u >= -1", u=[0, 1]) == [True, True]
    assert matches("price > 1.105", price=[Decimal("1.10"), Decimal("1.11")]) == [False, True]
    assert matches("price = 1.10", price=[Decimal("1.10"), Decimal("1.11")]) == [True, False]


def test_floating_values_are_compared_with_the_nearest_one() -> None:
    assert matches("ratio = 0.1", ratio=[0.1, 0.2]) == [True, False]
    assert matches("ratio < 0", ratio=[float("nan"), float("-inf")]) == [False, True]
    rows = [1.0, float("inf"), float("-inf"), float("nan")]
    assert matches("ratio < 1e300", ratio=rows) == [True, False, True, False]
    assert matches("ratio >= 1e300", ratio=rows) == [False, True, False, False]
    assert matches("ratio > -1e300", ratio=rows) == [True, True, False, False]
    assert matches("ratio <= -1e300", ratio=rows) == [False, False, True, False]
    assert matches("ratio = 1e300 or ratio = -1e300", ratio=rows) == [False] * 4


def test_times_are_iso_and_utc_unless_they_say_so() -> None:
    rows = [EPOCH + timedelta(days=1), EPOCH + timedelta(days=1, milliseconds=1)]
    assert matches("at >= '1970-01-02'", at=rows) == [True, True]
    assert matches("at > timestamp '1970-01-02T00:00:00Z'", at=rows) == [False, True]
    assert matches("at <= '1970-01-02 00:00:00.0005'", at=rows) == [True, False]
    assert matches("at = '1970-01-02T02:00:00+02:00'", at=rows) == [True, False]
    assert matches("day > date '1970-01-01'", day=[date(1970, 1, 1), date(1970, 1, 2)]) == [False, True]


@pytest.mark.parametrize("column", ["name", "view", "kind"])
def test_text_is_found_in_every_form_of_it(column: str) -> None:
    assert matches(f"{column} = 'a' or {column} in ('c')", **{column: ["a", "b", "c", None]}) == [
        True,
        False,
        True,
        False,
    ]
    assert matches(f"{column} like '_'", **{column: ["a", "bb", "", None]}) == [True, False, False, False]


def test_bytes_of_a_fixed_length() -> None:
    assert matches("raw = x'010203'", raw=[b"\1\2\3", b"abc"]) == [True, False]
    assert matches("raw > 'ab'", raw=[b"\1\2\3", b"abc"]) == [False, True]


def test_a_pattern_takes_what_it_is_told_to_escape() -> None:
    rows = ["a%b", "axb", "a\\b", "a\nb"]
    assert matches("name like 'a!%b' escape '!'", name=rows) == [True, False, False, False]
    assert matches("name like 'a\\b'", name=rows) == [False, False, True, False]
    assert matches("name like 'a_b'", name=rows) == [True, True, True, True]


def test_a_column_of_nulls_matches_nothing_but_null() -> None:
    assert matches("nothing = 1 or nothing in ('a') or nothing like 'a'", n=[1, 2]) == [False, False]
    assert matches("nothing is null and tags is null", n=[1, 2]) == [True, True]


def test_the_rows_that_match_are_kept() -> None:
    rows = batch(n=[1, 2, 3])
    assert Filter.parse("n > 1").apply(rows)["n"].to_pylist() == [2, 3]
    assert Filter.parse("n > 0").apply(rows) is rows
    assert Filter.parse("n > 5").apply(rows).num_rows == 0
    assert Filter.parse("n > 1").apply(rows.slice(2))["n"].to_pylist() == [3]


def test_a_filter_is_used_for_streams_of_different_schemas() -> None:
    found = Filter.parse("key = 'a'")
    other = pa.record_batch({"key": pa.array(["a", "b"])})
    assert found.mask(batch(key=[b"a"])).to_pylist() == [True]
    assert found.mask(other).to_pylist() == [True, False]
    assert pickle.loads(pickle.dumps(found)).text == "key = 'a'"


def test_words_of_sql_are_names_of_columns_too() -> None:
    found = Filter.parse("offset >= 5 and key = 'a' and sequence < 9 and publish_time > '2026-01-01T00:00:00Z'")
    found.check(STREAM_SCHEMA)
    assert found.columns == {"offset", "key", "sequence", "publish_time"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "one condition"),
        ("n = 1; n = 2", "one condition"),
        ("n = ", "near"),
        ("n = 1 and", "character 9"),
        ("select 1", "not a condition"),
        ("n in (select 1)", "not a condition"),
        ("n = (select 1)", "not a value"),
        ("upper(name) = 'A'", "no functions"),
        ("n = 1 + 1", "not a value"),
        ("n + 1 = 2", "not a column"),
        ("n = null", "is null"),
        ("n = n", "single quotes"),
        ('name = "a"', "single quotes"),
        ("1 = 1", "not a column"),
        ("true", "not a condition"),
        ("n = 'a", "cannot be read"),
        ("n = 1e999999999", "too long"),
        ("n = :parameter", "not a value"),
        ("name like 5", "not a text"),
        ("key = x'0'", "cannot be read|hexadecimal"),
    ],
)
def test_text_that_is_no_filter_is_refused_with_a_reason(text: str, says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says):
        Filter.parse(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("colour = 'a'", "no column 'colour'"),
        ("n = 'a'", "compare it with a number"),
        ("key = 1", "a text in single quotes"),
        ("flag = 'a'", "true or false"),
        ("at = 5", "a text in single quotes"),
        ("at = 'yesterday'", "2026-01-31T12:00:00Z"),
        ("at = '2026-02-30'", "2026-01-31T12:00:00Z"),
        ("day = '2026-13-01'", "2026-01-31"),
        ("n like 'a'", "only texts and bytes"),
        ("tags = 'a'", "cannot compare"),
        ("place = 'a'", "cannot compare"),
        ("place.country = 'a'", "does not exist"),
        ("n['a'] = 'a'", "does not exist"),
        ("attributes[5] = 'a'", "cannot be compared with '5'"),
        ("n", "cannot be compared with 'True'"),
    ],
)
def test_a_filter_that_does_not_fit_the_columns_is_refused(text: str, says: str) -> None:
    with pytest.raises(InvalidRequestError, match=re.escape(says) if "|" not in says else says):
        Filter.parse(text).check(SCHEMA)


@pytest.mark.parametrize(
    "text",
    [
        "n = 1 or " * 1_000 + "n = 2",
        "(" * 40 + "n = 1" + ")" * 40,
        "(" * 4_000 + ")" * 4_000,
        "not " * 2_000 + "flag",
        "attributes[" * 700,
        f"n in ({', '.join(['1'] * 2_000)})",
    ],
)
def test_long_and_deep_filters_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        Filter.parse(text)


def test_a_filter_of_a_thousand_conditions_is_read_and_one_more_is_not() -> None:
    assert Filter.parse("n=1 or " * 999 + "n=1").mask(batch(n=[1, 2])).to_pylist() == [True, False]
    with pytest.raises(TooLargeError, match="1000 conditions"):
        Filter.parse("n=1 or " * 1_000 + "n=1")


# A slow evaluator, one row and one value at a time, that the fast one must agree with.

Truth = bool | None
Slow = Callable[[dict[str, Any]], Truth]
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
TEXTS = st.sampled_from(["", "a", "ab", "b", "ü", "A"])
NUMBERS = st.one_of(st.integers(-3, 3), st.sampled_from([Decimal("0.5"), Decimal("-1.5"), 40_000, -40_000]))
TIMES = st.integers(-3, 3).map(lambda days: EPOCH + timedelta(hours=12 * days))
COLUMNS: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], str], Callable[[Any], Any]]] = {
    "name": (TEXTS, lambda value: f"'{value}'", lambda value: value),
    "key": (TEXTS, lambda value: f"'{value}'", lambda value: value.encode()),
    "n": (NUMBERS, str, lambda value: value),
    "price": (NUMBERS, str, Decimal),
    "at": (TIMES, lambda value: f"'{value.isoformat()}'", lambda value: value),
    "attributes['k']": (TEXTS, lambda value: f"'{value}'", lambda value: value),
    "place.x": (NUMBERS, str, lambda value: value),
}


def value_in(row: dict[str, Any], column: str) -> Any:
    if column == "attributes['k']":
        return dict(row["attributes"] or []).get("k")
    if column == "place.x":
        return (row["place"] or {}).get("x")
    return row[column]


def like(value: Any, pattern: str) -> bool:
    text = value.decode() if isinstance(value, bytes) else value
    expression = "".join(".*" if c == "%" else "." if c == "_" else re.escape(c) for c in pattern)
    return re.fullmatch(expression, text, re.DOTALL) is not None


@st.composite
def condition(draw: st.DrawFn) -> tuple[str, Slow]:
    column = draw(st.sampled_from(list(COLUMNS)))
    values, text, plain = COLUMNS[column]
    kind = draw(st.sampled_from(["compare", "in", "null", "between", "like"]))
    if kind == "null":
        return f"{column} is null", lambda row: value_in(row, column) is None
    if kind == "like" and column in ("name", "attributes['k']"):
        pattern = draw(st.sampled_from(["%", "a%", "_", "%b", "", "ü_%"]))
        return f"{column} like '{pattern}'", _of(column, lambda value: like(value, pattern))
    if kind == "in":
        chosen = draw(st.lists(values, min_size=1, max_size=3))
        wanted = [plain(value) for value in chosen]
        return f"{column} in ({', '.join(map(text, chosen))})", _of(column, lambda value: value in wanted)
    first, second = draw(values), draw(values)
    if kind == "between":
        low, high = plain(first), plain(second)
        return f"{column} between {text(first)} and {text(second)}", _of(column, lambda value: low <= value <= high)
    sign = draw(st.sampled_from(list(OPERATORS)))
    return f"{column} {sign} {text(first)}", _of(column, lambda value: OPERATORS[sign](value, plain(first)))


def _of(column: str, judge: Callable[[Any], bool]) -> Slow:
    def slow(row: dict[str, Any]) -> Truth:
        value = value_in(row, column)
        return None if value is None else judge(value)

    return slow


def _joined(parts: tuple[tuple[str, Slow], tuple[str, Slow]], *, is_and: bool) -> tuple[str, Slow]:
    (left, first), (right, second) = parts

    def slow(row: dict[str, Any]) -> Truth:
        found = {first(row), second(row)}
        if (not is_and) in found:
            return not is_and
        return None if None in found else is_and

    return f"({left} {'and' if is_and else 'or'} {right})", slow


def _negated(part: tuple[str, Slow]) -> tuple[str, Slow]:
    text, judge = part

    def slow(row: dict[str, Any]) -> Truth:
        found = judge(row)
        return None if found is None else not found

    return f"not ({text})", slow


PREDICATES = st.recursive(
    condition(),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda parts: _joined(parts, is_and=True)),
        st.tuples(inner, inner).map(lambda parts: _joined(parts, is_and=False)),
        inner.map(_negated),
    ),
    max_leaves=6,
)
ROWS = st.fixed_dictionaries(
    {
        "name": st.none() | TEXTS,
        "key": st.none() | TEXTS.map(str.encode),
        "n": st.none() | st.integers(-3, 3),
        "price": st.none() | st.sampled_from([Decimal("0.50"), Decimal("1.00"), Decimal("-1.50")]),
        "at": st.none() | TIMES,
        "attributes": st.none() | st.lists(st.tuples(st.sampled_from("k"), st.none() | TEXTS), max_size=1),
        "place": st.none() | st.fixed_dictionaries({"city": st.none(), "x": st.none() | st.integers(-3, 3)}),
    }
)


@settings(max_examples=300, deadline=None)
@given(PREDICATES, st.lists(ROWS, min_size=1, max_size=8), st.integers(0, 3))
def test_whole_columns_give_what_each_row_would(
    predicate: tuple[str, Slow], rows: list[dict[str, Any]], skipped: int
) -> None:
    text, slow = predicate
    given_rows = batch(**{name: [row[name] for row in rows] for name in rows[0]}).slice(skipped)
    expected = [slow(row) is True for row in rows[skipped:]]
    assert Filter.parse(text).mask(given_rows).to_pylist() == expected


def test_a_filter_of_thirty_levels_is_read() -> None:
    assert matches("(" * 30 + "n = 1" + ")" * 30, n=[1, 2]) == [True, False]


def test_the_sql_grammar_is_loaded_with_the_first_filter_only() -> None:
    program = "import sys, icestream.model.filters; sys.exit('sqlglot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
