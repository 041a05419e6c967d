"""Builds a trace's tree from any set of spans: each span is in it exactly once.

* A span whose parent is missing is a root, and is marked as one. So is a span that is its own ancestor: the circle is
  opened at its earliest span.
* Exporters send a span again when a response is lost. Equal spans become one span that counts its copies. Spans with
  the same id and different content stay apart; children belong to the earliest of them.
* Roots, and the children of a span, are sorted by their start. Times are nanoseconds since 1970. 0 means unknown, as in
  OTLP, and sorts last.

Nothing here recurses: a chain of 100,000 spans works like any tree.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

_WRAP = 1 << 64
ERROR_STATUS = 2


class SpanEvent(NamedTuple):
    time_ns: int
    name: str
    attributes: dict[str, str | None]


class LogRecord(NamedTuple):
    """A log record of the trace."""

    span_id: bytes | None
    time_ns: int
    severity: str
    service: str | None
    body: str


class TraceSpan(NamedTuple):
    span_id: bytes | None
    parent_id: bytes | None
    service: str | None
    name: str
    kind: int
    start_ns: int
    end_ns: int
    status_code: int
    status_message: str
    attributes: dict[str, str | None]
    events: tuple[SpanEvent, ...]

    @property
    def duration_ns(self) -> int | None:
        """None if start or end is unknown, or the end is before the start."""
        known = self.start_ns and self.end_ns >= self.start_ns
        return self.end_ns - self.start_ns if known else None

    @property
    def is_error(self) -> bool:
        return self.status_code == ERROR_STATUS


class SpanPosition(Enum):
    """Why a span is where it is in the tree. The values are in the JSON output."""

    CHILD = "child"
    ROOT = "root"
    ORPHAN = "orphan"
    CIRCLE = "circle"


@dataclass(slots=True, eq=False)
class SpanNode:
    span: TraceSpan
    position: SpanPosition = SpanPosition.ROOT
    copies: int = 1
    children: "list[SpanNode]" = field(default_factory=list)
    records: list[LogRecord] = field(default_factory=list)


class TraceStep(NamedTuple):
    """One span of a walk through the tree, parents before children."""

    node: SpanNode
    depth: int
    is_last: bool
    """The last of its parent's children; true for roots."""


@dataclass(frozen=True)
class Trace:
    roots: list[SpanNode]
    span_count: int
    """Without copies."""
    error_count: int
    copy_count: int
    skewed_count: int
    """Spans that began before their parent: clocks differ."""
    services: list[str]
    """In order of appearance."""
    start_ns: int
    """The earliest start of a span; 0 if none is known."""
    end_ns: int
    """The latest start or end of a span."""
    stray_records: list[LogRecord]
    """Log records without a span in this trace."""

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns if self.start_ns else 0

    def walk(self) -> Iterator[TraceStep]:
        waiting = [TraceStep(root, 0, is_last=True) for root in reversed(self.roots)]
        while waiting:
            step = waiting.pop()
            yield step
            children = step.node.children
            last = len(children) - 1
            waiting += (TraceStep(children[number], step.depth + 1, number == last) for number in range(last, -1, -1))


def nanoseconds(value: int) -> int:
    """Convert a time from the table's signed 64 bits to OTLP's unsigned."""
    return value % _WRAP


def build(spans: Iterable[TraceSpan], records: Iterable[LogRecord] = ()) -> Trace:
    nodes = _unique(spans)
    parents = _parents(nodes)
    _open_circles(nodes, parents)
    for node in nodes:  # in the order of their starts, and so are the children
        parent = parents.get(node)
        if parent is not None:
            node.position = SpanPosition.CHILD
            parent.children.append(node)
        elif node.position is not SpanPosition.CIRCLE and node.span.parent_id is not None:
            node.position = SpanPosition.ORPHAN
    starts = [node.span.start_ns for node in nodes if node.span.start_ns]
    ends = [node.span.end_ns for node in nodes if node.span.duration_ns is not None]
    return Trace(
        roots=[node for node in nodes if node not in parents],
        span_count=len(nodes),
        error_count=sum(node.span.is_error for node in nodes),
        copy_count=sum(node.copies - 1 for node in nodes),
        skewed_count=sum(0 < node.span.start_ns < parent.span.start_ns for node, parent in parents.items()),
        services=list(dict.fromkeys(node.span.service for node in nodes if node.span.service is not None)),
        start_ns=min(starts, default=0),
        end_ns=max([*starts, *ends], default=0),
        stray_records=_assign_records(records, nodes),
    )


def _unique(spans: Iterable[TraceSpan]) -> list[SpanNode]:
    """Return one node for each distinct span, sorted by start; spans with equal starts keep their order."""
    found: dict[tuple[object, ...], SpanNode] = {}
    for span in spans:
        key = span[: TraceSpan._fields.index("attributes")]
        if span.span_id is not None and key in found:
            found[key].copies += 1
        else:
            found[key if span.span_id is not None else (len(found),)] = SpanNode(span)
    return sorted(found.values(), key=lambda node: node.span.start_ns or _WRAP)


def _by_id(nodes: list[SpanNode]) -> dict[bytes, SpanNode]:
    first: dict[bytes, SpanNode] = {}
    for node in nodes:
        if node.span.span_id is not None:
            first.setdefault(node.span.span_id, node)
    return first


def _parents(nodes: list[SpanNode]) -> dict[SpanNode, SpanNode]:
    by_id = _by_id(nodes)
    found = {}
    for node in nodes:
        if node.span.parent_id is not None and (parent := by_id.get(node.span.parent_id)) is not None:
            found[node] = parent
    return found


def _open_circles(nodes: list[SpanNode], parents: dict[SpanNode, SpanNode]) -> None:
    """Remove the parent of one span of each circle."""
    order = {node: number for number, node in enumerate(nodes)}
    done: set[SpanNode] = set()
    for begun in nodes:
        path: dict[SpanNode, None] = {}
        node: SpanNode | None = begun
        while node is not None and node not in done and node not in path:
            path[node] = None
            node = parents.get(node)
        if node is not None and node in path:
            chain = list(path)
            first = min(chain[chain.index(node) :], key=order.__getitem__)
            first.position = SpanPosition.CIRCLE
            del parents[first]
        done.update(path)


def _assign_records(records: Iterable[LogRecord], nodes: list[SpanNode]) -> list[LogRecord]:
    """Add each record to its span; return the others, sorted by time."""
    by_id = _by_id(nodes)
    strays: list[LogRecord] = []
    for record in sorted(records, key=lambda record: record.time_ns):
        owner = None if record.span_id is None else by_id.get(record.span_id)
        (strays if owner is None else owner.records).append(record)
    return strays
