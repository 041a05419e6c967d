"""Progress elsewhere than on a terminal: a line now and then."""

from typing import cast

import pytest

from icestream.cli.migrate import MigrationProgress
from icestream.client import Client

CLIENT = cast("Client", None)  # only asked while the table is waited for


def test_a_line_says_how_far_a_step_is(capsys: pytest.CaptureFixture[str]) -> None:
    with MigrationProgress(CLIENT, line_every_s=0) as steps:
        steps.begin("moving", 2_000, "rows")
        steps.advance(500)
        steps.advance(1_000)
        steps.begin("verifying", 10, "rows")
        steps.advance(10)
    out, err = capsys.readouterr()
    first, second, third = err.splitlines()
    assert out == ""
    assert first.startswith("moving: 500 of 2,000 rows, ")
    assert second.startswith("moving: 1,500 of 2,000 rows, ")
    assert third.startswith("verifying: 10 of 10 rows, ")
    assert steps.advances == 3


def test_quick_work_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with MigrationProgress(CLIENT) as steps:
        steps.begin("moving", 10, "rows")
        steps.advance(10)
    assert capsys.readouterr().err == ""
