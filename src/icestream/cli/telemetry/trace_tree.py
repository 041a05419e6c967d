"""A trace's spans as a tree, whatever was sent: pure, and each span is in it exactly once.

* A span whose parent is not there is a root, and says so. So is one that is, through others, its own parent: a circle
  is opened at the span that began first.
* The same span sent several times, as exporters do when an answer is lost, is one span that counts its copies. Spans
  that share an id and differ otherwise stay apart; children belong to the one that began first.
* Roots, and the children of each span, are in the order in which they began. Times are nanoseconds since 1970; 0 means
  unknown, as in OTLP, and sorts last.

Nothing here recurses: a chain of 100,000 spans is as good as any tree.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

_WRAP = 1 << 64
ERROR_STATUS = 2


class Event(NamedTuple):
    time_ns: int
    name: str
    attributes: dict[str, str | None]


class Record(NamedTuple):
    """A log record of the trace."""

    span_id: bytes | None
    time_ns: int
    severity: str
    service: str | None
    body: str


class Span(NamedTuple):
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
    events: tuple[Event, ...]

    @property
    def duration_ns(self) -> int | None:
        """None where an end is unknown, or before the start."""
        known = self.start_ns and self.end_ns >= self.start_ns
        return self.end_ns - self.start_ns if known else None

    @property
    def is_error(self) -> bool:
        return self.status_code == ERROR_STATUS


class Place(Enum):
    """Why a span stands where it does."""

    CHILD = "child"
    ROOT = "root"
    ORPHAN = "orphan"
    CIRCLE = "circle"


@dataclass(slots=True, eq=False)
class Node:
    span: Span
    place: Place = Place.ROOT
    copies: int = 1
    children: "list[Node]" = field(default_factory=list)
    records: list[Record] = field(default_factory=list)


class Step(NamedTuple):
    """One span on the way through a tree, parents before children."""

    node: Node
    depth: int
    is_last: bool
    """Of its parent's children; roots have none."""


@dataclass(frozen=True)
class Trace:
    roots: list[Node]
    span_count: int
    """Copies count once."""
    error_count: int
    copy_count: int
    skewed_count: int
    """Spans that began before their parent: clocks differ."""
    services: list[str]
    """In the order in which they appear."""
    start_ns: int
    """Of the span that began first; 0 if no start is known."""
    end_ns: int
    """The last moment that any span tells of."""
    stray_records: list[Record]
    """Log records of no span that is here."""

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns if self.start_ns else 0

    def walk(self) -> Iterator[Step]:
        waiting = [Step(root, 0, is_last=True) for root in reversed(self.roots)]
        while waiting:
            step = waiting.pop()
            yield step
            children = step.node.children
            last = len(children) - 1
            waiting += (Step(children[number], step.depth + 1, number == last) for number in range(last, -1, -1))


def nanoseconds(value: int) -> int:
    """A time as a table has it, in 64 bits with a sign, as OTLP has it, without one."""
    return value % _WRAP


def build(spans: Iterable[Span], records: Iterable[Record] = ()) -> Trace:
    nodes = _unique(spans)
    parents = _parents(nodes)
    _open_circles(nodes, parents)
    for node in nodes:  # in the order of their starts, and so are the children
        parent = parents.get(node)
        if parent is not None:
            node.place = Place.CHILD
            parent.children.append(node)
        elif node.place is not Place.CIRCLE and node.span.parent_id is not None:
            node.place = Place.ORPHAN
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
        stray_records=_share_out(records, nodes),
    )


def _unique(spans: Iterable[Span]) -> list[Node]:
    """A node for each span that differs, in the order of their starts; of those that came together as they came."""
    found: dict[tuple[object, ...], Node] = {}
    for span in spans:
        key = span[: Span._fields.index("attributes")]
        if span.span_id is not None and key in found:
            found[key].copies += 1
        else:
            found[key if span.span_id is not None else (len(found),)] = Node(span)
    return sorted(found.values(), key=lambda node: node.span.start_ns or _WRAP)


def _by_id(nodes: list[Node]) -> dict[bytes, Node]:
    first: dict[bytes, Node] = {}
    for node in nodes:
        if node.span.span_id is not None:
            first.setdefault(node.span.span_id, node)
    return first


def _parents(nodes: list[Node]) -> dict[Node, Node]:
    by_id = _by_id(nodes)
    found = {}
    for node in nodes:
        if node.span.parent_id is not None and (parent := by_id.get(node.span.parent_id)) is not None:
            found[node] = parent
    return found


def _open_circles(nodes: list[Node], parents: dict[Node, Node]) -> None:
    """Take the parent from one span of each circle."""
    order = {node: number for number, node in enumerate(nodes)}
    done: set[Node] = set()
    for begun in nodes:
        path: dict[Node, None] = {}
        node: Node | None = begun
        while node is not None and node not in done and node not in path:
            path[node] = None
            node = parents.get(node)
        if node is not None and node in path:
            way = list(path)
            first = min(way[way.index(node) :], key=order.__getitem__)
            first.place = Place.CIRCLE
            del parents[first]
        done.update(path)


def _share_out(records: Iterable[Record], nodes: list[Node]) -> list[Record]:
    """Give each record to its span; what is left, in the order of time."""
    by_id = _by_id(nodes)
    strays: list[Record] = []
    for record in sorted(records, key=lambda record: record.time_ns):
        owner = None if record.span_id is None else by_id.get(record.span_id)
        (strays if owner is None else owner.records).append(record)
    return strays
