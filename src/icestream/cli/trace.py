"""`icestream trace`: a trace as a tree, with the time on the right."""

import shutil
import sys

import click

from icestream.cli.common import broker_option, fresh_option, json_option, no_color_option
from icestream.cli.streams import leave_stdout
from icestream.cli.telemetry_options import (
    dataset_option,
    naming_tenant,
    parse_trace_id,
    telemetry_topic,
    tenant_option,
)
from icestream.cli.terminal import Paint, has_colours
from icestream.cli.trace_json import trace_json
from icestream.cli.trace_read import read_records, read_spans
from icestream.cli.trace_tree import Record, build
from icestream.cli.trace_view import DEFAULT_WIDTH, MIN_WIDTH, draw
from icestream.client import Client
from icestream.model.errors import IcestreamError, TopicNotFoundError
from icestream.model.names import TopicName


@click.command(name="trace", epilog="Example: icestream trace 5b8aa5a2d2c872e8321cf37308d69df2 --tenant acme --events")
@click.argument("trace_id", metavar="ID", callback=parse_trace_id)
@tenant_option
@dataset_option
@click.option("--events", is_flag=True, help="Events and status messages below their spans.")
@click.option("--logs", is_flag=True, help="The trace's log records below their spans.")
@fresh_option
@click.option(
    "--max",
    "limit",
    type=click.IntRange(min=1),
    default=100_000,
    show_default=True,
    metavar="N",
    help="Read at most N spans, and N log records.",
)
@click.option(
    "--width",
    type=click.IntRange(min=MIN_WIDTH, max=10_000),
    metavar="N",
    help=f"Columns to draw in.  [default: the terminal's, or {DEFAULT_WIDTH}]",
)
@no_color_option
@json_option
@broker_option
def command(
    trace_id: bytes,
    tenant: str,
    dataset: str | None,
    events: bool,
    logs: bool,
    fresh: bool,
    limit: int,
    width: int | None,
    no_color: bool,
    as_json: bool,
    broker: str,
) -> None:
    """Print a trace as a tree, with a bar for the time of each span.

    ID is 32 hexadecimal digits, with or without dashes, or the value of a traceparent header. With --json the spans are
    objects inside their parents, as deep as the trace is, with all their attributes and events.
    """
    topic = telemetry_topic(tenant, dataset, "traces")
    with Client(broker) as client, naming_tenant(tenant):
        spans = read_spans(client, topic, trace_id, details=events or as_json, fresh=fresh, limit=limit + 1)
        log_topic = telemetry_topic(tenant, dataset, "logs")
        records = _records(client, log_topic, trace_id, fresh=fresh, limit=limit + 1) if logs else []
    if not spans and not records:
        raise IcestreamError(
            f"there is no span of {trace_id.hex()}",
            operation="trace",
            place=str(topic),
            remedy="check the id and the tenant" + ("" if fresh else ", or look at fresh rows too"),
        )
    for found, what in ((spans, "spans"), (records, "log records")):
        if len(found) > limit:
            click.echo(f"only the first {limit:,} {what}; --max reads more", err=True)
    trace = build(spans[:limit], records[:limit])
    try:
        if as_json:
            sys.stdout.buffer.writelines(piece.encode() for piece in trace_json(trace_id.hex(), trace, logs=logs))
            sys.stdout.buffer.write(b"\n")
        else:
            columns = width or shutil.get_terminal_size((DEFAULT_WIDTH, 0)).columns
            paint = Paint(enabled=has_colours(wanted=not no_color))
            lines = draw(trace_id.hex(), trace, width=max(MIN_WIDTH, columns), paint=paint, events=events)
            sys.stdout.buffer.writelines(f"{line}\n".encode() for line in lines)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        leave_stdout()


def _records(client: Client, topic: TopicName, trace_id: bytes, *, fresh: bool, limit: int) -> list[Record]:
    """A tenant need not send logs."""
    try:
        return read_records(client, topic, trace_id, fresh=fresh, limit=limit)
    except TopicNotFoundError:
        click.echo(f"there are no log records: there is no topic {topic}", err=True)
        return []
