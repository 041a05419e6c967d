"""Requests that wait together are stored together, and each gets its own answer."""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa
import pytest

from icestream.model.errors import InvalidMessageError, UnavailableError
from icestream.telemetry import Signal
from icestream.telemetry.combine import Combiner, Target

TRACES = Target("acme", None, Signal.TRACES)
LOGS = Target("acme", None, Signal.LOGS)
PATIENCE_SECONDS = 60.0


class Stage:
    """Each byte of a request is a row, `!` is no request; the first conversion waits until others have come."""

    def __init__(self, *, max_bytes: int = 1000) -> None:
        self.combiner = Combiner(self.convert, self.publish, max_bytes)
        self.converted: list[bytes] = []
        self.published: list[tuple[Target, bytes]] = []
        self.refuse_publishing: Exception | None = None
        self.first_began = threading.Event()
        self.go = threading.Event()

    def convert(self, _signal: Signal, request: bytes) -> pa.RecordBatch:
        self.converted.append(request)
        if request == b"first":
            self.first_began.set()
            assert self.go.wait(PATIENCE_SECONDS)
        if b"!" in request:
            raise InvalidMessageError("no request")
        return pa.record_batch({"row": list(request)}, pa.schema([("row", pa.int64())]))

    def publish(self, target: Target, rows: pa.RecordBatch) -> None:
        if self.refuse_publishing is not None:
            raise self.refuse_publishing
        self.published.append((target, bytes(rows["row"].to_pylist())))

    def run(self, *requests: tuple[Target, bytes]) -> list[Future[tuple[int, int]]]:
        """The requests come while another one is converted."""
        with ThreadPoolExecutor(len(requests) + 1) as pool:
            first = pool.submit(self.combiner.store, LOGS, b"first")
            assert self.first_began.wait(PATIENCE_SECONDS)
            futures = [pool.submit(self.combiner.store, target, request) for target, request in requests]
            while sum(map(len, self.combiner._waiting.values())) < len(requests):
                pass
            self.go.set()
        assert not self.combiner._waiting
        return [first, *futures]


def test_requests_for_one_topic_that_wait_together_become_one_batch() -> None:
    stage = Stage()
    answers = stage.run(*[(TRACES, b"%d" % number) for number in range(8)])
    assert [target for target, _ in stage.published] == [LOGS, TRACES]
    assert sorted(stage.published[1][1]) == sorted(b"01234567")
    assert sum(future.result()[0] for future in answers) == len(b"first") + 8


def test_nobody_is_answered_before_the_rows_are_stored() -> None:
    stage = Stage()
    store, publish = stage.combiner.store, stage.publish
    too_early: list[bytes] = []

    def slow_publish(target: Target, rows: pa.RecordBatch) -> None:
        time.sleep(0.05)  # for whoever would not wait
        publish(target, rows)

    def watched(target: Target, request: bytes) -> tuple[int, int]:
        stored = store(target, request)
        if not any(request in rows for _, rows in stage.published):
            too_early.append(request)
        return stored

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage.combiner, "_publish", slow_publish)
        patch.setattr(stage.combiner, "store", watched)
        answers = stage.run(*[(TRACES, b"%d" % number) for number in range(8)])
    assert [future.exception() for future in answers] == [None] * 9
    assert too_early == []


def test_topics_are_not_mixed() -> None:
    stage = Stage()
    stage.run((TRACES, b"a"), (LOGS, b"b"), (TRACES, b"c"), (LOGS, b"d"))
    assert sorted((target.signal, bytes(sorted(rows))) for target, rows in stage.published[1:]) == [
        (Signal.LOGS, b"bd"),
        (Signal.TRACES, b"ac"),
    ]


def test_a_bad_one_is_refused_alone() -> None:
    stage = Stage()
    _, good, bad, other = stage.run((TRACES, b"a"), (TRACES, b"!"), (TRACES, b"c"))
    assert good.exception() is None
    assert other.exception() is None
    assert isinstance(bad.exception(), InvalidMessageError)
    assert sorted(rows for _, rows in stage.published[1:]) == [b"a", b"c"]


def test_they_are_joined_only_up_to_a_limit() -> None:
    stage = Stage(max_bytes=4)
    stage.run(*[(TRACES, b"xy")] * 5)
    assert sorted(len(rows) for _, rows in stage.published[1:]) == [2, 4, 4]
    large = Stage(max_bytes=4)
    large.run((TRACES, b"larger than that"))
    assert large.published[1] == (TRACES, b"larger than that")


@pytest.mark.parametrize("error", [UnavailableError("the disk is away"), RuntimeError("a fault")])
def test_everybody_hears_of_a_failure(error: Exception) -> None:
    stage = Stage()
    stage.refuse_publishing = error
    for future in stage.run((TRACES, b"a"), (TRACES, b"b"), (TRACES, b"c")):
        assert future.exception() is error


def test_an_empty_request_stores_nothing() -> None:
    stage = Stage()
    assert stage.combiner.store(TRACES, b"") == (0, 0)
    assert stage.published == []
