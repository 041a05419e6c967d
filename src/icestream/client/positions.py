"""Where reading starts, as callers of the client may say it."""

from datetime import datetime
from typing import Any

from icestream.model.errors import InvalidRequestError
from icestream.model.offsets import StartPosition

Start = str | int | datetime | dict[str, Any] | StartPosition
"""`"earliest"`, `"latest"`, an offset, a time (the first message published at or after it), `"snapshot:ID"` or
`"tag:NAME"` (the first message that this state of the table does not hold)."""


def position_of(start: Any) -> StartPosition:
    if isinstance(start, StartPosition):
        return start
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise InvalidRequestError("a start time needs a time zone", operation="start position")
        return StartPosition.timestamp(round(start.timestamp() * 1_000_000))
    return StartPosition.parse(start) if isinstance(start, str) else StartPosition.from_json(start)
