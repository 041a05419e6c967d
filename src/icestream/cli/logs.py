"""`icestream logs`: a tenant's log records, those that are there and those that come."""

import sys
from typing import IO

import click

from icestream.cli.common import broker_option, no_color_option
from icestream.cli.following import next_batch
from icestream.cli.formatting import plural, rfc3339
from icestream.cli.logs_query import Wanted, pattern_problem
from icestream.cli.logs_view import Render, render_json, text_renderer
from icestream.cli.moments import moment_us, parse_moment
from icestream.cli.presence import Presence
from icestream.cli.severities import RANGES
from icestream.cli.sql_literals import check_text
from icestream.cli.streams import leave_stdout
from icestream.cli.telemetry_options import (
    dataset_option,
    naming_tenant,
    parse_trace_id,
    telemetry_topic,
    tenant_option,
)
from icestream.cli.terminal import Paint, has_colours
from icestream.client import Client
from icestream.model.clock import now_us
from icestream.model.names import TopicName

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
@click.option("--service", metavar="S", callback=check_text, help="Of this service alone.")
@click.option(
    "--since",
    metavar=_MOMENT,
    help="The first time of records that are there; `all` has no bound. A TIME without a zone is UTC.  "
    f"[default: {_DEFAULT_SINCE}; {_ALL} with --trace]",
)
@click.option("--until", "until_us", metavar=_MOMENT, callback=parse_moment, help="The time before which they end.")
@click.option("--severity", type=click.Choice(list(RANGES), case_sensitive=False), help="This one and those above.")
@click.option("--grep", metavar="REGEX", callback=_check_pattern, help="In the body; (?i) in front ignores case.")
@click.option("--trace", "trace_id", metavar="ID", callback=parse_trace_id, help="Of this trace alone.")
@click.option(
    "--max",
    "limit",
    type=click.IntRange(min=0),
    default=1_000,
    show_default=True,
    metavar="N",
    help="The newest N of those that are there.",
)
@click.option("--follow", is_flag=True, help="Go on with new records, until Ctrl-C.")
@no_color_option
@click.option("--json", "as_json", is_flag=True, help="Print an object a line, for machines.")
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
    broker: str,
) -> None:
    """Print a tenant's log records, oldest first.

    Times are the records' own, or when they were observed where they have none. With --follow the records that come
    next are printed as they come, whatever times they have: none is missing and none comes twice.
    """
    if follow and until_us is not None:
        raise click.UsageError("--follow has no end, so --until cannot go with it.")
    since_us = _since(since, is_trace=trace_id is not None)
    if since_us is not None and until_us is not None and since_us >= until_us:
        raise click.UsageError("--since is not before --until.")
    topic = telemetry_topic(tenant, dataset, "logs")
    wanted = Wanted(service, severity, trace_id, grep, since_us, until_us)
    render = render_json if as_json else text_renderer(Paint(enabled=has_colours(wanted=not no_color)))
    output = sys.stdout.buffer
    try:
        with Client(broker) as client, naming_tenant(tenant):
            end = client.describe_topic(topic).durable_end
            count = _write_history(client, wanted.history(topic, end=end, limit=limit), render, output)
            if follow:
                _follow(client, topic, end, wanted, render, output)
            else:
                _remark(count, limit, since_us, until_us)
    except BrokenPipeError:
        leave_stdout()
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


def _write_history(client: Client, query: str, render: Render, output: IO[bytes]) -> int:
    """The result is taken at once: a query has little time, and who reads our output may be slow."""
    rows = client.sql(query)
    for batch in rows.to_batches():
        output.write(render(batch))
    output.flush()
    return int(rows.num_rows)


def _follow(client: Client, topic: TopicName, start: int, wanted: Wanted, render: Render, output: IO[bytes]) -> None:
    """From the offset at which the history ends: so nothing is left out between them, and nothing comes twice."""
    presence = Presence(f"the broker at {client.url}")
    with client.consume(topic, start, follow=True, where=wanted.filter()) as consumer:
        while (batch := next_batch(consumer, output, presence, follow=True, timeout=None)) is not None:
            output.write(render(wanted.matching(batch)))
            output.flush()


def _remark(count: int, limit: int, since_us: int | None, until_us: int | None) -> None:
    """What one could take for all there is, and is not."""
    if count == limit:
        click.echo(f"the newest {plural(count, 'record')}; --max looks for more", err=True)
    elif count == 0:
        bounds = ("" if since_us is None else f" since {rfc3339(since_us)}") + (
            "" if until_us is None else f" before {rfc3339(until_us)}"
        )
        click.echo(
            f"no such records{bounds}" + (f"; --since {_ALL} looks at all" if since_us is not None else ""), err=True
        )
