"""Severities of log records: OTLP's numbers, in ranges of four, and the texts of those who send no number."""

RANGES = {"trace": 1, "debug": 5, "info": 9, "warn": 13, "error": 17, "fatal": 21}
"""Where each range begins."""
_SIZE = 4
_TEXTS = {
    "trace": ("trace",),
    "debug": ("debug",),
    "info": ("info", "notice"),
    "warn": ("warn",),
    "error": ("err",),
    "fatal": ("fatal", "crit", "alert", "emerg", "panic"),
}
"""What the usual texts of each begin with: `WARNING`, `err`, `CRITICAL`."""


def severity_text(number: int, text: str) -> str:
    """What the sender calls it, else OTLP's name of the number: `INFO`, `INFO2`; a dash where nothing is said."""
    if text:
        return text
    for name, first in reversed(RANGES.items()):
        if number >= first:
            place = number - first
            return f"{name.upper()}{place + 1 if 0 < place < _SIZE else ''}"
    return "-"


def at_least(severity: str) -> str:
    """The condition for this severity and those above, as queries and filters both understand it."""
    names = list(RANGES)
    begins = [text for name in names[names.index(severity) :] for text in _TEXTS[name]]
    like = " OR ".join(f"severity_text ILIKE '{begin}%'" for begin in begins)
    return f"(severity_number >= {RANGES[severity]} OR (severity_number = 0 AND ({like})))"


def colour_of(severity: str) -> str | None:
    """Of a record's severity as `severity_text` gives it."""
    lowered = severity.lower()
    for name, colour in (("fatal", "red"), ("error", "red"), ("warn", "yellow")):
        if lowered.startswith(_TEXTS[name]):
            return colour
    return None
