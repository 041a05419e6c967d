"""Plain Parquet files under kills and races. Who reads them by their folders sees every file: none may be left over."""

import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fault.pipeline.conftest import MakeSite, environ
from tests.fault.pipeline.crash_at import DRIVER_POINTS, INLINE, TASK_POINTS
from tests.fault.pipeline.harness import InlineJobs, Sections, Site, once, wait_for
from tests.plain_files import offsets_by_glob

from icestream.broker_process import BrokerProcess
from icestream.model.enums import StorageFormat
from icestream.model.errors import CommitUnknownError
from icestream.model.names import copy_of
from icestream.pipeline.driver import Runner
from icestream.pipeline.one_pass import commit
from icestream.pipeline.report import PassFigures
from icestream.pipeline.spark.session import JobFailedError
from icestream.pipeline.state import Sink
from icestream.table import TopicTable

SOAK = bool(os.environ.get("ICESTREAM_SOAK"))
PASSES = 400 if SOAK else 12
WITH_KILLS = ["both", "parquet"] if SOAK else ["both"]
"""`both` writes the Parquet copy and the table in one task, so it meets every point of `parquet`."""
TOPICS = ("first", "second")


@pytest.fixture(scope="module", params=["both", "parquet"])
def storage_format(request: pytest.FixtureRequest) -> StorageFormat:
    return StorageFormat(request.param)


@pytest.fixture(scope="module")
def sections(storage_format: StorageFormat) -> Sections:
    return {"reader": {"poll_interval_ms": 200}, "storage": {"format": storage_format.value}}


@pytest.fixture(scope="module")
def broker(sections: Sections, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", environ=environ(sections)) as process:
        yield process


@pytest.fixture
def site(make_site: MakeSite, broker: BrokerProcess) -> Site:
    return make_site(broker)


def folder(site: Site, name: str) -> Path:
    return site.data_dir / "parquet" / site.namespace / name


def files_of(site: Site, name: str) -> list[Path]:
    return [path for path in folder(site, name).rglob("*") if path.is_file()]


def committed(site: Site, name: str, storage_format: StorageFormat) -> int:
    """In every table that is fed."""
    found = [site.tables.find(table) for table in storage_format.fed(site.topic(name))]
    return min(table.ledger.committed_offset if table is not None else 0 for table in found)


def check(site: Site, storage_format: StorageFormat, *names: str) -> None:
    for name in names:
        for table in storage_format.fed(site.topic(name)):
            site.oracle.check(site.tables, site.topic(name), table=table)
        end = site.oracle.end(site.topic(name))
        wait_for("the folders to hold each offset once", lambda: offsets_by_glob(folder(site, name)) == [*range(end)])  # noqa: B023
        named = {file.file.file_path for file in copy(site, name).iceberg.scan().plan_files()}
        assert {f"file://{path}" for path in files_of(site, name)} == named


def copy(site: Site, name: str) -> TopicTable:
    found = site.tables.find(copy_of(site.topic(name)))
    assert found is not None
    return found


@pytest.mark.parametrize("storage_format", WITH_KILLS, indirect=True, scope="module")
@pytest.mark.parametrize("points", [(INLINE, *DRIVER_POINTS), TASK_POINTS], ids=["driver", "tasks"])
def test_kills_at_every_named_point_leave_no_file_that_is_not_in_the_table(
    site: Site, storage_format: StorageFormat, tmp_path: Path, points: tuple[str, ...]
) -> None:
    with site.crashing_process(points, tmp_path, *TOPICS) as pipeline:
        for name in TOPICS:
            end = site.oracle.end(site.topic(name))
            wait_for("the commit of all", lambda name=name, end=end: committed(site, name, storage_format) >= end)  # type: ignore[misc]
        assert pipeline.state.starts == len([point for point in points if point in DRIVER_POINTS]) + 1
        check(site, storage_format, *TOPICS)


def test_what_a_driver_left_that_was_killed_is_gone_after_the_next_pass(
    site: Site, storage_format: StorageFormat
) -> None:
    site.publish("first")
    site.drain(site.runner())
    site.publish("first")

    class KilledError(BaseException):
        """As if the process ended here."""

    def die() -> None:
        raise KilledError

    with pytest.raises(KilledError):
        site.runner(InlineJobs(after=die)).drain(threading.Event())
    assert len(offsets_by_glob(folder(site, "first"))) == 20  # seen, and in no snapshot
    site.publish("first")
    site.drain(site.runner())
    check(site, storage_format, "first")


def test_what_a_job_left_that_failed_is_gone_in_the_same_pass(site: Site, storage_format: StorageFormat) -> None:
    for name in TOPICS:
        site.publish(name)

    def fail() -> None:
        raise JobFailedError("a worker died", operation="run job")

    site.drain(site.runner(InlineJobs(after=once(fail))))
    check(site, storage_format, *TOPICS)


def test_a_pass_that_another_pipeline_has_fenced_off_is_planned_anew(site: Site, storage_format: StorageFormat) -> None:
    """The second comes while the first has written and not committed, and takes its files for left over."""
    site.publish("first")
    site.drain(site.runner())
    site.publish("first")
    seen: list[int] = []

    def come_in_between() -> None:
        seen.append(len(offsets_by_glob(folder(site, "first"))))
        second = site.runner()
        second.topics.refresh_all()
        second.passes._open(list(second.topics), PassFigures())
        seen.append(len(offsets_by_glob(folder(site, "first"))))

    figures = site.drain(site.runner(InlineJobs(after=once(come_in_between))))
    assert seen == [20, 10], "it was cleaned up, and could not have been committed any more"
    assert figures.messages == 10
    check(site, storage_format, "first")


def test_a_pass_that_was_faster_leaves_the_slower_one_nothing_to_commit(
    site: Site, storage_format: StorageFormat
) -> None:
    site.publish("first")
    site.drain(site.runner(InlineJobs(after=once(lambda: site.drain(site.runner())))))
    check(site, storage_format, "first")


def test_two_pipelines_at_once_leave_each_offset_once(site: Site, storage_format: StorageFormat) -> None:
    rng = random.Random(1)
    stopping = threading.Event()
    totals = [PassFigures(), PassFigures()]
    runners = [site.runner(InlineJobs(after=lambda: time.sleep(rng.uniform(0, 0.02)))) for _ in totals]

    def run(runner: Runner, total: PassFigures) -> None:
        while not stopping.is_set():
            runner.topics.look()
            total.add(runner.passes.run())

    pairs = zip(runners, totals, strict=True)
    threads = [threading.Thread(target=run, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    try:
        while sum(topic.commits for total in totals for topic in list(total.topics.values())) < PASSES:
            assert all(thread.is_alive() for thread in threads)
            for name in TOPICS:
                site.publish(name, rng.randint(1, 10))
    finally:
        stopping.set()
        for thread in threads:
            thread.join()
    site.drain(site.runner())
    check(site, storage_format, *TOPICS)


def test_a_commit_of_which_the_answer_is_lost_keeps_its_files(
    site: Site, storage_format: StorageFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.publish("first")
    left = ["an answer"]
    sent = TopicTable.commit

    def lose_one(table: TopicTable, *args: Any, **kwargs: Any) -> TopicTable:
        done = sent(table, *args, **kwargs)
        if table.is_parquet_copy and left:
            raise CommitUnknownError(f"{left.pop()} is lost", operation="commit")
        return done

    monkeypatch.setattr(TopicTable, "commit", lose_one)
    site.drain(site.runner())
    assert not left
    check(site, storage_format, "first")


def test_files_that_waited_while_the_table_changed_are_not_committed(site: Site, storage_format: StorageFormat) -> None:
    del storage_format
    site.publish("first")
    site.drain(site.runner())
    table = copy(site, "first")
    files = tuple(table.writer().write(table.scan(), max_memory_bytes=1 << 24))
    sink = Sink(table.name, table, committed=table.ledger.committed_offset)
    sink.set_pending(files, table.ledger.committed_offset + 10, 1, table.lost_ranges)
    assert sink.pending is not None
    outcome = commit(table.fence(), sink.pending)
    assert not outcome.has_our_files
    assert len(files_of(site, "first")) == 1
