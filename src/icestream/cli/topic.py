"""`icestream topic`: create, list, describe, update, delete; and flush and recover, which `topic_cloud` has."""

from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq

from icestream.cli.common import broker_option, json_option, print_json
from icestream.cli.output import (
    NOTHING,
    console,
    count_text,
    minutes_text,
    offsets_text,
    plural,
    rfc3339,
    size_text,
    table,
)
from icestream.client import Client, TopicDescription
from icestream.model.enums import AckLevel, StorageFormat, StorageKind
from icestream.model.errors import IcestreamError, InvalidRequestError

# --------------------
# `icestream topic flush` and `icestream topic recover`: a topic's part in the cloud.


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


# --------------------
# A topic's schema from a file.


_PARQUET_MAGIC = b"PAR1"
_ARROW_MAGIC = b"ARROW1"


def read_schema(path: Path) -> pa.Schema:
    """The Arrow schema in `path`: a serialized schema, an Arrow IPC file or stream, or a Parquet file."""
    with path.open("rb") as file:
        magic = file.read(len(_ARROW_MAGIC))
    try:
        if magic.startswith(_PARQUET_MAGIC):
            schema = pq.read_schema(path)
        elif magic == _ARROW_MAGIC:
            with pa.OSFile(str(path)) as source:
                schema = pa.ipc.open_file(source).schema
        else:
            with pa.OSFile(str(path)) as source:
                schema = pa.ipc.read_schema(source)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise InvalidRequestError(
            "no Arrow schema can be read from this file",
            operation="topic create",
            place=str(path),
            remedy="give a serialized Arrow schema, an Arrow IPC file or a Parquet file",
        ) from error
    return schema.remove_metadata()


_ACK = click.Choice([level.value for level in AckLevel])

_ack_option = click.option("--ack", type=_ACK, help="When a publish is acknowledged, unless it says so itself.")
_minutes_option = click.option(
    "--retention-minutes",
    type=click.IntRange(min=1),
    metavar="N",
    help="How long the local log keeps messages; with --storage log, the cloud.",
)
_mb_option = click.option(
    "--retention-mb",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many MiB the local log keeps; with --storage log, the cloud.",
)


@click.group(name="topic", epilog="Example: icestream topic list")
def command() -> None:
    """Make, list, change, recover and delete topics.

    A topic is named `namespace/name`; a bare `name` is in the namespace `default`.
    """


command.add_command(flush)
command.add_command(recover)


@command.command(epilog="Example: icestream topic create default/trades --schema trades.parquet --ack disk")
@click.argument("name")
@click.option(
    "--schema",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Columns of the topic, from a serialized Arrow schema, an Arrow IPC file or a Parquet file. "
    "Without it the topic takes messages of payload, key and attributes.",
)
@click.option("--codec", type=click.Choice(["arrow"]), help="How FILE describes the columns.  [default: arrow]")
@_ack_option
@_minutes_option
@_mb_option
@click.option(
    "--partition-by",
    multiple=True,
    metavar="SPEC",
    help="Partition the table by day(publish_time), bucket(16, key), a column, …; may be repeated.",
)
@click.option(
    "--sort-by", multiple=True, metavar="COLUMN", help="Sort the table's files by this column; may be repeated."
)
@click.option(
    "--storage",
    type=click.Choice([kind.value for kind in StorageKind]),
    help="`log`: no table; the topic lives in the log and in cloud objects until its retention takes them.  "
    "[default: table]",
)
@click.option("--if-not-exists", is_flag=True, help="Do nothing if the topic is there already.")
@broker_option
@json_option
def create(
    name: str,
    schema: Path | None,
    codec: str | None,
    ack: str | None,
    retention_minutes: int | None,
    retention_mb: int | None,
    partition_by: tuple[str, ...],
    sort_by: tuple[str, ...],
    storage: str | None,
    if_not_exists: bool,
    broker: str,
    as_json: bool,
) -> None:
    """Make the topic NAME."""
    if codec is not None and schema is None:
        raise click.UsageError("--codec says how to read --schema, which is missing")
    columns = None if schema is None else read_schema(schema)
    with Client(broker) as client:
        made = client.create_topic(
            name,
            columns,
            ack=ack,
            retention_minutes=retention_minutes,
            retention_mb=retention_mb,
            partition_by=partition_by,
            sort_by=sort_by,
            storage=storage,
            if_not_exists=if_not_exists,
        )
    if as_json:
        print_json(made.to_dict())
    else:
        click.echo(f"{made.topic} is ready")


@command.command(name="list", epilog="Example: icestream topic list --prefix default/")
@click.option("--prefix", metavar="TEXT", help="Only topics whose full name begins so.")
@broker_option
@json_option
def list_(prefix: str | None, broker: str, as_json: bool) -> None:
    """List topics."""
    with Client(broker) as client:
        topics = client.list_topics(prefix)
    if as_json:
        print_json({"topics": [topic.to_dict() for topic in topics]})
        return
    numbers = ("messages", "next", "in cloud")
    shown = table("topic", "storage", *numbers, "ack", "retention", "columns", "created", numbers=numbers)
    for topic in topics:
        shown.add_row(
            topic.topic,
            topic.storage,
            *(_number(value) for value in (_kept(topic), topic.raw["durable_end"], topic.uploaded_offset)),
            topic.ack,
            _retention(topic),
            "messages" if topic.schema is None else plural(len(topic.schema), "column"),
            rfc3339(topic.created_us),
        )
    console().print(shown)


@command.command(epilog="Example: icestream topic describe default/events --json")
@click.argument("name")
@broker_option
@json_option
def describe(name: str, broker: str, as_json: bool) -> None:
    """Say all about the topic NAME."""
    with Client(broker) as client:
        _show(client.describe_topic(name), as_json=as_json)


@command.command(epilog="Example: icestream topic update default/events --retention-minutes 1440")
@click.argument("name")
@_ack_option
@_minutes_option
@_mb_option
@click.option(
    "--schema",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The topic's columns with more of them, which may be null, at the end.",
)
@broker_option
@json_option
def update(
    name: str,
    ack: str | None,
    retention_minutes: int | None,
    retention_mb: int | None,
    schema: Path | None,
    broker: str,
    as_json: bool,
) -> None:
    """Change the topic NAME; what is not given stays."""
    changes: dict[str, Any] = {"ack": ack, "retention_minutes": retention_minutes, "retention_mb": retention_mb}
    if schema is not None:
        changes["schema"] = read_schema(schema)
    if all(value is None for value in changes.values()):
        raise click.UsageError("say what to change: --ack, --retention-minutes, --retention-mb or --schema")
    with Client(broker) as client:
        _show(client.update_topic(name, **changes), as_json=as_json)


@command.command(epilog="Example: icestream topic delete default/events --yes")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--keep-table", is_flag=True, help="Leave its table in the catalog.")
@broker_option
@json_option
def delete(name: str, yes: bool, keep_table: bool, broker: str, as_json: bool) -> None:
    """Delete the topic NAME, all its messages and its table."""
    with Client(broker) as client:
        topic = client.describe_topic(name)
        if not yes:
            messages = plural(topic.message_count, "message")
            click.confirm(f"Delete {topic.topic} and its {messages}?", abort=True, err=True)
        client.delete_topic(topic.topic, keep_table=keep_table)
    if as_json:
        print_json({"topic": topic.topic, "deleted": True})
    else:
        click.echo(f"{topic.topic} is deleted")


def _show(topic: TopicDescription, *, as_json: bool) -> None:
    if as_json:
        print_json(topic.to_dict())
        return
    fields = {
        "topic": topic.topic,
        "storage": topic.storage,
        "in log": offsets_text(topic.start_offset, topic.durable_end),
        "in cloud": _in_cloud(topic),
        "in table": _in_table(topic),
        **(
            {}
            if topic.format in (None, StorageFormat.ICEBERG)
            else {"format": topic.format, "in files": _in_files(topic)}
        ),
        "ack": topic.ack,
        "partitions": ", ".join(topic.partition_by) or "none",
        "sorted by": ", ".join(topic.sort_by) or "nothing",
        "retention": _retention(topic),
        "created": rfc3339(topic.created_us),
        "stream id": topic.stream_id,
        "epoch": str(topic.epoch),
    }
    for name, value in fields.items():
        click.echo(f"{name:10} {value}")
    for field in topic.schema or ():
        click.echo(f"{'column':10} {field.name}: {field.type}{'' if field.nullable else ' not null'}")


def _in_cloud(topic: TopicDescription) -> str:
    if topic.uploaded_offset is None:
        return "the broker has no object store"
    first = topic.uploaded_offset if topic.cloud_start_offset is None else topic.cloud_start_offset
    return offsets_text(first, topic.uploaded_offset)


def _in_table(topic: TopicDescription) -> str:
    if topic.storage == "log":
        return "it has no table"
    if topic.format == StorageFormat.PARQUET:
        return "nothing goes there while storage.format is parquet"
    if topic.committed_offset is None:
        return "not known yet"
    aside = f", {plural(topic.quarantined, 'frame')} of them in quarantine" if topic.quarantined else ""
    return offsets_text(0, topic.committed_offset) + aside


def _in_files(topic: TopicDescription) -> str:
    return "not known yet" if topic.parquet_offset is None else offsets_text(0, topic.parquet_offset)


def _kept(topic: TopicDescription) -> int | None:
    """Messages in the log; None while the broker has not opened it."""
    return None if topic.raw["durable_end"] is None else topic.message_count


def _number(value: int | None) -> str:
    return NOTHING if value is None else count_text(value)


def _retention(topic: TopicDescription) -> str:
    parts = [] if topic.retention_minutes is None else [minutes_text(topic.retention_minutes)]
    parts += [] if topic.retention_mb is None else [f"{topic.retention_mb:,} MiB"]
    return ", ".join(parts) or "broker's"
