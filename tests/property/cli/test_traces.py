"""Any spans, with any parents and times, are drawn: each once, and each that has a parent below it."""

import json
from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from icestream.cli.output import Paint
from icestream.cli.telemetry.trace import trace_json
from icestream.cli.telemetry.trace_tree import SpanPosition, Trace, TraceSpan, build
from icestream.cli.telemetry.trace_view import MIN_WIDTH, draw

IDS = st.none() | st.integers(1, 12).map(lambda number: number.to_bytes(8))
TIMES = st.sampled_from([0, 1, 10**18, 10**18 + 1, 2**64 - 1]) | st.integers(0, 2**64 - 1)


@st.composite
def spans(draw: st.DrawFn) -> list[TraceSpan]:
    """The name tells each apart, so that none is a copy of another."""
    count = draw(st.integers(1, 25))
    return [
        TraceSpan(
            span_id=draw(IDS),
            parent_id=draw(IDS),
            service=draw(st.none() | st.text(max_size=5)),
            name=f"<{number}>" + draw(st.text(max_size=5)),
            kind=draw(st.integers(-1, 9)),
            start_ns=draw(TIMES),
            end_ns=draw(TIMES),
            status_code=draw(st.integers(0, 3)),
            status_message=draw(st.text(max_size=5)),
            attributes={},
            events=(),
        )
        for number in range(count)
    ]


@given(spans())
def test_every_span_is_in_the_tree_once(given_spans: list[TraceSpan]) -> None:
    trace = build(given_spans)
    found = [node.span for node, _, _ in trace.walk()]
    assert sorted(span.name for span in found) == sorted(span.name for span in given_spans)
    ids = {span.span_id for span in given_spans if span.span_id is not None}
    for node, depth, _ in trace.walk():
        assert all(child.span.parent_id == node.span.span_id for child in node.children)
        assert (depth == 0) == (node.position is not SpanPosition.CHILD)
        if node.position is SpanPosition.ROOT:
            assert node.span.parent_id is None
        if node.position is SpanPosition.ORPHAN:
            assert node.span.parent_id not in ids


@given(spans(), st.integers(MIN_WIDTH, 300), st.booleans())
def test_every_span_is_drawn_once(given_spans: list[TraceSpan], width: int, colours: bool) -> None:
    trace = build(given_spans)
    drawn = list(draw("id", trace, width=2_000, paint=Paint(enabled=False)))
    body = drawn[drawn.index("") + 1 :]
    assert len(body) == len(given_spans)
    for number in range(len(given_spans)):
        assert sum(f": <{number}>" in line for line in body) == 1
    assert all(line.isprintable() for line in drawn)
    narrow = list(draw("id", trace, width=width, paint=Paint(enabled=colours)))
    assert len(narrow[narrow.index("") + 1 :]) == len(given_spans)


@given(spans())
def test_json_has_every_span_once(given_spans: list[TraceSpan]) -> None:
    trace: Trace = build(given_spans)
    names: list[str] = []

    def collect(found: list[dict[str, Any]]) -> None:
        for fields in found:
            names.append(fields["name"])
            collect(fields["children"])

    collect(json.loads("".join(trace_json("id", trace)))["spans"])
    assert names == [node.span.name for node, _, _ in trace.walk()]
