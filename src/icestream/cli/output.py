"""Output for people: tables and progress, on terminals and elsewhere."""

import json
import os
import sys
import time
import unicodedata
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Self

import click
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table


def console(*, err: bool = False) -> Console:
    """For tables and progress. Not a terminal: no colours, no wrapping to a width that nobody has.

    Brackets are brackets, not markup: places in errors stand in them.
    """
    made = Console(stderr=err, highlight=False, markup=False, emoji=False)
    if made.is_terminal:
        return made
    return Console(stderr=err, highlight=False, markup=False, emoji=False, width=200, no_color=True)


def table(*columns: str, numbers: tuple[str, ...] = (), title: str | None = None) -> Table:
    """An empty table; the columns in `numbers` are set to the right."""
    made = Table(box=SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    for name in columns:
        made.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    return made


# --------------------
# Numbers, sizes and times as people read them.


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
    """A range of offsets as all commands say it: `offsets 0 to 99, next 100`; the last one belongs to it."""
    return f"offsets {first} to {end - 1}, next {end}" if end > first else f"no offsets, next {end}"


def size_text(nbytes: float) -> str:
    """`0 B`, `1.5 KiB`, `12 MiB`."""
    unit = 0
    while nbytes >= _STEP and unit < len(_UNITS) - 1:
        nbytes /= _STEP
        unit += 1
    return f"{_short(nbytes) if unit else round(nbytes)} {_UNITS[unit]}"


def rate_text(number: float, seconds: float) -> str:
    """How many a second; nothing is said of no time."""
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
    """Three digits."""
    if number < _TEN:
        return f"{number:.2f}"
    return f"{number:.1f}" if number < _HUNDRED else f"{number:.0f}"


@lru_cache(maxsize=4096)
def rfc3339(time_us: int) -> str:
    """`2026-01-31T12:00:00.000001Z`. Messages of one batch have one time, so most calls find it made."""
    return (_EPOCH + timedelta(microseconds=time_us)).isoformat(timespec="microseconds").replace("+00:00", "Z")


# --------------------
# What others have written, on a terminal: names, log lines and attributes that may be anything.
#
# A sender's text must not move the cursor, change colours, reorder what is read or pretend to be another line. So every
# character that does not print itself is written as an escape.


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


# --------------------
# The process's own output streams.


# --------------------
# Progress of work in steps, on stderr: a bar on a terminal, elsewhere a line now and then.


_LINE_EVERY_S = 10.0


class Steps:
    """`done` grows whenever there is progress, whatever the step."""

    def __init__(self, *, line_every_s: float = _LINE_EVERY_S) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[said]}"))
        self._bars = Progress(*columns, TimeRemainingColumn(), console=console(err=True), transient=True)
        self._task: TaskID | None = None
        self._line_every_s = line_every_s
        self.done = 0
        self._what, self._unit = "", ""
        self._reached, self._total = 0.0, 0
        self._began = self._told = time.monotonic()

    def begin(self, what: str, total: int, unit: str) -> None:
        self._what, self._total, self._unit = what, total, unit
        self._reached = 0.0
        self._began = self._told = time.monotonic()
        if self._bars.console.is_terminal:
            if self._task is not None:
                self._bars.remove_task(self._task)
            self._task = self._bars.add_task(what, total=total, said="")

    def advance(self, amount: float) -> None:
        self._reached += amount
        self.done += 1
        now = time.monotonic()
        if self._task is not None:
            self._bars.update(self._task, completed=self._reached, said=self._said(now))
        elif now - self._told >= self._line_every_s:
            self._told = now
            click.echo(f"{self._what}: {self._said(now)}", err=True)

    def _said(self, now: float) -> str:
        speed = rate_text(self._reached, now - self._began)
        return f"{count_text(int(self._reached))} of {count_text(self._total)} {self._unit}, {speed}"

    def __enter__(self) -> Self:
        if self._bars.console.is_terminal:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars.console.is_terminal:
            self._bars.stop()
