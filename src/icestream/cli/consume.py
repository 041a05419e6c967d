"""`icestream consume`: messages to stdout."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import click
import pyarrow as pa

from icestream.cli.common import broker_option, config_option, leave_stdout, parse_start
from icestream.cli.following import Presence, Source, is_abandoned, next_batch
from icestream.cli.messages_output import Render, raw_renderer, render_json
from icestream.cli.subscription import TYPES
from icestream.client import Client, Subscription
from icestream.model.errors import DeadlineError
from icestream.model.offsets import StartPosition

# --------------------
# `icestream consume --subscription`: messages to stdout, acknowledged once they are written.


_QUEUE = 10_000
_FIRST_LOOK_S = 0.05
_LOOK_S = 0.5


def consume_subscription(
    client: Client,
    subscription: Subscription,
    render: Render,
    output: IO[bytes],
    presence: Presence,
    *,
    follow: bool,
    max_messages: int | None,
    timeout: float | None,
    is_abandoned: Callable[[], bool],
) -> None:
    """Write and acknowledge until there is no more to do.

    Without `follow` that is when the subscription has caught up with what is durable now; what other consumers hold,
    and what was refused and comes again later, is not waited for.
    """
    end = None if follow else client.describe_topic(subscription.topic).durable_end
    left = max_messages
    last = time.monotonic()
    look_s = _FIRST_LOOK_S
    while left is None or left > 0:
        batch = subscription.receive_batch(_QUEUE if left is None else min(left, _QUEUE), look_s)
        presence.note(subscription.interruption)
        if batch is not None:
            output.write(render(_without_count(batch)))
            output.flush()
            subscription.ack(batch)
            left = None if left is None else left - batch.num_rows
            last, look_s = time.monotonic(), _FIRST_LOOK_S
            continue
        look_s = _LOOK_S
        if is_abandoned():
            raise BrokenPipeError
        if end is not None and _has_caught_up(client, subscription, end):
            return
        if timeout is not None and time.monotonic() - last >= timeout:
            if follow:
                return
            raise DeadlineError(f"nothing came for {timeout} s", operation="consume")
    subscription.flush()  # says so if what was written would come again


def queue_for(max_messages: int | None) -> int:
    """How many messages to have sent ahead: no more than are wanted, because others could have them."""
    return _QUEUE if max_messages is None else min(max_messages, _QUEUE)


def _has_caught_up(client: Client, subscription: Subscription, end: int) -> bool:
    subscription.flush()
    found = client.describe_subscription(subscription.topic, subscription.name)
    if found.floor_offset >= end:
        return True
    # What is left is with others, or is to come again later.
    return found.read_offset >= end and (len(found.consumers) > 1 or not found.unacknowledged)


def _without_count(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The columns that a reader gets: the last one counts redeliveries."""
    return batch.select(batch.schema.names[:-1])


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
            from icestream.cli.catalog import TableConsumer, catalog_settings  # noqa: PLC0415

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
