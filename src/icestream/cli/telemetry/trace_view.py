"""Draws a trace: one line for each span, with a bar for its time on the right.

::

    shop: GET /checkout (server)            245 ms        +0 ns  ██████████████████████████████
    ├─ cart: reserve (client)               120 ms     +5.20 ms  ██████████████▌
    │  └─ ✗ db: SELECT (client)             101 ms     +12.0 ms   ████████████
    └─ mail: send (producer)               1.20 ms      +240 ms                               ▏
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rich.cells import cell_len

from icestream.cli.output import NOTHING, Paint, cropped, duration_text, padded, plural, printable, rfc3339
from icestream.cli.telemetry.common import colour_of
from icestream.cli.telemetry.trace_tree import LogRecord, SpanNode, SpanPosition, Trace

MIN_WIDTH = 40
DEFAULT_WIDTH = 120
"""If there is no terminal."""
KINDS = {1: "internal", 2: "server", 3: "client", 4: "producer", 5: "consumer"}
_PALETTE = ("cyan", "green", "magenta", "blue", "yellow", "bright_cyan", "bright_green", "bright_magenta")
_FLAGS = {SpanPosition.ORPHAN: "[parent missing] ", SpanPosition.CIRCLE: "[its own ancestor] "}
_MIN_LABEL = 20
_MIN_BAR = 10
_MAX_BAR = 60
_GAP = "  "
_SHOWN_SERVICES = 10
_SHOWN_LEVELS = 8
"""Levels of the tree that are drawn. Deeper spans are drawn at this depth, with their own depth in front."""
_LABEL_CHARACTERS = 400
_US = 1_000
_MS = 1_000_000
_SECOND = 1_000_000_000
_THREE_DIGITS = (10, 100)


class _Line(NamedTuple):
    branch: str
    """The lines to the parent; every character has one cell."""
    label: str
    colour: str | None
    duration: str
    offset: str
    bar: tuple[int, int] | None
    """Begin and end, in nanoseconds since the trace began."""
    bar_colour: str | None = None
    is_note: bool = False


def draw(trace_id: str, trace: Trace, *, width: int, paint: Paint, events: bool = False) -> Iterator[str]:
    """Yield the lines; a span's line is at most `width` cells wide. With `events` a span's events follow it."""
    yield from _header(trace_id, trace, width, paint)
    yield ""
    lines = list(_lines(trace, events=events))
    durations = max(len(line.duration) for line in lines)
    offsets = max(len(line.offset) for line in lines)
    room = width - durations - offsets - 3 * len(_GAP)
    least = max(0, min(max(_MIN_BAR, room // 3), room - _MIN_LABEL))
    label = min(max(1, room - least), max(len(line.branch) + _cells(line.label) for line in lines))
    bar = min(_MAX_BAR, room - label) if least else 0
    for line in lines:
        text = paint(_left(line, label), line.colour, dim=line.is_note and line.colour is None)
        figures = f"{_GAP}{line.duration:>{durations}}{_GAP}{line.offset:>{offsets}}"
        drawn = _bar(line, trace, bar)
        yield f"{text}{figures}{_GAP}{paint(drawn, line.bar_colour)}" if drawn else f"{text}{figures}"


def ns_text(nanoseconds: int) -> str:
    """`0 ns`, `850 ns`, `12.3 µs`, `4.56 ms`, `1.20 s`, `2 min 5 s`."""
    if nanoseconds < _US:
        return f"{nanoseconds} ns"
    for unit, size, limit in (("µs", _US, _MS), ("ms", _MS, _SECOND), ("s", _SECOND, 60 * _SECOND)):
        if nanoseconds < limit:
            number = nanoseconds / size
            digits = sum(number < bound for bound in _THREE_DIGITS)
            return f"{number:.{digits}f} {unit}"
    return duration_text(nanoseconds / _SECOND)


def _header(trace_id: str, trace: Trace, width: int, paint: Paint) -> Iterator[str]:
    yield f"trace {paint(trace_id, bold=True)}"
    began = rfc3339(trace.start_ns // _US) if trace.start_ns else "at an unknown time"
    shown = [printable(name) for name in trace.services[:_SHOWN_SERVICES]]
    more = len(trace.services) - len(shown)
    services = ", ".join(shown) + (f" and {more:,} more" if more > 0 else "")
    errors = plural(trace.error_count, "error") if trace.error_count else "no errors"
    facts = f"{began}, {ns_text(trace.duration_ns)}, {plural(trace.span_count, 'span')}, "
    yield f"{facts}{paint(errors, 'red' if trace.error_count else None)}"
    if services:
        yield cropped(f"services: {services}", width)
    yield from _peculiarities(trace)


def _peculiarities(trace: Trace) -> Iterator[str]:
    orphans = sum(root.position is SpanPosition.ORPHAN for root in trace.roots)
    if orphans:
        yield f"{plural(orphans, 'span')} whose parent is missing: not sent yet, or sent to another system"
    if trace.skewed_count:
        yield f"{plural(trace.skewed_count, 'span')} began before the parent: the clocks differ"
    if trace.copy_count:
        noun = "copy" if trace.copy_count == 1 else "copies"
        yield f"{trace.copy_count:,} {noun} of spans that were sent again"


def _lines(trace: Trace, *, events: bool) -> Iterator[_Line]:
    colours = {service: _PALETTE[number % len(_PALETTE)] for number, service in enumerate(trace.services)}
    rails: list[bool] = []  # for each level above, whether more comes on it
    for node, depth, is_last in trace.walk():
        del rails[depth:]
        span = node.span
        rails.append(not is_last)
        yield _Line(
            branch=_branch(rails, depth),
            label=_label(node),
            colour="red" if span.is_error else None,
            duration=NOTHING if span.duration_ns is None else ns_text(span.duration_ns),
            offset=_offset(span.start_ns, trace),
            bar=_extent(span.start_ns, span.duration_ns or 0, trace),
            bar_colour="red" if span.is_error else colours.get(span.service or ""),
        )
        rail = _rails(rails, depth) + ("│  " if node.children else "   ")
        for time_ns, text, colour in _notes(node, events=events):
            yield _note(time_ns, f"{rail}· ", text, colour, trace)
    for record in trace.stray_records:
        yield _note(record.time_ns, "· ", _record(record), colour_of(record.severity), trace)


def _branch(rails: list[bool], depth: int) -> str:
    """Return the line from a span to its parent."""
    return _rails(rails, depth - 1) + ("├─ " if rails[depth] else "└─ ") if depth else ""


def _rails(rails: list[bool], depth: int) -> str:
    """Return the vertical lines down to `depth`; only the last levels, so that a long chain stays cheap."""
    first = max(1, depth + 1 - _SHOWN_LEVELS)
    above = f"{first - 1:,}… " if first > 1 else ""
    return above + "".join("│  " if rails[level] else "   " for level in range(first, depth + 1))


def _label(node: SpanNode) -> str:
    span = node.span
    mark = ("✗ " if span.is_error else "") + _FLAGS.get(node.position, "")
    service = NOTHING if span.service is None else _short(span.service)
    kind = KINDS.get(span.kind, "" if span.kind == 0 else f"kind {span.kind}")
    copies = f" ({node.copies} copies)" if node.copies > 1 else ""
    return f"{mark}{service}: {_short(span.name)}{f' ({kind})' if kind else ''}{copies}"


def _notes(node: SpanNode, *, events: bool) -> Iterable[tuple[int, str, str | None]]:
    """Return a span's records and events, sorted by time."""
    found: list[tuple[int, str, str | None]] = [
        (record.time_ns, _record(record), colour_of(record.severity)) for record in node.records
    ]
    if events:
        for event in node.span.events:
            pairs = "".join(f" {_short(key)}={_short(value or '')}" for key, value in event.attributes.items())
            found.append((event.time_ns, _short(event.name) + pairs, None))
    found.sort(key=lambda note: note[0])
    if events and node.span.status_message:
        found.append((node.span.end_ns, f"status: {_short(node.span.status_message)}", None))
    return found


def _note(time_ns: int, branch: str, text: str, colour: str | None, trace: Trace) -> _Line:
    return _Line(branch, text, colour, "", _offset(time_ns, trace), _extent(time_ns, 0, trace), is_note=True)


def _record(record: LogRecord) -> str:
    return f"{_short(record.severity)} {_short(record.body)}"


def _short(text: str) -> str:
    """Return the text safe to print, and not longer than a line."""
    return printable(text[:_LABEL_CHARACTERS])


def _offset(time_ns: int, trace: Trace) -> str:
    if not time_ns or not trace.start_ns:
        return NOTHING
    since = time_ns - trace.start_ns
    return f"{'-' if since < 0 else '+'}{ns_text(abs(since))}"


def _extent(start_ns: int, duration_ns: int, trace: Trace) -> tuple[int, int] | None:
    """Return begin and end in the trace; None if outside of it or unknown."""
    begun = start_ns - trace.start_ns
    return (begun, begun + duration_ns) if start_ns and 0 <= begun <= trace.duration_ns else None


def _bar(line: _Line, trace: Trace, cells: int) -> str:
    """Draw the bar in whole cells; less than one cell is a thin stroke."""
    if line.bar is None or cells == 0:
        return ""
    total = max(1, trace.duration_ns)
    begun, ended = line.bar
    first = min(cells - 1, begun * cells // total)
    if line.is_note:
        return " " * first + "•"
    length = min(cells - first, round((ended - begun) * cells / total))
    return " " * first + ("█" * length or "▏")


def _left(line: _Line, cells: int) -> str:
    room = cells - len(line.branch)
    return line.branch + padded(line.label, room) if room > 0 else padded(line.branch, cells)


def _cells(text: str) -> int:
    return len(text) if text.isascii() else cell_len(text)
