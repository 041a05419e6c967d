"""Trees of spans as senders really make them: late, twice, in circles, with wrong clocks."""

from typing import Any

import pytest

from icestream.cli.telemetry.trace_tree import (
    LogRecord,
    SpanEvent,
    SpanNode,
    SpanPosition,
    Trace,
    TraceSpan,
    build,
    nanoseconds,
)

START = 1_700_000_000_000_000_000


def span(number: int | None, parent: int | None = None, **fields: Any) -> TraceSpan:
    """Span `number`, which begins so many nanoseconds after the first and takes 100."""
    start = START + (number or 0)
    given: dict[str, Any] = {
        "span_id": None if number is None else number.to_bytes(8),
        "parent_id": None if parent is None else parent.to_bytes(8),
        "service": "shop",
        "name": f"span {number}",
        "kind": 1,
        "start_ns": start,
        "end_ns": start + 100,
        "status_code": 0,
        "status_message": "",
        "attributes": {},
        "events": (),
    }
    return TraceSpan(**{**given, **fields})


def shape(trace: Trace) -> list[tuple[int, str, SpanPosition]]:
    return [(depth, node.span.name, node.position) for node, depth, _ in trace.walk()]


def named(trace: Trace, name: str) -> SpanNode:
    return next(node for node, _, _ in trace.walk() if node.span.name == name)


def test_children_stand_below_their_parents_in_the_order_in_which_they_began() -> None:
    trace = build([span(4, 2), span(3, 1), span(2, 1), span(1)])
    assert shape(trace) == [
        (0, "span 1", SpanPosition.ROOT),
        (1, "span 2", SpanPosition.CHILD),
        (2, "span 4", SpanPosition.CHILD),
        (1, "span 3", SpanPosition.CHILD),
    ]
    assert [is_last for _, _, is_last in trace.walk()] == [True, False, True, True]


def test_a_span_whose_parent_is_missing_is_a_root_that_says_so() -> None:
    trace = build([span(5, 99), span(1), span(6, 5)])
    assert shape(trace) == [
        (0, "span 1", SpanPosition.ROOT),
        (0, "span 5", SpanPosition.ORPHAN),
        (1, "span 6", SpanPosition.CHILD),
    ]


def test_several_roots_are_all_there() -> None:
    assert [node.span.name for node in build([span(2), span(1), span(3)]).roots] == ["span 1", "span 2", "span 3"]


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([span(1, 1)], [(0, "span 1", SpanPosition.CIRCLE)]),
        ([span(2, 1), span(1, 2)], [(0, "span 1", SpanPosition.CIRCLE), (1, "span 2", SpanPosition.CHILD)]),
        (
            [span(1, 3), span(2, 3), span(3, 4), span(4, 2)],
            [
                (0, "span 2", SpanPosition.CIRCLE),
                (1, "span 4", SpanPosition.CHILD),
                (2, "span 3", SpanPosition.CHILD),
                (3, "span 1", SpanPosition.CHILD),
            ],
        ),
    ],
    ids=["itself", "two", "three and one that hangs on them"],
)
def test_a_circle_is_opened_where_it_began(
    spans: list[TraceSpan], expected: list[tuple[int, str, SpanPosition]]
) -> None:
    assert shape(build(spans)) == expected


def test_a_span_that_was_sent_again_is_one_span() -> None:
    trace = build([span(1), span(2, 1, status_code=2), span(2, 1, status_code=2), span(2, 1, status_code=2)])
    assert (trace.span_count, trace.copy_count, trace.error_count) == (2, 2, 1)
    assert named(trace, "span 2").copies == 3


def test_spans_that_share_an_id_and_differ_stay_apart() -> None:
    client, server = span(2, 1, name="client", kind=3), span(2, 1, name="server", kind=2, start_ns=START + 5)
    trace = build([server, client, span(1), span(7, 2)])
    assert shape(trace)[1:] == [
        (1, "client", SpanPosition.CHILD),
        (2, "span 7", SpanPosition.CHILD),
        (1, "server", SpanPosition.CHILD),
    ]


def test_spans_without_an_id_are_nobodys_parent_and_nobodys_copy() -> None:
    trace = build([span(None), span(None), span(1)])
    assert (trace.span_count, trace.copy_count) == (3, 0)


def test_the_trace_lasts_from_the_first_start_to_the_last_end() -> None:
    skewed = span(3, 1, start_ns=START - 50, end_ns=START + 10)
    trace = build([span(1, start_ns=START, end_ns=START + 500), skewed, span(2, 1, end_ns=START + 900)])
    assert (trace.start_ns, trace.duration_ns, trace.skewed_count) == (START - 50, 950, 1)


def test_unknown_and_impossible_times_do_not_count() -> None:
    unknown_end = span(1, start_ns=START + 10, end_ns=0)
    unknown_start = span(2, 1, start_ns=0, end_ns=START + 10**15)
    backwards = span(3, 1, start_ns=START + 20, end_ns=START + 5)
    trace = build([unknown_end, unknown_start, backwards])
    assert [node.span.duration_ns for node, _, _ in trace.walk()] == [None, None, None]
    assert (trace.start_ns, trace.duration_ns, trace.skewed_count) == (START + 10, 10, 0)
    assert [name for _, name, _ in shape(trace)] == ["span 1", "span 3", "span 2"]
    empty = build([span(1, start_ns=0, end_ns=0)])
    assert (empty.start_ns, empty.duration_ns) == (0, 0)
    assert build([]).roots == []


def test_a_time_beyond_2262_is_what_was_sent() -> None:
    assert nanoseconds(-1) == 2**64 - 1
    assert nanoseconds(START) == START


def test_a_long_chain_is_a_tree_like_any_other() -> None:
    count = 20_000
    trace = build([span(number, number - 1 if number > 1 else None) for number in range(1, count + 1)])
    assert [depth for _, depth, _ in trace.walk()] == list(range(count))


def test_log_records_belong_to_their_span_or_to_the_trace() -> None:
    records = [
        LogRecord(span_id, time, "INFO", "shop", f"at {time}")
        for span_id, time in [((2).to_bytes(8), 9), ((2).to_bytes(8), 3), (None, 5), ((77).to_bytes(8), 4)]
    ]
    trace = build([span(1), span(2, 1)], records)
    assert [record.body for record in named(trace, "span 2").records] == ["at 3", "at 9"]
    assert [record.body for record in trace.stray_records] == ["at 4", "at 5"]


def test_events_do_not_make_a_copy_another_span() -> None:
    trace = build([span(1, events=(SpanEvent(START, "a", {}),)), span(1)])
    assert trace.span_count == 1
