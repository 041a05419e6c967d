"""Runs the maintenance steps over tables, one table after another.

No step changes rows or table properties. Each step is one or several catalog commits by Iceberg, which repeats them on
the newest state if another commit comes first.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import structlog

from icestream.config import Settings
from icestream.model.errors import (
    CommitConflictError,
    IcestreamError,
    IncompatibleTableError,
    InvalidRequestError,
    TopicNotFoundError,
)
from icestream.model.names import TopicName, copy_of
from icestream.pipeline.maintenance.plan import CompactionLimits, Rewrite, plan_rewrites
from icestream.pipeline.maintenance.report import (
    MAX_NAMED_FILES,
    MaintenanceFigures,
    MaintenanceReport,
    MaintenanceStep,
    StepReport,
)
from icestream.pipeline.maintenance.session import SparkSql, options, text
from icestream.table import TableContents, Tables, TopicTable, read_contents, topics_with_tables

_CONCURRENT_GROUPS = 2
_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0

Say = Callable[[str], None]


@dataclass
class TableJob:
    """The maintenance of one table."""

    settings: Settings
    spark: SparkSql
    table: TopicTable
    contents: TableContents
    now: datetime
    sleep: Callable[[float], object]
    say: Say = lambda _text: None

    @property
    def limits(self) -> CompactionLimits:
        return CompactionLimits.of(self.contents, self.settings.maintenance)

    @property
    def name(self) -> str:
        return text(self.spark.table(self.table.name))

    def reload(self) -> None:
        self.table = self.table.refresh()
        self.contents = read_contents(self.table)

    def call(self, procedure: str, arguments: dict[str, str]) -> dict[str, int]:
        """Call a procedure and return the counts in its result."""
        rows = self.spark.call(procedure, {"table": self.name, **arguments}, place=str(self.table.name))
        return {name: int(value) for row in rows for name, value in row.items() if isinstance(value, int)}

    def pause(self, conflicts: int) -> None:
        self.sleep(min(_PAUSE_SECONDS * (1 << min(conflicts, 10)), _LONGEST_PAUSE_SECONDS))

    def retried(self, action: Callable[[], dict[str, int]], report: StepReport) -> dict[str, int]:
        """Run an action. Repeat it a few times, after growing pauses, if it loses to other commits."""
        for tries_left in reversed(range(self.settings.maintenance.conflict_tries)):
            try:
                return action()
            except CommitConflictError:
                report.conflicts += 1
                if not tries_left:
                    raise
                self.pause(report.conflicts)
                self.reload()
        raise AssertionError


def compact(job: TableJob, report: StepReport, *, dry_run: bool) -> None:
    """Join neighbouring small files, with one commit for each run of files, so that a conflict costs little."""
    planned = plan_rewrites(job.contents, job.limits)
    report.planned = {
        "rewrites": len(planned),
        "files": sum(rewrite.files for rewrite in planned),
        "bytes": sum(rewrite.nbytes for rewrite in planned),
    }
    done: Counter[str] = Counter()
    last = -1
    while not dry_run:
        left = [rewrite for rewrite in plan_rewrites(job.contents, job.limits) if rewrite.first_offset > last]
        if not left:
            break
        job.say(f"compacting, {len(left)} to go")
        done.update(job.retried(lambda chosen=left[0]: _rewrite(job, chosen), report))  # type: ignore[misc]
        report.done = dict(done)
        last = left[0].first_offset


def _rewrite(job: TableJob, rewrite: Rewrite) -> dict[str, int]:
    limits, column = job.limits, f"`{job.contents.offset_column}`"
    chosen: dict[str, str | int] = {
        "target-file-size-bytes": limits.target_bytes,
        "max-file-group-size-bytes": 2 * max(limits.max_rewrite_bytes, limits.target_bytes),
        "max-concurrent-file-group-rewrites": _CONCURRENT_GROUPS,
    }
    if job.contents.is_partitioned:
        chosen["min-input-files"] = limits.min_input_files
    else:
        chosen["rewrite-all"] = "true"
    within = f"{column} >= {rewrite.first_offset} AND {column} <= {rewrite.last_offset}"
    arguments = {"strategy": text("sort"), "where": text(within), "options": options(chosen)}
    return job.call("rewrite_data_files", arguments)


def rewrite_manifests(job: TableJob, report: StepReport, *, dry_run: bool) -> None:
    """Join manifests if there are many."""
    count = job.contents.manifests
    report.planned = {"manifests": count if count >= job.settings.maintenance.min_manifests else 0}
    if report.is_needed and not dry_run:
        job.say("rewriting manifests")
        report.done = job.retried(lambda: job.call("rewrite_manifests", {}), report)


def expire(job: TableJob, report: StepReport, *, dry_run: bool) -> None:
    """Drop old snapshots that no branch or tag names, and files that only they need."""
    settings = job.settings.maintenance
    before = job.now - timedelta(hours=settings.snapshot_age_hours)
    dropped = job.contents.snapshots_to_expire(int(before.timestamp() * 1000), settings.min_snapshots)
    report.planned = {"snapshots": len(dropped)}
    if report.is_needed and not dry_run:
        job.say("expiring snapshots")
        arguments = {"older_than": _timestamp(before), "retain_last": str(settings.min_snapshots)}
        report.done = job.retried(lambda: job.call("expire_snapshots", arguments), report)


def remove_orphans(job: TableJob, report: StepReport, *, dry_run: bool) -> None:
    """Remove old files that no snapshot names, left by failed attempts and dropped snapshots."""
    job.say("looking for orphan files")
    age = timedelta(hours=job.settings.maintenance.orphan_age_hours)
    arguments = {
        "table": job.name,
        "older_than": _timestamp(job.now - age),
        "dry_run": str(dry_run).lower(),
    }
    if not job.table.location.startswith("file:"):
        arguments["prefix_listing"] = "true"  # by Iceberg's own store: Hadoop's is not installed
    rows = job.spark.call("remove_orphan_files", arguments, place=str(job.table.name))
    files = [str(row["orphan_file_location"]) for row in rows]
    report.planned = {"files": len(files)}
    report.named = files[:MAX_NAMED_FILES]
    if not dry_run:
        report.done = {"files": len(files)}


def _timestamp(when: datetime) -> str:
    return f"TIMESTAMP '{when.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}'"


_ACTIONS = {
    MaintenanceStep.COMPACT: compact,
    MaintenanceStep.MANIFESTS: rewrite_manifests,
    MaintenanceStep.EXPIRE: expire,
    MaintenanceStep.ORPHANS: remove_orphans,
}
Progress = Callable[[int, int, str], None]
"""Called with the number of steps done, the number of all steps, and the current one."""
_log = structlog.get_logger(__name__)


class Maintenance:
    """Maintains tables. A table or step that fails is reported, and the others go on."""

    def __init__(
        self,
        settings: Settings,
        tables: Tables,
        spark: SparkSql,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._settings = settings
        self._tables = tables
        self._spark = spark
        self._now = now
        self._sleep = sleep

    def topics(self) -> list[TopicName]:
        """Return all topics that have a table in the catalog."""
        return [topic for topic in topics_with_tables(self._tables) if self._is_ours(topic)]

    def run(
        self,
        topics: Iterable[TopicName],
        steps: Iterable[MaintenanceStep] = MaintenanceStep,
        *,
        dry_run: bool = False,
        progress: Progress = lambda _done, _all, _text: None,
    ) -> list[MaintenanceReport]:
        names = list(topics)
        chosen = [step for step in MaintenanceStep if step in set(steps)]
        reports = []
        for number, topic in enumerate(names):

            def tell(done: int, said: str, before: int = number * len(chosen), topic: TopicName = topic) -> None:
                progress(before + done, len(names) * len(chosen), f"{topic}: {said}")

            reports.append(self._maintain(topic, chosen, dry_run, tell))
        return reports

    def _maintain(
        self, topic: TopicName, steps: Sequence[MaintenanceStep], dry_run: bool, tell: Callable[[int, str], None]
    ) -> MaintenanceReport:
        report = MaintenanceReport(topic)
        try:
            tell(0, "looking")
            job = self._job(topic)
            report.before = MaintenanceFigures.of(
                job.contents, CompactionLimits.of(job.contents, self._settings.maintenance)
            )
            for number, step in enumerate(steps):
                job.say = lambda said, number=number: tell(number, said)  # type: ignore[misc]
                report.steps.append(self._step(job, step, dry_run))
            if not dry_run:
                job.reload()
                report.after = MaintenanceFigures.of(job.contents, job.limits)
        except IcestreamError as error:
            report.error = str(error)
        for said in report.errors:
            _log.warning("table_maintenance_failed", topic=str(topic), reason=said)
        return report

    def _job(self, topic: TopicName) -> TableJob:
        table = self._tables.find(topic)
        if table is None and self._tables.find(copy_of(topic)) is not None:
            raise InvalidRequestError(
                "the topic has a Parquet copy only. Maintenance does not change it: "
                "its readers read every file in the folders",
                operation="maintain",
                place=str(topic),
            )
        if table is None:
            raise TopicNotFoundError("the topic has no table", operation="maintain", place=str(topic))
        assert table.ledger  # raises for a table that is no topic's
        return TableJob(self._settings, self._spark, table, read_contents(table), self._now(), self._sleep)

    def _step(self, job: TableJob, step: MaintenanceStep, dry_run: bool) -> StepReport:
        report = StepReport(step)
        began = time.monotonic()
        try:
            try:
                _ACTIONS[step](job, report, dry_run=dry_run)
            finally:
                if report.done:
                    job.reload()
        except IcestreamError as error:
            report.error = str(error)
        report.seconds = time.monotonic() - began
        return report

    def _is_ours(self, topic: TopicName) -> bool:
        try:
            table = self._tables.find(topic)
            return table is not None and bool(table.ledger)
        except IncompatibleTableError as error:
            _log.debug("foreign_table_skipped", topic=str(topic), reason=str(error))
            return False
        except IcestreamError:  # reported when the table is maintained
            return True
