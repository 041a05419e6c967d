"""`icestream stats`: figures, once."""

from typing import Any

import click
from rich.table import Table

from icestream.cli.common import broker_option, json_option, print_json
from icestream.cli.display import console, table
from icestream.cli.formatting import NOTHING, count_text, rfc3339, size_text
from icestream.client import Client


@click.command(name="stats", epilog="Example: icestream stats default/events --json")
@click.argument("topic", required=False)
@broker_option
@json_option
def command(topic: str | None, broker: str, as_json: bool) -> None:
    """Print figures of topics and broker.

    Offsets, sizes and cache use of all topics, or of TOPIC. For rates see `icestream top`.
    """
    with Client(broker) as client:
        answer = client.stats(topic)
    if as_json:
        print_json(answer)
        return
    out = console()
    out.print(topic_table(answer["topics"]))
    if topic is None:
        out.print(broker_line(answer["broker"]))


def topic_table(topics: list[dict[str, Any]]) -> Table:
    numbers = ("messages", "size", "first", "end", "segments", "cached", "cache hits")
    made = table("topic", "state", *numbers, "last published", numbers=numbers)
    for topic in topics:
        last = topic["last_publish_time_us"]
        made.add_row(
            topic["topic"],
            topic["state"],
            count_text(topic["message_count"]),
            size_text(topic["bytes_stored"]),
            count_text(topic["start_offset"]),
            count_text(topic["durable_end"]),
            count_text(topic["segments"]),
            count_text(topic["cached_messages"]),
            hit_share(topic["cache_hits"], topic["cache_misses"]),
            NOTHING if last is None else rfc3339(last),
        )
    return made


def hit_share(hits: int, misses: int) -> str:
    asked = hits + misses
    return f"{hits / asked:.0%}" if asked else NOTHING


def broker_line(broker: dict[str, Any]) -> str:
    return (
        f"broker {broker['version']}: {count_text(broker['topics'])} topics, cache {size_text(broker['cache_bytes'])}, "
        f"in flight {size_text(broker['in_flight_bytes'])}, {count_text(broker['open_files'])} open files"
    )
