"""`icestream pipeline`: runs the Spark pipeline as a process."""

import contextlib
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import click

from icestream.app import configure_logging, stop_on_signals
from icestream.cli.options import broker_option, config_option, data_option, json_option
from icestream.cli.output import NOTHING, console, count_text, print_json, progress_bar, size_text, table
from icestream.cli.settings import make_files_private, read_settings, require_shared_catalog
from icestream.client import BrokerEndpoint, Client
from icestream.config import Settings
from icestream.model.callers import TOKEN_VARIABLE
from icestream.model.errors import IcestreamError
from icestream.model.names import TopicName
from icestream.pipeline import PassFigures
from icestream.pipeline.child_process import read_settings as settings_of_parent
from icestream.pipeline.driver import Runner
from icestream.pipeline.spark.session import Spark, SparkOnDemand
from icestream.table import Tables

_BROKER_SEES_COMMIT_SECONDS = 10.0
_CHECK_SECONDS = 0.05
_ORPHAN_SECONDS = 20.0
"""How long a pipeline may run after its broker has died."""


@click.command(name="pipeline", epilog="Example: icestream pipeline --once --data ./icestream-data")
@click.option("--once", is_flag=True, help="Write all messages that are durable now, and exit.")
@click.option("--master", metavar="URL", help="Spark master, such as local[4] or spark://host:7077 (pipeline.master).")
@click.option("--topics", metavar="PATTERN", help="Only topics that match, such as 'web/*' (pipeline.topics).")
@broker_option
@config_option
@data_option
@json_option
@click.option("--child", is_flag=True, hidden=True, help="Read the settings from stdin, and stop when it ends.")
def command(
    once: bool,
    master: str | None,
    topics: str | None,
    broker: BrokerEndpoint,
    config_file: Path | None,
    data: Path | None,
    as_json: bool,
    child: bool,
) -> None:
    """Write the log to Iceberg tables with Spark.

    Writes the messages of all topics to their tables as they become due, until SIGTERM or Ctrl-C. A pass that has begun
    is finished. `icestream serve` runs a pipeline itself; use this command on other machines and clusters, and with
    `--once`, which prints progress and statistics and exits with 1 if a topic cannot be written. Several pipelines may
    run at the same time: no message is written twice.
    """
    flags = {"data_dir": data, "pipeline.master": master, "pipeline.topics": topics}
    make_files_private()
    settings = settings_of_parent(sys.stdin.buffer) if child else read_settings(config_file, flags)
    require_shared_catalog(settings)
    configure_logging(settings.log)
    stopping = stop_on_signals()
    if child:
        threading.Thread(target=_stop_at_end_of_stdin, args=(stopping,), name="parent-watch", daemon=True).start()
    if once:
        _drain(settings, broker, stopping, as_json=as_json)
    else:
        _run(settings, broker, stopping)


def _connect(broker: BrokerEndpoint) -> Client:
    """Take the token out of the environment: Spark's processes get it with their tasks only."""
    os.environ.pop(TOKEN_VARIABLE, None)
    return Client(broker)


def _run(settings: Settings, broker: BrokerEndpoint, stopping: threading.Event) -> None:
    with (
        _connect(broker) as client,
        contextlib.closing(Tables(settings)) as tables,
        Spark(settings) as spark,
        Runner(settings, client, tables, spark) as runner,
    ):
        runner.run(stopping)


def _drain(settings: Settings, broker: BrokerEndpoint, stopping: threading.Event, *, as_json: bool) -> None:
    began = time.monotonic()
    with (
        _connect(broker) as client,
        contextlib.closing(Tables(settings)) as tables,
        contextlib.closing(SparkOnDemand(settings)) as spark,
        Runner(settings, client, tables, spark) as runner,
        progress_bar("messages in tables") as update,
    ):
        figures = runner.drain(stopping, lambda done, total: update(completed=done, total=total))
        unseen = _unseen(client, figures)
    seconds = time.monotonic() - began
    if as_json:
        print_json(_to_json(figures, seconds))
    else:
        _print(figures, seconds)
    failed = [str(topic.topic) for topic in figures.topics.values() if topic.error is not None]
    if failed:
        raise click.ClickException(f"not completely written: {', '.join(sorted(failed))}")
    if stopping.is_set():
        raise click.ClickException("stopped before all was written")
    if unseen is not None:
        raise click.ClickException(
            f"the broker's catalog does not have what was committed for {unseen}: if the settings of this command name "
            "another catalog, give the broker's own --data or --config"
        )


def _unseen(client: Client, figures: PassFigures) -> TopicName | None:
    """Return a topic whose commit the broker does not see in its catalog; None if it does, or does not answer.

    One topic is enough: all topics of a pipeline share a catalog.
    """
    committed = (topic for topic in figures.topics.values() if topic.commits and topic.committed_offset)
    topic = next(committed, None)
    deadline = time.monotonic() + _BROKER_SEES_COMMIT_SECONDS
    while topic is not None and time.monotonic() < deadline:
        try:
            found = client.describe_topic(str(topic.topic)).committed_offset
        except IcestreamError:
            return None
        if found is not None and found >= (topic.committed_offset or 0):
            return None
        time.sleep(_CHECK_SECONDS)
    return None if topic is None else topic.topic


def _stop_at_end_of_stdin(stopping: threading.Event) -> None:
    """Stop when stdin ends: the broker is gone then. Nothing is ever written to it."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    stopping.set()
    time.sleep(_ORPHAN_SECONDS)
    os._exit(1)


def _to_json(figures: PassFigures, seconds: float) -> dict[str, Any]:
    return {
        "seconds": seconds,
        "messages": figures.messages,
        "topics": [figures.topics[name].to_json() for name in sorted(figures.topics)],
    }


def _print(figures: PassFigures, seconds: float) -> None:
    numbers = ("messages", "size", "files", "committed", "conflicts", "translate s", "commit s")
    shown = table("topic", *numbers, "problem", numbers=numbers)
    for name in sorted(figures.topics):
        topic = figures.topics[name]
        shown.add_row(
            str(topic.topic),
            count_text(topic.messages),
            size_text(topic.file_bytes),
            count_text(topic.files),
            NOTHING if topic.committed_offset is None else count_text(topic.committed_offset),
            count_text(topic.conflicts),
            f"{topic.translate_seconds:.2f}",
            f"{topic.commit_seconds:.2f}",
            topic.error or NOTHING,
        )
    out = console()
    if figures.topics:
        out.print(shown)
    out.print(f"{count_text(figures.messages)} messages in {seconds:.1f} s")
