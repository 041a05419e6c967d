"""What `produce` says while the broker accepts nothing."""

import inspect
import threading

import pytest

from icestream.cli.produce import RETRY_TIMEOUT_SECONDS, RefusalWatch
from icestream.client import Client
from icestream.model.errors import DiskFullError, IcestreamError, UnavailableError

PATIENCE_S = 60.0


def test_a_reason_is_said_once_and_again_when_it_changes(capsys: pytest.CaptureFixture[str]) -> None:
    answers: list[IcestreamError | None] = [
        None,
        DiskFullError("5 MB are left"),
        None,
        DiskFullError("4 MB are left"),
        UnavailableError("away"),
    ]
    asked: list[float] = []
    all_seen = threading.Event()

    def trouble(patience_s: float) -> IcestreamError | None:
        if len(asked) >= len(answers):
            all_seen.set()
            return answers[-1]
        asked.append(patience_s)
        return answers[len(asked) - 1]

    with RefusalWatch(trouble, patience_s=3.0, check_every_s=0.001):
        assert all_seen.wait(PATIENCE_S)
    assert set(asked) == {3.0}
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [
        "waiting: disk_full: 5 MB are left; trying again",
        "waiting: unavailable: away; trying again",
    ]


def test_the_timeout_is_the_clients_own_unless_it_is_given() -> None:
    assert inspect.signature(Client.producer).parameters["retry_timeout"].default == RETRY_TIMEOUT_SECONDS
