"""What `produce --ack table` says while it waits."""

import threading
from typing import Any, cast

import pytest

from icestream.cli.background_watch import CommitWatch, commit_trouble
from icestream.client import Client
from icestream.model.clock import now_us
from icestream.model.errors import UnavailableError

PATIENCE_S = 60.0


def figures(reported_us: int | None = None, error: str | None = None) -> dict[str, Any]:
    topics = {} if error is None else {"a/b": {"error": error}}
    return {"pipeline": {"reported_us": reported_us, "topics": topics}}


def test_a_broker_that_never_heard_of_a_pipeline() -> None:
    assert "no pipeline has reported to this broker yet" in str(commit_trouble(figures()))


def test_a_pipeline_that_is_silent_for_long() -> None:
    trouble = str(commit_trouble(figures(now_us() - 3_600_000_000)))
    assert "last reported 1 h 0 min ago" in trouble


def test_a_pipeline_that_cannot_write_the_topic() -> None:
    assert commit_trouble(figures(now_us(), "no room")) == "the pipeline cannot write it: no room"


def test_a_tenant_is_not_told_of_the_pipeline_as_a_whole() -> None:
    assert commit_trouble({"pipeline": {"topics": {}}}) is None


def test_a_pipeline_at_work_is_no_trouble() -> None:
    assert commit_trouble(figures(now_us())) is None


class Broker:
    """Fails once, then answers without a pipeline."""

    def __init__(self) -> None:
        self.asked = 0
        self.told = threading.Event()

    def stats(self, topic: str) -> dict[str, Any]:
        assert topic == "a/b"
        self.asked += 1
        if self.asked == 1:
            raise UnavailableError("away")
        if self.asked == 2:
            return figures(now_us())
        self.told.set()
        return figures()


def test_it_is_said_once_and_only_when_nothing_is_confirmed(capsys: pytest.CaptureFixture[str]) -> None:
    broker = Broker()
    with CommitWatch(cast("Client", broker), "a/b", lambda: 0, patience_s=0.001):
        assert broker.told.wait(PATIENCE_S)
    assert broker.asked == 3
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("waiting for the table of a/b: no pipeline")
    assert len(told.err.splitlines()) == 1


def test_nothing_is_said_while_messages_are_confirmed(capsys: pytest.CaptureFixture[str]) -> None:
    broker, confirmed, enough = Broker(), 0, threading.Event()

    def count() -> int:
        nonlocal confirmed
        confirmed += 1
        if confirmed > 20:
            enough.set()
        return confirmed

    with CommitWatch(cast("Client", broker), "a/b", count, patience_s=0.001):
        assert enough.wait(PATIENCE_S)
    assert broker.asked == 0
    assert capsys.readouterr().err == ""
