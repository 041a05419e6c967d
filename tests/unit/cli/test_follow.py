import pytest

from icestream.cli.follow import OutageNotice
from icestream.model.errors import UnavailableError


def test_each_absence_is_said_once_and_its_end_once(capsys: pytest.CaptureFixture[str]) -> None:
    notice = OutageNotice("the broker at grpc://here:1")
    away = UnavailableError("cannot reach it", operation="read")
    for seen in (None, away, away, None, None, away, None):
        notice.update(seen)
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == 2 * [
        "the broker at grpc://here:1 cannot be reached; waiting for it",
        "the broker at grpc://here:1 is back",
    ]
