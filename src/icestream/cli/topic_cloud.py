"""`icestream topic flush` and `icestream topic recover`: a topic's part in the cloud."""

from typing import Any

import click

from icestream.cli.common import broker_option, json_option, print_json
from icestream.cli.formatting import offsets_text, plural, size_text
from icestream.client import Client
from icestream.model.errors import IcestreamError


@click.command(epilog="Example: icestream topic flush default/events --timeout 300")
@click.argument("name")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Give up after so long; what was uploaded by then stays.",
)
@broker_option
@json_option
def flush(name: str, timeout: float, broker: str, as_json: bool) -> None:
    """Upload what is durable in the topic NAME now, without waiting for the next cycle."""
    with Client(broker) as client:
        uploaded = client.flush_topic(name, timeout)
        topic = client.describe_topic(name)
    if as_json:
        print_json({"topic": topic.topic, "uploaded_offset": uploaded, "durable_end": topic.durable_end})
    else:
        first = topic.cloud_start_offset if topic.cloud_start_offset is not None else uploaded
        click.echo(f"{topic.topic}: the cloud has {offsets_text(first, uploaded)}")


@click.command(epilog="Example: icestream topic recover --all")
@click.argument("name", required=False)
@click.option("--all", "everything", is_flag=True, help="All topics whose log is lost, or that only the cloud knows.")
@broker_option
@json_option
def recover(name: str | None, everything: bool, broker: str, as_json: bool) -> None:
    """Make the topic NAME live again on a fresh disk, from its cloud objects and its table.

    The broker runs on the new disk, with the same object store and catalog. The topic goes on behind every offset that
    may have been given to a message; which ones were lost, if any, is said on stderr. With --all a topic that cannot be
    recovered does not keep the others from it, and the exit code is 1.
    """
    if (name is not None) == everything:
        raise click.UsageError("Either name a topic or give --all.")
    with Client(broker) as client:
        reports, failed = _recover_all(client) if name is None else ([client.recover_topic(name)], {})
    if as_json:
        print_json({"topics": reports, "failed": {topic: failure.to_dict() for topic, failure in failed.items()}})
    else:
        for report in reports:
            _tell(report)
        if not reports and not failed:
            click.echo("there is nothing to recover")
    for topic, failure in failed.items():
        click.echo(f"{topic}: {failure}", err=True)
    if failed:
        raise click.exceptions.Exit(1)


def _recover_all(client: Client) -> tuple[list[dict[str, Any]], dict[str, IcestreamError]]:
    reports: list[dict[str, Any]] = []
    failed: dict[str, IcestreamError] = {}
    found = client.recoverable_topics()
    for topic in sorted({*found["lost"], *found["recoverable"]}):
        try:
            reports.append(client.recover_topic(topic))
        except IcestreamError as failure:
            failed[topic] = failure
    return reports, failed


def _tell(report: dict[str, Any]) -> None:
    topic = report["topic"]
    click.echo(f"{topic} is live again: epoch {report['epoch']}, the next message gets offset {report['next_offset']}")
    for line in (*source_lines(report), *(f"found: {source}" for source in report["sources"])):
        click.echo(f"  {line}")
    for warning in (unreadable_line(report), loss_line(report)):
        if warning:
            click.echo(f"warning: {topic}: {warning}", err=True)


def source_lines(report: dict[str, Any]) -> list[str]:
    """What came from where."""
    first, end, committed = report["cloud_first_offset"], report["cloud_end"], report["committed_offset"]
    if first is None:
        cloud = "the cloud has no messages of it"
    else:
        held = f"{plural(report['objects'], 'object')} of {size_text(report['bytes'])}"
        cloud = f"the cloud has {offsets_text(first, end)} in {held}"
    table = "there is no table of it" if committed is None else f"the table has {offsets_text(0, committed)}"
    return [cloud, table]


def unreadable_line(report: dict[str, Any]) -> str | None:
    """What was uploaded and cannot be read any more, if anything."""
    if not report["unreadable"]:
        return None
    ranges = ", ".join(f"{first} to {end - 1}" for first, end in report["unreadable"])
    return f"the offsets {ranges} cannot be read: their objects are gone or damaged, and no table has them"


def loss_line(report: dict[str, Any]) -> str | None:
    """What was lost, if anything may have been."""
    first, end = report["lost_first"], report["lost_end"]
    if first is None or end is None or end <= first:
        return None
    return (
        "messages that were published after the last upload are lost, unless the table has them; the offsets "
        f"{first} to {end - 1}, which they may have had, stay empty"
    )
