"""What is printed is what was said: brackets in errors are no markup."""

import pytest

from icestream.cli.output import console, table


def test_brackets_stay(capsys: pytest.CaptureFixture[str]) -> None:
    shown = table("error")
    shown.add_row("gone [/a/place] and [red]")
    console().print(shown)
    console().print("damaged [/another/place]; look there", style="red", soft_wrap=True)
    said = capsys.readouterr().out
    assert "gone [/a/place] and [red]" in said
    assert "damaged [/another/place]; look there" in said
