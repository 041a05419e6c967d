"""`icestream quarantine`: what the pipeline could not write and has put aside."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import click
import pyarrow as pa

from icestream.cli.common import broker_option, config_option, data_option, json_option, print_json
from icestream.cli.output import NOTHING, console, count_text, offsets_text, plural, rfc3339, size_text, table
from icestream.client import Client
from icestream.config import SettingsError, load_settings
from icestream.model.errors import IcestreamError, InvalidMessageError, InvalidRequestError, TopicNotFoundError
from icestream.model.frames import MESSAGES_SCHEMA_ID, Frame
from icestream.model.messages import MESSAGE_SCHEMA, Encoding, check_batch, decode_body, decode_schema
from icestream.model.names import TopicName, copied
from icestream.model.quarantine import Quarantined, frame_file
from icestream.storage.verify.tables import FindTable, find_all, open_tables
from icestream.table import Tables, TopicTable
from icestream.table.quarantine import About, note_retried, quarantining_topics, read_about, read_frame, read_retried

# --------------------
# Frames in quarantine as the commands need them: found in the tables of a topic, and opened if they can be.


@dataclass(frozen=True)
class Aside:
    """One frame in quarantine, of one table."""

    topic: TopicName
    table: TopicTable
    entry: Quarantined

    @cached_property
    def frame(self) -> Frame:
        return read_frame(self.table, self.entry)

    @cached_property
    def about(self) -> About:
        return read_about(self.table, self.entry)

    @cached_property
    def retried(self) -> dict[str, Any] | None:
        return read_retried(self.table, self.entry)

    def content(self) -> bytes:
        """The frame as it is kept."""
        return frame_file(self.frame, self.about.stream_id)

    def messages(self) -> pa.RecordBatch:
        """What was published, from the first offset that is in quarantine; raises unless every value is sound."""
        frame = self.frame
        if frame.schema_id == MESSAGES_SCHEMA_ID:
            schema = MESSAGE_SCHEMA
        elif self.about.schema is not None:
            schema = decode_schema(self.about.schema)
        else:
            raise InvalidMessageError(
                f"the columns of the frame's schema {frame.schema_id} are not known", operation="decode"
            )
        batch = decode_body(frame, schema)
        check_batch(batch, schema)
        return batch.slice(self.entry.first_offset - frame.base_offset)

    def refusal(self) -> IcestreamError | None:
        """Why the messages cannot be had, if they cannot."""
        try:
            self.messages()
        except IcestreamError as error:
            return error
        return None

    def to_json(self) -> dict[str, Any]:
        return {"topic": str(self.topic), **self.entry.to_json(), "retried": self.retried}


@contextlib.contextmanager
def open_catalog(config_file: Path | None, data: Path | None) -> Iterator[FindTable]:
    try:
        settings = load_settings(config_file, {"data_dir": data})
    except SettingsError as error:
        raise click.ClickException(str(error)) from None
    with open_tables(settings) as tables:
        yield tables


def find(tables: FindTable, topic: str | None) -> list[Aside]:
    """All that is in quarantine, of a topic or of all."""
    if not isinstance(tables, Tables):
        raise InvalidRequestError(
            "there is no catalog here", operation="quarantine", remedy="give the broker's own --data or --config"
        )
    if topic is not None:
        names = [TopicName.parse(topic)]
    else:
        names = sorted({copied(name) for name in quarantining_topics(tables)})
    found = []
    for name in names:
        own = find_all(name, tables)
        if topic is not None and not own:
            raise TopicNotFoundError("the catalog has no table of it", operation="quarantine", place=str(name))
        found += [Aside(name, table, entry) for table in own for entry in table.quarantined]
    return found


def find_one(tables: FindTable, topic: str, offset: int) -> Aside:
    for one in find(tables, topic):
        if one.entry.first_offset <= offset < one.entry.end_offset:
            return one
    raise InvalidRequestError(
        f"offset {offset} is not in quarantine",
        operation="quarantine",
        place=topic,
        remedy="`icestream quarantine list` says what is",
    )


def publish_again(aside: Aside, client: Client) -> dict[str, int | None]:
    """Publish the messages as new ones, once, and note that: where they are now, as far as that is known.

    They are published by a producer of their own, whose first messages they are. So if that was done before and could
    not be noted, the broker remembers how many it has, and only those behind them are published. The offsets told are
    those of the messages that were published now; `before` counts the others.
    """
    if aside.retried is not None:
        raise InvalidRequestError(
            "it was published again already", operation="retry", place=str(aside.topic), details=aside.retried
        )
    batch = aside.messages()
    name = f"quarantine-{aside.entry.first_offset}-{aside.about.stream_id}"
    with client.producer(aside.topic, name=name, exclusive=False) as producer:
        before = min(producer.next_sequence, batch.num_rows)
        rest = batch.slice(before)
        sent = producer.send_batch(_widened(rest, client, aside.topic)).ranges if rest.num_rows else []
    told = {
        "first_offset": sent[0][0] if sent else None,
        "end_offset": sum(sent[-1]) if sent else None,
        "before": before,
    }
    note_retried(aside.table, aside.entry, told)
    return told


def _widened(batch: pa.RecordBatch, client: Client, topic: TopicName) -> pa.RecordBatch:
    """With the columns that the topic has gained since."""
    schema = client.describe_topic(topic).schema or MESSAGE_SCHEMA
    missing = [field for field in schema if field.name not in batch.schema.names]
    columns = [*batch.columns, *(pa.nulls(batch.num_rows, field.type) for field in missing)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([*batch.schema, *missing]))


_HEX_BYTES = 256
_HEX_LINE = 16

_offset_argument = click.argument("offset", type=click.IntRange(min=0))


@click.group(name="quarantine", epilog="Example: icestream quarantine list")
def command() -> None:
    """Look at what the pipeline could not write and has put aside.

    A frame (a published batch) that fails again and again is kept in a file beside the table, and the messages behind
    it go on. Catalog and files are read as the settings say (--config or --data), with or without a broker.
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
        told = [aside.to_json() for aside in found]
    if as_json:
        print_json({"quarantined": told})
        return
    out = console()
    numbers = ("first", "last", "messages")
    shown = table("topic", *numbers, "since", "published again", "reason", numbers=numbers)
    for one in told:
        shown.add_row(
            one["topic"],
            str(one["first_offset"]),
            str(one["end_offset"] - 1),
            count_text(one["end_offset"] - one["first_offset"]),
            rfc3339(one["quarantined_us"]),
            NOTHING if one["retried"] is None else _published(one["retried"]),
            one["reason"],
        )
    if told:
        out.print(shown)
    out.print(f"{plural(len(told), 'frame')} in quarantine")


@command.command(epilog="Example: icestream quarantine show default/events 1500")
@click.argument("topic")
@_offset_argument
@config_option
@data_option
@json_option
def show(topic: str, offset: int, config_file: Path | None, data: Path | None, as_json: bool) -> None:
    """Show the frame with OFFSET: its header, why it is in quarantine, first bytes, and whether it can be opened."""
    with open_catalog(config_file, data) as tables:
        aside = find_one(tables, topic, offset)
        told = _describe(aside)
    if as_json:
        print_json(told)
        return
    head = told["header"]
    click.echo(f"{told['topic']}: {offsets_text(told['first_offset'], told['end_offset'])}")
    click.echo(f"file       {told['file']}")
    click.echo(f"since      {rfc3339(told['quarantined_us'])}")
    click.echo(f"reason     {told['reason']}")
    click.echo(
        f"header     {plural(head['message_count'], 'message')} from offset {head['base_offset']}, published "
        f"{rfc3339(head['publish_time_us'])} by {head['producer'] or 'nobody named'}, sequence {head['sequence']}, "
        f"epoch {head['epoch']}, encoding {head['encoding']}, schema {head['schema_id']}"
    )
    click.echo(f"body       {size_text(head['body_bytes'])}")
    _echo_hex(bytes.fromhex(told["body_start"]))
    opened = "it can be opened, and published again" if told["error"] is None else told["error"]
    click.echo(f"now        {opened}")
    if told["retried"] is not None:
        click.echo(f"published again as {_published(told['retried'])}")


@command.command(epilog="Example: icestream quarantine export default/events 1500 frame.bin")
@click.argument("topic")
@_offset_argument
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--body", is_flag=True, help="Only what the producer sent, without header and padding.")
@config_option
@data_option
@json_option
def export(
    topic: str, offset: int, file: Path, body: bool, config_file: Path | None, data: Path | None, as_json: bool
) -> None:
    """Write the frame with OFFSET to FILE, which must not exist."""
    with open_catalog(config_file, data) as tables:
        aside = find_one(tables, topic, offset)
        content = bytes(aside.frame.body) if body else aside.content()
    with file.open("xb") as stream:
        stream.write(content)
    if as_json:
        print_json({"topic": str(aside.topic), "file": str(file), "bytes": len(content)})
    else:
        click.echo(f"{size_text(len(content))} written to {file}")


@command.command(epilog="Example: icestream quarantine retry default/events 1500")
@click.argument("topic")
@_offset_argument
@broker_option
@config_option
@data_option
@json_option
def retry(topic: str, offset: int, broker: str, config_file: Path | None, data: Path | None, as_json: bool) -> None:
    """Publish the messages of the frame with OFFSET again, as new ones at the topic's end.

    For a frame that can be opened: the cause was found elsewhere, or a newer version knows better. Its messages get new
    offsets and times, and are published once, however often this is called. The frame stays in quarantine, marked as
    published again; if the cause is still there, the new frame comes there too.
    """
    with open_catalog(config_file, data) as tables, Client(broker) as client:
        told = publish_again(find_one(tables, topic, offset), client)
    if as_json:
        print_json({"topic": topic, **told})
    else:
        click.echo(f"published again as {_published(told)}")


def _published(told: dict[str, Any]) -> str:
    if told["first_offset"] is None:
        return "messages whose offsets are not known: it was done before"
    now = offsets_text(told["first_offset"], told["end_offset"])
    before = told.get("before", 0)
    return f"{now}, and before that {plural(before, 'message')} whose offsets are not known" if before else now


def _describe(aside: Aside) -> dict[str, Any]:
    frame, refusal = aside.frame, aside.refusal()
    header = {name: value for name, value in frame._asdict().items() if name != "body"} | {
        "encoding": _encoding(frame.encoding),
        "body_bytes": frame.nbytes,
    }
    return {
        **aside.to_json(),
        "reason": aside.about.reason,
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
