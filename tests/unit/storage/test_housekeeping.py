"""Regular work: it comes again whatever happens, at once when it is asked for, and does not hold up the end."""

import threading

from icestream.storage.housekeeping import Periodic, stop_all

PATIENCE_SECONDS = 30.0
NEVER = 86_400.0


def test_work_that_fails_comes_again() -> None:
    again = threading.Event()
    calls: list[int] = []

    def work() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise TypeError("something that nobody thought of")
        again.set()

    thread = Periodic("work", 0.001, work)
    thread.start()
    assert again.wait(PATIENCE_SECONDS)
    stop_all([thread], PATIENCE_SECONDS)
    assert not thread.is_alive()


def test_work_that_is_in_a_hurry_does_not_wait_for_its_interval() -> None:
    called = threading.Event()
    thread = Periodic("work", NEVER, called.set)
    thread.start()
    thread.hurry()
    assert called.wait(PATIENCE_SECONDS)
    stop_all([thread], PATIENCE_SECONDS)
    assert not thread.is_alive()


def test_work_that_hangs_does_not_hold_up_the_end() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(2 * PATIENCE_SECONDS)

    hanging, idle = Periodic("hanging", 0.001, work), Periodic("idle", NEVER, lambda: None)
    for thread in (hanging, idle):
        thread.start()
    assert begun.wait(PATIENCE_SECONDS)
    stop_all([hanging, idle], 0.01)
    idle.join(PATIENCE_SECONDS)
    assert not idle.is_alive()
    assert hanging.is_alive()
    go_on.set()
    hanging.join(PATIENCE_SECONDS)
    assert not hanging.is_alive()


def test_work_of_many_pieces_rests_in_between_and_ends_at_once() -> None:
    pieces: list[bool] = []
    resting = threading.Event()

    def work() -> None:
        for _ in range(1000):
            resting.set()
            pieces.append(keeper.rest(3600.0))
            if not pieces[-1]:
                return

    keeper = Periodic("keeper", 0.001, work)
    keeper.start()
    assert resting.wait(PATIENCE_SECONDS)
    stop_all([keeper], PATIENCE_SECONDS)
    assert pieces == [False]
    assert not keeper.is_alive()
