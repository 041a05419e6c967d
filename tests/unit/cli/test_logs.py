"""Which log records are asked for, in two languages that must mean the same, and how they look."""

import json
from typing import Any

import duckdb
import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from icestream.cli.output import Paint
from icestream.cli.telemetry.common import severity_text
from icestream.cli.telemetry.logs import COLUMNS, LogQuery, pattern_problem, render_json, text_renderer
from icestream.model.filters import Filter
from icestream.model.names import TopicName
from icestream.telemetry import Signal, topic_schema

TOPIC = TopicName("acme", "logs")
TRACE = bytes(range(16))
SCHEMA = pa.schema([("_offset", pa.int64()), *topic_schema(Signal.LOGS)])
HOSTILE = ["o'brien", "''", "a' OR '1'='1", "back\\'slash\\", '"double"', "--", "/* x", "日本 🧊", "x\n;y", "%_", ""]


def batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    """Records at offsets 0, 1, …, one a second."""
    empty = {"time_unix_nano": 0, "observed_time_unix_nano": 0, "severity_number": 0, "severity_text": ""}
    empty |= {"event_name": "", "flags": 0, "dropped_attributes_count": 0}
    empty |= {"resource_schema_url": "", "scope_schema_url": ""}
    made = [{"_offset": number, "time": number * 1_000_000, **empty, **row} for number, row in enumerate(rows)]
    return pa.RecordBatch.from_pylist(made, SCHEMA)


def by_query(rows: pa.RecordBatch, wanted: LogQuery, *, end: int = 1_000, limit: int = 1_000) -> list[int]:
    with duckdb.connect() as database:
        database.execute("CREATE SCHEMA acme")
        database.register("rows", pa.table(rows))
        database.execute("CREATE VIEW acme.logs AS FROM rows")
        found = database.execute(wanted.history(TOPIC, end=end, limit=limit)).to_arrow_table()
    assert found.column_names == list(COLUMNS)
    return list(found["_offset"].to_pylist())


def by_filter(rows: pa.RecordBatch, wanted: LogQuery) -> list[int]:
    text = wanted.filter()
    found = rows if text is None else Filter.parse(text).apply(rows)
    return list(wanted.matching(found).column("_offset").to_pylist())


def test_the_newest_below_an_offset_come_oldest_first() -> None:
    rows = batch({"time": 5}, {"time": 9}, {"time": None}, {"time": 7}, {"time": 7}, {"time": 99})
    assert by_query(rows, LogQuery(), end=5) == [2, 0, 3, 4, 1]
    assert by_query(rows, LogQuery(), end=5, limit=3) == [3, 4, 1]
    assert by_query(rows, LogQuery(), limit=0) == []


def test_times_bound_the_history_and_not_what_comes() -> None:
    rows = batch({"time": 5}, {"time": 6}, {"time": 8}, {"time": None})
    wanted = LogQuery(since_us=6, until_us=8)
    assert by_query(rows, wanted) == [1]
    assert wanted.filter() is None


@pytest.mark.parametrize("service", HOSTILE)
def test_whatever_a_service_is_called_it_is_compared_and_never_run(service: str) -> None:
    rows = batch({"service_name": "shop"}, {"service_name": service}, {"service_name": None}, {"service_name": "x"})
    wanted = LogQuery(service=service)
    assert by_query(rows, wanted) == by_filter(rows, wanted) == [1]


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30))
def test_any_text_is_one_value_of_a_filter(service: str) -> None:
    rows = batch({"service_name": service}, {"service_name": service + "x"})
    assert by_filter(rows, LogQuery(service=service)) == [0]


def test_a_trace_is_compared_by_its_bytes() -> None:
    rows = batch({"trace_id": TRACE}, {"trace_id": TRACE[:8]}, {"trace_id": None})
    wanted = LogQuery(trace_id=TRACE)
    assert by_query(rows, wanted) == by_filter(rows, wanted) == [0]


def test_a_severity_means_those_above_too_by_number_or_by_text() -> None:
    numbers = [{"severity_number": number} for number in (0, 4, 9, 12, 13, 17, 24)]
    texts = [{"severity_text": text} for text in ("INFO", "warning", "ERROR", "CRITICAL", "odd")]
    contradiction = {"severity_number": 9, "severity_text": "ERROR"}  # the number counts
    rows = batch(*numbers, *texts, contradiction)
    for severity, expected in (("warn", [4, 5, 6, 8, 9, 10]), ("fatal", [6, 10]), ("info", [*range(2, 11), 12])):
        wanted = LogQuery(severity=severity)
        assert by_query(rows, wanted) == by_filter(rows, wanted) == expected, severity


@pytest.mark.parametrize(
    "pattern",
    [
        "time.?out",
        "(?i)TIMEOUT",
        "^a",
        "b$",
        "a.b",
        "(?s)a.b",
        "(?m)^b",
        "o'brien",
        r"\d+",
        r"\bx\b",
        "é",
        "",
        ".*",
        "%",
    ],
)
def test_history_and_what_comes_are_searched_alike(pattern: str) -> None:
    bodies = ["time out", "TIMEOUT", "a", "ab", "a\nb", "o'brien", "call 911", "x", "axb", "é", "", "100 %", None]
    rows = batch(*({"body": body} for body in bodies))
    wanted = LogQuery(pattern=pattern)
    assert pattern_problem(pattern) is None
    assert by_query(rows, wanted) == by_filter(rows, wanted)


def test_all_conditions_hold_at_once() -> None:
    good = {"service_name": "shop", "severity_number": 17, "trace_id": TRACE, "body": "boom"}
    other = [{**good, name: None} for name in ("service_name", "trace_id", "body")] + [{**good, "severity_number": 1}]
    rows = batch(good, *other)
    wanted = LogQuery("shop", "warn", TRACE, "bo+m", since_us=0, until_us=10**15)
    assert by_query(rows, wanted) == by_filter(rows, wanted) == [0]


@pytest.mark.parametrize(
    ("number", "text", "shown"),
    [(0, "", "-"), (9, "", "INFO"), (10, "", "INFO2"), (24, "", "FATAL4"), (99, "", "FATAL"), (9, "notice", "notice")],
)
def test_severities_have_names(number: int, text: str, shown: str) -> None:
    assert severity_text(number, text) == shown


def test_a_record_is_one_line() -> None:
    rows = batch(
        {
            "time": 1_000_001,
            "severity_number": 13,
            "service_name": "shop",
            "body": "two\nlines \x1b[31m",
            "attributes": [("http.route", "/pay"), ("n", None)],
        },
        {"time": None, "event_name": "login", "attributes": [(f"k{number}", "v" * 200) for number in range(9)]},
        {"body": "x" * 10_000, "time": 2**62},
    )
    first, second, third = text_renderer(Paint(enabled=False))(rows).decode().splitlines()
    assert first == r"1970-01-01T00:00:01.000001Z WARN  shop two\nlines \x1b[31m http.route=/pay n="
    assert second.startswith(f"- -     - login k0={'v' * 80}… k1=")
    assert second.endswith(" …")
    assert "k6" not in second
    assert third.startswith(f"{2**62} -     - xxx")
    assert len(third) < 5_000
    coloured = text_renderer(Paint(enabled=True))(rows.slice(0, 1)).decode()
    assert "\x1b[33mWARN" in coloured
    assert "\x1b[31m" not in coloured


def test_json_has_all_of_a_record() -> None:
    body = "x" * 10_000 + "\x1b\x9b\u202e\n"
    rows = batch({"body": body, "trace_id": TRACE, "attributes": [("a", "1")], "service_name": "shop"})
    line = render_json(rows).decode()
    assert line.removesuffix("\n").isprintable()
    found = json.loads(line)
    assert list(found) == ["offset", *COLUMNS[1:]]
    assert (found["offset"], found["body"], found["trace_id"], found["span_id"]) == (0, body, TRACE.hex(), None)
    assert (found["attributes"], found["time"]) == ({"a": "1"}, "1970-01-01T00:00:00.000000Z")
    assert render_json(batch()) == b""
