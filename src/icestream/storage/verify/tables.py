"""The tables to verify, as the settings name them; a catalog that is not there is not made."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from icestream.config import Settings
from icestream.model.names import TopicName
from icestream.table import Tables, TopicTable


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
