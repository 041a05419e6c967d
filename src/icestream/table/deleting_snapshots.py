"""Snapshots by which another engine deleted rows of a topic's table, and the error that names them."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of

from icestream.model.errors import DamagedError, IcestreamError, RowsDeletedError
from icestream.model.names import topic_of_table
from icestream.table.ledger import COMMITTED_OFFSET, read_removals

if TYPE_CHECKING:
    from icestream.table.tables import TopicTable

_ENGINE = ("engine-name", "engine-version")


@dataclass(frozen=True)
class DeletingSnapshot:
    """A snapshot by which another engine removed rows."""

    snapshot_id: int
    parent_id: int | None
    operation: str
    engine: str
    """As the engine names itself; empty if it does not."""
    time_ms: int

    def __str__(self) -> str:
        by = self.engine or "an engine that does not name itself"
        return f"snapshot {self.snapshot_id} (operation {self.operation}, by {by})"


def deleting_snapshots(table: "TopicTable") -> list[DeletingSnapshot]:
    """Return the snapshots that removed rows and are not accepted, the newest first, as far as the table has them."""
    accepted = {entry.get("snapshot_id") for entry in read_removals(table.properties)}
    metadata = table.iceberg.metadata
    line = ancestors_of(metadata.current_snapshot(), metadata)
    return [_described(one) for one in line if one.snapshot_id not in accepted and _removes_rows(one)]


def _removes_rows(snapshot: Snapshot) -> bool:
    summary = snapshot.summary
    if summary is None or summary.additional_properties.get(COMMITTED_OFFSET) is not None:
        return False  # icestream's own commits remove nothing

    def number(name: str) -> int:
        text = summary.additional_properties.get(name, "0")
        return int(text) if text.isdecimal() else 0

    if number("added-delete-files") > number("removed-delete-files"):
        return True
    return number("deleted-records") > number("added-records") or summary.operation is Operation.DELETE


def _described(snapshot: Snapshot) -> DeletingSnapshot:
    summary = snapshot.summary
    assert summary is not None
    engine = " ".join(text for name in _ENGINE if (text := summary.additional_properties.get(name)))
    return DeletingSnapshot(
        snapshot.snapshot_id,
        snapshot.parent_snapshot_id,
        summary.operation.value,
        engine,
        snapshot.timestamp_ms,
    )


def missing_rows_error(table: "TopicTable", what: str, *, by_delete_files: bool = False) -> IcestreamError:
    """Return the error for rows that should be in the table: who removed them, or that it is damage.

    Rows that delete files name were deleted, although the snapshot that did it may be gone.
    """
    found = deleting_snapshots(table)
    topic = topic_of_table(table.name)
    if not found and by_delete_files:
        return RowsDeletedError(
            f"{what}, and no snapshot of the table says which engine wrote them",
            operation="read table",
            place=str(table.name),
            remedy=f"if the deletion was intended, `icestream table accept-deletes {topic} --by-unknown` accepts it",
        )
    if not found:
        return DamagedError(
            what, operation="read table", place=str(table.name), remedy="run `icestream verify` on the topic"
        )
    metadata, (newest, *older) = table.iceberg.metadata, found
    back = ""
    if not older and newest.snapshot_id == table.snapshot_id and metadata.snapshot_by_id(newest.parent_id or -1):
        back = f"; if not, set the table back to snapshot {newest.parent_id}"  # no commit would be lost
    return RowsDeletedError(
        f"{what}: rows were deleted by {', '.join(map(str, found))}",
        operation="read table",
        place=str(table.name),
        remedy=f"if the deletion was intended, accept it with `icestream table accept-deletes {topic}`{back}",
        details={"snapshots": [asdict(one) for one in found]},
    )
