"""`icestream produce`: one message a line."""

import contextlib
import os
import stat
import sys
import time
from collections.abc import Iterator
from typing import Self

import click
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from icestream.cli.commit_watch import CommitWatch
from icestream.cli.common import broker_option, json_option, print_json
from icestream.cli.display import console
from icestream.cli.encoding import Encode, encode_lines, json_encoder, row_encoder
from icestream.cli.formatting import count_text, duration_text, plural, rate_text
from icestream.cli.lines import read_lines
from icestream.cli.produce_watch import RefusalWatch
from icestream.cli.sending import Confirmed, Sender
from icestream.client import Client, TopicDescription
from icestream.model.errors import IcestreamError, InvalidRequestError

_STDIN = "-"
_SHOW_PROGRESS_AFTER_S = 0.5
RETRY_TIMEOUT_S = 60.0


@click.command(
    name="produce",
    epilog="Example: seq 1000 | icestream produce default/events",
)
@click.argument("topic")
@click.argument("file", default=_STDIN)
@click.option(
    "--format",
    "line_format",
    type=click.Choice(["lines", "json"]),
    default="lines",
    show_default=True,
    help="`lines`: any bytes. `json`: each line must be a JSON value; "
    "in a topic with columns of its own, an object of them.",
)
@click.option("--key", metavar="FIELD", help="With json: the field, or dotted path, that holds the message's key.")
@click.option(
    "--ack",
    type=click.Choice(["memory", "disk", "table"]),
    help="When a message counts as sent.  [default: the topic's]",
)
@click.option(
    "--linger-ms",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    help="How long lines of a slow pipe wait for more of them.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=RETRY_TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="How long it tries again while the broker accepts nothing.",
)
@click.option("--producer", metavar="NAME", help="The producer's name.  [default: a new one]")
@broker_option
@json_option
def command(
    topic: str,
    file: str,
    line_format: str,
    key: str | None,
    ack: str | None,
    linger_ms: float,
    timeout: float,
    producer: str | None,
    broker: str,
    as_json: bool,
) -> None:
    """Publish lines of a file or of stdin.

    Each line of FILE (`-`, the default, is stdin) becomes one message of TOPIC. When a line is not right, everything
    before it is sent and confirmed, the error names the line, and the exit code is 1. With --key each line must have
    that field; null is a message without a key.

    While the broker accepts nothing, for example because its disk is full, stderr says why, and the command tries
    again until --timeout.
    """
    if key is not None and line_format != "json":
        raise click.UsageError("--key needs --format json")
    started = time.monotonic()
    problem: BaseException | None = None
    with (
        _opened(file) as descriptor,
        Client(broker) as client,
        # The timeout alone decides how long a full buffer is waited for.
        client.producer(topic, name=producer, ack=ack, retry_timeout=timeout, block_timeout=None) as opened,
    ):
        described = client.describe_topic(topic)
        sender = Sender(opened, _encoder(line_format, key, described.schema))
        with _watching(client, described, sender, ack), RefusalWatch(opened.trouble):
            try:
                _send_all(sender, descriptor, linger_ms / 1000)
            except (IcestreamError, OSError, KeyboardInterrupt) as error:
                problem = error
            try:
                sender.finish()
            except IcestreamError as error:
                problem = problem or error
        _report(opened.topic, sender.confirmed, time.monotonic() - started, as_json=as_json)
        if problem is not None:
            raise problem


def _watching(
    client: Client, topic: TopicDescription, sender: Sender, ack: str | None
) -> contextlib.AbstractContextManager[object]:
    if (ack or topic.ack) != "table":
        return contextlib.nullcontext()
    return CommitWatch(client, topic.topic, lambda: sender.confirmed.count)


def _encoder(line_format: str, key: str | None, columns: object) -> Encode:
    if columns is None:
        return encode_lines if line_format == "lines" else json_encoder(key)
    if line_format == "lines" or key is not None:
        raise InvalidRequestError(
            "the topic has columns of its own", operation="produce", remedy="use --format json, without --key"
        )
    return row_encoder(columns)


@contextlib.contextmanager
def _opened(file: str) -> Iterator[int]:
    if file == _STDIN:
        if sys.stdin.isatty():
            click.echo("One message a line; Ctrl-D ends.", err=True)
        yield sys.stdin.fileno()
        return
    descriptor = os.open(file, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _send_all(sender: Sender, descriptor: int, linger_s: float) -> None:
    status = os.fstat(descriptor)
    total = status.st_size if stat.S_ISREG(status.st_mode) else None
    with _Bar(total) as bar:
        for lines in read_lines(descriptor, linger_s=0 if os.isatty(descriptor) else linger_s):
            sender.send(lines)
            bar.advance(sum(map(len, lines)) + len(lines), sender.confirmed.count)


class _Bar:
    """Progress on stderr, if that is a terminal and the work takes long enough to wonder."""

    def __init__(self, total: int | None) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            console=console(err=True),
            transient=True,
        )
        self._task = self._progress.add_task("0 messages", total=total)
        self._wanted = self._progress.console.is_terminal and not sys.stdin.isatty()
        self._show_at = time.monotonic() + _SHOW_PROGRESS_AFTER_S

    def advance(self, nbytes: int, confirmed: int) -> None:
        if self._wanted:
            self._progress.update(self._task, advance=nbytes, description=f"{count_text(confirmed)} confirmed")
            if time.monotonic() >= self._show_at:
                self._progress.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress.live.is_started:
            self._progress.stop()


def _report(topic: str, confirmed: Confirmed, seconds: float, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "topic": topic,
                "count": confirmed.count,
                "first_offset": confirmed.first_offset,
                "last_offset": confirmed.last_offset,
                "seconds": round(seconds, 6),
            }
        )
        return
    where = "" if confirmed.first_offset is None else f", offsets {confirmed.first_offset} to {confirmed.last_offset}"
    speed = f", {rate_text(confirmed.count, seconds)}" if confirmed.count else ""
    click.echo(f"{plural(confirmed.count, 'message')} to {topic}{where} ({duration_text(seconds)}{speed})")
