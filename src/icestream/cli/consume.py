"""`icestream consume`: messages to stdout."""

import sys
from pathlib import Path
from typing import IO

import click

from icestream.cli.common import broker_option, config_option
from icestream.cli.following import Source, is_abandoned, next_batch
from icestream.cli.presence import Presence
from icestream.cli.rows import Render, raw_renderer, render_json
from icestream.cli.start import parse_start
from icestream.cli.streams import leave_stdout
from icestream.cli.subscribed import consume_subscription, queue_for
from icestream.cli.subscription import TYPES
from icestream.client import Client
from icestream.model.offsets import StartPosition

_INTERRUPTED = 130


@click.command(name="consume", epilog="Example: icestream consume default/events --from 2026-01-31T12:00:00Z --follow")
@click.argument("topic")
@click.option(
    "--from",
    "start",
    callback=parse_start,
    default="earliest",
    show_default=True,
    metavar="earliest|latest|OFFSET|TIMESTAMP|snapshot:ID|tag:NAME",
    help="The first message to write; a TIMESTAMP without a zone is UTC. Of a subscription: where a new one begins.",
)
@click.option(
    "--subscription", metavar="NAME", help="Consume from this subscription, and acknowledge what was written."
)
@click.option("--type", "kind", type=TYPES, help="Of the subscription.  [default: as it is; a new one is exclusive]")
@click.option("--filter", "condition", metavar="EXPR", help="Write only what meets this SQL condition.")
@click.option("--max", "max_messages", type=click.IntRange(min=1), metavar="N", help="End after N messages.")
@click.option("--follow", is_flag=True, help="Go on with new messages. Without it, end at what is durable now.")
@click.option(
    "--format",
    "line_format",
    type=click.Choice(["json", "raw"]),
    default="json",
    show_default=True,
    help="`json`: an object a line. `raw`: the payloads.",
)
@click.option(
    "--delimiter", metavar="TEXT", default="\\n", show_default=True, help="With raw: what follows each payload."
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="End when nothing came for so long.  [default: wait]",
)
@broker_option
@click.option(
    "--catalog",
    is_flag=False,
    flag_value="",
    metavar="[URI]",
    help="Read the topic's table with no broker, through the catalog of the settings or at this address.",
)
@config_option
@click.option("--data", type=click.Path(path_type=Path), metavar="DIR", help="With --catalog: where it is (data_dir).")
def command(
    topic: str,
    start: StartPosition,
    subscription: str | None,
    kind: str | None,
    condition: str | None,
    max_messages: int | None,
    follow: bool,
    line_format: str,
    delimiter: str,
    timeout: float | None,
    broker: str,
    catalog: str | None,
    config_file: Path | None,
    data: Path | None,
) -> None:
    r"""Write a topic's messages to stdout.

    In JSON each line has offset, publish_time, producer, key, attributes and payload. A key or payload that is not text
    is in key_base64 or payload_base64 instead. A delimiter may have escapes: \n, \t, \0.

    A subscription remembers what was written, so that the next `consume` goes on behind it. Its filter is kept with it.

    With --catalog, what is committed to the topic's table is read from there, and new snapshots are followed.
    """
    if kind is not None and subscription is None:
        raise click.UsageError("--type is that of a --subscription, which is missing")
    if catalog is not None and subscription is not None:
        raise click.UsageError("A --subscription is the broker's: it cannot be read with --catalog.")
    render: Render = render_json if line_format == "json" else raw_renderer(_unescape(delimiter))
    output = sys.stdout.buffer
    try:
        if catalog is not None:
            # Not at the top: those who talk to a broker need not load the storage.
            from icestream.cli.table_consumer import TableConsumer, catalog_settings  # noqa: PLC0415

            settings = catalog_settings(catalog, config_file, data)
            with TableConsumer(
                settings, topic, start, follow=follow, max_messages=max_messages, where=condition
            ) as table:
                _write(table, render, output, Presence("the catalog"), follow=follow, timeout=timeout)
            return
        with Client(broker) as client:
            presence = Presence(f"the broker at {client.url}")
            if subscription is None:
                with client.consume(
                    topic, start, follow=follow, max_messages=max_messages, where=condition
                ) as consumer:
                    _write(consumer, render, output, presence, follow=follow, timeout=timeout)
            else:
                queue = queue_for(max_messages)
                with client.subscribe(
                    topic, subscription, type=kind, start=start, filter=condition, receiver_queue=queue
                ) as subscribed:
                    consume_subscription(
                        client,
                        subscribed,
                        render,
                        output,
                        presence,
                        follow=follow,
                        max_messages=max_messages,
                        timeout=timeout,
                        is_abandoned=lambda: is_abandoned(output),
                    )
    except BrokenPipeError:
        leave_stdout()
    except KeyboardInterrupt:
        raise click.exceptions.Exit(_INTERRUPTED) from None


def _write(
    consumer: Source, render: Render, output: IO[bytes], presence: Presence, *, follow: bool, timeout: float | None
) -> None:
    while (batch := next_batch(consumer, output, presence, follow=follow, timeout=timeout)) is not None:
        output.write(render(batch))
        output.flush()


def _unescape(text: str) -> bytes:
    for escape, value in (("\\n", "\n"), ("\\t", "\t"), ("\\r", "\r"), ("\\0", "\0")):
        text = text.replace(escape, value)
    return text.encode()
