"""`icestream topic`: create, list, describe, update, delete, flush, recover."""

from collections.abc import Callable
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import click
import pyarrow as pa
import pyarrow.parquet as pq

from icestream.cli.options import Command, broker_option, choices, json_option
from icestream.cli.output import (
    NOTHING,
    console,
    count_text,
    minutes_text,
    offsets_text,
    plural,
    print_json,
    rfc3339,
    size_text,
    table,
)
from icestream.client import BrokerEndpoint, Client, TopicDescription, TopicSummary
from icestream.model.enums import ClosedSet, StorageFormat, StorageKind
from icestream.model.errors import IcestreamError, InvalidRequestError
from icestream.protocol.admin import TopicAttribute, topic_attributes

_PARQUET_MAGIC = b"PAR1"
_ARROW_MAGIC = b"ARROW1"
_FORMATTED = {"ack", "retention_minutes", "retention_mb", "schema", "partition_by", "sort_by", "storage"}
"""Attributes for which `describe` has a form of its own."""


def attribute_options(*, to_change: bool = False) -> Callable[[Command], Command]:
    """Add an option for every topic attribute but the schema; with `to_change`, for those that can change.

    The options come from `TopicAttributes`: a new attribute needs no change here.
    """

    def add(command: Command) -> Command:
        for attribute in reversed(topic_attributes()):
            if attribute.name != "schema" and (attribute.changeable or not to_change):
                command = _attribute_option(attribute, to_change=to_change)(command)
        return command

    return add


def _attribute_option(attribute: TopicAttribute, *, to_change: bool) -> Callable[[Command], Command]:
    name = "--" + attribute.name.replace("_", "-")
    kind = _value_type(attribute.type)
    if kind is tuple:
        return click.option(name, multiple=True, metavar="SPEC", help=f"{attribute.description} May be repeated.")
    if kind is int:
        text = f"{attribute.description} 0 removes the topic's own limit." if to_change else attribute.description
        return click.option(name, type=click.IntRange(min=0 if to_change else 1), metavar="N", help=text)
    values = choices(kind) if issubclass(kind, ClosedSet) else click.STRING
    return click.option(name, type=values, help=attribute.description)


def _value_type(annotation: Any) -> type:
    """Return the type in an annotation such as `Annotated[int, …] | None`."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _value_type(inner[0])
    if origin in (Union, UnionType):
        return _value_type(next(kind for kind in inner if kind is not type(None)))
    found = origin or annotation
    assert isinstance(found, type)
    return found


@click.group(name="topic", epilog="Example: icestream topic list")
def command() -> None:
    """Create, list, change, recover and delete topics.

    A topic is named `namespace/name`; a bare `name` is in the namespace `default`.
    """


@command.command(epilog="Example: icestream topic create default/trades --schema trades.parquet --ack disk")
@click.argument("name")
@click.option(
    "--schema",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The topic's columns: a serialized Arrow schema, an Arrow IPC file or a Parquet file. "
    "Without it a message has payload, key and attributes.",
)
@click.option("--codec", type=click.Choice(["arrow"]), help="Format of the schema in FILE.  [default: arrow]")
@attribute_options()
@click.option("--if-not-exists", is_flag=True, help="Do nothing if the topic exists.")
@broker_option
@json_option
def create(
    name: str,
    schema: Path | None,
    codec: str | None,
    if_not_exists: bool,
    broker: BrokerEndpoint,
    as_json: bool,
    **attributes: Any,
) -> None:
    """Create the topic NAME."""
    if codec is not None and schema is None:
        raise click.UsageError("--codec belongs to --schema, which is missing.")
    columns = None if schema is None else read_schema(schema)
    with Client(broker) as client:
        made = client.create_topic(name, columns, if_not_exists=if_not_exists, **attributes)
    if as_json:
        print_json(made.to_dict())
    else:
        click.echo(f"{made.topic} is ready")


@command.command(name="list", epilog="Example: icestream topic list --prefix default/")
@click.option("--prefix", metavar="TEXT", help="Only topics whose full name begins with TEXT.")
@broker_option
@json_option
def list_(prefix: str | None, broker: BrokerEndpoint, as_json: bool) -> None:
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
            *(_number(value) for value in (topic.message_count, topic.durable_end, topic.uploaded_offset)),
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
def describe(name: str, broker: BrokerEndpoint, as_json: bool) -> None:
    """Print everything about the topic NAME."""
    with Client(broker) as client:
        _show(client.describe_topic(name), as_json=as_json)


@command.command(epilog="Example: icestream topic update default/events --retention-minutes 1440")
@click.argument("name")
@attribute_options(to_change=True)
@click.option(
    "--schema",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The topic's columns with new nullable columns at the end.",
)
@broker_option
@json_option
def update(name: str, schema: Path | None, broker: BrokerEndpoint, as_json: bool, **attributes: Any) -> None:
    """Change the topic NAME. Everything that is not given stays."""
    changes = {attribute: value for attribute, value in attributes.items() if value is not None}
    if schema is not None:
        changes["schema"] = read_schema(schema)
    if not changes:
        options = ", ".join("--" + attribute.replace("_", "-") for attribute in attributes)
        raise click.UsageError(f"Give what to change: {options} or --schema.")
    with Client(broker) as client:
        _show(client.update_topic(name, **changes), as_json=as_json)


@command.command(epilog="Example: icestream topic delete default/events --yes")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--keep-table", is_flag=True, help="Keep its table in the catalog.")
@broker_option
@json_option
def delete(name: str, yes: bool, keep_table: bool, broker: BrokerEndpoint, as_json: bool) -> None:
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


@command.command(epilog="Example: icestream topic flush default/events --timeout 300")
@click.argument("name")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Give up after so long. What was uploaded until then stays.",
)
@broker_option
@json_option
def flush(name: str, timeout: float, broker: BrokerEndpoint, as_json: bool) -> None:
    """Upload all durable messages of the topic NAME now, without waiting for the next cycle."""
    with Client(broker) as client:
        uploaded = client.flush_topic(name, timeout)
        topic = client.describe_topic(name)
    if as_json:
        print_json({"topic": topic.topic, "uploaded_offset": uploaded, "durable_end": topic.durable_end})
    else:
        first = topic.cloud_start_offset if topic.cloud_start_offset is not None else uploaded
        click.echo(f"{topic.topic}: the cloud has {offsets_text(first, uploaded)}")


@command.command(name="reset-clock", epilog="Example: icestream topic reset-clock default/events")
@click.argument("name")
@broker_option
@json_option
def reset_clock(name: str, broker: BrokerEndpoint, as_json: bool) -> None:
    """Let the publish times of the topic NAME follow the clock again.

    Publish times never go back by themselves: a clock that was ahead once pins them there. Correct the clock first.
    Messages keep the times that they have. A start by time finds messages from the reset on by their times, and no
    message before it; retention by age counts messages before it as published before it.
    """
    with Client(broker) as client:
        found = client.reset_clock(name)
    if as_json:
        print_json(found)
    else:
        click.echo(f"{found['topic']}: from offset {found['offset']} on, publish times follow the clock again")


@command.command(epilog="Example: icestream topic recover --all")
@click.argument("name", required=False)
@click.option(
    "--all", "everything", is_flag=True, help="All topics whose log is lost, or that exist only in the object store."
)
@broker_option
@json_option
def recover(name: str | None, everything: bool, broker: BrokerEndpoint, as_json: bool) -> None:
    """Recover the topic NAME on a fresh disk, from its cloud objects and its table.

    Start the broker on the new disk with the same object store and catalog first. The recovered topic continues after
    every offset that a message may have had. The command prints lost offsets, if any, on stderr. With --all it recovers
    every topic that can be recovered, and exits with 1 if one cannot.
    """
    if (name is not None) == everything:
        raise click.UsageError("Name a topic, or give --all.")
    with Client(broker) as client:
        reports, failed = _recover_all(client) if name is None else ([client.recover_topic(name)], {})
    if as_json:
        print_json({"topics": reports, "failed": {topic: failure.to_dict() for topic, failure in failed.items()}})
    else:
        for report in reports:
            _print_recovery(report)
        if not reports and not failed:
            click.echo("nothing to recover")
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


def _print_recovery(report: dict[str, Any]) -> None:
    topic = report["topic"]
    click.echo(f"{topic} is recovered: epoch {report['epoch']}, the next message gets offset {report['next_offset']}")
    for line in (*source_lines(report), *(f"found: {source}" for source in report["sources"])):
        click.echo(f"  {line}")
    for warning in (unreadable_line(report), loss_line(report)):
        if warning:
            click.echo(f"warning: {topic}: {warning}", err=True)


def source_lines(report: dict[str, Any]) -> list[str]:
    """Return what the object store and the table hold."""
    first, end, committed = report["cloud_first_offset"], report["cloud_end"], report["committed_offset"]
    if first is None:
        cloud = "the cloud has no messages of this topic"
    else:
        held = f"{plural(report['objects'], 'object')} of {size_text(report['bytes'])}"
        cloud = f"the cloud has {offsets_text(first, end)} in {held}"
    table = "there is no table" if committed is None else f"the table has {offsets_text(0, committed)}"
    return [cloud, table]


def unreadable_line(report: dict[str, Any]) -> str | None:
    """Return a warning about uploaded offsets that cannot be read any more, if any."""
    if not report["unreadable"]:
        return None
    ranges = ", ".join(f"{first} to {end - 1}" for first, end in report["unreadable"])
    return f"the offsets {ranges} cannot be read: their objects are gone or damaged, and no table has them"


def loss_line(report: dict[str, Any]) -> str | None:
    """Return a warning about messages that may be lost, if any."""
    first, end = report["lost_first"], report["lost_end"]
    if first is None or end is None or end <= first:
        return None
    return (
        "messages that were published after the last upload are lost, unless the table has them; "
        f"offsets {first} to {end - 1}, which they may have had, stay empty"
    )


def read_schema(path: Path) -> pa.Schema:
    """Return the Arrow schema in `path`: a serialized schema, an Arrow IPC file or stream, or a Parquet file."""
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
        **{name: str(getattr(topic, name)) for name in _other_attributes()},
        "created": rfc3339(topic.created_us),
        "stream id": topic.stream_id,
        "epoch": str(topic.epoch),
    }
    for name, value in fields.items():
        click.echo(f"{name:10} {value}")
    for field in topic.schema or ():
        click.echo(f"{'column':10} {field.name}: {field.type}{'' if field.nullable else ' not null'}")


def _other_attributes() -> list[str]:
    """Return the attributes that `describe` prints in no special form."""
    return [attribute.name for attribute in topic_attributes() if attribute.name not in _FORMATTED]


def _in_cloud(topic: TopicDescription) -> str:
    if topic.uploaded_offset is None:
        return "the broker has no object store"
    first = topic.uploaded_offset if topic.cloud_start_offset is None else topic.cloud_start_offset
    return offsets_text(first, topic.uploaded_offset)


def _in_table(topic: TopicDescription) -> str:
    if topic.storage == StorageKind.LOG:
        return "it has no table"
    if topic.format == StorageFormat.PARQUET:
        return "nothing, while storage.format is parquet"
    if topic.committed_offset is None:
        return "not known yet"
    aside = f", {plural(topic.quarantined, 'frame')} of them in quarantine" if topic.quarantined else ""
    return offsets_text(0, topic.committed_offset) + aside


def _in_files(topic: TopicDescription) -> str:
    return "not known yet" if topic.parquet_offset is None else offsets_text(0, topic.parquet_offset)


def _number(value: int | None) -> str:
    return NOTHING if value is None else count_text(value)


def _retention(topic: TopicSummary) -> str:
    parts = [] if topic.retention_minutes is None else [minutes_text(topic.retention_minutes)]
    parts += [] if topic.retention_mb is None else [f"{topic.retention_mb:,} MiB"]
    return ", ".join(parts) or "broker's"
