"""`icestream cloud`: shows a topic's objects in the object store."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from icestream.cli.options import broker_option, config_option, data_option, json_option
from icestream.cli.output import console, count_text, offsets_text, plural, print_json, rfc3339, size_text, table
from icestream.cli.settings import read_settings
from icestream.client import BrokerEndpoint, Client
from icestream.cloud import ObjectDescriptor, ObjectName, Trailer, read_trailer
from icestream.model.errors import DamagedError, InvalidRequestError, ObjectNotFoundError, TopicNotFoundError
from icestream.model.names import TopicName
from icestream.storage.cloud import TopicCloud
from icestream.storage.verify import Clouds, ObjectCheck

_FRAME_LIMIT = 20


@click.group(name="cloud", epilog="Example: icestream cloud list default/events")
def command() -> None:
    """Show a topic's objects in the object store."""


@command.command(name="list", epilog="Example: icestream cloud list default/events --json")
@click.argument("topic")
@broker_option
@json_option
def list_(topic: str, broker: BrokerEndpoint, as_json: bool) -> None:
    """List the objects of TOPIC by offset, and how far it is uploaded."""
    with Client(broker) as client:
        page = client.cloud_page(topic, limit=1)
        objects = list(client.cloud_objects(topic))
    if as_json:
        print_json({"topic": page["topic"], "store": page["store"], "head": page["head"], "objects": objects})
        return
    out = console()
    numbers = ("first", "next", "frames", "size", "epoch")
    shown = table(*numbers, "first published", "last published", "uploaded", "object", numbers=numbers)
    for one in objects:
        shown.add_row(
            count_text(one["first_offset"]),
            count_text(one["end_offset"]),
            count_text(one["frame_count"]),
            size_text(one["size"]),
            str(one["epoch"]),
            *(rfc3339(one[name]) for name in ("first_time_us", "last_time_us", "created_us")),
            one["key"].rpartition("/")[2],
        )
    if objects:
        out.print(shown)
    out.print(head_line(page), soft_wrap=True)


def head_line(page: dict[str, Any]) -> str:
    head = page["head"]
    if head is None:
        return f"{page['topic']}: nothing was uploaded to {page['store']} yet"
    held = f"{plural(head['object_count'], 'object')} of {size_text(head['object_bytes'])}"
    url = f"{page['store']}/{page['topic']}/{head['stream_id']}"
    return f"{page['topic']}: {offsets_text(head['first_offset'], head['uploaded_end'])}; {held} in {url}"


@command.command(epilog="Example: icestream cloud inspect default/events 1500 --config broker.yaml")
@click.argument("topic")
@click.argument("which", metavar="OFFSET|OBJECT")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=_FRAME_LIMIT,
    show_default=True,
    metavar="N",
    help="List at most the first N frames. All are checked.",
)
@config_option
@data_option
@json_option
def inspect(topic: str, which: str, limit: int, config_file: Path | None, data: Path | None, as_json: bool) -> None:
    """Read one object of TOPIC, check every byte, and print its description and frames.

    Names the object by an OFFSET that it holds, or by its name in `icestream cloud list`. Reads it from the object
    store in the settings, with or without a broker. Exits with 1 when it is damaged.
    """
    settings = read_settings(config_file, {"data_dir": data})
    with Clouds(settings) as clouds:
        cloud = clouds.find(TopicName.parse(topic))
        if settings.cloud.backend == "memory":
            raise InvalidRequestError(
                "only the broker can read an object store in memory",
                operation="inspect",
                remedy="use `icestream cloud list`, which asks the broker",
            )
        if not clouds.configured:
            raise InvalidRequestError(
                "the settings name no object store", operation="inspect", remedy="give the broker's own --config"
            )
        if cloud is None:
            raise TopicNotFoundError("the metadata store has no such topic", operation="inspect", place=topic)
        descriptor = _find(cloud, which)
        trailer, frames, damage = _check(cloud, descriptor, limit)
    if as_json:
        print_json(_as_json(descriptor, trailer, frames, damage))
    else:
        _show(descriptor, trailer, frames, damage)
    if damage is not None:
        raise click.exceptions.Exit(1)


def _find(cloud: TopicCloud, which: str) -> ObjectDescriptor:
    name = ObjectName.parse(which)
    if name is None and not which.isdecimal():
        raise click.UsageError(f"{which!r} is neither an offset nor an object's name")
    offset = name.first_offset if name is not None else int(which)
    found = cloud.objects.find(offset)
    if found is None or (name is not None and not found.key.endswith(which)):
        spans = cloud.objects.spans
        held = offsets_text(spans[0].first_offset, spans[-1].end_offset) if spans else "no objects"
        raise ObjectNotFoundError(
            f"no object holds {which}", operation="inspect", place=str(cloud.topic), remedy=f"there are {held}"
        )
    return found


def _check(
    cloud: TopicCloud, descriptor: ObjectDescriptor, limit: int
) -> tuple[Trailer | None, list[dict[str, Any]], DamagedError | None]:
    frames: list[dict[str, Any]] = []
    trailer: Trailer | None = None
    try:
        trailer = read_trailer(cloud.store, descriptor)
        for position, frame in ObjectCheck(cloud.store, descriptor, trailer.index):
            if len(frames) < limit:
                frames.append(
                    {
                        "position": position,
                        "base_offset": frame.base_offset,
                        "messages": frame.message_count,
                        "bytes": frame.nbytes,
                        "publish_time_us": frame.publish_time_us,
                        "epoch": frame.epoch,
                        "producer": frame.producer,
                        "sequence": frame.sequence,
                    }
                )
    except DamagedError as error:
        return trailer, frames, error
    return trailer, frames, None


def _as_json(
    descriptor: ObjectDescriptor, trailer: Trailer | None, frames: list[dict[str, Any]], damage: DamagedError | None
) -> dict[str, Any]:
    fields = asdict(descriptor)
    del fields["index"]
    return {
        "sound": damage is None,
        "error": None if damage is None else damage.to_dict(),
        "object": fields | {"parts": [part._asdict() for part in descriptor.parts]},
        "index_entries": None if trailer is None else len(trailer.index),
        "durable_end": None if trailer is None else trailer.durable_end,
        "record": None if trailer is None else trailer.record,
        "frames": frames,
    }


def _show(
    descriptor: ObjectDescriptor, trailer: Trailer | None, frames: list[dict[str, Any]], damage: DamagedError | None
) -> None:
    out = console()
    out.print(descriptor.key, soft_wrap=True)
    span = offsets_text(descriptor.first_offset, descriptor.end_offset)
    out.print(f"{span}, stream {descriptor.stream_id}, epoch {descriptor.epoch}")
    published = f"{rfc3339(descriptor.first_time_us)} to {rfc3339(descriptor.last_time_us)}"
    out.print(f"published {published}, uploaded {rfc3339(descriptor.created_us)}")
    sizes = f"{size_text(descriptor.data_bytes)} of {plural(descriptor.frame_count, 'frame')}"
    trailing = size_text(descriptor.size - descriptor.data_bytes)
    out.print(f"{sizes} and a trailer of {trailing}, checksum {descriptor.checksum:016x}")
    for part in descriptor.parts:
        out.print(f"part at byte {part.position}, {size_text(descriptor.part_end(part) - part.position)}")
    if trailer is not None:
        entries = plural(len(trailer.index), "entry").replace("entrys", "entries")
        out.print(f"index of {entries}; the log's durable end was {trailer.durable_end}")
    numbers = ("position", "offset", "messages", "size", "epoch", "sequence")
    shown = table(*numbers, "producer", "published", numbers=numbers)
    for frame in frames:
        shown.add_row(
            str(frame["position"]),
            str(frame["base_offset"]),
            count_text(frame["messages"]),
            size_text(frame["bytes"]),
            str(frame["epoch"]),
            str(frame["sequence"]),
            frame["producer"],
            rfc3339(frame["publish_time_us"]),
        )
    if frames:
        out.print(shown)
    if damage is not None:
        out.print(f"damaged: {damage}", style="red", soft_wrap=True)
    else:
        out.print("sound: all frames, the trailer and the index are intact")
