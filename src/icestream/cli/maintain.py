"""`icestream maintain`: table maintenance as Spark jobs."""

import contextlib
import os
import sys
import threading
import time
from pathlib import Path

import click

from icestream.app import configure_logging
from icestream.cli.options import config_option, data_option, json_option
from icestream.cli.output import NOTHING, console, count_text, plural, print_json, progress_bar, size_text, table
from icestream.cli.settings import make_files_private, read_settings, require_shared_catalog
from icestream.model.names import TopicName
from icestream.pipeline.child_process import read_settings as settings_of_parent
from icestream.pipeline.maintenance.report import MaintenanceFigures, MaintenanceReport, MaintenanceStep, StepReport
from icestream.pipeline.maintenance.run import Maintenance
from icestream.pipeline.maintenance.session import SparkSql
from icestream.table import Tables

_NICE = 10
"""A scheduled run has a lower priority than broker and pipeline."""


@click.command(name="maintain", epilog="Example: icestream maintain --all --dry-run")
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--all", "everything", is_flag=True, help="All topics that have a table.")
@click.option("--compact", is_flag=True, help="Join small neighbouring data files.")
@click.option("--manifests", is_flag=True, help="Join manifests.")
@click.option("--expire", is_flag=True, help="Drop old snapshots that no branch or tag refers to.")
@click.option("--orphans", is_flag=True, help="Remove old files that no snapshot refers to.")
@click.option("--dry-run", is_flag=True, help="Print what would be done; change nothing.")
@click.option("--master", metavar="URL", help="Spark master, such as local[4] (maintenance.master).")
@config_option
@data_option
@json_option
@click.option("--child", is_flag=True, hidden=True, help="Read the settings from stdin, and stop when it ends.")
def command(
    topics: tuple[str, ...],
    everything: bool,
    compact: bool,
    manifests: bool,
    expire: bool,
    orphans: bool,
    dry_run: bool,
    master: str | None,
    config_file: Path | None,
    data: Path | None,
    as_json: bool,
    child: bool,
) -> None:
    """Compact and clean up tables with Iceberg's procedures on Spark.

    Runs all four steps, or those that are given: compaction that keeps the order of offsets, joining of manifests,
    expiry of snapshots, removal of orphan files. Needs the catalog, not the broker. Producers, the pipeline and readers
    continue. The settings in `maintenance` define what is small, old and many. `icestream serve` runs this on a
    schedule. Exits with 1 if a step fails.
    """
    if bool(topics) == everything:
        raise click.UsageError("Name topics, or give --all.")
    names = [TopicName.parse(topic) for topic in topics]
    flags = {"data_dir": data, "maintenance.master": master}
    make_files_private()
    settings = settings_of_parent(sys.stdin.buffer) if child else read_settings(config_file, flags)
    require_shared_catalog(settings)
    configure_logging(settings.log)
    if child:
        os.nice(_NICE)
        threading.Thread(target=_end_with_stdin, name="parent-watch", daemon=True).start()
    chosen = {
        MaintenanceStep.COMPACT: compact,
        MaintenanceStep.MANIFESTS: manifests,
        MaintenanceStep.EXPIRE: expire,
        MaintenanceStep.ORPHANS: orphans,
    }
    steps = [step for step in MaintenanceStep if chosen[step] or not any(chosen.values())]
    began = time.monotonic()
    with (
        progress_bar("reading tables") as update,
        contextlib.closing(Tables(settings)) as tables,
        contextlib.closing(SparkSql(settings, lambda text: update(description=text))) as spark,
    ):
        maintenance = Maintenance(settings, tables, spark)

        def progress(done: int, total: int, text: str) -> None:
            update(completed=done, total=total, description=text)

        reports = maintenance.run(names or maintenance.topics(), steps, dry_run=dry_run, progress=progress)
    seconds = time.monotonic() - began
    if as_json:
        print_json({"dry_run": dry_run, "seconds": seconds, "topics": [report.to_json() for report in reports]})
    else:
        _print(reports, seconds, dry_run=dry_run)
    if failed := [str(report.topic) for report in reports if report.errors]:
        raise click.ClickException(f"maintenance failed for: {', '.join(failed)}")


def _end_with_stdin() -> None:
    """Exit when stdin ends: the broker is gone then. The JVM ends with this process."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


def _print(reports: list[MaintenanceReport], seconds: float, *, dry_run: bool) -> None:
    out = console()
    columns = ("files", "small", "size", "snapshots", "manifests")
    shown = table("topic", "", *columns, "would do" if dry_run else "done", numbers=columns)
    for report in reports:
        if report.before is not None:
            actions = (
                "; ".join(filter(None, (_step(step, dry_run=dry_run) for step in report.steps))) or "nothing to do"
            )
            states = (("now", report.before),) if dry_run else (("before", report.before), ("after", report.after))
            for number, (when, figures) in enumerate(states):
                shown.add_row("" if number else str(report.topic), when, *_figures(figures), "" if number else actions)
    if reports:
        out.print(shown)
    for report in reports:
        for error in report.errors:
            out.print(f"{report.topic}: {error}", style="red")
    out.print(f"{plural(len(reports), 'table')} in {seconds:.1f} s" + (", nothing was changed" if dry_run else ""))


def _figures(figures: MaintenanceFigures | None) -> list[str]:
    if figures is None:
        return [NOTHING] * 5
    small = f"{count_text(figures.small_files)} ({size_text(figures.small_bytes)})"
    sizes = (count_text(figures.files), small, size_text(figures.bytes))
    return [*sizes, count_text(figures.snapshots), count_text(figures.manifests)]


def _step(step: StepReport, *, dry_run: bool) -> str:
    """Return what a step did, or would do; empty if nothing."""
    done, planned = step.done, step.planned
    lost = f" after {plural(step.conflicts, 'conflict')}" if step.conflicts else ""
    match step.step:
        case _ if not step.is_needed or (not dry_run and not done):
            return ""
        case MaintenanceStep.COMPACT if dry_run:
            return f"compact {plural(planned['files'], 'file')} ({size_text(planned['bytes'])})"
        case MaintenanceStep.COMPACT:
            old, new = done.get("rewritten_data_files_count", 0), done.get("added_data_files_count", 0)
            return f"{plural(old, 'file')} compacted to {count_text(new)}{lost}"
        case MaintenanceStep.MANIFESTS if dry_run:
            return f"join {plural(planned['manifests'], 'manifest')}"
        case MaintenanceStep.MANIFESTS:
            old, new = done.get("rewritten_manifests_count", 0), done.get("added_manifests_count", 0)
            return f"{plural(old, 'manifest')} joined to {count_text(new)}{lost}"
        case MaintenanceStep.EXPIRE if dry_run:
            return f"expire {plural(planned['snapshots'], 'snapshot')}"
        case MaintenanceStep.EXPIRE:
            removed = plural(sum(done.values()), "file")
            return f"{plural(planned['snapshots'], 'snapshot')} expired, {removed} removed{lost}"
        case MaintenanceStep.ORPHANS:
            files = plural(planned["files"], "orphan file")
            return f"remove {files}" if dry_run else f"{files} removed"
