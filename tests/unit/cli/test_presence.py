import pytest

from icestream.cli.following import Presence
from icestream.model.errors import UnavailableError


def test_each_absence_is_said_once_and_its_end_once(capsys: pytest.CaptureFixture[str]) -> None:
    presence = Presence("the broker at grpc://here:1")
    away = UnavailableError("cannot reach it", operation="read")
    for seen in (None, away, away, None, None, away, None):
        presence.note(seen)
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == 2 * [
        "the broker at grpc://here:1 is away; waiting for it",
        "the broker at grpc://here:1 is back",
    ]
