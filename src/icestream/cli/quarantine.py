"""`icestream quarantine`: what the pipeline could not write and has put aside."""

from itertools import islice
from pathlib import Path
from typing import Any

import click

from icestream.cli.common import broker_option, config_option, data_option, json_option, print_json
from icestream.cli.display import console, table
from icestream.cli.formatting import NOTHING, count_text, offsets_text, plural, rfc3339, size_text
from icestream.cli.quarantined import Aside, find, find_one, open_catalog, publish_again
from icestream.client import Client
from icestream.model.messages import Encoding

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
