"""`icestream migrate`: publishes existing files to topics."""

import contextlib
import time
from pathlib import Path
from typing import Self

import click
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from icestream.cli.background_watch import CommitWatch
from icestream.cli.options import broker_option, config_option, json_option
from icestream.cli.output import (
    NOTHING,
    console,
    count_text,
    duration_text,
    plural,
    print_json,
    printable,
    rate_text,
    size_text,
    table,
)
from icestream.cli.settings import read_settings
from icestream.client import BrokerEndpoint, Client
from icestream.migration import (
    WAITING,
    ColumnOptions,
    FileReport,
    Migration,
    MigrationReport,
    MigrationRequest,
    open_source,
)
from icestream.telemetry import Signal

_LINE_EVERY_SECONDS = 10.0
_MAX_FILES = 20
_SHOWN_CHECKSUM = 12


@click.group(name="migrate", epilog="Example: icestream migrate parquet-to-iceberg old/traces --tenant acme")
def command() -> None:
    """Publish existing files to topics."""


def _pairs(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    for old, sign, new in pairs:
        if not (old and sign and new):
            raise click.BadParameter(f"{old + sign + new!r} is not OLD=NEW")
    return {old: new for old, _, new in pairs}


@command.command(
    name="parquet-to-iceberg",
    epilog="Example: icestream migrate parquet-to-iceberg old/traces --tenant acme --dry-run",
)
@click.argument("path")
@click.option(
    "--tenant",
    metavar="NAME",
    help="The files are telemetry of this tenant: publish to NAME/traces, NAME/logs or NAME/metrics.",
)
@click.option(
    "--signal",
    type=click.Choice([str(signal) for signal in Signal]),
    help="Kind of telemetry.  [default: guessed from columns, else from folders]",
)
@click.option("--dataset", metavar="NAME", help="With --tenant: the dataset.")
@click.option("--topic", metavar="NAME", help="Instead of --tenant: an existing topic.")
@click.option(
    "--rename",
    multiple=True,
    callback=_pairs,
    metavar="OLD=NEW",
    help="Rename a column of the files or of their folders.",
)
@click.option("--ignore", multiple=True, metavar="COLUMN", help="Leave out a column of the files or of their folders.")
@click.option("--dry-run", is_flag=True, help="Print what would be done; publish nothing.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until the rows are in the table.")
@click.option(
    "--again", is_flag=True, help="Also migrate files of which a copy or another version was migrated before."
)
@click.option(
    "--batch-rows",
    type=click.IntRange(1, 1_000_000),
    default=MigrationRequest.batch_rows,
    show_default=True,
    metavar="N",
    help="Most rows of a published batch, and in memory.",
)
@broker_option
@config_option
@json_option
def parquet_to_iceberg(
    path: str,
    tenant: str | None,
    signal: str | None,
    dataset: str | None,
    topic: str | None,
    rename: dict[str, str],
    ignore: tuple[str, ...],
    dry_run: bool,
    wait: bool,
    again: bool,
    batch_rows: int,
    broker: BrokerEndpoint,
    config_file: Path | None,
    as_json: bool,
) -> None:
    """Publish each row of existing Parquet files once, and verify that the table has all of them.

    PATH is a file, a folder with subfolders (also `date=…/hour=…`), or a pattern (`**` matches any folders), on this
    machine or in the object store of the settings (`s3://bucket/folder`). Columns are matched by name. Folder names
    such as `region=eu` are columns too. After an interruption run the same command again: it continues. Producers and
    readers of the topic continue meanwhile. Exits with 1 if a file is not completely in the topic.
    """
    if (tenant is None) == (topic is None):
        raise click.UsageError("Give --tenant or --topic.")
    if topic is not None and (signal is not None or dataset is not None):
        raise click.UsageError("--signal and --dataset belong to --tenant.")
    request = MigrationRequest(
        tenant=tenant,
        dataset=dataset,
        signal=None if signal is None else Signal(signal),
        topic=topic,
        column_options=ColumnOptions(rename, frozenset(ignore)),
        batch_rows=batch_rows,
        dry_run=dry_run,
        wait=wait,
        again=again,
    )
    settings = read_settings(config_file, {})
    with (
        contextlib.closing(open_source(path, settings)) as source,
        Client(broker) as client,
        MigrationProgress(client) as progress,
    ):
        migration = Migration(client, source, settings, request, progress)
        progress.report = migration.report
        try:
            report = migration.run()
        except KeyboardInterrupt:
            click.echo("Run the same command again to continue.", err=True)
            raise
    if as_json:
        print_json(report.to_json())
    else:
        _print(report)
    if failed := report.failed:
        raise click.ClickException(f"{plural(len(failed), 'file')} of {len(report.files)} could not be migrated")


class MigrationProgress:
    """Shows the progress of each step on stderr: a bar on a terminal, elsewhere a line now and then.

    While the migration waits for the table, it also says why nothing is committed.
    """

    def __init__(self, client: Client, *, line_every_s: float = _LINE_EVERY_SECONDS) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
        self._bars = Progress(*columns, TimeRemainingColumn(), console=console(err=True), transient=True)
        self._task: TaskID | None = None
        self._line_every_s = line_every_s
        self._step, self._unit = "", ""
        self._reached, self._total = 0.0, 0
        self._began = self._line_at = time.monotonic()
        self._client = client
        self._watch = contextlib.ExitStack()
        self.report: MigrationReport | None = None
        self.advances = 0
        """Grows with every progress, whatever the step."""

    def begin(self, what: str, total: int, unit: str) -> None:
        self._watch.close()
        self._step, self._total, self._unit = what, total, unit
        self._reached = 0.0
        self._began = self._line_at = time.monotonic()
        if self._bars.console.is_terminal:
            if self._task is not None:
                self._bars.remove_task(self._task)
            self._task = self._bars.add_task(what, total=total, text="")
        if what == WAITING and self.report is not None:
            self._watch.enter_context(CommitWatch(self._client, self.report.topic, lambda: self.advances))

    def advance(self, amount: float) -> None:
        self._reached += amount
        self.advances += 1
        now = time.monotonic()
        if self._task is not None:
            self._bars.update(self._task, completed=self._reached, text=self._text(now))
        elif now - self._line_at >= self._line_every_s:
            self._line_at = now
            click.echo(f"{self._step}: {self._text(now)}", err=True)

    def _text(self, now: float) -> str:
        speed = rate_text(self._reached, now - self._began)
        return f"{count_text(int(self._reached))} of {count_text(self._total)} {self._unit}, {speed}"

    def __enter__(self) -> Self:
        if self._bars.console.is_terminal:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.close()
        if self._bars.console.is_terminal:
            self._bars.stop()


def _print(report: MigrationReport) -> None:
    out = console()
    if report.guessed is not None:
        out.print(f"signal: {report.signal}, guessed from {report.guessed}")
    if report.dry_run:
        _print_mapping(report)
    for note in report.notes:
        out.print(printable(f"note: {note}"), soft_wrap=True)
    if report.dropped:
        out.print(printable(f"left out: {', '.join(report.dropped)}"), soft_wrap=True)
    shown = report.files if len(report.files) <= _MAX_FILES else report.failed[:_MAX_FILES]
    if shown:
        _print_files(shown)
    for file in report.failed:
        out.print(printable(f"{file.path}: {file.error}"), soft_wrap=True)
    out.print(_summary(report), soft_wrap=True)


def _print_mapping(report: MigrationReport) -> None:
    made = table("topic's column", "from")
    for name, origin in report.mapping.items():
        made.add_row(printable(name), printable(origin))
    console().print(made)


def _print_files(files: list[FileReport]) -> None:
    numbers = ("rows", "size", "published")
    made = table("file", "state", *numbers, "offsets", "checksum", numbers=numbers)
    for file in files:
        offsets = NOTHING if file.first_offset is None else f"{file.first_offset} to {file.last_offset}"
        checksum = (file.checksum or NOTHING)[:_SHOWN_CHECKSUM] + (" ok" if file.verified else "")
        made.add_row(
            printable(file.path),
            str(file.state),
            count_text(file.rows),
            size_text(file.size),
            count_text(file.published),
            offsets,
            checksum,
        )
    console().print(made)


def _summary(report: MigrationReport) -> str:
    total = f"{plural(len(report.files), 'file')}, {plural(report.rows, 'row')}"
    if report.dry_run:
        size = size_text(sum(file.size for file in report.files))
        return f"{total}, {size}; the target is {report.topic or NOTHING}. Nothing was published."
    verified = [file for file in report.files if file.verified]
    speed = f", {rate_text(report.published, report.seconds)}" if report.published else ""
    where = "the table" if report.committed else "the topic"
    return (
        f"{total} to {report.topic or NOTHING}: {count_text(report.published)} published now; "
        f"{plural(len(verified), 'file')} with {plural(sum(file.rows for file in verified), 'row')} read back from "
        f"{where} and found equal ({duration_text(report.seconds)}{speed})"
    )
