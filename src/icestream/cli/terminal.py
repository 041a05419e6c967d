"""What others have written, on a terminal: names, log lines and attributes that may be anything.

A sender's text must not move the cursor, change colours, reorder what is read or pretend to be another line. So every
character that does not print itself is written as an escape.
"""

import json
import os
import sys
import unicodedata
from typing import Any

import click
from rich.cells import cell_len, set_cell_size

ELLIPSIS = "…"
_SHORT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_BYTE = 0xFF
_BMP = 0xFFFF


def printable(text: str) -> str:
    """The text on one line: control and formatting characters as escapes, all other spaces as a space."""
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    if unicodedata.category(character) == "Zs":
        return " "
    code = ord(character)
    if code <= _BYTE:
        return _SHORT_ESCAPES.get(character, f"\\x{code:02x}")
    return f"\\u{code:04x}" if code <= _BMP else f"\\U{code:08x}"


def cropped(text: str, cells: int) -> str:
    """At most so many cells of a terminal, of which wide characters take two; an ellipsis says that there was more."""
    if (len(text) if text.isascii() else cell_len(text)) <= cells:
        return text
    return set_cell_size(text[:cells], max(0, cells - 1)).rstrip() + ELLIPSIS


def padded(text: str, cells: int) -> str:
    """Cropped, or filled up with spaces, to so many cells."""
    shown = cropped(text, cells)
    return shown + " " * (cells - (len(shown) if shown.isascii() else cell_len(shown)))


def json_text(value: Any) -> str:
    """One line of JSON that is as safe to look at as `printable` text, and the same value when it is read."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)


def has_colours(*, wanted: bool = True) -> bool:
    """Whether stdout is a terminal that shows them, and nobody has said that it is not to (https://no-color.org)."""
    refused = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return wanted and not refused and sys.stdout.isatty()


class Paint:
    """Colours, or none."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled

    def __call__(self, text: str, colour: str | None = None, *, bold: bool = False, dim: bool = False) -> str:
        if not self._enabled or not (colour or bold or dim):
            return text
        return click.style(text, fg=colour, bold=bold or None, dim=dim or None)
