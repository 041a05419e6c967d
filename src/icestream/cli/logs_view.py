"""Log records as lines: for people, and as JSON for machines."""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from icestream.cli.formatting import NOTHING, rfc3339
from icestream.cli.logs_query import COLUMNS
from icestream.cli.severities import colour_of, severity_text
from icestream.cli.terminal import ELLIPSIS, Paint, json_text, printable

Render = Callable[[pa.RecordBatch], bytes]

_MAX_BODY = 4_000
_MAX_ATTRIBUTES = 6
_MAX_VALUE = 80
_SEVERITY_CELLS = 5
_WRAP = 1 << 64
"""OTLP's times are unsigned, columns are not."""


def text_renderer(paint: Paint) -> Render:
    """Time, severity, service, body and some attributes; --json has all of it."""

    def line(row: dict[str, Any]) -> str:
        severity = printable(severity_text(row["severity_number"], row["severity_text"])[:_MAX_VALUE])
        time = _time(row["time"]) or NOTHING
        service = NOTHING if row["service_name"] is None else _short(row["service_name"])
        said = " ".join(part for part in (row["event_name"], row["body"]) if part)
        body = printable(said[:_MAX_BODY]) + (ELLIPSIS if len(said) > _MAX_BODY else "")
        parts = [
            paint(time, dim=True),
            paint(f"{severity:<{_SEVERITY_CELLS}}", colour_of(severity)),
            paint(service, "cyan"),
            body,
            paint(_attributes(row["attributes"]), dim=True),
        ]
        return " ".join(part for part in parts if part)

    return lambda batch: "".join(f"{line(row)}\n" for row in _rows(batch)).encode()


def render_json(batch: pa.RecordBatch) -> bytes:
    return "".join(f"{json_text(_fields(row))}\n" for row in _rows(batch)).encode()


def _fields(row: dict[str, Any]) -> dict[str, Any]:
    ids = {name: None if row[name] is None else row[name].hex() for name in ("trace_id", "span_id")}
    times = {name: row[name] % _WRAP for name in ("time_unix_nano", "observed_time_unix_nano")}
    shown = {"time": _time(row["time"]), **times, **ids, "attributes": dict(row["attributes"] or ())}
    return {"offset": row.pop("_offset"), **row, **shown}


def _rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Times as microseconds, as Python's own know fewer of them."""
    place = COLUMNS.index("time")
    rows = batch.select(COLUMNS)
    yield from rows.set_column(place, "time", rows.column(place).cast(pa.int64())).to_pylist()


def _time(time_us: int | None) -> str | None:
    """Who publishes rows by Flight may give them times beyond the year 9999."""
    try:
        return None if time_us is None else rfc3339(time_us)
    except OverflowError:
        return str(time_us)


def _attributes(pairs: list[tuple[str, str | None]] | None) -> str:
    shown = [f"{_short(key)}={_short(value or '')}" for key, value in (pairs or ())[:_MAX_ATTRIBUTES]]
    return " ".join(shown) + (f" {ELLIPSIS}" if len(pairs or ()) > _MAX_ATTRIBUTES else "")


def _short(text: str) -> str:
    return printable(text[:_MAX_VALUE]) + (ELLIPSIS if len(text) > _MAX_VALUE else "")
