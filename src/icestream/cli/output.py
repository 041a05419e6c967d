"""Output: tables, numbers and text for people, JSON for machines."""

import contextlib
import functools
import json
import os
import sys
import unicodedata
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table


def console(*, err: bool = False) -> Console:
    """Return a console for tables and progress. In a pipe or file it has no colours and does not wrap.

    Markup is off: error messages contain brackets.
    """
    made = Console(stderr=err, highlight=False, markup=False, emoji=False)
    if made.is_terminal:
        return made
    return Console(stderr=err, highlight=False, markup=False, emoji=False, width=200, no_color=True)


def table(*columns: str, numbers: tuple[str, ...] = (), title: str | None = None) -> Table:
    """Return an empty table; the columns in `numbers` are right-aligned."""
    made = Table(box=SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    for name in columns:
        made.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    return made


def print_json(value: Any) -> None:
    """Print `value` on one line."""
    click.echo(json.dumps(value, ensure_ascii=False))


@contextlib.contextmanager
def progress_bar(description: str) -> Iterator[Callable[..., None]]:
    """Show a progress bar on stderr; yield its update, as in `update(completed=1, total=2, description="files")`."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(err=True), transient=True) as bars:
        yield functools.partial(bars.update, bars.add_task(description, total=None))


# Numbers, sizes and times

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STEP = 1024
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_MINUTE_S = 60
_HOUR_S = 3600
_TEN = 10
_HUNDRED = 100
NOTHING = "-"


def count_text(number: int) -> str:
    return f"{number:,}"


def plural(number: int, noun: str) -> str:
    """`1 message`, `2,000 messages`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def offsets_text(first: int, end: int) -> str:
    """`offsets 0 to 99, next 100`: all commands print ranges of offsets so."""
    return f"offsets {first} to {end - 1}, next {end}" if end > first else f"no offsets, next {end}"


def size_text(nbytes: float) -> str:
    """`0 B`, `1.5 KiB`, `12 MiB`."""
    unit = 0
    while nbytes >= _STEP and unit < len(_UNITS) - 1:
        nbytes /= _STEP
        unit += 1
    return f"{_short(nbytes) if unit else round(nbytes)} {_UNITS[unit]}"


def rate_text(number: float, seconds: float) -> str:
    """`1,200/s`; a dash for no time at all."""
    if seconds <= 0:
        return NOTHING
    rate = number / seconds
    return f"{rate:,.0f}/s" if rate >= _TEN or not rate else f"{rate:.1f}/s"


def duration_text(seconds: float) -> str:
    """`0.68 ms`, `1.20 s`, `2 min 5 s`, `3 h 20 min`."""
    if seconds < 1:
        return f"{_short(seconds * 1000)} ms"
    if seconds < _MINUTE_S:
        return f"{_short(seconds)} s"
    if seconds < _HOUR_S:
        return f"{seconds // _MINUTE_S:.0f} min {seconds % _MINUTE_S:.0f} s"
    return f"{seconds // _HOUR_S:.0f} h {seconds % _HOUR_S // _MINUTE_S:.0f} min"


def minutes_text(minutes: int | None) -> str:
    return NOTHING if minutes is None else f"{minutes:,} min"


def _short(number: float) -> str:
    """Round to three digits."""
    if number < _TEN:
        return f"{number:.2f}"
    return f"{number:.1f}" if number < _HUNDRED else f"{number:.0f}"


@functools.lru_cache(maxsize=4096)
def rfc3339(time_us: int) -> str:
    """`2026-01-31T12:00:00.000001Z`. Cached: messages of one batch have one time."""
    return (_EPOCH + timedelta(microseconds=time_us)).isoformat(timespec="microseconds").replace("+00:00", "Z")


# Text from senders, on a terminal. It must not move the cursor, change colours, reorder the line or look like another
# line. So every character that is not printable is written as an escape.

ELLIPSIS = "…"
_SHORT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_BYTE = 0xFF
_BMP = 0xFFFF


def printable(text: str) -> str:
    """Return the text on one line: control and formatting characters as escapes, every kind of space as a space."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    if unicodedata.category(character) == "Zs":
        return " "
    code = ord(character)
    if code <= _BYTE:
        return _SHORT_ESCAPES.get(character, f"\\x{code:02x}")
    return f"\\u{code:04x}" if code <= _BMP else f"\\U{code:08x}"


def cropped(text: str, cells: int) -> str:
    """Cut to a width in terminal cells (a wide character takes two); an ellipsis marks the cut."""
    if (len(text) if text.isascii() else cell_len(text)) <= cells:
        return text
    return set_cell_size(text[:cells], max(0, cells - 1)).rstrip() + ELLIPSIS


def padded(text: str, cells: int) -> str:
    """Cut or fill with spaces to exactly this width."""
    shown = cropped(text, cells)
    return shown + " " * (cells - (len(shown) if shown.isascii() else cell_len(shown)))


def json_text(value: Any) -> str:
    """Return one line of JSON that is as safe on a terminal as `printable` text."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)


def has_colours(*, wanted: bool = True) -> bool:
    """Return whether stdout is a terminal with colours and nothing turns them off (https://no-color.org)."""
    refused = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return wanted and not refused and sys.stdout.isatty()


class Paint:
    """Applies colours, unless they are off."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled

    def __call__(self, text: str, colour: str | None = None, *, bold: bool = False, dim: bool = False) -> str:
        if not self._enabled or not (colour or bold or dim):
            return text
        return click.style(text, fg=colour, bold=bold or None, dim=dim or None)
