"""Files that are gone: because their snapshot was expired while somebody read it, or because they are lost."""

from typing import TYPE_CHECKING

from icestream.model.errors import DamagedError, IcestreamError, SnapshotExpiredError
from icestream.table.manifest_index import PlannedFile

if TYPE_CHECKING:
    from icestream.table.topic_table import TopicTable


def expired_or_damaged(
    table: "TopicTable", error: Exception, operation: str, file: PlannedFile | None = None
) -> IcestreamError:
    """What it means that a file of the state `table` is not there: a data file, or one of its metadata.

    A file that the table still counts today is lost, whoever looks for it.
    """
    now = table.refresh()
    is_current = now.snapshot_id == table.snapshot_id if file is None else now.holds(file)
    place = str(table.name) if file is None else file.path
    if is_current:
        what = "a data file cannot be read" if file is not None else "a file of the table's metadata is missing"
        return DamagedError(f"{what}: {error}", operation=operation, place=place)
    return SnapshotExpiredError(
        "the snapshot was expired while it was read",
        operation=operation,
        place=place,
        remedy="load the table again and read on from the next offset",
    )
