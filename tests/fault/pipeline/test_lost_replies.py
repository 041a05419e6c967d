"""Commits whose outcome nobody hears: made or not made, the ledger tells, and each message is in the table once."""

import os
import random
import threading
from typing import Any

import pytest
from tests.fault.pipeline.harness import InlineJobs, Site, once
from tests.http_proxy import Answer, CutReply, CutRequest, DropReply, Fault, FaultProxy, Hold

ROUNDS = 60 if os.environ.get("ICESTREAM_SOAK") else 5
COMMIT: dict[str, Any] = {"method": "POST", "path": "/tables/"}
MADE: dict[str, Fault] = {
    "no reply": DropReply(),
    "an internal error after it": Answer(500, after_server=True),
    "a gateway that is busy after it": Answer(503, after_server=True),
    "a gateway that gives up after it": Answer(504, after_server=True),
    "half a reply": CutReply(after_bytes=100),
    "no body": CutReply(after_bytes=0),
}
NOT_MADE: dict[str, Fault] = {
    "an internal error": Answer(500),
    "a busy server": Answer(503),
    "half a request": CutRequest(after_bytes=100),
}


@pytest.mark.parametrize("fault", MADE.values(), ids=MADE.keys())
def test_a_commit_that_was_made_and_not_confirmed_is_found_and_not_made_again(
    rest_site: Site, rest_proxy: FaultProxy, fault: Fault
) -> None:
    runner = rest_site.runner()
    rest_site.publish("events")
    rest_site.drain(runner)
    rest_site.publish("events")
    lost = rest_proxy.inject(fault, **COMMIT)
    figures = rest_site.drain(runner).topics[rest_site.topic("events")]
    assert lost.count == 1
    assert (figures.commits, figures.messages, figures.failures) == (1, 10, 0)
    rest_site.publish("events")
    rest_site.drain(runner)
    rest_site.check("events")


@pytest.mark.parametrize("fault", NOT_MADE.values(), ids=NOT_MADE.keys())
def test_a_commit_that_was_not_made_is_made_with_the_same_files(
    rest_site: Site, rest_proxy: FaultProxy, fault: Fault
) -> None:
    jobs = InlineJobs()
    runner = rest_site.runner(jobs)
    rest_site.publish("events")
    lost = rest_proxy.inject(fault, **COMMIT)
    rest_site.drain(runner)
    assert lost.count == 1
    assert jobs.jobs == 1
    rest_site.check("events")


def test_a_commit_whose_outcome_cannot_be_looked_up_either_waits_until_it_can(
    rest_site: Site, rest_proxy: FaultProxy
) -> None:
    jobs = InlineJobs()
    runner = rest_site.runner(jobs)
    rest_site.publish("events")
    rest_site.drain(runner)
    rest_site.publish("events")
    rest_proxy.inject(DropReply(), **COMMIT)
    rest_proxy.inject(Answer(503), method="GET", path="/tables/", times=2)
    figures = rest_site.drain(runner).topics[rest_site.topic("events")]
    assert figures.failures > 0
    assert jobs.jobs == 2, "nothing is written a second time"
    rest_site.check("events")


def test_a_table_whose_making_was_not_confirmed_is_used(rest_site: Site, rest_proxy: FaultProxy) -> None:
    rest_site.publish("events")
    lost = rest_proxy.inject(DropReply(), method="POST", path="/tables$")
    rest_site.drain(rest_site.runner())
    assert lost.count == 1
    rest_site.check("events")


def test_a_commit_that_arrives_after_somebody_elses_is_refused(rest_site: Site, rest_proxy: FaultProxy) -> None:
    slow, quick = rest_site.runner(), rest_site.runner()
    rest_site.publish("events")
    rest_site.drain(slow)
    rest_site.publish("events")
    hold = Hold()
    rest_proxy.inject(hold, **COMMIT)
    thread = threading.Thread(target=rest_site.drain, args=(slow,))
    thread.start()
    assert hold.reached.wait(60)
    for _ in range(3):
        rest_site.drain(quick)
        rest_site.publish("events")
    hold.release()
    thread.join()
    rest_site.drain(slow)
    rest_site.check("events")


def test_a_commit_that_is_not_confirmed_while_somebody_else_commits_is_not_doubled(
    rest_site: Site, rest_proxy: FaultProxy
) -> None:
    """The reply is lost after the other one's commit: the ledger is further than both of this one's ends."""
    slow, quick = rest_site.runner(), rest_site.runner()
    rest_site.publish("events")
    hold = Hold(reply=True)
    rest_proxy.inject(hold, **COMMIT)
    thread = threading.Thread(target=rest_site.drain, args=(slow,))
    thread.start()
    assert hold.reached.wait(60)
    rest_site.publish("events")
    rest_site.drain(quick)
    rest_proxy.cut()
    hold.release()
    thread.join()
    rest_site.publish("events")
    rest_site.drain(slow)
    rest_site.check("events")


@pytest.mark.parametrize("seed", [1])
def test_any_series_of_lost_replies_between_two_pipelines_leaves_each_message_once(
    rest_site: Site, rest_proxy: FaultProxy, seed: int
) -> None:
    rng = random.Random(seed)
    faults = [*MADE.values(), *NOT_MADE.values()]
    other = rest_site.runner()
    runner = rest_site.runner()
    for _ in range(ROUNDS):
        for name in ("first", "second"):
            rest_site.publish(name, rng.randint(1, 20))
        for _ in range(rng.randint(0, 3)):
            where = COMMIT if rng.random() < 0.7 else {"method": "GET", "path": "/tables/"}
            rest_proxy.inject(rng.choice(faults), **where)
        interfere = rng.random() < 0.4
        jobs = InlineJobs(after=once(lambda: other.drain(threading.Event())) if interfere else lambda: None)
        runner.passes._spark = jobs
        runner.drain(threading.Event())
    rest_proxy.clear()
    rest_site.drain(rest_site.runner())
    rest_site.check("first", "second")
