"""Topics that are deleted and created again while a pipeline works on them: the new table holds nothing of the old."""

import os
import random
import threading

import pytest
from tests.fault.pipeline.harness import InlineJobs, Site, once
from tests.fault.pipeline.oracle import rows_of

ROUNDS = 60 if os.environ.get("ICESTREAM_SOAK") else 5


def make_again(site: Site, count: int = 3) -> None:
    site.delete_topic("events")
    site.publish("events", count)


@pytest.mark.parametrize("moment", ["before", "after"], ids=["before the write", "between write and commit"])
def test_a_topic_made_again_holds_its_own_messages_alone(site: Site, moment: str) -> None:
    runner = site.runner()
    site.publish("events", 20)
    site.drain(runner)
    site.publish("events", 20)
    jobs = InlineJobs(**{moment: once(lambda: make_again(site))})
    zombie = site.runner(jobs)
    zombie.drain(threading.Event())
    site.drain(zombie)
    site.drain(runner)
    site.check("events")


def test_a_topic_made_again_and_written_by_another_pipeline_is_not_touched_by_the_one_that_knew_the_old(
    site: Site,
) -> None:
    site.publish("events", 20)

    def make_again_and_write() -> None:
        make_again(site, 40)
        site.drain(site.runner())

    zombie = site.runner(InlineJobs(after=once(make_again_and_write)))
    zombie.topics.refresh_all()
    figures = zombie.passes.run({site.topic("events"): 20}).topics[site.topic("events")]
    assert (figures.commits, figures.messages) == (0, 0)
    site.check("events")
    site.drain(zombie)
    site.check("events")


def test_messages_of_a_topic_made_again_never_come_into_the_kept_table_of_the_old_one(site: Site) -> None:
    """The offsets are the same and the table is there: only the stream's id tells them apart."""
    site.publish("events", 20)
    site.drain(site.runner())
    site.publish("events", 20)
    kept = rows_of(site.table_at("events", 20))

    def make_again_beside_the_kept_table() -> None:
        site.delete_topic("events", keep_table=True)
        site.publish("events", 60)

    runner = site.runner(InlineJobs(before=once(make_again_beside_the_kept_table)))
    runner.topics.refresh_all()
    runner.passes.run({site.topic("events"): 40})
    figures = runner.drain(threading.Event()).topics[site.topic("events")]
    assert "belongs to the stream" in str(figures.error)
    assert rows_of(site.table_at("events", 20)).equals(kept)


def test_topics_that_are_made_again_all_the_while_hold_their_own_messages_alone(site: Site) -> None:
    rng = random.Random(1)
    runners = [site.runner(), site.runner()]
    with site.running(*runners):
        for _ in range(ROUNDS):
            for _ in range(rng.randint(1, 5)):
                site.publish("events", rng.randint(1, 20))
                if rng.random() < 0.3:
                    site.wait_until_in_tables("events")
            site.delete_topic("events")
        site.publish("events", 50)
        site.wait_until_in_tables("events")
    site.check("events")
