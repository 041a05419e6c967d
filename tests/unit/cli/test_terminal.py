import json
import sys

import pytest
from rich.cells import cell_len

from icestream.cli.output import Paint, cropped, has_colours, json_text, padded, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain grüße 日本語 🧊", "plain grüße 日本語 🧊"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("\x9b2J\x7f", r"\x9b2J\x7f"),
        ("\u202eevil\u2066", r"\u202eevil\u2066"),
        ("\U000e0001", r"\U000e0001"),
        ("a\u00a0b\u3000c", "a b c"),
        ("back\\slash", "back\\slash"),
    ],
)
def test_what_does_not_print_itself_is_an_escape(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_no_character_at_all_controls_the_terminal() -> None:
    every = "".join(map(chr, (*range(0xD800), *range(0xE000, 0x110000))))
    assert printable(every).isprintable()
    line = json_text(every)
    assert json.loads(line) == every
    controls = {*range(32), *range(0x7F, 0xA0), *range(0x2028, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F}
    assert not controls & set(map(ord, line))


@pytest.mark.parametrize("text", ["short", "a longer text", "日本語日本語日本語", "e\u0301" * 20, ""])
@pytest.mark.parametrize("cells", [1, 5, 8, 40])
def test_texts_are_cut_and_filled_by_what_they_take_on_the_screen(text: str, cells: int) -> None:
    assert cell_len(cropped(text, cells)) <= cells
    assert cell_len(padded(text, cells)) == cells
    if cell_len(text) <= cells:
        assert cropped(text, cells) == text
    else:
        assert cropped(text, cells).endswith("…")


class Terminal:
    def __init__(self, *, real: bool) -> None:
        self._real = real

    def isatty(self) -> bool:
        return self._real


def test_colours_are_for_terminals_that_may_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "stdout", Terminal(real=False))
    assert not has_colours()
    monkeypatch.setattr(sys, "stdout", Terminal(real=True))
    assert has_colours()
    assert not has_colours(wanted=False)
    monkeypatch.setenv("TERM", "dumb")
    assert not has_colours()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "")  # means nothing, as the convention says
    assert has_colours()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not has_colours()


def test_paint_without_colours_is_the_text() -> None:
    assert Paint(enabled=False)("x", "red", bold=True) == "x"
    assert Paint(enabled=True)("x") == "x"
    assert Paint(enabled=True)("x", "red") == "\x1b[31mx\x1b[0m"
