"""Requests that wait together are stored together, and each gets its own answer."""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa
import pytest
from tests.otlp_wire import field, fields

from icestream.model.errors import InvalidMessageError, TooLargeError, UnavailableError
from icestream.telemetry import Signal
from icestream.telemetry.combine import Combiner, TelemetryTarget

TRACES = TelemetryTarget("acme", None, Signal.TRACES)
LOGS = TelemetryTarget("acme", None, Signal.LOGS)
PATIENCE_SECONDS = 60.0


def whole(text: bytes) -> bytes:
    """A request: one field with the text."""
    return field(1, 2, text)


class Stage:
    """Each byte in a request's fields is a row. `!` is no request, `?` a fault, and rows with a `+` are refused.

    The first conversion waits until others have come.
    """

    def __init__(self, *, max_bytes: int = 1000) -> None:
        self.combiner = Combiner(self.convert, self.publish, max_bytes)
        self.published: list[tuple[TelemetryTarget, bytes]] = []
        self.refuse_publishing: Exception | None = None
        self.first_began = threading.Event()
        self.go = threading.Event()

    def convert(self, _signal: Signal, request: bytes) -> pa.RecordBatch:
        text = b"".join(content for _, _, content in fields(request))
        if text == b"first":
            self.first_began.set()
            assert self.go.wait(PATIENCE_SECONDS)
        if b"!" in text:
            raise InvalidMessageError("no request")
        if b"?" in text:
            raise RuntimeError("a fault of the conversion")
        return pa.record_batch({"row": list(text)}, pa.schema([("row", pa.int64())]))

    def publish(self, target: TelemetryTarget, rows: pa.RecordBatch) -> None:
        if self.refuse_publishing is not None:
            raise self.refuse_publishing
        text = bytes(rows["row"].to_pylist())
        if b"+" in text:
            raise TooLargeError("a message is too large")
        self.published.append((target, text))

    def run(self, *requests: tuple[TelemetryTarget, bytes]) -> list[Future[tuple[int, int]]]:
        """The texts come while another one is converted, one after the other."""
        with ThreadPoolExecutor(len(requests) + 1) as pool:
            first = pool.submit(self.combiner.store, LOGS, whole(b"first"))
            assert self.first_began.wait(PATIENCE_SECONDS)
            futures = []
            for number, (target, text) in enumerate(requests, 1):
                futures.append(pool.submit(self.combiner.store, target, whole(text)))
                while sum(map(len, self.combiner._waiting.values())) < number:
                    time.sleep(0.001)
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

    def slow_publish(target: TelemetryTarget, rows: pa.RecordBatch) -> None:
        time.sleep(0.05)  # for whoever would not wait
        publish(target, rows)

    def watched(target: TelemetryTarget, request: bytes) -> tuple[int, int]:
        stored = store(target, request)
        if not any(request[2:] in rows for _, rows in stage.published):
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


@pytest.mark.parametrize(("text", "error"), [(b"!", InvalidMessageError), (b"?", RuntimeError), (b"+", TooLargeError)])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_nobody_suffers_for_another_and_rows_are_counted_once(text: bytes, error: type[Exception], place: int) -> None:
    stage = Stage()
    texts = [b"aaa", b"bb"]
    texts.insert(place, text)
    _, *answers = stage.run(*[(TRACES, text) for text in texts])
    assert isinstance(answers.pop(place).exception(), error)
    assert sorted(rows for _, rows in stage.published[1:]) == [b"aaa", b"bb"]
    assert [answer.result() for answer in answers] == [(3, 24), (2, 16)]


def test_rows_that_are_stored_together_are_shared_out_by_size() -> None:
    stage = Stage()
    _, *answers = stage.run((TRACES, b"a" * 98), (TRACES, b""), (TRACES, b"b" * 48))
    assert len(stage.published) == 2
    shares = [answer.result()[0] for answer in answers]
    assert sum(shares) == 98 + 48
    assert sum(answer.result()[1] for answer in answers) == 8 * (98 + 48)
    assert shares[0] > shares[2] > shares[1]


def test_a_fault_of_the_log_is_heard_by_those_whose_rows_it_had_and_nobody_else() -> None:
    stage = Stage()
    stage.refuse_publishing = RuntimeError("a fault")
    _, joined, bad, other = stage.run((TRACES, b"a"), (TRACES, b"!"), (TRACES, b"c"))
    assert isinstance(bad.exception(), InvalidMessageError)
    assert joined.exception() is other.exception() is stage.refuse_publishing


def test_they_are_joined_only_up_to_a_limit() -> None:
    stage = Stage(max_bytes=2 * len(whole(b"xy")))
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
