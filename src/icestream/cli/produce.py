"""`icestream produce`: publishes lines, one message each."""

import contextlib
import json
import os
import select
import stat
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Any, NoReturn, Self, TypeAlias

import click
import pyarrow as pa
import pyarrow.json as pa_json
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from icestream.cli.background_watch import BackgroundWatch, CommitWatch
from icestream.cli.options import broker_option, choices, json_option
from icestream.cli.output import console, count_text, duration_text, plural, print_json, rate_text
from icestream.client import BatchReceipt, BrokerEndpoint, Client, Producer, TopicDescription
from icestream.model.enums import AckLevel
from icestream.model.errors import IcestreamError, InvalidMessageError, InvalidRequestError, TooLargeError
from icestream.model.messages import message_batch

# Lines to Arrow batches. Each encoder raises InvalidMessageError when one of its lines is wrong.

Encode: TypeAlias = Callable[[list[bytes]], pa.RecordBatch]

_SHOWN_CHARACTERS = 60


def encode_lines(lines: list[bytes]) -> pa.RecordBatch:
    """Make each line a payload."""
    return message_batch(lines)


def json_encoder(key_field: str | None) -> Encode:
    """Return an encoder that makes each line a payload. A line must be JSON; its key is in `key_field`."""
    decode = json.JSONDecoder(parse_constant=_refuse_constant).decode

    def encode(lines: list[bytes]) -> pa.RecordBatch:
        keys: list[bytes | None] = []
        for line in lines:
            try:
                value = decode(line.decode())
            except (ValueError, RecursionError) as error:
                raise InvalidMessageError(f"not JSON ({error}): {_shorten(line)}") from None
            if key_field is not None:
                keys.append(key_of(value, key_field))
        return message_batch(lines, keys if key_field is not None else None)

    return encode


def row_encoder(schema: pa.Schema) -> Encode:
    """Return an encoder for a topic with columns: a line is a JSON object; a missing column is null."""
    options = pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error")

    def encode(lines: list[bytes]) -> pa.RecordBatch:
        data = b"\n".join(lines)
        block = pa_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
        try:
            rows = pa_json.read_json(BytesIO(data), read_options=block, parse_options=options)
        except pa.ArrowInvalid as error:
            raise InvalidMessageError(f"not a row of the topic ({error}): {_shorten(lines[0])}") from None
        if rows.num_rows != len(lines):
            raise InvalidMessageError(f"not one JSON object: {_shorten(lines[0])}")
        return rows.combine_chunks().to_batches()[0]

    return encode


def key_of(value: Any, field: str) -> bytes | None:
    """Return the key in `field`, which may be a dotted path: text as it is, other values as JSON, None for null."""
    for name in (field,) if isinstance(value, dict) and field in value else field.split("."):
        if not isinstance(value, dict) or name not in value:
            raise InvalidMessageError(f"it has no field {field} for the key", remedy="write null for no key")
        value = value[name]
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidMessageError(f"the key in {field} is not valid Unicode: {text!r:.80}") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _shorten(line: bytes) -> str:
    text = repr(line[: _SHOWN_CHARACTERS + 1].decode(errors="replace"))
    return text if len(line) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


# Lines from a file or a pipe, many at a time and in bounded memory

CHUNK_BYTES = 1024 * 1024
MAX_LINE_BYTES = 1024 * 1024 * 1024
"""No broker accepts a larger message."""


def read_lines(
    descriptor: int, *, chunk_bytes: int = CHUNK_BYTES, linger_s: float = 0.0, max_line_bytes: int = MAX_LINE_BYTES
) -> Iterator[list[bytes]]:
    """Yield lists of lines without their newline. The last line needs no newline.

    Wait up to `linger_s` for more data from a pipe, so that a slow writer does not give one list a line.
    """
    begun: list[bytes] = []
    begun_bytes = 0
    while data := _read_some(descriptor, chunk_bytes, linger_s):
        end = data.rfind(b"\n")
        if end >= 0:
            begun.append(data[:end])
            yield b"".join(begun).split(b"\n")
            begun = [data[end + 1 :]]
            begun_bytes = len(begun[0])
            continue
        begun.append(data)
        begun_bytes += len(data)
        if begun_bytes > max_line_bytes:
            raise TooLargeError(f"a line has more than {max_line_bytes} bytes", operation="read")
    if last := b"".join(begun):
        yield [last]


def _read_some(descriptor: int, limit: int, linger_s: float) -> bytes:
    """Read up to `limit` bytes: what is there, and what comes within `linger_s`. Return nothing at the end only."""
    data = os.read(descriptor, limit)
    if not data or len(data) == limit or linger_s <= 0:
        return data
    parts, size = [data], len(data)
    deadline = time.monotonic() + linger_s
    while size < limit:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        data = os.read(descriptor, limit - size)
        if not data:
            break
        parts.append(data)
        size += len(data)
    return b"".join(parts)


# Sending


@dataclass
class ConfirmedMessages:
    """What the broker has acknowledged. Messages of other producers may lie between the first and the last offset."""

    count: int = 0
    first_offset: int | None = None
    last_offset: int | None = None

    def add(self, base_offset: int, count: int) -> None:
        if self.first_offset is None:
            self.first_offset = base_offset
        self.last_offset = base_offset + count - 1
        self.count += count


class LineSender:
    """Sends lists of lines and counts the acknowledgements."""

    def __init__(self, producer: Producer, encode: Encode) -> None:
        self.confirmed = ConfirmedMessages()
        self._producer = producer
        self._encode = encode
        self._lines = 0
        self._receipts: deque[BatchReceipt] = deque()

    def send(self, lines: list[bytes]) -> None:
        """Send all lines. When one is wrong, send those before it and raise an error with its number."""
        try:
            batches = self._producer.prepare(self._encode(lines))
        except InvalidRequestError as error:
            if len(lines) == 1:
                raise InvalidMessageError(f"line {self._lines + 1}: {error.message}", remedy=error.remedy) from None
            self.send(lines[: len(lines) // 2])
            self.send(lines[len(lines) // 2 :])
            return
        receipt = self._producer.offer_batch(batches, blocking=True)
        assert receipt is not None
        self._receipts.append(receipt)
        self._lines += len(lines)
        while self._receipts and self._receipts[0].done():
            self._settle()

    def finish(self) -> None:
        """Wait for the acknowledgements that are missing."""
        while self._receipts:
            self._settle()

    def _settle(self) -> None:
        for base_offset, count in self._receipts[0].ranges:
            self.confirmed.add(base_offset, count)
        self._receipts.popleft()


_REFUSAL_PATIENCE_SECONDS = 2.0
_CHECK_EVERY_SECONDS = 0.25


class RefusalWatch(BackgroundWatch):
    """Says on stderr why the broker accepts nothing, after some seconds and when the reason changes.

    `trouble` is `Producer.trouble`. Reasons are compared by their code: numbers in the sentence, such as the free space
    of a disk, change all the time.
    """

    def __init__(
        self,
        trouble: Callable[[float], IcestreamError | None],
        *,
        patience_s: float = _REFUSAL_PATIENCE_SECONDS,
        check_every_s: float = _CHECK_EVERY_SECONDS,
    ) -> None:
        super().__init__("refusal-watch")
        self._trouble = trouble
        self._patience_s = patience_s
        self._check_every_s = check_every_s

    def _watch(self) -> None:
        reported = None
        while not self._ended.wait(self._check_every_s):
            error = self._trouble(self._patience_s)
            if error is not None and error.code != reported:
                reported = error.code
                click.echo(f"waiting: {error.code}: {error.message}; trying again", err=True)


# The command

_STDIN = "-"
_SHOW_PROGRESS_AFTER_SECONDS = 0.5
RETRY_TIMEOUT_SECONDS = 60.0


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
    help="`lines`: any bytes. `json`: each line is a JSON value; in a topic with columns, an object of them.",
)
@click.option("--key", metavar="FIELD", help="With json: the field, or dotted path, of the message's key.")
@click.option(
    "--ack",
    type=choices(AckLevel),
    help="When a message counts as sent.  [default: the topic's]",
)
@click.option(
    "--linger-ms",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    help="How long to collect lines of a slow pipe before they are sent.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=RETRY_TIMEOUT_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="How long to try again while the broker accepts nothing.",
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
    broker: BrokerEndpoint,
    as_json: bool,
) -> None:
    """Publish the lines of a file or of stdin.

    Each line of FILE (`-`, the default, is stdin) becomes one message of TOPIC. When a line is wrong, the lines before
    it are sent and confirmed, the error names the line, and the exit code is 1. With --key each line must have that
    field; null means no key.

    While the broker accepts nothing, for example because its disk is full, the command prints the reason on stderr and
    tries again until --timeout.
    """
    if key is not None and line_format != "json":
        raise click.UsageError("--key needs --format json.")
    started = time.monotonic()
    problem: BaseException | None = None
    with (
        _opened(file) as descriptor,
        Client(broker) as client,
        # Only the timeout decides how long to wait while the buffer is full.
        client.producer(topic, name=producer, ack=ack, retry_timeout=timeout, block_timeout=None) as opened,
    ):
        described = client.describe_topic(topic)
        sender = LineSender(opened, _encoder(line_format, key, described.schema))
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
    client: Client, topic: TopicDescription, sender: LineSender, ack: str | None
) -> contextlib.AbstractContextManager[object]:
    if (ack or topic.ack) != AckLevel.TABLE:
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
            click.echo("One message a line. Ctrl-D ends.", err=True)
        yield sys.stdin.fileno()
        return
    descriptor = os.open(file, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _send_all(sender: LineSender, descriptor: int, linger_s: float) -> None:
    status = os.fstat(descriptor)
    total = status.st_size if stat.S_ISREG(status.st_mode) else None
    with _Bar(total) as bar:
        for lines in read_lines(descriptor, linger_s=0 if os.isatty(descriptor) else linger_s):
            sender.send(lines)
            bar.advance(sum(map(len, lines)) + len(lines), sender.confirmed.count)


class _Bar:
    """Shows progress on stderr, if that is a terminal and the work takes long."""

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
        self._show_at = time.monotonic() + _SHOW_PROGRESS_AFTER_SECONDS

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


def _report(topic: str, confirmed: ConfirmedMessages, seconds: float, *, as_json: bool) -> None:
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
