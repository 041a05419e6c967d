"""Several pipelines over the same topics, and one that wakes long after: each message is in its table once."""

import os
import random
import signal
import threading
import time
from typing import Any

import pytest
from tests.fault.pipeline.harness import InlineJobs, Site, once

from icestream.pipeline.driver import Runner
from icestream.pipeline.report import PassFigures

SOAK = bool(os.environ.get("ICESTREAM_SOAK"))
COMMITS = 2_000 if SOAK else 100
COMMITS_OF_PROCESSES = 400 if SOAK else 20
TOPICS = ("one", "two", "three")
FEW_SNAPSHOTS = {"max_snapshots": 5, "metadata_versions": 1, "unused_file_grace_seconds": 0, "manifest_merge_count": 3}


def run_passes(runner: Runner, stopping: threading.Event, total: PassFigures) -> None:
    while not stopping.is_set():
        runner.topics.look()
        total.add(runner.passes.run())


def counted(total: PassFigures, figure: str) -> int:
    return sum(getattr(topic, figure) for topic in list(total.topics.values()))


def commits_of(site: Site) -> int:
    """Each commit takes the next sequence number of its table."""
    snapshots = [found.iceberg.current_snapshot() for name in TOPICS if (found := site.tables.find(site.topic(name)))]
    return sum(snapshot.sequence_number or 0 for snapshot in snapshots if snapshot is not None)


@pytest.mark.parametrize("seed", [1])
def test_two_pipelines_that_race_for_a_hundred_commits_and_more_double_nothing(site: Site, seed: int) -> None:
    rng = random.Random(seed)
    stopping = threading.Event()
    jobs = [InlineJobs(after=lambda: time.sleep(rng.uniform(0, 0.02))) for _ in range(2)]
    runners = [site.runner(one, table=FEW_SNAPSHOTS) for one in jobs]
    totals = [PassFigures(), PassFigures()]
    threads = [
        threading.Thread(target=run_passes, args=(runner, stopping, total))
        for runner, total in zip(runners, totals, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        while sum(counted(total, "commits") for total in totals) < COMMITS:
            assert all(thread.is_alive() for thread in threads)
            for name in TOPICS:
                site.publish(name, rng.randint(1, 10))
    finally:
        stopping.set()
        for thread in threads:
            thread.join()
    assert sum(counted(total, "conflicts") for total in totals) > COMMITS // 20, "they were in each other's way"
    assert all(counted(total, "commits") for total in totals)
    assert [counted(total, "failures") for total in totals] == [0, 0]
    site.drain(site.runner(table=FEW_SNAPSHOTS))
    site.check(*TOPICS)


def test_two_processes_of_which_now_one_and_now_the_other_stands_still_double_nothing(site: Site) -> None:
    rng = random.Random(1)
    sections: dict[str, Any] = {"table": FEW_SNAPSHOTS, "writer": {"flush_interval_ms": 10}}
    site.publish("one")
    with site.process("first", **sections) as first, site.process("second", **sections) as second:
        site.wait_until_in_tables("one")
        with site.publishing(*TOPICS):
            while commits_of(site) < COMMITS_OF_PROCESSES:
                stopped = rng.choice((first, second)).state.pid
                assert stopped is not None
                os.kill(stopped, signal.SIGSTOP)
                site.oracle.wait_for_acks(rng.randint(100, 1_000))
                os.kill(stopped, signal.SIGCONT)
                site.oracle.wait_for_acks(rng.randint(10, 500))
        site.wait_until_in_tables(*TOPICS)
        assert (first.state.starts, second.state.starts) == (1, 1)
    site.check(*TOPICS)


@pytest.mark.parametrize("others", [1, 3, 12], ids=lambda count: f"{count} commits later")
def test_a_pipeline_that_wakes_between_its_write_and_its_commit_commits_nothing_again(site: Site, others: int) -> None:
    """With 12 commits the snapshot and the files that it planned on are gone."""
    site.publish("events")
    site.drain(site.runner(table=FEW_SNAPSHOTS))
    site.publish("events")

    def go_on_without_it() -> None:
        for _ in range(others):
            other = site.runner(table=FEW_SNAPSHOTS)
            site.drain(other)
            site.publish("events")

    zombie = site.runner(InlineJobs(after=once(go_on_without_it)), table=FEW_SNAPSHOTS)
    zombie.topics.refresh_all()
    figures = zombie.passes.run({site.topic("events"): 20}).topics[site.topic("events")]
    assert (figures.commits, figures.conflicts) == (0, 1)
    site.drain(zombie)
    site.check("events")


def test_a_pipeline_that_was_ahead_of_the_others_files_commits_what_is_left(site: Site) -> None:
    """Another one commits less than what was written meanwhile: the files are dropped, and the rest is written anew."""
    site.publish("events")

    def publish_more() -> None:
        site.publish("events")

    other = site.runner(InlineJobs(before=once(publish_more)))
    other.topics.refresh_all()
    ahead = site.runner(InlineJobs(after=once(lambda: other.passes.run({site.topic("events"): 10}))))
    site.publish("events")
    site.drain(ahead)
    site.drain(site.runner())
    site.check("events")
