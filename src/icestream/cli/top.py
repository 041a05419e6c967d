"""`icestream top`: shows statistics live."""

import contextlib
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import click
from rich.console import Group
from rich.live import Live
from rich.table import Table

from icestream.cli.options import broker_option, json_option
from icestream.cli.output import NOTHING, console, count_text, print_json, rfc3339, size_text, table
from icestream.cli.stats import broker_line, lag_text, pipeline_lines, subscription_table, trouble_lines
from icestream.client import BrokerEndpoint, Client
from icestream.model.errors import IcestreamError

_SLOW = 10
_MOST_BEHIND = 10


@dataclass(frozen=True)
class TopicRates:
    topic: str
    state: str
    messages_per_s: float
    bytes_per_s: float
    message_count: int
    bytes_stored: int
    durable_end: int
    table_lag_messages: int | None
    table_lag_seconds: float | None
    upload_lag_messages: int | None
    upload_lag_seconds: float | None
    last_publish_time_us: int | None


def rates(before: dict[str, Any], after: dict[str, Any], seconds: float) -> list[TopicRates]:
    """Return the rates between two responses of the broker, busiest topic first.

    A new topic has no rate yet. A log that shrank, because old segments were deleted, has no rate in bytes.
    """
    earlier = {topic["topic"]: topic for topic in before["topics"]}
    found = []
    for topic in after["topics"]:
        old = earlier.get(topic["topic"], topic)
        found.append(
            TopicRates(
                topic=topic["topic"],
                state=topic["state"],
                messages_per_s=max(0, topic["durable_end"] - old["durable_end"]) / seconds,
                bytes_per_s=max(0, topic["bytes_stored"] - old["bytes_stored"]) / seconds,
                message_count=topic["message_count"],
                bytes_stored=topic["bytes_stored"],
                durable_end=topic["durable_end"],
                table_lag_messages=topic["table_lag_messages"],
                table_lag_seconds=topic["table_lag_seconds"],
                upload_lag_messages=topic.get("upload_lag_messages"),
                upload_lag_seconds=topic.get("upload_lag_seconds"),
                last_publish_time_us=topic["last_publish_time_us"],
            )
        )
    return sorted(found, key=lambda topic: (-topic.messages_per_s, topic.topic))


@click.command(name="top", epilog="Example: icestream top --interval 0.5")
@click.option("--once", is_flag=True, help="Print the statistics of one interval, and end.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.05, max=3600),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two requests to the broker.",
)
@broker_option
@json_option
def command(once: bool, interval: float, broker: BrokerEndpoint, as_json: bool) -> None:
    """Watch topics live: rates, sizes, offsets, and the subscriptions with the largest lag.

    `q` or Ctrl-C ends. With --json each interval is one line.
    """
    with Client(broker) as client, contextlib.suppress(KeyboardInterrupt):
        samples = _samples(client, interval)
        if as_json or once or not sys.stdout.isatty():
            for found, response in samples:
                if isinstance(response, IcestreamError):
                    raise response
                if as_json:
                    print_json(
                        {
                            "topics": [asdict(topic) for topic in found],
                            "subscriptions": furthest_behind(response["subscriptions"]),
                            "broker": response["broker"],
                        }
                    )
                else:
                    console().print(_view(found, response))
                if once:
                    break
        else:
            _watch(samples)


def _samples(client: Client, interval: float) -> Iterator[tuple[list[TopicRates], Any]]:
    """Yield rates and the broker's response, or its error, every `interval` seconds until `q` is pressed."""
    before, sampled_at = client.stats(), time.monotonic()
    found: list[TopicRates] = []
    with _keys() as pressed:
        while not pressed(interval):
            try:
                after, now = client.stats(), time.monotonic()
            except IcestreamError as error:
                yield found, error
                continue
            found = rates(before, after, now - sampled_at)
            before, sampled_at = after, now
            yield found, after


def _watch(samples: Iterator[tuple[list[TopicRates], Any]]) -> None:
    with Live(console=console(), screen=True, auto_refresh=False) as live:
        for found, response in samples:
            live.update(_view(found, response), refresh=True)


def _view(found: list[TopicRates], response: Any) -> Group:
    if isinstance(response, IcestreamError):
        return Group(_rate_table(found), str(response))
    behind = furthest_behind(response["subscriptions"])
    tables = [_rate_table(found), *([subscription_table(behind)] if behind else [])]
    lines = (*pipeline_lines(response["pipeline"]), *trouble_lines(response["topics"]))
    return Group(*tables, broker_line(response["broker"]), *lines)


def furthest_behind(subscriptions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the subscriptions with the largest lag: a few, to fit below the topics."""
    return sorted(subscriptions, key=lambda found: -found["lag_messages"])[:_MOST_BEHIND]


def _rate_table(found: list[TopicRates]) -> Table:
    numbers = ("messages/s", "bytes/s", "messages", "size", "next", "table lag", "upload lag")
    made = table("topic", "state", *numbers, "last published", numbers=numbers)
    for topic in found:
        last = topic.last_publish_time_us
        made.add_row(
            topic.topic,
            topic.state,
            f"{topic.messages_per_s:,.{1 if 0 < topic.messages_per_s < _SLOW else 0}f}",
            size_text(topic.bytes_per_s),
            count_text(topic.message_count),
            size_text(topic.bytes_stored),
            count_text(topic.durable_end),
            lag_text(topic.table_lag_messages, topic.table_lag_seconds),
            lag_text(topic.upload_lag_messages, topic.upload_lag_seconds),
            NOTHING if last is None else rfc3339(last),
        )
    return made


class _Keyboard:
    def __call__(self, seconds: float) -> bool:
        """Wait; return whether `q` was pressed."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if select.select([sys.stdin], [], [], left)[0] and sys.stdin.read(1) in {"q", "Q", ""}:
                return True
        return False


class _NoKeyboard:
    def __call__(self, seconds: float) -> bool:
        time.sleep(seconds)
        return False


@contextlib.contextmanager
def _keys() -> Iterator[_Keyboard | _NoKeyboard]:
    """Read single keys of the terminal without echo, and restore the terminal at the end."""
    if not sys.stdin.isatty():
        yield _NoKeyboard()
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield _Keyboard()
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
