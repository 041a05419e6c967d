"""Numbers, sizes and times as people read them."""

from datetime import UTC, datetime, timedelta
from functools import lru_cache

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
