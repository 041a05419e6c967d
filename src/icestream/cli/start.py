"""`--from`: where reading starts."""

import re
from datetime import UTC, datetime

import click

from icestream.model.offsets import StartPosition

_OFFSET = re.compile(r"[0-9]{1,18}")


def parse_start(_ctx: click.Context, _param: click.Parameter, value: str) -> StartPosition:
    """`earliest`, `latest`, an offset, or an RFC 3339 time; a time without a zone is UTC."""
    if value in {"earliest", "latest"}:
        return StartPosition(value)
    if _OFFSET.fullmatch(value):
        return StartPosition.offset(int(value))
    try:
        moment = datetime.fromisoformat(value)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return StartPosition.timestamp(round(moment.timestamp() * 1_000_000))
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{value!r} is none of: earliest, latest, an offset, a time such as 2026-01-31T12:00:00Z"
        ) from None
