"""Several producers that are opened under one name."""

from collections.abc import Callable

import pytest
from tests.unit.wal.conftest import batch, bodies

from icestream.model.errors import ProducerFencedError
from icestream.wal import Append, Log
from icestream.wal.producers import ProducerSessions

OpenLog = Callable[..., Log]


def send(log: Log, text: str, sequence: int, session: int) -> Append:
    append = log.submit(batch(text, producer="p", sequence=sequence), inline=True, session=session)
    if append.error is not None:
        raise append.error
    return append


def test_the_last_that_was_opened_has_the_name(open_log: OpenLog) -> None:
    log = open_log()
    assert log.open_producer("p", 1) == 0
    send(log, "a", 0, session=1)
    assert log.open_producer("p", 2) == 1
    for sequence in (0, 1):  # neither a repetition nor something new: whose they are is not known
        with pytest.raises(ProducerFencedError, match="'p' was opened after"):
            send(log, "b", sequence, session=1)
    assert send(log, "c", 1, session=2).duplicate is False
    assert send(log, "c", 1, session=2).duplicate is True
    assert bodies(log) == ["a", "c"]


def test_after_a_restart_the_first_to_send_has_the_name(open_log: OpenLog) -> None:
    log = open_log()
    log.open_producer("p", 1)
    send(log, "a", 0, session=1)
    log.close()
    log = open_log()
    assert send(log, "a", 0, session=1).duplicate is True
    with pytest.raises(ProducerFencedError):
        send(log, "b", 1, session=2)
    assert log.open_producer("p", 2) == 1
    send(log, "b", 1, session=2)
    assert bodies(log) == ["a", "b"]


def test_those_without_a_session_share_name_and_numbers(open_log: OpenLog) -> None:
    log = open_log()
    log.open_producer("p", 1)
    send(log, "a", 0, session=1)
    assert send(log, "a", 0, session=0).duplicate is True
    assert send(log, "b", 1, session=0).duplicate is False
    assert bodies(log) == ["a", "b"]


def test_the_number_of_names_is_bounded() -> None:
    sessions = ProducerSessions(max_producers=2)
    for number in range(3):
        sessions.open(f"p{number}", 1)
    sessions.check("p0", 2)  # forgotten
    with pytest.raises(ProducerFencedError):
        sessions.check("p2", 2)
