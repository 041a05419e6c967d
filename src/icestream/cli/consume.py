"""`icestream consume`: messages to stdout."""

import select
import sys
import time
from typing import IO, Any

import click
import pyarrow as pa

from icestream.cli.common import broker_option
from icestream.cli.rows import Render, raw_renderer, render_json
from icestream.cli.start import parse_start
from icestream.cli.streams import leave_stdout
from icestream.client import Client, Consumer
from icestream.model.errors import DeadlineError
from icestream.model.offsets import StartPosition

_LOOK_AT_READER_S = 0.5
_INTERRUPTED = 130


@click.command(name="consume", epilog="Example: icestream consume default/events --from 2026-01-31T12:00:00Z --follow")
@click.argument("topic")
@click.option(
    "--from",
    "start",
    callback=parse_start,
    default="earliest",
    show_default=True,
    metavar="earliest|latest|OFFSET|TIMESTAMP",
    help="The first message to write; a TIMESTAMP without a zone is UTC.",
)
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
def command(
    topic: str,
    start: StartPosition,
    max_messages: int | None,
    follow: bool,
    line_format: str,
    delimiter: str,
    timeout: float | None,
    broker: str,
) -> None:
    r"""Write a topic's messages to stdout.

    In JSON each line has offset, publish_time, producer, key, attributes and payload. A key or payload that is not text
    is in key_base64 or payload_base64 instead. A delimiter may have escapes: \n, \t, \0.
    """
    render: Render = render_json if line_format == "json" else raw_renderer(_unescape(delimiter))
    output = sys.stdout.buffer
    try:
        with (
            Client(broker) as client,
            client.consume(topic, start, follow=follow, max_messages=max_messages) as consumer,
        ):
            _write(consumer, render, output, follow=follow, timeout=timeout)
    except BrokenPipeError:
        leave_stdout()
    except KeyboardInterrupt:
        raise click.exceptions.Exit(_INTERRUPTED) from None


def _write(consumer: Consumer, render: Render, output: IO[bytes], *, follow: bool, timeout: float | None) -> None:
    while (batch := _next(consumer, output, follow=follow, timeout=timeout)) is not None:
        output.write(render(batch))
        output.flush()


def _next(consumer: Consumer, output: IO[bytes], *, follow: bool, timeout: float | None) -> pa.RecordBatch | None:
    """The next batch, or None when it is time to end. While it waits, it looks whether anyone still reads."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        left = _LOOK_AT_READER_S if deadline is None else min(_LOOK_AT_READER_S, deadline - time.monotonic())
        batch = consumer.poll(max(0.0, left))
        if batch is not None:
            return batch
        if consumer.ended:
            return consumer.poll(0)  # raises what ended it, if that came after the wait
        if _is_abandoned(output):
            raise BrokenPipeError
        if deadline is not None and time.monotonic() >= deadline:
            if follow:
                return None
            raise DeadlineError(f"nothing came for {timeout} s", operation="consume")


def _is_abandoned(output: Any) -> bool:
    """Whether the pipe's reader has gone; a write would tell too, but there may be nothing to write for hours."""
    try:
        poll = select.poll()
        poll.register(output.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except (OSError, ValueError):  # not a file of the operating system
        return False


def _unescape(text: str) -> bytes:
    for escape, value in (("\\n", "\n"), ("\\t", "\t"), ("\\r", "\r"), ("\\0", "\0")):
        text = text.replace(escape, value)
    return text.encode()
