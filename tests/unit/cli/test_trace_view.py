"""What a trace looks like, and that it fits."""

import json

import pytest
from rich.cells import cell_len
from tests.unit.cli.test_trace_tree import START, span

from icestream.cli.output import Paint
from icestream.cli.telemetry.trace import trace_json
from icestream.cli.telemetry.trace_tree import LogRecord, SpanEvent, Trace, build
from icestream.cli.telemetry.trace_view import draw, ns_text

PLAIN, COLOURED = Paint(enabled=False), Paint(enabled=True)
ID = "5b8aa5a2d2c872e8321cf37308d69df2"
MS = 1_000_000


def example() -> Trace:
    return build(
        [
            span(1, name="GET /checkout", kind=2, start_ns=START, end_ns=START + 240 * MS),
            span(2, 1, service="cart", name="reserve", kind=3, start_ns=START + 40 * MS, end_ns=START + 160 * MS),
            span(
                3,
                2,
                service="db",
                name="SELECT",
                start_ns=START + 60 * MS,
                end_ns=START + 120 * MS,
                status_code=2,
                status_message="no rows",
                events=(SpanEvent(START + 100 * MS, "exception", {"exception.type": "ValueError"}),),
            ),
            span(4, 1, service="mail", name="send", kind=4, start_ns=START + 200 * MS, end_ns=0),
            span(5, 9, service=None, name="late", kind=0, start_ns=START + 239 * MS, end_ns=START + 239 * MS + 1),
            span(5, 9, service=None, name="late", kind=0, start_ns=START + 239 * MS, end_ns=START + 239 * MS + 1),
        ],
        [LogRecord((2).to_bytes(8), START + 50 * MS, "WARN", "cart", "stock is low")],
    )


def test_a_trace_is_a_header_and_a_line_a_span() -> None:
    assert list(draw(ID, example(), width=91, paint=PLAIN, events=True)) == [
        f"trace {ID}",
        "2023-11-14T22:13:20.000000Z, 240 ms, 5 spans, 1 error",
        "services: shop, cart, db, mail",
        "1 span whose parent is missing: not sent yet, or sent to another system",
        "1 copy of spans that were sent again",
        "",
        "shop: GET /checkout (server)                     240 ms     +0 ns  ████████████████████████",
        "├─ cart: reserve (client)                        120 ms  +40.0 ms      ████████████",
        "│  │  · WARN stock is low                                +50.0 ms       •",
        "│  └─ ✗ db: SELECT (internal)                   60.0 ms  +60.0 ms        ██████",
        "│        · exception exception.type=ValueError            +100 ms            •",
        "│        · status: no rows                                +120 ms              •",
        "└─ mail: send (producer)                              -   +200 ms                      ▏",
        "[parent missing] -: late (2 copies)                1 ns   +239 ms                         ▏",
    ]


def test_what_happened_inside_is_shown_on_request() -> None:
    lines = "\n".join(draw(ID, example(), width=91, paint=PLAIN))
    assert "exception" not in lines
    assert "no rows" not in lines
    assert "stock is low" in lines


@pytest.mark.parametrize("width", [40, 50, 80, 200, 1_000])
def test_no_line_of_a_span_is_wider_than_asked_for(width: int) -> None:
    wide = span(7, 1, name="値段" * 300, service="サービス", end_ns=START + 10**14)
    deep = [span(100 + number, 99 + number) for number in range(60)]
    trace = build([*(node.span for node, _, _ in example().walk()), wide, *deep])
    lines = list(draw(ID, trace, width=width, paint=PLAIN, events=True))
    body = lines[lines.index("") + 1 :]
    assert len(body) == trace.span_count + 2
    assert max(map(cell_len, body)) <= width


def test_a_name_cannot_control_the_terminal() -> None:
    hostile = "\x1b[2J\x07\r\n\x9b31m\u202e\u2028\x00" + "x"
    made = span(
        1,
        name=hostile,
        service=hostile,
        status_message=hostile,
        events=(SpanEvent(START, hostile, {hostile: hostile, "none": None}),),
    )
    trace = build([made], [LogRecord(None, START, hostile, hostile, hostile)])
    lines = list(draw(ID, trace, width=2_000, paint=PLAIN, events=True))
    assert all(line.isprintable() for line in lines)
    assert any(r"\x1b[2J\x07\r\n\x9b31m\u202e\u2028\x00x" in line for line in lines)
    text = "".join(trace_json(ID, trace, logs=True))
    assert text.isprintable()
    assert json.loads(text)["spans"][0]["name"] == hostile


def test_colours_are_put_around_the_same_text() -> None:
    plain = list(draw(ID, example(), width=91, paint=PLAIN, events=True))
    coloured = list(draw(ID, example(), width=91, paint=COLOURED, events=True))
    assert coloured != plain
    assert any("\x1b[31m" in line and "SELECT" in line for line in coloured)


def test_a_trace_of_nothing_but_records_is_shown() -> None:
    lines = list(draw(ID, build([], [LogRecord(None, START, "INFO", "shop", "alone")]), width=80, paint=PLAIN))
    assert lines[1] == "at an unknown time, 0 ns, 0 spans, no errors"
    assert lines[-1].startswith("· INFO alone")


def test_what_lies_outside_the_time_of_the_spans_has_an_offset_and_no_point() -> None:
    records = [LogRecord(None, START + since, "INFO", "shop", f"at {since}") for since in (-5 * MS, 5, 10**12, -START)]
    lines = list(draw(ID, build([span(1, start_ns=START)], records), width=80, paint=PLAIN))
    unknown, before, inside, after = (line.split()[-2:] for line in lines[-4:])
    assert unknown == [str(-START), "-"]
    assert before == ["-5.00", "ms"]
    assert inside == ["ns", "•"]
    assert after == ["40", "s"]


def test_the_depth_of_what_is_too_deep_to_draw_is_said() -> None:
    trace = build([span(number, number - 1 if number > 1 else None) for number in range(1, 30)])
    *_, last = draw(ID, trace, width=120, paint=PLAIN)
    assert last.startswith("19… ")
    assert "└─ shop: span 29" in last


def test_json_has_the_spans_inside_their_parents() -> None:
    found = json.loads("".join(trace_json(ID, example(), logs=True)))
    assert (found["trace_id"], found["span_count"], found["error_count"]) == (ID, 5, 1)
    assert (found["duration_ns"], found["start_time"]) == (240 * MS, "2023-11-14T22:13:20.000000Z")
    root, late = found["spans"]
    assert (late["place"], late["copies"], late["service"], late["children"]) == ("orphan", 2, None, [])
    cart, mail = root["children"]
    assert (mail["duration_ns"], mail["end_time_unix_nano"], mail["offset_ns"]) == (None, None, 200 * MS)
    assert cart["logs"][0]["body"] == "stock is low"
    (db,) = cart["children"]
    assert (db["status"], db["kind"], db["parent_span_id"]) == ("error", "internal", "0000000000000002")
    assert db["events"][0]["attributes"] == {"exception.type": "ValueError"}
    assert "logs" not in json.loads("".join(trace_json(ID, example())))["spans"][0]


def test_json_of_a_long_chain_is_written() -> None:
    count = 5_000
    trace = build([span(number, number - 1 if number > 1 else None) for number in range(1, count + 1)])
    text = "".join(trace_json(ID, trace))
    assert text.count('"children": [{') == count - 1
    assert text.endswith("[" + "]}" * count + "]}")


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1_234, "1.23 µs"),
        (12_345, "12.3 µs"),
        (123 * MS, "123 ms"),
        (1_500 * MS, "1.50 s"),
        (125_000 * MS, "2 min 5 s"),
    ],
)
def test_durations_have_three_digits(nanoseconds: int, text: str) -> None:
    assert ns_text(nanoseconds) == text
