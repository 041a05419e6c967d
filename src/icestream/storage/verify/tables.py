"""The tables to verify, as the settings name them; a catalog that is not there is not made."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from icestream.config import Settings
from icestream.model.formats import StorageFormat
from icestream.model.names import TopicName
from icestream.storage.verify.findings import Verification
from icestream.table import Tables, TopicTable
from icestream.table.hive import DATA_PATH
from icestream.table.leftovers import find_leftovers


class FindTable(Protocol):
    def find(self, topic: TopicName, /) -> TopicTable | None: ...


class NoTables:
    """Those of a catalog that nobody has made yet."""

    def find(self, _topic: TopicName) -> TopicTable | None:
        return None


@contextlib.contextmanager
def open_tables(settings: Settings) -> Iterator[FindTable]:
    """For looking only: opening a catalog in a file that is missing would make the file."""
    kind, _, path = (settings.catalog.uri or "").partition("?")[0].partition(":///")
    is_file = settings.catalog.type == "sql" and kind.startswith("sqlite") and path not in ("", ":memory:")
    if is_file and not Path(path).exists():
        yield NoTables()
        return
    with contextlib.closing(Tables(settings)) as tables:
        yield tables


def find_all(topic: TopicName, tables: FindTable) -> list[TopicTable]:
    """The tables of a topic: its own, and that of its plain Parquet files, those that there are."""
    found = (tables.find(name) for name in StorageFormat.BOTH.all_tables(topic))
    return [table for table in found if table is not None]


def reach(tables: Sequence[TopicTable]) -> int:
    """How far the table goes that goes farthest."""
    return max((table.ledger.committed_offset for table in tables), default=0)


def note_plain_files(tables: Sequence[TopicTable], report: Verification) -> None:
    for table in tables:
        if table.is_plain:
            report.parquet_offset = table.ledger.committed_offset
            if tables[0] is table:
                report.parquet_files, report.parquet_rows = report.files, report.rows
            if left := len(find_leftovers(table)):
                report.notes.append(
                    f"{left} files in {table.properties[DATA_PATH]} are in no snapshot: a pipeline is about to commit "
                    "them, or has died; then the next one removes them"
                )
