"""Start positions as offsets, over all tiers. The catalog is asked only for what the log cannot tell."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from icestream.model.errors import InvalidRequestError, OffsetOutOfRangeError, SnapshotExpiredError
from icestream.model.offsets import StartPosition
from icestream.wal import Log, offset_at_time

if TYPE_CHECKING:
    from icestream.table import TopicTable

_MAX_TIME_US = (1 << 63) - 1
_MAX_LOOKS = 5


def resolve(position: StartPosition, log: Log | None, find_table: "Callable[[], TopicTable | None]", place: str) -> int:
    """The offset that a position means now; without a log, in the table alone.

    Raises `OffsetOutOfRangeError` for an offset that no tier has. Without a log it may be past the table's end: the
    log that is not there may have it.
    """
    match position.kind:
        case "earliest":
            return earliest_offset(log, find_table)
        case "latest":
            return log.durable_end if log is not None else _committed(find_table())
        case "timestamp":
            return _at_time(min(position.value, _MAX_TIME_US), log, find_table)
        case "snapshot" | "tag":
            table = find_table()
            if table is None:
                raise InvalidRequestError(
                    f"{position}: the topic has no table yet", operation="start position", place=place
                )
            by_tag = position.kind == "tag"
            return table.offset_of_tag(position.value) if by_tag else table.offset_of_snapshot(position.value)
    if log is not None:
        _check(position.value, log, find_table, place)
    return int(position.value)


def earliest_offset(log: Log | None, find_table: "Callable[[], TopicTable | None]") -> int:
    """The lowest offset that any tier has."""
    start = log.start_offset if log is not None else 0
    if log is not None and start == 0:
        return 0
    first = _asked(find_table, lambda table: table.first_offset())
    if first is None:
        return start
    return min(first, start) if log is not None else first


def _at_time(time_us: int, log: Log | None, find_table: "Callable[[], TopicTable | None]") -> int:
    found = offset_at_time(log, time_us) if log is not None else None
    if found is not None and log is not None and (log.start_offset == 0 or found > log.start_offset):
        return found  # messages before that time are in the log too
    in_table = _asked(find_table, lambda table: table.offset_at_time(time_us))
    if found is None or in_table is None:
        return (found if in_table is None else in_table) or 0
    return min(found, in_table)


def _asked(find_table: "Callable[[], TopicTable | None]", ask: "Callable[[TopicTable], int | None]") -> int | None:
    """What the table says; None if there is none. A state that is cleaned up while it is asked is looked at anew."""
    for _ in range(_MAX_LOOKS):
        table = find_table()
        try:
            return ask(table) if table is not None else None
        except SnapshotExpiredError as error:
            expired = error
    raise expired


def _committed(table: "TopicTable | None") -> int:
    return table.ledger.committed_offset if table is not None else 0


def _check(offset: int, log: Log, find_table: "Callable[[], TopicTable | None]", place: str) -> None:
    visible = log.visible
    if visible.start_offset <= offset <= visible.end_offset:
        return
    if offset < visible.start_offset and offset < _committed(find_table()):
        return
    where = (
        f"in the topic, which ends before {visible.end_offset}"
        if offset > visible.end_offset
        else f"in the log, which begins at {visible.start_offset}, nor in the table"
    )
    raise OffsetOutOfRangeError(
        f"offset {offset} is not {where}",
        operation="read",
        place=place,
        remedy="start at earliest, latest or an offset in between",
        details={"start_offset": visible.start_offset, "durable_end": visible.end_offset},
    )
