"""`icestream quarantine`: frames that the pipeline could not write."""

import contextlib
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import click
import pyarrow as pa

from icestream.cli.options import broker_option, config_option, data_option, json_option
from icestream.cli.output import (
    NOTHING,
    console,
    count_text,
    offsets_text,
    plural,
    print_json,
    rfc3339,
    size_text,
    table,
)
from icestream.cli.settings import read_settings
from icestream.client import BrokerEndpoint, Client
from icestream.model.errors import IcestreamError, InvalidMessageError, InvalidRequestError, TopicNotFoundError
from icestream.model.messages import (
    MESSAGE_SCHEMA,
    MESSAGES_SCHEMA_ID,
    Encoding,
    Frame,
    check_batch,
    decode_body,
    decode_schema,
)
from icestream.model.names import TopicName, topic_of_table
from icestream.model.quarantine import Quarantined, frame_file
from icestream.storage.verify import FindTable, find_all, open_tables
from icestream.table import (
    QuarantineRecord,
    Tables,
    TopicTable,
    mark_retried,
    quarantining_topics,
    read_frame,
    read_record,
    read_retried,
)

_HEX_BYTES = 256
_HEX_LINE = 16


@dataclass(frozen=True)
class QuarantinedFrame:
    """One frame in quarantine, with the table that names it."""

    topic: TopicName
    table: TopicTable
    entry: Quarantined

    @cached_property
    def frame(self) -> Frame:
        return read_frame(self.table, self.entry)

    @cached_property
    def record(self) -> QuarantineRecord:
        return read_record(self.table, self.entry)

    @cached_property
    def retried(self) -> dict[str, Any] | None:
        return read_retried(self.table, self.entry)

    def content(self) -> bytes:
        """Return the frame's file."""
        return frame_file(self.frame, self.record.stream_id)

    def messages(self) -> pa.RecordBatch:
        """Return the published messages from the first quarantined offset on; raise unless every value is valid."""
        frame = self.frame
        if frame.schema_id == MESSAGES_SCHEMA_ID:
            schema = MESSAGE_SCHEMA
        elif self.record.schema is not None:
            schema = decode_schema(self.record.schema)
        else:
            raise InvalidMessageError(
                f"the columns of the frame's schema {frame.schema_id} are not known", operation="decode"
            )
        batch = decode_body(frame, schema)
        check_batch(batch, schema)
        return batch.slice(self.entry.first_offset - frame.base_offset)

    def refusal(self) -> IcestreamError | None:
        """Return why the messages cannot be read, or None."""
        try:
            self.messages()
        except IcestreamError as error:
            return error
        return None

    def to_json(self) -> dict[str, Any]:
        return {"topic": str(self.topic), **self.entry.to_json(), "retried": self.retried}


def open_catalog(config_file: Path | None, data: Path | None) -> contextlib.AbstractContextManager[FindTable]:
    return open_tables(read_settings(config_file, {"data_dir": data}))


def find(tables: FindTable, topic: str | None) -> list[QuarantinedFrame]:
    """Return all frames in quarantine, of one topic or of all."""
    if not isinstance(tables, Tables):
        raise InvalidRequestError(
            "there is no catalog", operation="quarantine", remedy="give the broker's own --data or --config"
        )
    if topic is not None:
        names = [TopicName.parse(topic)]
    else:
        names = sorted({topic_of_table(name) for name in quarantining_topics(tables)})
    found = []
    for name in names:
        own = find_all(name, tables)
        if topic is not None and not own:
            raise TopicNotFoundError("the catalog has no table of this topic", operation="quarantine", place=str(name))
        found += [QuarantinedFrame(name, table, entry) for table in own for entry in table.quarantined]
    return found


def find_one(tables: FindTable, topic: str, offset: int) -> QuarantinedFrame:
    for one in find(tables, topic):
        if one.entry.first_offset <= offset < one.entry.end_offset:
            return one
    raise InvalidRequestError(
        f"offset {offset} is not in quarantine",
        operation="quarantine",
        place=topic,
        remedy="list them with `icestream quarantine list`",
    )


def publish_again(found: QuarantinedFrame, client: Client) -> dict[str, int | None]:
    """Publish the messages as new ones, exactly once, record that, and return their offsets.

    A producer with a name of its own publishes them as its first messages. If an earlier call published some and could
    not record it, the broker knows how many, and only the rest is published now. The returned offsets are those of the
    messages published now; `before` counts the earlier ones.
    """
    if found.retried is not None:
        raise InvalidRequestError(
            "it is published again already", operation="retry", place=str(found.topic), details=found.retried
        )
    batch = found.messages()
    name = f"quarantine-{found.entry.first_offset}-{found.record.stream_id}"
    with client.producer(found.topic, name=name, exclusive=False) as producer:
        before = min(producer.next_sequence, batch.num_rows)
        rest = batch.slice(before)
        sent = producer.send_batch(_widened(rest, client, found.topic)).ranges if rest.num_rows else []
    published = {
        "first_offset": sent[0][0] if sent else None,
        "end_offset": sum(sent[-1]) if sent else None,
        "before": before,
    }
    mark_retried(found.table, found.entry, published)
    return published


def _widened(batch: pa.RecordBatch, client: Client, topic: TopicName) -> pa.RecordBatch:
    """With the columns that the topic has gained since."""
    schema = client.describe_topic(topic).schema or MESSAGE_SCHEMA
    missing = [field for field in schema if field.name not in batch.schema.names]
    columns = [*batch.columns, *(pa.nulls(batch.num_rows, field.type) for field in missing)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([*batch.schema, *missing]))


_offset_argument = click.argument("offset", type=click.IntRange(min=0))


@click.group(name="quarantine", epilog="Example: icestream quarantine list")
def command() -> None:
    """Show and retry frames that the pipeline could not write.

    A frame is a published batch. The pipeline moves a frame that keeps failing to a file next to the table, and
    continues with the messages after it. The settings (--config or --data) name the catalog; no broker is needed.
    """


@command.command(name="list", epilog="Example: icestream quarantine list default/events --json")
@click.argument("topic", required=False)
@config_option
@data_option
@json_option
def list_(topic: str | None, config_file: Path | None, data: Path | None, as_json: bool) -> None:
    """List the frames in quarantine, of all topics or of TOPIC."""
    with open_catalog(config_file, data) as tables:
        found = find(tables, topic)
        listed = [one.to_json() for one in found]
    if as_json:
        print_json({"quarantined": listed})
        return
    out = console()
    numbers = ("first", "last", "messages")
    shown = table("topic", *numbers, "since", "published again", "reason", numbers=numbers)
    for one in listed:
        shown.add_row(
            one["topic"],
            str(one["first_offset"]),
            str(one["end_offset"] - 1),
            count_text(one["end_offset"] - one["first_offset"]),
            rfc3339(one["quarantined_us"]),
            NOTHING if one["retried"] is None else _published(one["retried"]),
            one["reason"],
        )
    if listed:
        out.print(shown)
    out.print(f"{plural(len(listed), 'frame')} in quarantine")


@command.command(epilog="Example: icestream quarantine show default/events 1500")
@click.argument("topic")
@_offset_argument
@config_option
@data_option
@json_option
def show(topic: str, offset: int, config_file: Path | None, data: Path | None, as_json: bool) -> None:
    """Show the frame with OFFSET: header, reason, first bytes, and whether its messages can be read."""
    with open_catalog(config_file, data) as tables:
        found = find_one(tables, topic, offset)
        described = _describe(found)
    if as_json:
        print_json(described)
        return
    head = described["header"]
    click.echo(f"{described['topic']}: {offsets_text(described['first_offset'], described['end_offset'])}")
    click.echo(f"file       {described['file']}")
    click.echo(f"since      {rfc3339(described['quarantined_us'])}")
    click.echo(f"reason     {described['reason']}")
    click.echo(
        f"header     {plural(head['message_count'], 'message')} from offset {head['base_offset']}, published "
        f"{rfc3339(head['publish_time_us'])} by {head['producer'] or 'an unnamed producer'}, "
        f"sequence {head['sequence']}, epoch {head['epoch']}, encoding {head['encoding']}, schema {head['schema_id']}"
    )
    click.echo(f"body       {size_text(head['body_bytes'])}")
    _echo_hex(bytes.fromhex(described["body_start"]))
    opened = "its messages can be read, and published again" if described["error"] is None else described["error"]
    click.echo(f"now        {opened}")
    if described["retried"] is not None:
        click.echo(f"published again as {_published(described['retried'])}")


@command.command(epilog="Example: icestream quarantine export default/events 1500 frame.bin")
@click.argument("topic")
@_offset_argument
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--body", is_flag=True, help="Write only the bytes that the producer sent, without header and padding.")
@config_option
@data_option
@json_option
def export(
    topic: str, offset: int, file: Path, body: bool, config_file: Path | None, data: Path | None, as_json: bool
) -> None:
    """Write the frame with OFFSET to FILE. FILE must not exist."""
    with open_catalog(config_file, data) as tables:
        found = find_one(tables, topic, offset)
        content = bytes(found.frame.body) if body else found.content()
    with file.open("xb") as stream:
        stream.write(content)
    if as_json:
        print_json({"topic": str(found.topic), "file": str(file), "bytes": len(content)})
    else:
        click.echo(f"{size_text(len(content))} written to {file}")


@command.command(epilog="Example: icestream quarantine retry default/events 1500")
@click.argument("topic")
@_offset_argument
@broker_option
@config_option
@data_option
@json_option
def retry(
    topic: str, offset: int, broker: BrokerEndpoint, config_file: Path | None, data: Path | None, as_json: bool
) -> None:
    """Publish the messages of the frame with OFFSET again, at the end of the topic.

    Use it when the cause of the failure is gone. The messages get new offsets and times, and are published once,
    however often this command runs. The frame stays in quarantine, marked as published again. If the cause is still
    there, the new frame goes to quarantine too.
    """
    with open_catalog(config_file, data) as tables, Client(broker) as client:
        published = publish_again(find_one(tables, topic, offset), client)
    if as_json:
        print_json({"topic": topic, **published})
    else:
        click.echo(f"published again as {_published(published)}")


def _published(record: dict[str, Any]) -> str:
    if record["first_offset"] is None:
        return "messages with unknown offsets: an earlier call published them"
    now = offsets_text(record["first_offset"], record["end_offset"])
    before = record.get("before", 0)
    return f"{now}, and earlier {plural(before, 'message')} with unknown offsets" if before else now


def _describe(found: QuarantinedFrame) -> dict[str, Any]:
    frame, refusal = found.frame, found.refusal()
    header = {name: value for name, value in frame._asdict().items() if name != "body"} | {
        "encoding": _encoding(frame.encoding),
        "body_bytes": frame.nbytes,
    }
    return {
        **found.to_json(),
        "reason": found.record.reason,
        "header": header,
        "body_start": bytes(islice(frame.body, _HEX_BYTES)).hex(),
        "error": None if refusal is None else str(refusal),
    }


def _encoding(number: int) -> str:
    return Encoding(number).name.lower() if number in set(Encoding) else f"unknown ({number})"


def _echo_hex(data: bytes) -> None:
    for start in range(0, len(data), _HEX_LINE):
        line = data[start : start + _HEX_LINE]
        text = "".join(chr(byte) if chr(byte).isprintable() and byte < 0x7F else "." for byte in line)  # noqa: PLR2004
        click.echo(f"  {start:04x}  {line.hex(' '):<{3 * _HEX_LINE}} {text}")
