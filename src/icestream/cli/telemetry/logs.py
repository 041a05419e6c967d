"""`icestream logs`: prints a tenant's log records, stored and new ones."""

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any

import click
import pyarrow as pa
import pyarrow.compute as pc

from icestream.cli.follow import OutageNotice, next_batch
from icestream.cli.main import discard_stdout
from icestream.cli.options import broker_option, no_color_option
from icestream.cli.output import ELLIPSIS, NOTHING, Paint, has_colours, json_text, plural, printable, rfc3339
from icestream.cli.telemetry.common import (
    RANGES,
    at_least,
    check_text,
    colour_of,
    dataset_option,
    filter_bytes,
    naming_tenant,
    parse_trace_id,
    query_bytes,
    query_time,
    severity_text,
    table_name,
    telemetry_topic,
    tenant_option,
    text_literal,
)
from icestream.client import BrokerEndpoint, Client
from icestream.model.clock import now_us
from icestream.model.errors import InvalidRequestError
from icestream.model.names import TopicName
from icestream.model.offsets import StartPosition

COLUMNS = (
    "_offset",
    "time",
    "time_unix_nano",
    "observed_time_unix_nano",
    "severity_number",
    "severity_text",
    "service_name",
    "body",
    "event_name",
    "trace_id",
    "span_id",
    "attributes",
)


@dataclass(frozen=True)
class LogQuery:
    """Selects log records: as a query over the stored ones, and as a filter of new ones.

    None means no condition. The times apply to stored records only.
    """

    service: str | None = None
    severity: str | None = None
    trace_id: bytes | None = None
    pattern: str | None = None
    """An RE2 expression that the body must match."""
    since_us: int | None = None
    until_us: int | None = None

    def history(self, topic: TopicName, *, end: int, limit: int) -> str:
        """Return the SQL for the newest `limit` records below the offset `end`, oldest first."""
        conditions = [f"_offset < {end}", *self._common_conditions()]
        if self.since_us is not None:
            conditions.append(f'"time" >= {query_time(self.since_us)}')
        if self.until_us is not None:
            conditions.append(f'"time" < {query_time(self.until_us)}')
        if self.trace_id is not None:
            conditions.append(f"trace_id = {query_bytes(self.trace_id)}")
        if self.pattern is not None:
            conditions.append(f"regexp_matches(body, {text_literal(self.pattern)})")
        columns = ", ".join(f'"{name}"' for name in COLUMNS)
        newest = (
            f"SELECT {columns} FROM {table_name(topic)} WHERE {' AND '.join(conditions)} "  # noqa: S608 - literals
            f'ORDER BY "time" DESC NULLS LAST, _offset DESC LIMIT {limit}'
        )
        return f'SELECT * FROM ({newest}) ORDER BY "time" NULLS FIRST, _offset'  # noqa: S608 - the query above

    def filter(self) -> str | None:
        """Return the reader's filter, without the pattern: see `matching`."""
        conditions = list(self._common_conditions())
        if self.trace_id is not None:
            conditions.append(f"trace_id = {filter_bytes(self.trace_id)}")
        return " AND ".join(conditions) or None

    def matching(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records whose body matches the pattern."""
        if self.pattern is None:
            return batch
        return batch.filter(pc.match_substring_regex(batch.column("body"), self.pattern))

    def _common_conditions(self) -> list[str]:
        found = []
        if self.service is not None:
            found.append(f"service_name = {text_literal(self.service)}")
        if self.severity is not None:
            found.append(at_least(self.severity))
        return found


def pattern_problem(pattern: str) -> str | None:
    """Return what is wrong with an expression. Broker and Arrow both use RE2."""
    try:
        pc.match_substring_regex(pa.array([""]), pattern)
    except pa.ArrowInvalid as error:
        return str(error).partition("\n")[0]
    return None


# Log records as lines

Render = Callable[[pa.RecordBatch], bytes]

_MAX_BODY = 4_000
_MAX_ATTRIBUTES = 6
_MAX_VALUE = 80
_SEVERITY_CELLS = 5
_WRAP = 1 << 64
"""OTLP's times are unsigned, columns are not."""


def text_renderer(paint: Paint) -> Render:
    """Return a renderer of time, severity, service, body and some attributes."""

    def line(row: dict[str, Any]) -> str:
        severity = printable(severity_text(row["severity_number"], row["severity_text"])[:_MAX_VALUE])
        time = _time(row["time"]) or NOTHING
        service = NOTHING if row["service_name"] is None else _short(row["service_name"])
        text = " ".join(part for part in (row["event_name"], row["body"]) if part)
        body = printable(text[:_MAX_BODY]) + (ELLIPSIS if len(text) > _MAX_BODY else "")
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
    """Yield rows with times in microseconds: Python's own times end in the year 9999."""
    rows = batch.select(COLUMNS)
    yield from rows.set_column(COLUMNS.index("time"), "time", rows.column("time").cast(pa.int64())).to_pylist()


def _time(time_us: int | None) -> str | None:
    """Format a time. Rows published through Flight may have times after the year 9999."""
    try:
        return None if time_us is None else rfc3339(time_us)
    except OverflowError:
        return str(time_us)


def _attributes(pairs: list[tuple[str, str | None]] | None) -> str:
    shown = [f"{_short(key)}={_short(value or '')}" for key, value in (pairs or ())[:_MAX_ATTRIBUTES]]
    return " ".join(shown) + (f" {ELLIPSIS}" if len(pairs or ()) > _MAX_ATTRIBUTES else "")


def _short(text: str) -> str:
    return printable(text[:_MAX_VALUE]) + (ELLIPSIS if len(text) > _MAX_VALUE else "")


# `--since` and `--until`: a time, or how long ago

_UNITS_US = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000, "w": 604_800_000_000}
_AGO = re.compile(r"(?:[0-9]{1,9}[smhdw])+", re.ASCII)
_PART = re.compile(r"([0-9]+)([smhdw])", re.ASCII)


def parse_moment(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    """Parse an option to microseconds since 1970; None if it is not given."""
    return None if value is None else moment_us(value, now_us())


def moment_us(text: str, now: int) -> int:
    """Parse `15m`, `1h30m`, `2d` (before `now`), or a time; without a zone it is UTC."""
    if _AGO.fullmatch(text):
        return max(0, now - sum(int(count) * _UNITS_US[unit] for count, unit in _PART.findall(text)))
    try:
        found = StartPosition.parse(text)
    except InvalidRequestError:
        found = None
    if found is None or found.kind != "timestamp":
        raise click.BadParameter(
            f"{text!r:.80} is neither a time such as 2026-01-31T12:00:00Z nor a duration such as 15m"
        )
    return int(found.value)


# The command

_DEFAULT_SINCE = "1h"
_ALL = "all"
_MOMENT = "15m|TIME"


def _check_pattern(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    pattern = check_text(ctx, param, value)
    if pattern is not None and (problem := pattern_problem(pattern)) is not None:
        raise click.BadParameter(problem)
    return pattern


@click.command(
    name="logs", epilog="Example: icestream logs --tenant acme --service shop --since 15m --grep 'time.?out'"
)
@tenant_option
@dataset_option
@click.option("--service", metavar="S", callback=check_text, help="Records of this service only.")
@click.option(
    "--since",
    metavar=_MOMENT,
    help="Stored records from this time on; `all` means no bound. A TIME without a zone is UTC.  "
    f"[default: {_DEFAULT_SINCE}; {_ALL} with --trace]",
)
@click.option("--until", "until_us", metavar=_MOMENT, callback=parse_moment, help="Stored records before this time.")
@click.option(
    "--severity",
    type=click.Choice(list(RANGES), case_sensitive=False),
    help="Records of this severity and those above.",
)
@click.option(
    "--grep",
    metavar="REGEX",
    callback=_check_pattern,
    help="Records whose body matches. (?i) at the start ignores case.",
)
@click.option("--trace", "trace_id", metavar="ID", callback=parse_trace_id, help="Records of this trace only.")
@click.option(
    "--max",
    "limit",
    type=click.IntRange(min=0),
    default=1_000,
    show_default=True,
    metavar="N",
    help="At most the newest N stored records.",
)
@click.option("--follow", is_flag=True, help="Wait for new records, until Ctrl-C.")
@no_color_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
@broker_option
def command(
    tenant: str,
    dataset: str | None,
    service: str | None,
    since: str | None,
    until_us: int | None,
    severity: str | None,
    grep: str | None,
    trace_id: bytes | None,
    limit: int,
    follow: bool,
    no_color: bool,
    as_json: bool,
    broker: BrokerEndpoint,
) -> None:
    """Print a tenant's log records, oldest first.

    The time of a record is its own, or the time of observation if it has none. With --follow new records are printed
    as they arrive, whatever their times: none is missing, none is printed twice.
    """
    if follow and until_us is not None:
        raise click.UsageError("--follow and --until exclude each other.")
    since_us = _since(since, is_trace=trace_id is not None)
    if since_us is not None and until_us is not None and since_us >= until_us:
        raise click.UsageError("--since must be before --until.")
    topic = telemetry_topic(tenant, dataset, "logs")
    query = LogQuery(service, severity, trace_id, grep, since_us, until_us)
    render = render_json if as_json else text_renderer(Paint(enabled=has_colours(wanted=not no_color)))
    output = sys.stdout.buffer
    try:
        with Client(broker) as client, naming_tenant(tenant):
            end = client.describe_topic(topic).durable_end
            count = _write_history(client, query.history(topic, end=end, limit=limit), render, output)
            if follow:
                _follow(client, topic, end, query, render, output)
            else:
                _print_limits(count, limit, since_us, until_us)
    except BrokenPipeError:
        discard_stdout()
    except KeyboardInterrupt:
        if not follow:
            raise


def _since(text: str | None, *, is_trace: bool) -> int | None:
    chosen = text if text is not None else _ALL if is_trace else _DEFAULT_SINCE
    try:
        return None if chosen == _ALL else moment_us(chosen, now_us())
    except click.BadParameter as error:
        error.param_hint = "'--since'"
        raise


def _write_history(client: Client, sql: str, render: Render, output: IO[bytes]) -> int:
    """Fetch the whole result before writing: queries have a time limit, and the reader of stdout may be slow."""
    rows = client.sql(sql)
    for batch in rows.to_batches():
        output.write(render(batch))
    output.flush()
    return int(rows.num_rows)


def _follow(client: Client, topic: TopicName, start: int, query: LogQuery, render: Render, output: IO[bytes]) -> None:
    """Follow from the offset at which the stored records end: so none is missing and none comes twice."""
    notice = OutageNotice(f"the broker at {client.url}")
    with client.consume(topic, start, follow=True, where=query.filter()) as consumer:
        while (batch := next_batch(consumer, output, notice, follow=True, timeout=None)) is not None:
            output.write(render(query.matching(batch)))
            output.flush()


def _print_limits(count: int, limit: int, since_us: int | None, until_us: int | None) -> None:
    """Say on stderr when the output may be incomplete."""
    if count == limit:
        click.echo(f"the newest {plural(count, 'record')}; --max prints more", err=True)
    elif count == 0:
        bounds = ("" if since_us is None else f" since {rfc3339(since_us)}") + (
            "" if until_us is None else f" before {rfc3339(until_us)}"
        )
        click.echo(
            f"no such records{bounds}" + (f"; --since {_ALL} searches all" if since_us is not None else ""), err=True
        )
