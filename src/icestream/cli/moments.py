"""`--since`, `--until`: a moment, as a time or as how long ago it was."""

import re

import click

from icestream.model.clock import now_us
from icestream.model.errors import InvalidRequestError
from icestream.model.offsets import StartPosition

_UNITS_US = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000, "w": 604_800_000_000}
_AGO = re.compile(r"(?:[0-9]{1,9}[smhdw])+", re.ASCII)
_PART = re.compile(r"([0-9]+)([smhdw])", re.ASCII)


def parse_moment(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    """For options: microseconds since 1970; None where nothing is given."""
    return None if value is None else moment_us(value, now_us())


def moment_us(text: str, now: int) -> int:
    """`15m`, `1h30m`, `2d`: so long before `now`. Or a time; one without a zone is UTC."""
    if _AGO.fullmatch(text):
        return max(0, now - sum(int(count) * _UNITS_US[unit] for count, unit in _PART.findall(text)))
    try:
        found = StartPosition.parse(text)
    except InvalidRequestError:
        found = None
    if found is None or found.kind != "timestamp":
        raise click.BadParameter(f"{text!r:.80} is neither a time such as 2026-01-31T12:00:00Z nor one ago such as 15m")
    return int(found.value)
