"""`icestream bench`: measures this installation, and the floor of the same hardware."""

import json
import os
import platform
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from icestream.broker_process import BrokerProcess
from icestream_bench.ack import measure_ack
from icestream_bench.fanout import measure_fanout
from icestream_bench.figures import process_resources
from icestream_bench.produce import measure_produce

_console = Console()
_Measure = Callable[[BrokerProcess, Path, Callable[[float], None]], dict[str, Any]]

data_option = click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    help="Measure on the disk of this directory.  [default: the system's temporary directory]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
size_option = click.option(
    "--message-bytes", type=click.IntRange(8, 1 << 20), default=1024, show_default=True, help="Size of a message."
)


@click.group(name="bench", epilog="Example: icestream bench ack --json")
def command() -> None:
    """Measure this installation, and the hardware without it.

    Each measurement starts its own broker with the default settings in a temporary directory.
    """


@command.command(epilog="Example: icestream bench ack --messages 5000")
@click.option("--messages", type=click.IntRange(20), default=4000, show_default=True, help="Number of messages.")
@size_option
@data_option
@json_option
def ack(messages: int, message_bytes: int, data: Path | None, as_json: bool) -> None:
    """Measure the time until a single message is acknowledged as durable."""

    def measure(broker: BrokerProcess, directory: Path, progress: Callable[[float], None]) -> dict[str, Any]:
        return measure_ack(broker.flight, directory, messages=messages, message_bytes=message_bytes, progress=progress)

    _run("ack", measure, data, as_json=as_json)


@command.command(epilog="Example: icestream bench produce --messages 500000")
@click.option("--messages", type=click.IntRange(5000), default=500_000, show_default=True, help="Number of messages.")
@click.option(
    "--topics",
    type=click.IntRange(1, 10_000),
    default=1000,
    show_default=True,
    help="Number of topics, for many topics.",
)
@size_option
@data_option
@json_option
def produce(messages: int, topics: int, message_bytes: int, data: Path | None, as_json: bool) -> None:
    """Measure durable messages a second: batches, single sends, many producers, many topics."""

    def measure(broker: BrokerProcess, directory: Path, progress: Callable[[float], None]) -> dict[str, Any]:
        return measure_produce(
            broker.flight, directory, messages=messages, message_bytes=message_bytes, topics=topics, progress=progress
        )

    _run("produce", measure, data, as_json=as_json)


@command.command(epilog="Example: icestream bench fanout --subscribers 50")
@click.option("--seconds", type=click.IntRange(2), default=10, show_default=True, help="Length of each run.")
@click.option("--rate", type=click.IntRange(100), default=10_000, show_default=True, help="Messages a second.")
@click.option(
    "--subscribers", type=click.IntRange(2, 500), default=100, show_default=True, help="Number of subscriptions."
)
@click.option(
    "--message-bytes", type=click.IntRange(8, 1 << 20), default=250, show_default=True, help="Size of a message."
)
@data_option
@json_option
def fanout(seconds: int, rate: int, subscribers: int, message_bytes: int, data: Path | None, as_json: bool) -> None:
    """Measure the time from publishing to subscribers: one, many, and many while one has stopped."""

    def measure(broker: BrokerProcess, _directory: Path, progress: Callable[[float], None]) -> dict[str, Any]:
        return measure_fanout(
            broker,
            seconds=seconds,
            message_bytes=message_bytes,
            rate=rate,
            subscribers=subscribers,
            progress=progress,
        )

    _run("fanout", measure, data, as_json=as_json)


@command.command(epilog="Example: icestream bench replay --messages 1000000 --files 1000")
@click.option(
    "--messages", type=click.IntRange(500_000), default=2_000_000, show_default=True, help="Messages of history."
)
@click.option(
    "--files", type=click.IntRange(1_500), default=10_000, show_default=True, help="Files of a topic with many files."
)
@click.option(
    "--message-bytes", type=click.IntRange(200, 1 << 20), default=250, show_default=True, help="Size of a message."
)
@data_option
@json_option
def replay(messages: int, files: int, message_bytes: int, data: Path | None, as_json: bool) -> None:
    """Measure reading history from log and table, and the first message of a topic in very many files."""
    # Imported here: loading Iceberg takes a second.
    from icestream_bench.replay import measure_replay  # noqa: PLC0415

    def measure(broker: BrokerProcess, _directory: Path, progress: Callable[[float], None]) -> dict[str, Any]:
        return measure_replay(broker, messages=messages, message_bytes=message_bytes, files=files, progress=progress)

    _run("replay", measure, data, as_json=as_json)


@command.command(epilog="Example: icestream bench pipeline --messages 500000 --freshness-seconds 10")
@click.option(
    "--messages", type=click.IntRange(10_000), default=2_000_000, show_default=True, help="Messages of the backlog."
)
@click.option(
    "--singles", type=click.IntRange(100), default=100_000, show_default=True, help="Number of single-message frames."
)
@click.option(
    "--topics", type=click.IntRange(1, 1000), default=200, show_default=True, help="Number of topics, for many topics."
)
@click.option(
    "--freshness-seconds", type=click.IntRange(2), default=20, show_default=True, help="Length of each freshness run."
)
@click.option(
    "--message-bytes", type=click.IntRange(8, 1 << 20), default=250, show_default=True, help="Size of a message."
)
@data_option
@json_option
def pipeline(
    messages: int,
    singles: int,
    topics: int,
    freshness_seconds: int,
    message_bytes: int,
    data: Path | None,
    as_json: bool,
) -> None:
    """Measure the way from log to table: a backlog, tiny frames, many topics, small passes, freshness."""
    # Imported here: loading Spark and Iceberg takes a second.
    from icestream_bench.pipeline import measure_pipeline  # noqa: PLC0415

    def measure(broker: BrokerProcess, directory: Path, progress: Callable[[float], None]) -> dict[str, Any]:
        return measure_pipeline(
            broker.flight,
            directory / "data",
            messages=messages,
            message_bytes=message_bytes,
            singles=singles,
            topics=topics,
            freshness_seconds=freshness_seconds,
            progress=progress,
        )

    _run("pipeline", measure, data, as_json=as_json)


@command.command(epilog="Example: icestream bench cloud --upload-mb 128")
@click.option(
    "--messages", type=click.IntRange(100_000), default=2_000_000, show_default=True, help="Messages of history."
)
@click.option(
    "--message-bytes", type=click.IntRange(8, 1 << 20), default=250, show_default=True, help="Size of a message."
)
@click.option("--upload-mb", type=click.IntRange(16), default=512, show_default=True, help="MiB of each upload.")
@click.option("--acks", type=click.IntRange(100), default=3_000, show_default=True, help="Number of single messages.")
@data_option
@json_option
def cloud(messages: int, message_bytes: int, upload_mb: int, acks: int, data: Path | None, as_json: bool) -> None:
    """Measure a local S3 server as object store: uploads, reading history, and publishing during uploads."""
    from icestream_bench.cloud import measure_cloud  # noqa: PLC0415 - needs a test server

    with _directory(data) as directory, _progress("cloud") as progress:
        figures = measure_cloud(
            directory,
            messages=messages,
            message_bytes=message_bytes,
            upload_mb=upload_mb,
            acks=acks,
            progress=progress,
        )
    _report("cloud", figures, as_json=as_json)


@command.command(epilog="Example: icestream bench otlp --requests 1000")
@click.option("--items", type=click.IntRange(1, 20_000), default=512, show_default=True, help="Items of each request.")
@click.option("--streams", type=click.IntRange(1, 64), default=8, show_default=True, help="Parallel requests.")
@click.option("--requests", type=click.IntRange(64), default=2_000, show_default=True, help="Requests of each signal.")
@click.option("--pipeline/--no-pipeline", default=True, show_default=True, help="Also write the rows to their tables.")
@data_option
@json_option
def otlp(items: int, streams: int, requests: int, pipeline: bool, data: Path | None, as_json: bool) -> None:
    """Measure spans and log records a second that the OpenTelemetry door over gRPC acknowledges as durable."""
    # Imported here: needs the telemetry extra.
    from icestream_bench.otlp import measure_otlp, pipeline_writer  # noqa: PLC0415

    def measure(broker: BrokerProcess, _directory: Path, progress: Callable[[float], None]) -> dict[str, Any]:
        with pipeline_writer(broker) if pipeline else nullcontext() as write:
            return measure_otlp(broker, items=items, streams=streams, requests=requests, progress=progress, write=write)

    _run("otlp", measure, data, as_json=as_json, otlp=True)


@command.command(epilog="Example: icestream bench lookup --spans 1000000")
@click.option("--spans", type=click.IntRange(1_000), default=10_000_000, show_default=True, help="Spans of the table.")
@click.option(
    "--lookups", type=click.IntRange(1), default=50, show_default=True, help="Number of look-ups, of one trace each."
)
@data_option
@json_option
def lookup(spans: int, lookups: int, data: Path | None, as_json: bool) -> None:
    """Measure bytes and time to find one trace among many. Uses the table without a broker."""
    # Imported here: needs the telemetry extra.
    from icestream.config import Settings  # noqa: PLC0415
    from icestream_bench.lookup import measure_lookup  # noqa: PLC0415

    with _directory(data) as directory, _progress("lookup") as progress:
        figures = measure_lookup(Settings(data_dir=directory), spans=spans, lookups=lookups, progress=progress)
    _report("lookup", figures, as_json=as_json)


def _run(name: str, measure: _Measure, data: Path | None, *, as_json: bool, otlp: bool = False) -> None:
    with (
        _directory(data) as directory,
        BrokerProcess(directory / "data", otlp=otlp) as broker,
        _progress(name) as progress,
    ):
        figures = measure(broker, directory, progress)
        figures["broker"] = process_resources(broker.pid)
    _report(name, figures, as_json=as_json)


@contextmanager
def _directory(data: Path | None) -> Iterator[Path]:
    if data is not None:
        data.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="icestream-bench-", dir=data) as temporary:
        yield Path(temporary)


def _report(name: str, figures: dict[str, Any], *, as_json: bool) -> None:
    report = {"bench": name, "machine": {"cores": os.cpu_count(), "kernel": platform.release()}, **figures}
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        _print(name, report)


@contextmanager
def _progress(name: str) -> Iterator[Callable[[float], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(f"bench {name}", total=1.0)
        yield lambda share: bars.update(task, completed=share)


def _print(name: str, report: dict[str, Any]) -> None:
    table = Table(title=f"bench {name}", title_justify="left")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for key, value in _flatten(report):
        table.add_row(key, f"{value:,}" if isinstance(value, int | float) else str(value))
    _console.print(table)


def _flatten(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
