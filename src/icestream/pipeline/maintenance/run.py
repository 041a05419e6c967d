"""Runs the steps over tables, one table after the other."""

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

import structlog

from icestream.config import Settings
from icestream.model.errors import IcestreamError, IncompatibleTableError, InvalidRequestError, TopicNotFoundError
from icestream.model.formats import copy_of
from icestream.model.names import TopicName
from icestream.pipeline.maintenance.plan import Limits
from icestream.pipeline.maintenance.report import Figures, Step, StepReport, TopicReport
from icestream.pipeline.maintenance.session import SparkSql
from icestream.pipeline.maintenance.steps import Job, compact, expire, remove_orphans, rewrite_manifests
from icestream.table import Tables
from icestream.table.contents import read_contents, topics_with_tables

_ACTIONS = {
    Step.COMPACT: compact,
    Step.MANIFESTS: rewrite_manifests,
    Step.EXPIRE: expire,
    Step.ORPHANS: remove_orphans,
}
Progress = Callable[[int, int, str], None]
"""Told how many steps are done, of how many, and what comes now."""
_log = structlog.get_logger(__name__)


class Maintenance:
    """Keeps tables fast and small. A table or step that fails is reported, and the others go on."""

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
        """All tables of the catalog that are a topic's."""
        return [topic for topic in topics_with_tables(self._tables) if self._is_ours(topic)]

    def run(
        self,
        topics: Iterable[TopicName],
        steps: Iterable[Step] = Step,
        *,
        dry_run: bool = False,
        progress: Progress = lambda _done, _all, _text: None,
    ) -> list[TopicReport]:
        names = list(topics)
        chosen = [step for step in Step if step in set(steps)]
        reports = []
        for number, topic in enumerate(names):

            def tell(done: int, said: str, before: int = number * len(chosen), topic: TopicName = topic) -> None:
                progress(before + done, len(names) * len(chosen), f"{topic}: {said}")

            reports.append(self._maintain(topic, chosen, dry_run, tell))
        return reports

    def _maintain(
        self, topic: TopicName, steps: Sequence[Step], dry_run: bool, tell: Callable[[int, str], None]
    ) -> TopicReport:
        report = TopicReport(topic)
        try:
            tell(0, "looking")
            job = self._job(topic)
            report.before = Figures.of(job.contents, Limits.of(job.contents, self._settings.maintenance))
            for number, step in enumerate(steps):
                job.say = lambda said, number=number: tell(number, said)  # type: ignore[misc]
                report.steps.append(self._step(job, step, dry_run))
            if not dry_run:
                job.reload()
                report.after = Figures.of(job.contents, job.limits)
        except IcestreamError as error:
            report.error = str(error)
        for said in report.errors:
            _log.warning("maintenance of a table failed", topic=str(topic), error=said)
        return report

    def _job(self, topic: TopicName) -> Job:
        table = self._tables.find(topic)
        if table is None and self._tables.find(copy_of(topic)) is not None:
            raise InvalidRequestError(
                "the topic is kept as plain Parquet files, which maintenance leaves as they are: "
                "who reads them sees every file in their folders",
                operation="maintain",
                place=str(topic),
            )
        if table is None:
            raise TopicNotFoundError("the topic has no table", operation="maintain", place=str(topic))
        assert table.ledger  # a table without one is none of ours, and raises
        return Job(self._settings, self._spark, table, read_contents(table), self._now(), self._sleep)

    def _step(self, job: Job, step: Step, dry_run: bool) -> StepReport:
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
            _log.debug("a table is passed over", topic=str(topic), error=str(error))
            return False
        except IcestreamError:  # told when it is the table's turn
            return True
