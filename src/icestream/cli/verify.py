"""`icestream verify`: checks that log, cloud objects and table hold the same messages."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from icestream.app import configure_logging
from icestream.cli.options import broker_option, config_option, data_option, json_option
from icestream.cli.output import NOTHING, console, count_text, plural, print_json, progress_bar, table
from icestream.cli.settings import read_settings
from icestream.client import BrokerEndpoint, Client
from icestream.config import Settings
from icestream.model.errors import DirectoryInUseError, IcestreamError, UnavailableError
from icestream.model.names import TopicName
from icestream.storage import LOCK_FILE, exclusive_directory
from icestream.storage.verify import (
    AuditedLogs,
    BrokerLogs,
    Clouds,
    DirectoryLogs,
    Finding,
    Verification,
    open_tables,
    verify_topic,
)

_CLOUD_UNCHECKED = "the broker has cloud objects of this topic, which were not checked: give the broker's own --config"


@click.command(name="verify", epilog="Example: icestream verify --all")
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--all", "everything", is_flag=True, help="All topics.")
@broker_option
@config_option
@data_option
@json_option
def command(
    topics: tuple[str, ...],
    everything: bool,
    broker: BrokerEndpoint,
    config_file: Path | None,
    data: Path | None,
    as_json: bool,
) -> None:
    """Check that log, cloud objects and table hold the same messages.

    Reads all messages and checks for each topic: every offset once and in order, no gap, equal content in all places
    that hold a message, the ledger, the stream id, the layout of the table's files, and every cloud object. Changes
    nothing.

    Reads the log through the broker or, if none responds, from the files in the data directory. Where the log is
    pruned, the table is checked against the cloud objects, or alone. The settings (--config) name the object store
    and the metadata store, which also list topics whose log is lost. Exits with 1 if anything is wrong. Frames in
    quarantine are listed and their files checked; they are no error.
    """
    if bool(topics) == everything:
        raise click.UsageError("Name topics, or give --all.")
    names = [TopicName.parse(topic) for topic in topics]
    settings = read_settings(config_file, {"data_dir": data})
    configure_logging(settings.log)
    began = time.monotonic()
    reports = []
    with (
        _logs(broker, settings) as logs,
        open_tables(settings) as tables,
        Clouds(settings) as clouds,
        progress_bar("listing topics") as update,
    ):
        missing = functools.cache(lambda: logs.missing(clouds))
        chosen, unlisted = (names, None) if names else _all_topics(logs, missing)

        def progress(done: int, total: int) -> None:
            update(completed=done, total=total)

        for number, topic in enumerate(chosen):
            update(completed=0, description=f"{topic} ({number + 1} of {len(chosen)})")
            reports.append(
                verify_topic(
                    topic, logs.view, tables, progress, clouds.find, missing=lambda topic: missing().get(topic)
                )
            )
            if not clouds.configured and logs.is_uploaded(topic):
                reports[-1].notes.append(_CLOUD_UNCHECKED)
            if unlisted is not None and unlisted not in reports[-1].findings:
                reports[-1].add(unlisted)
    seconds = time.monotonic() - began
    if as_json:
        sound = all(report.is_sound for report in reports)
        print_json({"sound": sound, "seconds": seconds, "topics": [report.to_json() for report in reports]})
    else:
        _print(reports, seconds)
    if not all(report.is_sound for report in reports):
        raise click.exceptions.Exit(1)


def _all_topics(
    logs: AuditedLogs, missing: Callable[[], dict[TopicName, str]]
) -> tuple[list[TopicName], Finding | None]:
    """Return the topics with a log and those that lost it; a finding instead of the latter if they cannot be listed."""
    with_log = logs.topics()
    try:
        return sorted({*with_log, *missing()}), None
    except IcestreamError as error:
        if not with_log or not error.retryable:
            raise
        return with_log, Finding("unchecked", error.message, place=error.place)


@contextlib.contextmanager
def _logs(broker: BrokerEndpoint, settings: Settings) -> Iterator[AuditedLogs]:
    """Open the broker's logs, or those of the data directory, which stays locked meanwhile."""
    with Client(broker) as client:
        try:
            client.list_topics(prefix="/")  # no topic has this name; only the connection matters
        except UnavailableError:
            pass
        else:
            yield BrokerLogs(client)
            return
    click.echo(f"no broker responds at {broker.url}: reading the files in {settings.wal.dir}", err=True)
    directory = Path(str(settings.wal.dir))
    try:
        with exclusive_directory(directory) if (directory / LOCK_FILE).exists() else contextlib.nullcontext():
            yield DirectoryLogs(directory)
    except DirectoryInUseError as error:
        raise DirectoryInUseError(
            "a broker uses these files", operation="verify", place=error.place, remedy="give its address with --broker"
        ) from None


def _print(reports: list[Verification], seconds: float) -> None:
    out = console()
    numbers = ("first", "next", "in cloud", "objects", "in table", "files", "compared", "waiting", "lost")
    shown = table("topic", *numbers, "result", numbers=numbers)
    for report in reports:
        wrong = len(report.findings) + report.further_findings
        shown.add_row(
            str(report.topic),
            *(_number(value) for value in (report.log_start, report.durable_end, report.cloud_end)),
            count_text(report.cloud_objects),
            _number(report.committed_offset),
            *(count_text(value) for value in (report.files, report.compared, report.waiting, report.lost)),
            "sound" if report.is_sound else plural(wrong, "finding"),
        )
    if reports:
        out.print(shown)
    for report in reports:
        if report.parquet_offset is not None:
            files = f"{plural(report.parquet_files, 'file')}, {plural(report.parquet_rows, 'row')}"
            out.print(f"{report.topic}: Parquet copy: {files}, next offset {count_text(report.parquet_offset)}")
        for note in report.notes:
            out.print(f"{report.topic}: note: {note}", soft_wrap=True)
        if report.removed:
            out.print(f"{report.topic}: {plural(report.removed, 'row')} removed by another engine, as accepted")
        for entry in report.quarantined:
            span = f"offsets {entry.first_offset} to {entry.end_offset - 1}"
            out.print(
                f"{report.topic}: {span}: in quarantine, {entry.file}: {entry.reason}", style="yellow", soft_wrap=True
            )
        for finding in report.findings:
            out.print(f"{report.topic}: {_line(finding)}", style="red", soft_wrap=True)
        if report.further_findings:
            out.print(f"{report.topic}: and {count_text(report.further_findings)} more", style="red")
    out.print(f"{plural(len(reports), 'topic')} in {seconds:.1f} s")


def _number(value: int | None) -> str:
    return NOTHING if value is None else count_text(value)


def _line(finding: Finding) -> str:
    if finding.first_offset is None:
        return str(finding)
    if finding.first_offset == finding.last_offset:
        return f"offset {finding.first_offset}: {finding}"
    return f"offsets {finding.first_offset} to {finding.last_offset}: {finding}"
