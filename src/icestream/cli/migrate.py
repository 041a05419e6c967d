"""`icestream migrate`: bring existing files into topics."""

import contextlib
from pathlib import Path

import click

from icestream.cli.background_watch import CommitWatch
from icestream.cli.common import broker_option, config_option, json_option, print_json
from icestream.cli.output import (
    NOTHING,
    Steps,
    console,
    count_text,
    duration_text,
    plural,
    printable,
    rate_text,
    size_text,
    table,
)
from icestream.client import Client
from icestream.config import SettingsError, load_settings
from icestream.migration import WAITING, FileReport, Migration, MigrationReport, Request, Wishes, open_source
from icestream.telemetry import Signal

_MAX_FILES = 20
_SHOWN_CHECKSUM = 12


@click.group(name="migrate", epilog="Example: icestream migrate parquet-to-iceberg old/traces --tenant acme")
def command() -> None:
    """Bring existing files into topics and their tables."""


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
@click.option("--tenant", metavar="NAME", help="Whose telemetry it is: the rows go to NAME/traces, logs or metrics.")
@click.option(
    "--signal",
    type=click.Choice([str(signal) for signal in Signal]),
    help="Which telemetry it is.  [default: guessed from columns, else from folders]",
)
@click.option("--dataset", metavar="NAME", help="With --tenant: a dataset of the tenant.")
@click.option("--topic", metavar="NAME", help="Instead of --tenant: any topic, which must be there.")
@click.option(
    "--rename",
    multiple=True,
    callback=_pairs,
    metavar="OLD=NEW",
    help="A column of the files, or of their folders, under another name.",
)
@click.option(
    "--ignore", multiple=True, metavar="COLUMN", help="Leave a column of the files, or of their folders, out."
)
@click.option("--dry-run", is_flag=True, help="Say what would be done, and publish nothing.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until the rows are in the table.")
@click.option("--again", is_flag=True, help="Bring in files of which another version, or a copy, was migrated before.")
@click.option(
    "--batch-rows",
    type=click.IntRange(1, 1_000_000),
    default=Request.batch_rows,
    show_default=True,
    metavar="N",
    help="Most rows in memory, and in a published batch, at a time.",
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
    broker: str,
    config_file: Path | None,
    as_json: bool,
) -> None:
    """Publish the rows of existing Parquet files, each once, and verify that the table has them.

    PATH is a file, a folder with any folders in it (`date=…/hour=…` trees too), or a pattern (`**` for any folders);
    here, or in the object store of the settings (`s3://bucket/folder`). Columns are matched by name, and those in the
    names of folders (`region=eu`) are columns too. Run the same command again after whatever ended it: it goes on
    where it was. Producers and readers of the topic are not disturbed. Exits with 1 if any file is not wholly in the
    topic.
    """
    if (tenant is None) == (topic is None):
        raise click.UsageError("Give --tenant or --topic.")
    if topic is not None and (signal is not None or dataset is not None):
        raise click.UsageError("--signal and --dataset belong to --tenant.")
    request = Request(
        tenant=tenant,
        dataset=dataset,
        signal=None if signal is None else Signal(signal),
        topic=topic,
        wishes=Wishes(rename, frozenset(ignore)),
        batch_rows=batch_rows,
        dry_run=dry_run,
        wait=wait,
        again=again,
    )
    try:
        settings = load_settings(config_file, {})
    except SettingsError as error:
        raise click.ClickException(str(error)) from None
    with (
        contextlib.closing(open_source(path, settings)) as source,
        Client(broker) as client,
        _Progress(client) as progress,
    ):
        migration = Migration(client, source, settings, request, progress)
        progress.report = migration.report
        try:
            report = migration.run()
        except KeyboardInterrupt:
            click.echo("Run the same command again to go on.", err=True)
            raise
    if as_json:
        print_json(report.to_json())
    else:
        _print(report)
    if failed := report.failed:
        raise click.ClickException(f"{plural(len(failed), 'file')} of {len(report.files)} could not be migrated")


class _Progress(Steps):
    """And, while the table is waited for, why that takes so long."""

    report: MigrationReport

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client
        self._watch = contextlib.ExitStack()

    def begin(self, what: str, total: int, unit: str) -> None:
        self._watch.close()
        super().begin(what, total, unit)
        if what == WAITING:
            self._watch.enter_context(CommitWatch(self._client, self.report.topic, lambda: self.done))

    def __exit__(self, *_: object) -> None:
        self._watch.close()
        super().__exit__()


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
        return f"{total}, {size}; they would go to {report.topic or NOTHING}. Nothing was published."
    verified = [file for file in report.files if file.verified]
    speed = f", {rate_text(report.published, report.seconds)}" if report.published else ""
    where = "the table" if report.committed else "the topic"
    return (
        f"{total} to {report.topic or NOTHING}: {count_text(report.published)} published now; "
        f"{plural(len(verified), 'file')} with {plural(sum(file.rows for file in verified), 'row')} read back from "
        f"{where} and found equal ({duration_text(report.seconds)}{speed})"
    )
