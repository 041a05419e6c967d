import threading
from typing import Any

from icestream.model.errors import UnavailableError
from icestream.server.flight.subscribe_stream import Flushes


def test_a_slow_store_delays_only_the_answers_and_one_answers_for_all_before() -> None:
    told: list[dict[str, Any]] = []
    begun, proceed = threading.Event(), threading.Event()

    def flush() -> None:
        begun.set()
        assert proceed.wait(60)

    flushes = Flushes(flush, told.append)
    flushes.want(1)
    assert begun.wait(60)
    for number in (2, 3, 4):
        flushes.want(number)
    assert told == []
    proceed.set()
    while {"flushed": 4} not in told:
        pass
    flushes.finish()
    assert told == [{"flushed": 1}, {"flushed": 4}]
    flushes.want(5)
    while {"flushed": 5} not in told:
        pass
    flushes.finish()


def test_a_store_that_is_away_is_said_and_does_not_end_the_stream() -> None:
    told: list[dict[str, Any]] = []
    away = UnavailableError("away")

    def flush() -> None:
        raise away

    flushes = Flushes(flush, told.append)
    flushes.want(1)
    while not told:
        pass
    flushes.finish()
    assert told == [{"flushed": 1, "failure": away.to_dict()}]
