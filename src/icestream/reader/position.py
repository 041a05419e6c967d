"""Resolving start positions to offsets, over all tiers. The catalog is read only where log and cloud do not suffice."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from icestream.model.errors import IcestreamError, InvalidRequestError, OffsetOutOfRangeError, SnapshotExpiredError
from icestream.model.offsets import StartPosition
from icestream.reader.cloud_tier import CloudTier
from icestream.wal import Log, offset_at_time

if TYPE_CHECKING:
    from icestream.table import TopicTable

_MAX_TIME_US = (1 << 63) - 1
_MAX_LOOKS = 5


def resolve(
    position: StartPosition,
    log: Log | None,
    find_table: "Callable[[], TopicTable | None]",
    place: str,
    cloud: CloudTier | None = None,
) -> int:
    """Return the offset that a position means now; without a log, in the table alone.

    Raise `OffsetOutOfRangeError` for an offset that no tier has. Without a log it may be past the table's end: the
    log of a broker may have it.
    """
    match position.kind:
        case "earliest":
            return earliest_offset(log, find_table, cloud)
        case "latest":
            return log.durable_end if log is not None else _committed(find_table())
        case "timestamp":
            return _at_time(min(position.value, _MAX_TIME_US), log, find_table, cloud)
        case "snapshot" | "tag":
            table = find_table()
            if table is None:
                raise InvalidRequestError(
                    f"{position}: the topic has no table yet", operation="start position", place=place
                )
            by_tag = position.kind == "tag"
            return table.offset_of_tag(position.value) if by_tag else table.offset_of_snapshot(position.value)
    if log is not None:
        _check(position.value, log, find_table, place, cloud)
    return int(position.value)


def earliest_offset(
    log: Log | None, find_table: "Callable[[], TopicTable | None]", cloud: CloudTier | None = None
) -> int:
    """Return the lowest offset that any tier has."""
    starts = [log.start_offset] if log is not None else []
    if cloud is not None and 0 not in starts and (first := cloud.first_offset) is not None:
        starts.append(first)
    if 0 not in starts and (first := _asked(find_table, lambda table: table.first_offset())) is not None:
        starts.append(first)
    return min(starts, default=0)


def _at_time(
    time_us: int, log: Log | None, find_table: "Callable[[], TopicTable | None]", cloud: CloudTier | None
) -> int:
    found: list[int] = []
    first = 0
    if log is not None:
        start, first = log.start_offset, log.stream.reset_before(time_us)
        found.append(offset_at_time(log, time_us))
        if start <= first or found[0] > start:
            return found[0]  # the log also has messages before that time
        if cloud is not None:
            try:
                is_known = _look_in_cloud(time_us, start, cloud, found, first)
            except IcestreamError:
                if _committed(find_table()) < start:
                    raise
                is_known = False  # the table has all that is not in the log
            if is_known:
                return min(found)
    in_table = _asked(find_table, lambda table: table.offset_at_time(time_us, first))
    if in_table is not None:
        found.append(in_table)
    return min(found, default=0)


def _look_in_cloud(time_us: int, log_start: int, cloud: CloudTier, found: list[int], not_before: int) -> bool:
    """Add the objects' first offset from a time on; return whether that is certainly the first one of the topic."""
    first, end = cloud.first_offset, cloud.end_offset
    if first is None:
        return False
    in_cloud = cloud.offset_at_time(time_us, not_before)
    if in_cloud is not None:
        found.append(in_cloud)
        return first <= not_before or in_cloud > first
    return end >= log_start


def _asked(find_table: "Callable[[], TopicTable | None]", ask: "Callable[[TopicTable], int | None]") -> int | None:
    """Ask the table; return None if there is none. If its snapshot was removed meanwhile, read the catalog again."""
    for _ in range(_MAX_LOOKS):
        table = find_table()
        try:
            return ask(table) if table is not None else None
        except SnapshotExpiredError as error:
            expired = error
    raise expired


def _committed(table: "TopicTable | None") -> int:
    return table.ledger.committed_offset if table is not None else 0


def _check(
    offset: int,
    log: Log,
    find_table: "Callable[[], TopicTable | None]",
    place: str,
    cloud: CloudTier | None,
) -> None:
    snapshot = log.snapshot
    if snapshot.start_offset <= offset <= snapshot.end_offset:
        return
    if offset < snapshot.start_offset:
        if cloud is not None and cloud.holds(offset):
            return
        if offset < _committed(find_table()):
            return
    first = cloud.first_offset if cloud is not None else None
    elsewhere = "nor in the table" if first is None else f"nor in the cloud, which begins at {first}, or a table"
    where = (
        f"in the topic, which ends before {snapshot.end_offset}"
        if offset > snapshot.end_offset
        else f"in the log, which begins at {snapshot.start_offset}, {elsewhere}"
    )
    raise OffsetOutOfRangeError(
        f"offset {offset} is not {where}",
        operation="read",
        place=place,
        remedy="start at earliest, latest or an offset in between",
        details={"start_offset": snapshot.start_offset, "durable_end": snapshot.end_offset},
    )
