"""`icestream consume`: writes messages to stdout."""

import json
import sys
import time
from collections.abc import Callable
from itertools import repeat
from json.encoder import encode_basestring as quote
from pathlib import Path
from typing import IO, Any, TypeAlias

import click
import pyarrow as pa

from icestream.cli.follow import BatchSource, OutageNotice, has_no_reader, next_batch
from icestream.cli.main import INTERRUPTED, discard_stdout
from icestream.cli.options import POSITION, broker_option, catalog_options, parse_start
from icestream.cli.output import rfc3339
from icestream.cli.subscription import TYPES
from icestream.client import BrokerEndpoint, Client, Subscription
from icestream.model.errors import DeadlineError, InvalidRequestError
from icestream.model.json_rows import json_rows, text_or_base64
from icestream.model.messages import STREAM_SCHEMA
from icestream.model.offsets import StartPosition

Render: TypeAlias = Callable[[pa.RecordBatch], bytes]

_QUEUE = 10_000
_FIRST_WAIT_SECONDS = 0.05
_WAIT_SECONDS = 0.5
_REDELIVERIES = ("_redelivery_count", "redelivery_count")
"""The column of redeliveries: in topics with columns of their own, and in all others."""

# Messages as lines of output, column by column


def is_message_batch(batch: pa.RecordBatch) -> bool:
    return bool(batch.schema.equals(STREAM_SCHEMA))


def raw_renderer(delimiter: bytes) -> Render:
    """Return a renderer of payloads, each followed by `delimiter`."""

    def render(batch: pa.RecordBatch) -> bytes:
        if not is_message_batch(batch):
            raise InvalidRequestError(
                "the topic has columns of its own and no payload", operation="consume", remedy="use --format json"
            )
        payloads = batch.column("payload").to_pylist()
        return delimiter.join(payloads) + delimiter

    return render


def render_json(batch: pa.RecordBatch) -> bytes:
    """Render one JSON object a line: a message's fields, or the columns of a topic that has its own."""
    return _message_lines(batch) if is_message_batch(batch) else _row_lines(batch)


def _message_lines(batch: pa.RecordBatch) -> bytes:
    lines = map(
        '{{"offset": {}, "publish_time": "{}", "producer": {}, {}, "attributes": {}, {}}}\n'.format,
        batch.column("offset").to_pylist(),
        map(rfc3339, batch.column("publish_time").cast(pa.int64()).to_pylist()),
        map(quote, batch.column("producer").to_pylist()),
        _binary_fields("key", batch.column("key")),
        _attributes(batch.column("attributes")),
        _binary_fields("payload", batch.column("payload")),
    )
    return "".join(lines).encode()


def _attributes(column: pa.Array) -> Any:
    if column.null_count == len(column):
        return repeat("{}")
    return [json.dumps(dict(pairs or ()), ensure_ascii=False) for pairs in column.to_pylist()]


def _binary_fields(name: str, column: pa.Array) -> Any:
    """Render `"name": "text"`, or `"name_base64"` for a value that is not text."""
    if column.null_count == len(column):
        return repeat(f'"{name}": null')
    try:
        texts = column.cast(pa.string()).to_pylist()
    except pa.ArrowInvalid:
        return [_binary_field(name, value) for value in column.to_pylist()]
    return [f'"{name}": null' if text is None else f'"{name}": {quote(text)}' for text in texts]


def _binary_field(name: str, value: bytes | None) -> str:
    field, text = text_or_base64(name, value)
    return f'"{field}": null' if text is None else f'"{field}": {quote(text)}'


def _row_lines(batch: pa.RecordBatch) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in json_rows(batch)).encode()


# `--subscription`: messages are acknowledged once they are written


def consume_subscription(
    client: Client,
    subscription: Subscription,
    render: Render,
    output: IO[bytes],
    notice: OutageNotice,
    *,
    follow: bool,
    max_messages: int | None,
    timeout: float | None,
) -> None:
    """Write and acknowledge messages.

    Without `follow` it ends when the subscription has caught up with the log's durable end of now. It does not wait
    for messages that other consumers hold, nor for nacked messages that come again later.
    """
    end = None if follow else client.describe_topic(subscription.topic).durable_end
    left = max_messages
    last = time.monotonic()
    wait_s = _FIRST_WAIT_SECONDS
    while left is None or left > 0:
        batch = subscription.receive_batch(_QUEUE if left is None else min(left, _QUEUE), wait_s)
        notice.update(subscription.interruption)
        if batch is not None:
            output.write(render(_without_count(batch)))
            output.flush()
            subscription.ack(batch)
            left = None if left is None else left - batch.num_rows
            last, wait_s = time.monotonic(), _FIRST_WAIT_SECONDS
            continue
        wait_s = _WAIT_SECONDS
        if has_no_reader(output):
            raise BrokenPipeError
        if end is not None and _has_caught_up(client, subscription, end):
            return
        if timeout is not None and time.monotonic() - last >= timeout:
            if follow:
                return
            raise DeadlineError(f"no message came for {timeout} s", operation="consume")
    subscription.flush()  # raises if an acknowledgement failed: those messages would come again


def _has_caught_up(client: Client, subscription: Subscription, end: int) -> bool:
    subscription.flush()
    found = client.describe_subscription(subscription.topic, subscription.name)
    if found.floor_offset >= end:
        return True
    # The rest is with other consumers, or comes again later.
    return found.read_offset >= end and (len(found.consumers) > 1 or not found.unacknowledged)


def _without_count(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Drop the column that counts redeliveries: a reader has none."""
    name = next(name for name in _REDELIVERIES if name in batch.schema.names)
    return batch.drop_columns([name])


# The command


@click.command(name="consume", epilog="Example: icestream consume default/events --from 2026-01-31T12:00:00Z --follow")
@click.argument("topic")
@click.option(
    "--from",
    "start",
    callback=parse_start,
    default="earliest",
    show_default=True,
    metavar=POSITION,
    help="The first message to write, or where a new subscription begins. A TIMESTAMP without a zone is UTC.",
)
@click.option(
    "--subscription", metavar="NAME", help="Consume from this subscription, and acknowledge what was written."
)
@click.option(
    "--type", "kind", type=TYPES, help="Type of the subscription.  [default: as it is; a new one is exclusive]"
)
@click.option("--filter", "condition", metavar="EXPR", help="Write only messages that meet this SQL condition.")
@click.option("--max", "max_messages", type=click.IntRange(min=1), metavar="N", help="End after N messages.")
@click.option(
    "--follow", is_flag=True, help="Wait for new messages. Without it, end at the last durable message of now."
)
@click.option(
    "--format",
    "line_format",
    type=click.Choice(["json", "raw"]),
    default="json",
    show_default=True,
    help="`json`: one object a line. `raw`: the payloads.",
)
@click.option(
    "--delimiter", metavar="TEXT", default="\\n", show_default=True, help="With raw: text after each payload."
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="End when no message came for so long.  [default: wait]",
)
@broker_option
@catalog_options
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
    broker: BrokerEndpoint,
    catalog: str | None,
    config_file: Path | None,
    data: Path | None,
) -> None:
    r"""Write a topic's messages to stdout.

    In JSON each line has offset, publish_time, producer, key, attributes and payload. A key or payload that is not text
    is in key_base64 or payload_base64 instead. A delimiter may have escapes: \n, \t, \0.

    A subscription remembers what was written: the next `consume` continues there. It also keeps its filter.

    With --catalog the command reads the committed rows of the topic's table, and with --follow new snapshots.
    """
    if kind is not None and subscription is None:
        raise click.UsageError("--type belongs to --subscription, which is missing.")
    if catalog is not None and subscription is not None:
        raise click.UsageError("A --subscription needs the broker: it cannot be read with --catalog.")
    render: Render = render_json if line_format == "json" else raw_renderer(_unescape(delimiter))
    output = sys.stdout.buffer
    try:
        if catalog is not None:
            # Imported here: the light client has no storage.
            from icestream.cli.settings import catalog_settings  # noqa: PLC0415
            from icestream.cli.table_consumer import TableConsumer  # noqa: PLC0415

            settings = catalog_settings(catalog, config_file, data)
            with TableConsumer(
                settings, topic, start, follow=follow, max_messages=max_messages, where=condition
            ) as table:
                _write(table, render, output, OutageNotice("the catalog"), follow=follow, timeout=timeout)
            return
        with Client(broker) as client:
            notice = OutageNotice(f"the broker at {client.url}")
            if subscription is None:
                with client.consume(
                    topic, start, follow=follow, max_messages=max_messages, where=condition
                ) as consumer:
                    _write(consumer, render, output, notice, follow=follow, timeout=timeout)
            else:
                # No more messages ahead than are wanted: other consumers could have them.
                queue = _QUEUE if max_messages is None else min(max_messages, _QUEUE)
                with client.subscribe(
                    topic, subscription, type=kind, start=start, filter=condition, receiver_queue=queue
                ) as subscribed:
                    consume_subscription(
                        client,
                        subscribed,
                        render,
                        output,
                        notice,
                        follow=follow,
                        max_messages=max_messages,
                        timeout=timeout,
                    )
    except BrokenPipeError:
        discard_stdout()
    except KeyboardInterrupt:
        raise click.exceptions.Exit(INTERRUPTED) from None


def _write(
    consumer: BatchSource,
    render: Render,
    output: IO[bytes],
    notice: OutageNotice,
    *,
    follow: bool,
    timeout: float | None,
) -> None:
    while (batch := next_batch(consumer, output, notice, follow=follow, timeout=timeout)) is not None:
        output.write(render(batch))
        output.flush()


def _unescape(text: str) -> bytes:
    for escape, value in (("\\n", "\n"), ("\\t", "\t"), ("\\r", "\r"), ("\\0", "\0")):
        text = text.replace(escape, value)
    return text.encode()
